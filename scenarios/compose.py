"""From a scenario to what a backend executes: a plan and its binding. Nothing below this module sees YAML."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

from scenarios import schedule_csv
from scenarios.architecture import shipped_architecture
from scenarios.consistency import OF_EVERY_SCHEDULE, no_groups, signature_of
from scenarios.document import Document
from scenarios.hardware import build_cluster
from scenarios.parameter_servers import compose_servers
from scenarios.planned import HoldsLanes, Ordered, Planned
from scenarios.profiles import build_profile
from scenarios.schema import Checkpoint, Memory, Scenario
from sim import pipedream_partitioner, ring, tensor_parallel
from sim.antichains import chain_states
from sim.binding import Binding, Figures, bind
from sim.checkpointing import solvers
from sim.cluster import CONTENDED, Cluster
from sim.errors import Fault, ScenarioError, UnsupportedPlan
from sim.memory.allocators import Allocation
from sim.memory.driver import GIB, DriverCosts
from sim.memory.settings import RULES, parse_settings
from sim.model import ModelProfile
from sim.partition import Partition, at_cuts, balanced
from sim.passes import buffers, rematerialize, transfers, weight_versions
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.program import Program
from sim.schedule import Schedule, Shape
from sim.stage_costs import StageCosts
from sim.training import Optimizer, Predict, Training, Weights


class Composed(NamedTuple):
    """What a backend executes."""

    plan: Plan
    binding: Binding


def compose(
    scenario: Scenario,
    document: Document,
    instead: Mapping[str, int] | None = None,
    planned: Planned | None = None,
) -> Composed:
    """Plan a scenario and put figures on it; ``instead`` replaces counts of its schedule, of micro-batches as large.

    ``planned`` are schedules made before, for scenarios that differ in figures only: the same with it and without.

    Raises
    ------
    ScenarioError : parts that are right by themselves but do not fit together, each fault with file and line.
    UnsupportedPlan : a combination that the schedule cannot honour.
    """
    try:
        return _compose(scenario, document, instead or {}, planned or Planned())
    except ScenarioError as error:
        raise ScenarioError.of([document.placed(fault) for fault in error.faults]) from None


def _compose(scenario: Scenario, document: Document, instead: Mapping[str, int], planned: Planned) -> Composed:
    cluster = grouped(build_cluster(scenario.cluster, document.directory("cluster.file")), scenario)
    keys = {**planner_keys(scenario, cluster), **instead}
    if scenario.schedule.name == "parameter_server":
        _refuse_weights(scenario)
        return _composed(scenario, *compose_servers(scenario, document, cluster, keys, _provenance))
    work, recorded = _work(scenario, document, keys, planned)
    shape = work.shape
    devices = _devices(scenario, cluster, work)
    _check_zero(scenario, work, cluster, devices, keys)
    samples, per_micro_batch = _samples(scenario, shape, keys)
    profile = build_profile(scenario, document, cluster, shape.stages, per_micro_batch)
    partition = _partition(scenario, profile, work, cluster, devices)
    _check_buckets(keys, profile)
    checkpoints = checkpoints_of(scenario.memory.checkpoint, profile, partition)
    training = Training(**scenario.training.model_dump())
    uniform, capacity, allocator = scenario.model.uniform, scenario.memory.capacity, _allocation(scenario.memory)
    binding = bind(
        work,
        Figures(
            profile=profile,
            partition=partition,
            training=training,
            cluster=cluster,
            devices=devices,
            samples=samples,
            capacity_bytes=None if capacity is None else round(capacity),
            update_s=(uniform.update or 0.0) if uniform else None,
            pair_s=uniform.forward_backward if uniform else None,
            buckets=int(keys.get("buckets", 1)),
            checkpoints=checkpoints,
            server=work.server if isinstance(work, Program) else None,
            provenance=_provenance(profile, cluster, training) | _allocator_provenance(allocator) | recorded,
            allocator=allocator,
        ),
    )
    by_costs = "costs" in _parameters(scenario)
    if by_costs:
        work = PLANNERS[scenario.schedule.method](**keys, costs=StageCosts.of(work, binding))
    events = None
    if isinstance(work, Schedule):
        known = Planned() if by_costs or scenario.schedule.csv is not None else planned
        make = partial(_ordered, scenario, work, keys)
        work, events = known.ordered(_key_of_passes(scenario, keys), binding.holds_lanes, make)
        if cluster.tensor_parallel > 1:
            tensor_parallel.check_messages(work, binding)
    else:
        _refuse_weights(scenario)
    architecture = None if scenario.model.name is None else shipped_architecture(scenario.model.name)
    method = scenario.schedule.method
    return Composed(Plan(method, work, partition, profile.name, training, events, architecture, checkpoints), binding)


def _ordered(scenario: Scenario, work: Schedule, keys: Mapping[str, Any], holds_lanes: HoldsLanes) -> Ordered:
    """The schedule with its passes applied. Only what `_key_of_passes` holds may decide here."""
    work = schedule_csv.without_lanes(_weigh(scenario, work, keys), holds_lanes)
    if scenario.memory.checkpoint is not None:
        work = rematerialize.apply(work)
    work = transfers.apply(work, holds_lanes)
    return Ordered(work, buffers.apply(work))


def _key_of_passes(scenario: Scenario, keys: Mapping[str, Any]) -> str:
    given = scenario.schedule
    choices = given.weights, given.predict, scenario.training.optimizer, scenario.memory.checkpoint is not None
    return repr((given.method, dict(keys), choices))


def _composed(scenario: Scenario, program: Program, binding: Binding, profile: ModelProfile) -> Composed:
    """The plan of a program, whose workers have the whole model."""
    architecture = None if scenario.model.name is None else shipped_architecture(scenario.model.name)
    training, partition = Training(**scenario.training.model_dump()), ((0, len(profile.layers) - 1),)
    return Composed(
        Plan(scenario.schedule.method, program, partition, profile.name, training, None, architecture), binding
    )


def planner_keys(scenario: Scenario, cluster: Cluster) -> dict[str, Any]:
    """The arguments of the scenario's planner; ``gpus`` are the cluster's."""
    keys = {key: value for key, value in scenario.schedule.given.items() if key not in OF_EVERY_SCHEDULE}
    if "gpus" in _parameters(scenario):
        keys["gpus"] = len(cluster.gpus)
    return keys


def _parameters(scenario: Scenario) -> Mapping[str, inspect.Parameter]:
    """What the scenario's planner, if it has one, wants to know."""
    name = scenario.schedule.name
    return signature_of(PLANNERS[name]).parameters if name is not None else {}


def _work(
    scenario: Scenario, document: Document, keys: Mapping[str, Any], planned: Planned
) -> tuple[Schedule | Program, dict[str, Any]]:
    """What the scenario's planner makes, or what its file holds, with the provenance of the file."""
    method = scenario.schedule.method
    if scenario.schedule.csv is None:
        return planned.work(repr((method, dict(keys))), partial(PLANNERS[method], **keys)), {}
    recorded = read_csv(scenario, document, keys.get("mini_batches", 1))
    source = f"{scenario.schedule.csv}, {recorded.dialect} dialect"
    return recorded.schedule, {"schedule": {"origin": "recorded", "source": source}}


def read_csv(scenario: Scenario, document: Document, mini_batches: int = 1) -> schedule_csv.Recorded:
    """The file of a scenario's ``schedule.csv``.

    Raises
    ------
    ScenarioError : what is wrong with it.
    """
    assert scenario.schedule.csv is not None
    file = document.directory("schedule.csv") / scenario.schedule.csv
    return schedule_csv.read(file, scenario.schedule.dialect, mini_batches)


def grouped(cluster: Cluster, scenario: Scenario) -> Cluster:
    """The cluster with its GPUs in groups, where the scenario's schedule has tensor parallelism.

    Raises
    ------
    ScenarioError : they do not make whole groups.
    """
    size = scenario.schedule.tensor_parallel or 1
    if wrong := no_groups(len(cluster.gpus), size):
        raise ScenarioError.of([Fault(wrong.message, tensor_parallel.KEY, suggestion=wrong.suggestion)])
    return cluster if size == 1 else replace(cluster, tensor_parallel=size)


def _check_zero(
    scenario: Scenario, work: Schedule | Program, cluster: Cluster, devices: Sequence[str], keys: Mapping[str, Any]
) -> None:
    """Refuse ZeRO where there is nothing to share, and where what it gathers would contend with what is summed."""
    if not scenario.training.zero:
        return
    if work.shape.replicas == 1:
        message = "has no influence: there is one replica, which has nothing to share"
        raise ScenarioError.of([Fault(message, "training.zero", suggestion="use several GPUs")])
    kinds = {cluster.links[link].kind for route in ring.hops(cluster, devices) for link in route}
    if scenario.training.zero == 3 and keys.get("buckets", 1) > 1 and kinds & {*CONTENDED}:
        message = "3 gathers parameters while buckets are summed, and on shared links that is not simulated"
        raise ScenarioError.of([Fault(message, "training.zero", suggestion="use buckets: 1, or zero: 2")])


def _devices(scenario: Scenario, cluster: Cluster, work: Schedule | Program) -> tuple[str, ...]:
    """The node of each device of the plan: its devices are the first GPUs; a server beyond them is on the host."""
    wanted = 1 + max(work.placement.values())
    if wanted > len(cluster.gpus):
        what = "devices" if cluster.tensor_parallel == 1 else f"groups of {cluster.tensor_parallel} GPUs"
        message = f"the schedule needs {wanted} {what}, the cluster has {len(cluster.gpus)}"
        raise ScenarioError.of([Fault(message, "schedule.csv" if scenario.schedule.csv else "schedule.stages")])
    devices = tuple(node.name for node in cluster.gpus[:wanted])
    if not isinstance(work, Program) or work.server in work.placement.values():
        return devices
    if not cluster.hosts:
        hint = "add a node of kind host, or write server: gpu or sync: ring"
        raise ScenarioError.of(
            [Fault("a parameter server needs a host in the cluster", "schedule.sync", suggestion=hint)]
        )
    return (*devices, cluster.hosts[0].name)


def _samples(scenario: Scenario, shape: Shape, keys: Mapping[str, Any]) -> tuple[float, float]:
    """Samples of a mini-batch over all replicas, and of one micro-batch on one of them."""
    share = keys.get("micro_batches", 1) / scenario.schedule.given.get("micro_batches", 1)  # 1 unless replaced
    batch, micro_batches = float(scenario.model.batch_size), round(shape.micro_batches / share)
    if keys.get("scaling") == "weak":
        return batch * share * shape.replicas, batch / micro_batches
    return batch * share, batch / (micro_batches * shape.replicas)


def checkpoints_of(
    wanted: Checkpoint | None, profile: ModelProfile, partition: Partition
) -> tuple[tuple[int, ...], ...]:
    """The vertices that each stage keeps: its input, and layers by their number in the stage, from 1."""
    if wanted is None:
        return ()
    plans: list[tuple[int, ...]] = []
    for first, last in partition:
        arriving = profile.layers[first - 1].output_bytes if first else profile.input_bytes
        sizes = [arriving, *(layer.saved_bytes for layer in profile.layers[first : last + 1])]
        optimum = solvers.cubic(sizes) if wanted.objective == "basic" else solvers.quadratic(wanted.objective, sizes)
        plans.append(tuple(optimum if wanted.method == "optimal" else solvers.sqrt_segments(sizes)))
    return tuple(plans)


def _allocation(memory: Memory) -> Allocation:
    """The allocator, with what was not said of its calls to the driver assumed."""
    calls = memory.driver.model_dump(exclude_unset=True) if memory.driver else {}
    per_gib = {f"{key.removesuffix('_per_gib')}_s_per_byte": calls[key] / GIB for key in calls if "_per_" in key}
    each = {f"{key}_s": seconds for key, seconds in calls.items() if "_per_" not in key}
    return Allocation(memory.allocator, parse_settings(memory.settings or ""), DriverCosts(**each, **per_gib))


def _check_buckets(keys: Mapping[str, Any], profile: ModelProfile) -> None:
    if int(keys.get("buckets", 1)) > len(profile.layers):
        message = f"{keys['buckets']} buckets of {len(profile.layers)} layers"
        raise ScenarioError.of([Fault(message, "schedule.buckets", suggestion=f"at most {len(profile.layers)}")])


def _partition(
    scenario: Scenario, profile: ModelProfile, work: Schedule | Program, cluster: Cluster, devices: Sequence[str]
) -> Partition:
    """The layers of each stage: as cut by the scenario, by PipeDream's partitioner, or balanced over seconds."""
    stages, cuts = work.shape.stages, scenario.partition.cuts
    if scenario.partition.method == "pipedream":
        copies = work.shape.copies or (1,) * stages
        slowest = min((cluster.bytes_per_s(cluster.route(a, b)) for a, b in pairwise(devices)), default=math.inf)
        found = pipedream_partitioner.partition(chain_states(profile), sum(copies), slowest, replicas=copies)
        return tuple((stage.first, stage.last) for stage in found.stages)
    if cuts is None:
        return balanced([layer.forward_s + layer.backward_s for layer in profile.layers], stages)
    if len(cuts) + 1 != stages:
        message = f"{len(cuts)} cuts make {len(cuts) + 1} stages, the schedule has {stages}"
        raise ScenarioError.of([Fault(message, "partition.cuts")])
    return at_cuts(len(profile.layers), cuts)


def _weigh(scenario: Scenario, schedule: Schedule, keys: Mapping[str, Any]) -> Schedule:
    """The schedule under the scenario's weight policy, or its method's own."""
    given, name = scenario.schedule, scenario.schedule.method
    if given.csv is not None:  # each step of a file ends with its update: nothing is ever stale
        _refuse_weights(scenario)
        return schedule
    weights = given.weights or cast(Weights, PLANNERS.defaults(name).get("weights", "latest"))
    if given.predict and weights != "predict":
        raise ScenarioError.of([Fault("says nothing without weights: predict", "schedule.predict")])
    if weights != "latest" and not weight_versions.staleness(schedule).max(initial=0) > 0:
        _refuse_weights(scenario)
        return schedule
    if weights != "predict":
        return weight_versions.apply(schedule, weights)
    predict = given.predict or "spectrain"
    _check_optimizer(predict, scenario.training.optimizer)
    long = PLANNERS[name](**{**keys, "mini_batches": weight_versions.mini_batches_to_measure(schedule.shape)})
    assert isinstance(long, Schedule)
    distances = weight_versions.prediction_distances(long, predict)
    if not any(any(ahead) for ahead in distances):
        reason = (
            f"most micro-batches of every stage have a distance of 0: use fewer than {schedule.shape.micro_batches}"
        )
        raise UnsupportedPlan(f"schedule.weights: 'predict' by {predict} has no influence: {reason}")
    return weight_versions.apply(schedule, weights, distances, predict)


PREDICTS_FROM: Mapping[Predict, tuple[Optimizer, ...]] = {
    "spectrain": ("momentum",),
    "pipeoptim": ("momentum", "adam", "adamw"),
    "xpipe": ("adam", "adamw"),
    "pipemare": ("sgd", "momentum", "adam", "adamw"),
}
"""The optimizers whose moments a method predicts from; PipeMare averages the updates themselves."""


def _check_optimizer(predict: Predict, optimizer: Optimizer) -> None:
    if optimizer not in PREDICTS_FROM[predict]:
        others = [other for other, known in PREDICTS_FROM.items() if optimizer in known]
        hint = f"use {' or '.join(PREDICTS_FROM[predict])}, or schedule.predict: {' or '.join(others)}"
        message = f"{optimizer} keeps nothing that {predict} predicts from"
        raise ScenarioError.of([Fault(message, "training.optimizer", suggestion=hint)])


def _refuse_weights(scenario: Scenario) -> None:
    """A weight policy where no weights are ever stale would be a knob without influence."""
    schedule = scenario.schedule
    for key, value in (("weights", schedule.weights), ("predict", schedule.predict)):
        if value not in (None, "latest"):
            reason = f"no weights of this '{schedule.method}' are ever stale"
            raise UnsupportedPlan(f"schedule.{key}: '{value}' has no influence: {reason}")


def _allocator_provenance(allocator: Allocation) -> dict[str, Any]:
    """Where the rules of PyTorch's allocator, and what its calls cost, come from."""
    if allocator.name != "caching":
        return {}
    source = f"c10/cuda/CUDACachingAllocator.cpp of PyTorch at {RULES}; {allocator.costs}"
    return {"allocator": {"origin": "assumed", "source": source}}


def _provenance(profile: ModelProfile, cluster: Cluster, training: Training) -> dict[str, Any]:
    """Which inputs were measured, published or assumed."""
    shared = f", ZeRO stage {training.zero}" if training.zero else ""
    return {
        "model": {"origin": profile.origin, "source": profile.source, "notes": list(profile.notes)},
        "cluster": {"origin": "published" if cluster.source else "assumed", "source": cluster.source or "the scenario"},
        "training": {"origin": "assumed", "source": f"{training.optimizer}, {training.dtype}{shared}"},
    }
