"""The contract of a scenario file: which keys there are and what each may hold."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

from scenarios.consistency import MAX_COUNT, Planners, at_odds, wrong_schedule_keys
from scenarios.document import ALTERNATIVES, SHORT_FORMS, Document, dotted, written_out
from scenarios.plan_section import PlanSpace
from scenarios.quantities import (
    Bytes,
    BytesPerSecond,
    Capacity,
    Flops,
    FlopsPerSecond,
    Seconds,
    UsdPerHour,
    WrongValue,
    printable,
    shown,
)
from scenarios.server_sections import (
    Background,
    Consistency,
    Failure,
    Nics,
    Order,
    ParameterServers,
    Straggler,
)
from scenarios.strict import Many, Section, validate
from scenarios.sweep_conditions import read_condition
from scenarios.sweep_values import read_axis
from sim.errors import Fault, nearest
from sim.training import Dtype, Optimizer, Predict, Weights

MAX_DEVICES = 4096
MAX_POINTS = 1_000_000

LinkKind = Literal["latency", "in_order", "fifo", "fair_share"]
"""As `sim.cluster.LinkKind`, which is not imported for the sake of start-up: it brings networkx."""


def _read_name(value: object) -> object:
    if isinstance(value, str) and not (
        0 < len(value.strip()) <= 100 and value.isprintable() and not set(value) & set("/\\")
    ):
        raise WrongValue(f"expected a name of 1 to 100 characters without slashes, got {shown(value)}")
    return value


def _read_concurrency(value: object) -> object:
    gain = value.get("shared") if isinstance(value, dict) and len(value) == 1 else None
    if value == "exclusive":
        return value
    if isinstance(gain, bool) or not isinstance(gain, int | float) or not 1 <= gain <= 2:
        raise WrongValue(f"expected exclusive, or {{shared: gain}} with a gain from 1 to 2, got {shown(value)}")
    return float(gain)


_CONCURRENCY_SCHEMA: JsonSchemaValue = {
    "anyOf": [
        {"const": "exclusive"},
        {
            "type": "object",
            "properties": {"shared": {"type": "number", "minimum": 1, "maximum": 2}},
            "required": ["shared"],
            "additionalProperties": False,
        },
    ]
}

Name = Annotated[str, BeforeValidator(_read_name)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Share = Annotated[float, Field(gt=0, le=1)]
Concurrency = Annotated[
    Literal["exclusive"] | float,
    BeforeValidator(_read_concurrency),
    WithJsonSchema(_CONCURRENCY_SCHEMA),
]
"""``exclusive``, or the gain in [1, 2] of two compute lanes that share a device."""


class Layer(Section):
    """One layer, at ``measured_batch`` samples (at ``batch_size`` where that is not given)."""

    one_of = ALTERNATIVES["uniform"]
    name: Name = Field(description="the layer's name")
    forward: Seconds = Field(description="the time of the forward pass")
    backward: Seconds | None = None
    backward_input: Seconds | None = None
    backward_weight: Seconds | None = None
    output: Bytes = Field(description="the size of what it passes on")
    saved: Bytes | None = None
    saved_for_weight: Bytes | None = None
    parameters: Bytes = Field(description="the size of its parameters")
    flops: Flops | None = None


class Uniform(Section):
    """What every stage does for one micro-batch. ``forward_backward``: a fused pair, where its time was measured.

    ``saved``: what it keeps for backward, its activation unless given; ``saved_for_weight``: what of that the weight
    gradient still needs after the input gradient, all of it unless given.
    """

    one_of = ALTERNATIVES["uniform"]
    forward: Seconds = Field(description="the time of the forward pass of a stage for one micro-batch")
    backward: Seconds | None = None
    backward_input: Seconds | None = None
    backward_weight: Seconds | None = None
    forward_backward: Seconds | None = None
    activation: Bytes = Field(description="the size of what a stage passes on for one micro-batch")
    saved: Bytes | None = None
    saved_for_weight: Bytes | None = None
    parameters: Bytes = Field(description="the size of the parameters of a stage")
    update: Seconds | None = None


class Model(Section):
    """What is trained. ``batch_size`` is the global mini-batch in samples; ``input`` its bytes, for ``layers``.

    ``measured``: a file of ``twinrail profile`` with the seconds of the model of that name. ``file``: one of
    ``twinrail profile module:factory`` or ``twinrail import kineto`` with a model of its own. ``huggingface``: the
    config.json of a Transformer, at a ``sequence`` of so many positions, its ``attention`` eager unless given.
    """

    one_of = ALTERNATIVES["model"]
    only_with: ClassVar = {
        "measured_batch": ("layers", "profile"),
        "input": ("layers",),
        "measured": ("name",),
        "attention": ("huggingface",),
    }
    name: Name | None = None
    measured: str | None = None
    profile: str | None = None
    file: str | None = None
    layers: Annotated[Many[Layer], Field(min_length=1)] | None = None
    uniform: Uniform | None = None
    huggingface: str | None = None
    sequence: Count | None = None
    attention: Literal["eager", "flash"] | None = None
    batch_size: Count = Field(description="the global mini-batch, in samples")
    measured_batch: Count | None = None
    input: Bytes | None = None


class LinkSettings(Section):
    """What a link does; of a preset, what differs."""

    kind: LinkKind | None = None
    latency: Seconds | None = None
    bandwidth: BytesPerSecond | None = None


class Link(LinkSettings):
    """``between`` two nodes in both directions, or one way ``from`` one ``to`` the other."""

    one_of = (("between",), ("from", "to"))
    between: Annotated[Many[str], Field(min_length=2, max_length=2)] | None = None
    source: str | None = Field(default=None, alias="from")
    target: str | None = Field(default=None, alias="to")
    kind: LinkKind = Field(description="latency, in_order, fifo or fair_share")


class ClusterNode(Section):
    """A GPU, a host or a switch."""

    name: Name = Field(description="the node's name")
    kind: Literal["gpu", "host", "switch"] = Field(description="gpu, host or switch")
    device: str | None = None
    concurrency: Concurrency | None = None


class Cluster(Section):
    """Where it is trained: a preset or a file of ``twinrail import`` and what differs, N equal devices, nodes and
    links, or workers around a switch.

    Of ``workers`` and ``servers`` (hosts) around a switch ``nic`` is what each carries in and out, and ``link`` the
    kind and the latency of the way from one to another. Where the devices are processes of one machine, they share its
    ``cores``. ``price`` is that of one GPU.
    """

    one_of = ALTERNATIVES["cluster"]
    only_with: ClassVar = {
        "device": ("preset", "file", "devices", "workers"),
        "link": ("preset", "file", "devices", "workers"),
        "concurrency": ("preset", "file", "devices"),
        "cores": ("devices",),
        "host": ("devices", "workers"),
        "servers": ("workers",),
        "nic": ("workers",),
    }
    preset: str | None = None
    file: str | None = None
    devices: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    device: str | None = None
    workers: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    servers: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    host: str | None = None
    nic: Nics | None = None
    link: LinkSettings | None = None
    concurrency: Concurrency | None = None
    cores: Count | None = None
    price: UsdPerHour | None = None
    nodes: Annotated[Many[ClusterNode], Field(min_length=1, max_length=MAX_DEVICES)] | None = None
    links: Many[Link] | None = None


class ClusterFile(Section):
    """A shipped cluster, or one that ``twinrail import`` wrote."""

    name: Name = Field(description="the preset's name")
    source: str = Field(description="where the figures come from")
    nodes: Annotated[Many[ClusterNode], Field(min_length=1)] = Field(description="a list of nodes")
    links: Many[Link] = Field(description="a list of links")


class PerDtype(Section):
    """A share of the peak for each number format."""

    fp32: Share | None = None
    bf16: Share | None = None


class Peak(Section):
    """The peak for each number format."""

    fp32: FlopsPerSecond | None = None
    bf16: FlopsPerSecond | None = None


class DeviceFile(Section):
    """A shipped device."""

    name: Name = Field(description="the device's name")
    memory: Capacity = Field(description="its capacity")
    memory_bandwidth: BytesPerSecond = Field(description="the bandwidth of its memory")
    peak: Peak = Field(description="its peak for each number format")
    compute_efficiency: PerDtype = Field(description="the share of the peak that is reached, for each number format")
    memory_efficiency: Share = Field(description="the share of the memory's bandwidth that is reached")
    source: dict[str, str] = Field(description="where each figure comes from")


class Training(Section):
    """How it is trained.

    ``zero``: the stage of ZeRO, from which on the replicas of ``data_parallel`` with ``sync: ring`` share optimizer
    state (1), gradients too (2), parameters too (3).
    """

    optimizer: Optimizer = "momentum"
    dtype: Dtype = "fp32"
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    zero: Annotated[int, Field(ge=0, le=3)] = 0


class Schedule(Section):
    """The order of work: a planner's name and its keys (`validate_schedule_keys`), or a file of PyTorch's.

    ``tensor_parallel``: each device of the plan is a group of so many GPUs of the cluster, one after another, that
    split the layers of a ``model.huggingface`` as Megatron-LM does.
    """

    model_config = ConfigDict(extra="allow")
    one_of = ALTERNATIVES["schedule"]
    only_with: ClassVar = {"dialect": ("csv",)}
    name: str | None = None
    csv: str | None = None
    dialect: Literal["current", "legacy"] | None = None
    stages: Count | None = None
    micro_batches: Count | None = None
    mini_batches: Count | None = None
    weights: Weights | None = None
    predict: Predict | None = None
    consistency: Consistency | None = None
    order: Order | None = None
    bucket: Bytes | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Every key that was written, but the name or the file and its dialect."""
        return self.model_dump(exclude={"name", "csv", "dialect"}, exclude_unset=True)

    @property
    def method(self) -> str:
        """What to call it: its planner's name, or its file's."""
        return self.name or printable(PurePath(self.csv or "").stem)


class Partition(Section):
    """Layers to stages: ``balanced``, ``pipedream``, or explicit cuts, each the first layer of the next stage."""

    one_of = ALTERNATIVES["partition"]
    method: Literal["balanced", "pipedream"] | None = None
    cuts: Many[Count] | None = None


class Checkpoint(Section):
    """Which activations each stage keeps; the others are recomputed before backward."""

    objective: Literal["basic", "corrected", "reentrant", "non_reentrant"] = "corrected"
    method: Literal["optimal", "sqrt_n"] = "optimal"


class DriverCalls(Section):
    """What calls to the CUDA driver take, where not what is assumed of them (`sim.memory.driver.DriverCosts`).

    ``map``, ``unmap``: of one page of expandable segments, which take no cudaMalloc or cudaFree.
    """

    malloc: Seconds | None = None
    malloc_per_gib: Seconds | None = None
    free: Seconds | None = None
    free_per_gib: Seconds | None = None
    map: Seconds | None = None
    unmap: Seconds | None = None


class Memory(Section):
    """Memory of each GPU: its device's capacity unless given, and who hands it out.

    ``settings``: the text of PYTORCH_ALLOC_CONF for PyTorch's ``caching`` allocator.
    """

    capacity: Capacity | None = None
    checkpoint: Checkpoint | None = None
    allocator: Literal["counting", "caching", "best_fit", "arena"] = "counting"
    settings: str | None = None
    driver: DriverCalls | None = None


class Converge(Section):
    """What ``twinrail converge`` trains, the same for every point: fixed before the first run.

    ``synchronous`` and ``vanilla`` name the points between which a gap is measured.
    """

    task: str = Field(description="what to train on: digits or sources")
    learning_rates: Annotated[Many[Annotated[float, Field(gt=0, le=1e3)]], Field(min_length=1)] = Field(
        description="a list of learning rates"
    )
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    target_loss: Annotated[float, Field(gt=0)] = Field(description="the training loss whose time is asked for")
    synchronous: Name | None = None
    vanilla: Name | None = None


_AXIS_SCHEMA: JsonSchemaValue = {
    "anyOf": [
        {"type": "array", "minItems": 1},
        *(
            {
                "type": "object",
                "properties": {kind: {"type": "array", "minItems": 2, "maxItems": 2}},
                "required": [kind],
                "additionalProperties": False,
            }
            for kind in ("uniform", "log_uniform")
        ),
    ]
}
Axis = Annotated[Any, BeforeValidator(read_axis), WithJsonSchema(_AXIS_SCHEMA)]
"""A list of values, or two ends between which each value is as likely, or each of its logarithms."""
When = Annotated[Any, BeforeValidator(read_condition), WithJsonSchema({"type": "object", "minProperties": 1})]
"""Paths and what stands there: a value, a list of them, or bounds such as ``{below: schedule.stages}``."""


class Samples(Section):
    """Points drawn at random, the same for the same seed."""

    samples: Annotated[int, Field(ge=1, le=MAX_POINTS)] = Field(description="how many points")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    axes: Annotated[dict[str, Axis], Field(min_length=1)] = Field(
        description="paths, each with a list of values, {uniform: [LOW, HIGH]} or {log_uniform: [LOW, HIGH]}"
    )


class Sweep(Section):
    """Many scenarios in one: a list of what differs, every combination of values, or samples.

    Points are left out for which any of ``skip`` holds, and, where there is ``only_if``, for which none of it does.
    """

    one_of = ALTERNATIVES["sweep"]
    points: Annotated[Many[dict[str, Any]], Field(min_length=1, max_length=MAX_POINTS)] | None = None
    grid: Annotated[dict[str, Annotated[Many[Any], Field(min_length=1)]], Field(min_length=1)] | None = None
    random: Samples | None = None
    latin_hypercube: Samples | None = None
    only_if: Annotated[Many[When], Field(min_length=1)] | None = None
    skip: Annotated[Many[When], Field(min_length=1)] | None = None


class Distribution(Section):
    """How durations vary about their mean, as a share of it: coefficient of variation, or half-width.

    ``empirical``: measured times, or a file of them, one a line; their mean is that of what they are about.
    """

    one_of = ALTERNATIVES["compute"]
    lognormal: Annotated[float, Field(gt=0, le=10)] | None = None
    uniform: Annotated[float, Field(gt=0, le=1)] | None = None
    exponential: Literal[True] | None = None
    empirical: Annotated[Many[Annotated[float, Field(gt=0)]], Field(min_length=2)] | str | None = None


def _read_variation(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in ("constant", "exponential"):
        expected = "constant, exponential, {lognormal: 0.3}, {uniform: 0.1} or {empirical: file or list}"
        raise WrongValue(f"expected {expected}, got {shown(value)}", nearest(value, ("constant", "exponential")))
    return None if value == "constant" else {"exponential": True}


Variation = Annotated[Distribution | None, BeforeValidator(_read_variation)]


class Jitter(Section):
    """One distribution for every op, or one for those that compute, that move bytes, that a server applies."""

    lognormal: Annotated[float, Field(gt=0, le=10)] | None = None
    uniform: Annotated[float, Field(gt=0, le=1)] | None = None
    compute: Variation = None
    communication: Variation = None
    apply: Variation = None


class Scenario(Section):
    """One question: what happens if this model is trained in this way on this cluster."""

    only_with: ClassVar = {"samples": ("jitter",)}
    name: Name = Field(description="the scenario's name")
    model: Model = Field(description="what is trained")
    cluster: Cluster = Field(
        description="where it is trained: a preset's name, {devices: N, link: …}, {workers: N, nic: …}, nodes and links"
    )
    training: Training = Training()
    schedule: Schedule = Field(description="in which order")
    partition: Partition = Partition(method="balanced")
    memory: Memory = Memory()
    backend: Literal["simulated", "longest_path", "torch"] = "simulated"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    samples: Annotated[int, Field(ge=10, le=10**6)] | None = None
    jitter: Jitter | None = None
    parameter_servers: ParameterServers | None = None
    background: Background | None = None
    stragglers: Annotated[Many[Straggler], Field(min_length=1)] | None = None
    faults: Annotated[Many[Failure], Field(min_length=1)] | None = None
    steady_state: Literal["detect"] | None = None
    converge: Converge | None = None
    sweep: Sweep | None = None
    plan: PlanSpace | None = None


def parse(document: Document, planners: Planners | None = None) -> Scenario:
    """The scenario of a document. A sweep in it is checked for its shape only: see `scenarios.points`.

    Without ``planners`` neither the schedule's name nor the keys of its planner are checked.

    Raises
    ------
    ScenarioError : every fault of the document, each with file, line and path.
    """
    document = written_out(document)
    return validate(Scenario, document, at_odds(document, planners))


def validate_schedule_keys(name: str, keys: Mapping[str, object], signature: inspect.Signature) -> list[Fault]:
    """What is wrong with the keys of a schedule for the planner of that signature (annotations evaluated)."""
    return [
        Fault(wrong.message, dotted(wrong.path), suggestion=wrong.suggestion)
        for wrong in wrong_schedule_keys(name, keys, signature)
    ]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors."""
    schema = _without_null(Scenario.model_json_schema())
    for key in SHORT_FORMS:
        schema["properties"][key] = {"anyOf": [{"type": "string"}, schema["properties"][key]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _without_null(schema: Any) -> Any:
    """A key without a value is refused, so ``null`` is no choice; pydantic offers it for every optional key."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    only = kept.pop("anyOf") if len(kept.get("anyOf", "12")) == 1 else [{}]
    return {**only[0], **kept}
