"""The contract: what a scenario file means, what a sweep stands for, and what editors are told."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim.cluster
from scenarios import schema
from scenarios.consistency import MAX_FORWARDS
from scenarios.document import Document
from scenarios.load import apply_sets, load_document, parse_text, shipped
from scenarios.points import parse_points, points
from scenarios.schema import ClusterFile, DeviceFile, Scenario, json_schema, parse, validate_schedule_keys
from scenarios.strict import validate
from sim.errors import ScenarioError
from sim.training import Training

ROOT = Path(__file__).parents[2]
TIMES = "forward: 18.522 ms, backward_input: 18.086 ms, backward_weight: 9.337 ms"
CONTRACT = """\
name: example
model: {uniform: {TIMES, activation: 8 MB, parameters: 100 MB}, batch_size: 32}
cluster: {devices: 8, link: {kind: latency, latency: 0.601 ms}}
training: {optimizer: momentum, dtype: fp32, momentum: 0.9, learning_rate: 0.01}
schedule: {name: one_f_one_b, stages: 8, micro_batches: 24, mini_batches: 1, weights: latest}
partition: balanced
memory: {capacity: 24 GiB, allocator: counting}
backend: simulated
seed: 0
""".replace("TIMES", TIMES)
POINTS = "sweep: {points: [{name: gpipe, schedule: {name: gpipe, stages: 4, micro_batches: 8}}]}\n"
GRID = "sweep: {grid: {cluster.link.bandwidth: [8 GB/s, 12 GB/s]}}\n"


def read(text: str) -> Document:
    return parse_text(text, "x.yaml")


def faults(call: Callable[[], object]) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        call()
    return [str(fault) for fault in caught.value.faults]


def test_the_contract() -> None:
    scenario = parse(read(CONTRACT))
    assert scenario.name == "example"
    assert scenario.model.uniform is not None
    assert scenario.model.uniform.model_dump(exclude_none=True) == {
        "forward": 0.018522,
        "backward_input": 0.018086,
        "backward_weight": 0.009337,
        "activation": 8e6,
        "parameters": 1e8,
    }
    assert (scenario.model.batch_size, scenario.cluster.devices) == (32, 8)
    assert scenario.cluster.link is not None
    assert (scenario.cluster.link.kind, scenario.cluster.link.latency) == ("latency", 0.000601)
    assert scenario.schedule.name == "one_f_one_b"
    assert scenario.schedule.given == {"stages": 8, "micro_batches": 24, "mini_batches": 1, "weights": "latest"}
    assert (scenario.partition.method, scenario.partition.cuts) == ("balanced", None)
    assert scenario.memory.capacity == 24 * 2**30
    assert (scenario.backend, scenario.seed, scenario.sweep) == ("simulated", 0, None)


def test_what_may_be_left_out() -> None:
    lines = CONTRACT.splitlines(keepends=True)
    brief = "".join(line for line in lines if line.split(":")[0] in ("name", "model", "cluster", "schedule"))
    assert parse(read(brief)).model_dump(exclude={"memory"}) == parse(read(CONTRACT)).model_dump(exclude={"memory"})
    assert parse(read(brief)).memory.capacity is None
    assert Training(**Scenario.model_fields["training"].default.model_dump()) == Training()


def test_every_form_of_a_cluster() -> None:
    def cluster(text: str) -> dict[str, Any]:
        document = apply_sets(read(CONTRACT), [f"cluster={text}", "schedule.stages=1"])
        return parse(document).cluster.model_dump(exclude_none=True, by_alias=True)

    assert cluster("nvlink-8gpu") == {"preset": "nvlink-8gpu"}
    assert cluster("{preset: nvlink-8gpu, device: p40, link: {bandwidth: 8 Gbit/s}, concurrency: {shared: 1.5}}") == {
        "preset": "nvlink-8gpu",
        "device": "p40",
        "link": {"bandwidth": 1e9},
        "concurrency": 1.5,
    }
    assert cluster("{devices: 1, concurrency: exclusive}") == {"devices": 1, "concurrency": "exclusive"}
    nodes = "[{name: a, kind: gpu, device: p40}, {name: b, kind: host}]"
    both_ways = "{between: [a, b], kind: fifo, bandwidth: 1 GB/s, latency: 1 us}"
    there_and_back = "{from: a, to: b, kind: latency}, {from: b, to: a, kind: latency, latency: 1 s}"
    assert cluster(f"{{nodes: {nodes}, links: [{both_ways}]}}")["links"] == (
        {"kind": "fifo", "latency": 1e-6, "bandwidth": 1e9, "between": ("a", "b")},
    )
    assert cluster(f"{{nodes: {nodes}, links: [{there_and_back}]}}")["links"] == (
        {"kind": "latency", "from": "a", "to": "b"},
        {"kind": "latency", "latency": 1.0, "from": "b", "to": "a"},
    )


def test_layers_and_profiles(tmp_path: Path) -> None:
    layer = "{name: conv, forward: 1 ms, backward: 2 ms, output: 8 MB, saved: 4 MB, parameters: 0 B, flops: 3 GFLOP}"
    sets = [f"model.layers=[{layer}]", "model.measured_batch=16", "model.input=1 MB", "schedule.stages=1"]
    model = parse(apply_sets(read(CONTRACT), sets)).model
    assert model.layers is not None
    assert (model.layers[0].saved, model.layers[0].flops, model.measured_batch, model.input) == (4e6, 3e9, 16, 1e6)
    (tmp_path / "graph.txt").write_text("x")
    assert parse(apply_sets(read(CONTRACT), [f"model.profile={tmp_path}/graph.txt"])).model.uniform is None


def test_nothing_changes_a_scenario() -> None:
    scenario = parse(read(CONTRACT))
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", shipped("clusters"))
def test_shipped_clusters(name: str) -> None:
    cluster = validate(ClusterFile, load_document(shipped("clusters")[name]))
    assert cluster.name == name
    assert {node.device for node in cluster.nodes if node.device} <= shipped("devices").keys()


@pytest.mark.parametrize("name", shipped("devices"))
def test_shipped_devices(name: str) -> None:
    device = validate(DeviceFile, load_document(shipped("devices")[name]))
    assert device.name == name
    assert device.peak.model_fields_set == device.compute_efficiency.model_fields_set


def test_link_kinds_are_those_of_clusters() -> None:
    assert get_args(schema.LinkKind) == get_args(sim.cluster.LinkKind)


def test_points() -> None:
    ((overrides, document),) = points(read(CONTRACT + POINTS))
    assert overrides == {"name": "gpipe", "schedule": {"name": "gpipe", "stages": 4, "micro_batches": 8}}
    assert document.data == {**read(CONTRACT).data, **overrides}
    (point,) = parse_points(read(CONTRACT + POINTS))
    assert point.scenario.schedule.given == {"stages": 4, "micro_batches": 8}
    assert parse(read(CONTRACT + POINTS)).name == "example"


def test_no_sweep_is_one_point() -> None:
    document = read(CONTRACT)
    assert points(document) == [({}, document)]


def test_a_grid_is_the_product_of_its_axes_in_the_order_of_the_file() -> None:
    axes: dict[str, list[object]] = {
        "seed": [3, 1],
        "schedule.stages": [2, 4, 8],
        "cluster.link.latency": ["1 us", "2 us"],
    }
    document = apply_sets(read(CONTRACT), [f"sweep.grid.{path}={values}" for path, values in axes.items()])
    found = points(document)
    assert [tuple(overrides.values()) for overrides, _ in found] == list(itertools.product(*axes.values()))
    assert all(list(overrides) == list(axes) for overrides, _ in found)
    scenario = parse(found[-1][1])
    assert scenario.cluster.link is not None
    assert (scenario.seed, scenario.schedule.stages, scenario.cluster.link.latency) == (1, 8, 2e-6)


def test_a_grid_opens_a_preset_and_replaces_alternatives() -> None:
    grid = "sweep: {grid: {cluster.link.bandwidth: [8 GB/s], model.name: [vgg16], partition.cuts: [[1, 2, 3]]}}\n"
    text = re.sub("cluster: .*", "cluster: pcie3-switch-4gpu", CONTRACT).replace("stages: 8", "stages: 4") + grid
    ((_, document),) = points(read(text))
    scenario = parse(document)
    assert (scenario.cluster.preset, scenario.model.uniform, scenario.model.name) == (
        "pcie3-switch-4gpu",
        None,
        "vgg16",
    )
    assert scenario.partition.cuts == (1, 2, 3)


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{points: []}", ["x.yaml:10: sweep.points: is empty"]),
        ("{grid: {}}", ["x.yaml:10: sweep.grid: is empty"]),
        ("{grid: {seed: []}}", ["x.yaml:10: sweep.grid.seed: is empty"]),
        ("{grid: {seed: 3}}", ["x.yaml:10: sweep.grid.seed: expected a list, got 3"]),
        ("{}", ["x.yaml:10: sweep: expected exactly one of points, grid, random, latin_hypercube; got none"]),
        ("", ["x.yaml:10: sweep: has no value"]),
        ("[]", ["x.yaml:10: sweep: expected keys and values, got a list"]),
        ("{point: []}", ["x.yaml:10: sweep.point: unknown key 'point' (did you mean 'points'?)"]),
        ("{points: [3]}", ["x.yaml:10: sweep.points.0: expected keys and values, got 3"]),
        ("{points: [{sweep: {}}]}", ["x.yaml:10: sweep.points.0.sweep: a point holds no sweep"]),
        (
            "{points: [{seed: 1}, {sed: 1}]}",
            ["x.yaml:10: sweep.points.1.sed: unknown key 'sed' (did you mean 'seed'?)"],
        ),
        ("{points: [{schedule: {name: x, stages: 99}}]}", ["sweep.points.0.schedule.stages: 99 stages on 8 devices"]),
        ("{grid: {schedule.stages: [2, 99]}}", ["x.yaml:10: sweep.grid.schedule.stages: 99 stages on 8 devices"]),
        ("{grid: {model.batch: [2]}}", ["x.yaml:10: sweep.grid.model.batch: unknown key 'batch'"]),
        ("{grid: {seed.x: [2]}}", ["x.yaml:10: sweep.grid.seed.x: 'seed' is 0: it has no keys of its own"]),
        ("{grid: {a..b: [2]}}", ["x.yaml:10: sweep.grid.a..b: expected a path such as"]),
        ("{grid: {cluster.link: [2], cluster: [3]}}", ["x.yaml:10: sweep.grid.cluster.link: is part of 'cluster'"]),
        (
            "{grid: {seed: [" + "1," * 1001 + "], model.batch_size: [" + "1," * 1000 + "]}}",
            ["x.yaml:10: sweep.grid: 1001000 points: the limit is 1000000"],
        ),
    ],
)
def test_sweeps_that_are_none(sweep: str, expected: Sequence[str]) -> None:
    found = faults(lambda: parse_points(read(f"{CONTRACT}sweep: {sweep}\n")))
    assert len(found) == len(expected)
    for fault, text in zip(found, expected, strict=True):
        assert text in fault


def test_a_broken_sweep_does_not_hide_other_faults() -> None:
    assert faults(lambda: parse_points(read(CONTRACT.replace("seed: 0", "seed: x") + "sweep: {points: []}\n"))) == [
        "x.yaml:9: seed: expected a whole number, got 'x'",
        "x.yaml:10: sweep.points: is empty",
    ]


def test_the_same_fault_of_all_points_is_reported_once() -> None:
    text = CONTRACT.replace("seed: 0", "sed: 0") + "sweep: {points: [{name: a}, {name: b}]}\n"
    assert faults(lambda: parse_points(read(text))) == ["x.yaml:9: sed: unknown key 'sed' (did you mean 'seed'?)"]


def test_a_set_that_no_point_feels_is_refused() -> None:
    document = read(CONTRACT + POINTS)
    assert faults(lambda: points(apply_sets(document, ["schedule.stages=2"]))) == [
        "--set schedule.stages: has no effect: every point of the sweep replaces 'schedule'"
    ]
    assert points(apply_sets(document, ["sweep.points.0.schedule.stages=2"]))[0][1].data["schedule"]["stages"] == 2
    assert points(apply_sets(document, ["seed=2"]))[0][1].data["seed"] == 2
    assert faults(lambda: parse_points(apply_sets(document, ["sweep.points.0.schedule.stages=99"]))) == [
        "--set sweep.points.0.schedule.stages: 99 stages on 8 devices (use 1 to 8 stages)"
    ]


def plan(
    stages: int,
    micro_batches: int,
    gpus: int = 1,
    timeline: Literal["concurrent", "alternating"] = "concurrent",
    sizes: tuple[int, ...] = (),
    jitter: float = 0.0,
) -> None:
    """A planner's signature, as `inspect` sees it."""


def test_schedule_keys_are_the_planner_s_parameters() -> None:
    signature = inspect.signature(plan, eval_str=True)

    def wrong(**keys: object) -> list[str]:
        return [
            str(fault) for fault in validate_schedule_keys("p", {"stages": 2, "micro_batches": 3, **keys}, signature)
        ]

    assert wrong(timeline="alternating", sizes=[1, 2], jitter=1, weights="stash", predict="spectrain") == []
    assert wrong(timline="x") == [
        "schedule.timline: unknown key 'timline' of schedule 'p' (did you mean 'timeline'?)",
    ]
    known = ("stages", "micro_batches", "timeline", "sizes", "jitter", "weights", "predict", "tensor_parallel")
    assert wrong(buckets=3)[0].endswith(f"(known: {', '.join(known)})")
    assert wrong(timeline="alternate") == [
        "schedule.timeline: expected one of concurrent, alternating, got 'alternate' (did you mean 'alternating'?)"
    ]
    assert wrong(stages=0) == ["schedule.stages: must be from 1 to 1000000, got 0"]
    assert wrong(stages="2", micro_batches=2.5, jitter="x", sizes=[True]) == [
        "schedule.stages: expected a whole number, got '2'",
        "schedule.micro_batches: expected a whole number, got 2.5",
        "schedule.jitter: expected a number, got 'x'",
        "schedule.sizes: expected a whole number, got true",
    ]
    assert [str(fault) for fault in validate_schedule_keys("p", {"stages": 2}, signature)] == [
        "schedule.micro_batches: missing: schedule 'p' needs it"
    ]


def test_parse_checks_schedules_against_planners() -> None:
    where, timelines = "x.yaml:5: schedule", "concurrent, alternating"
    text = CONTRACT.replace("weights: latest", "timeline: alternate")
    assert faults(lambda: parse(read(text), {"one_f_one_b": plan})) == [
        f"{where}.mini_batches: unknown key 'mini_batches' of schedule 'one_f_one_b' (did you mean 'micro_batches'?)",
        f"{where}.timeline: expected one of {timelines}, got 'alternate' (did you mean 'alternating'?)",
    ]
    assert faults(lambda: parse(read(CONTRACT), {"1f1b": plan, "one_f_one_bee": plan})) == [
        f"{where}.name: unknown schedule 'one_f_one_b': known are 1f1b, one_f_one_bee (did you mean 'one_f_one_bee'?)"
    ]


@given(st.tuples(*[st.integers(1, 10**6)] * 3))
def test_the_limit_of_forward_passes(counts: tuple[int, int, int]) -> None:
    stages, micro_batches, mini_batches = counts
    sets = [
        f"schedule.stages={stages}",
        f"schedule.micro_batches={micro_batches}",
        f"schedule.mini_batches={mini_batches}",
    ]
    document = apply_sets(read(CONTRACT), [*sets, "cluster=unknown"])
    found = faults(lambda: parse(document))
    assert any(str(MAX_FORWARDS) in fault for fault in found) == (stages * micro_batches * mini_batches > 20_000_000)


def test_json_schema() -> None:
    described = json_schema()
    assert set(described["properties"]) == set(Scenario.model_fields)
    assert described["required"] == ["name", "model", "cluster", "schedule"]
    assert described["additionalProperties"] is False
    assert described["properties"]["cluster"]["anyOf"][0] == {"type": "string"}
    parts = described["$defs"]
    assert parts["Schedule"]["additionalProperties"] is True
    assert {"required": ["from", "to"]} in parts["Link"]["oneOf"]
    pattern = re.compile(parts["Uniform"]["properties"]["forward"]["pattern"])
    assert pattern.search("18.522 ms")
    assert not pattern.search("18.522")
    assert "null" not in str(described)
    assert "pydantic" not in str(described)


def test_reading_scenarios_needs_no_heavy_import() -> None:
    heavy = "{'numpy', 'torch', 'matplotlib', 'networkx', 'simpy'}"
    code = f"import sys, scenarios.points; print(*(sys.modules.keys() & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
