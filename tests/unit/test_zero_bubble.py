"""The zero-bubble schedules against the paper (arXiv 2401.10241), their closed forms, and a recount of their memory."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.longest_path import BACKEND as LONGEST_PATH
from scenarios.compose import compose as compose_scenario
from scenarios.load import load_document
from scenarios.schema import parse
from sim.engine.run import run
from sim.errors import UnsupportedPlan
from sim.longest_path import times, unit_slots
from sim.memory.buffers import BufferKind
from sim.model import Layer
from sim.ops import OpKind
from sim.planners import PLANNERS, zb_1p, zb_2p, zb_h1, zb_h2, zb_v
from sim.schedule import Schedule
from sim.stage_costs import StageCosts
from sim.trace import Trace

SMALL = (2304, 24, 1024)
"""Hidden size, heads and sequence length of the paper's model of 1.5 billion parameters, on 8 GPUs."""
LARGE = (5120, 40, 1024)
"""The same of 14.6 billion, on 16."""

PUBLISHED = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), SMALL, (0.1585, 0.1083, 0.1585, 0.0433)),
    (8, 32, (18.513, 18.086, 9.331, 0.626), SMALL, (0.1242, 0.0837, 0.1242, 0.0039)),
    (8, 64, (18.546, 18.097, 9.321, 0.762), SMALL, (0.0674, 0.0444, 0.0674, 0.0026)),
    (16, 48, (11.347, 11.248, 8.132, 0.377), LARGE, (0.1397, 0.0672, 0.1397, 0.0066)),
]
"""GPUs, micro-batches, times in ms (table 9), model, bubble rates of ZB-H1, ZB-H2, ZB-1p and ZB-2p (table 5)."""

SPLIT = (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)


def weight_state(model: tuple[int, int, int]) -> float:
    """M_W / M_B of a transformer layer: 32h of 34h + 5as bytes a token."""
    hidden, heads, sequence = model
    return 32 * hidden / (34 * hidden + 5 * heads * sequence)


def layer(forward_s: float, input_s: float, weight_s: float, saved: float = 0.0, for_weight: float = 0.0) -> Layer:
    """A stage that sends nothing."""
    return Layer("stage", forward_s, input_s, weight_s, 0.0, saved, 0.0, saved_for_weight_bytes=for_weight)


def longest_span_s(ops: Any, start_s: Any, end_s: Any) -> float:
    """The longest time from the first to the last pass of a GPU."""
    spans_s = []
    for device in np.unique(ops["source"]).tolist():
        mine = (ops["source"] == device) & np.isin(ops["kind"], SPLIT)
        spans_s.append(float(end_s[mine].max() - start_s[mine].min()))
    return max(spans_s)


def span_of(schedule: Schedule, forward_s: float, input_s: float, weight_s: float) -> float:
    """The longest span of a GPU where transfers are free."""
    seconds = dict(zip(SPLIT, (forward_s, input_s, weight_s), strict=True))
    start_s, end_s = times(schedule, [seconds.get(OpKind(kind), 0.0) for kind in schedule.ops["kind"].tolist()])
    return longest_span_s(schedule.ops, np.array(start_s), np.array(end_s))


def bubble(trace: Trace, work_s: float) -> float:
    """(cost − m(F + I + W)) / cost, where the cost is the longest span."""
    return 1 - trace.shape.micro_batches * work_s / longest_span_s(trace.ops, trace.start_s, trace.end_s)


def recounted(schedule: Schedule, state: float, chunk: float = 1.0) -> list[float]:
    """The most activations of a micro-batch each GPU holds: F +1, I state − 1, W −state, in its own order."""
    effect = {OpKind.FORWARD: 1.0, OpKind.BACKWARD_INPUT: state - 1, OpKind.BACKWARD_WEIGHT: -state, OpKind.UPDATE: 0.0}
    lanes = [schedule.ops["kind"][row].tolist() for row in schedule.order]
    return [max(np.cumsum([effect[OpKind(kind)] * chunk for kind in kinds])) for kinds in lanes]


def in_flight(schedule: Schedule) -> list[tuple[int, int]]:
    """For each GPU the most micro-batches between F and I, and the most between I and W."""
    found = []
    for row in schedule.order:
        kinds = schedule.ops["kind"][row]
        done = [np.cumsum(kinds == kind) for kind in SPLIT]
        found.append((int((done[0] - done[1]).max()), int((done[1] - done[2]).max())))
    return found


@pytest.mark.parametrize(("stages", "micro_batches", "times_s", "model", "published"), PUBLISHED)
@pytest.mark.parametrize(("planner", "column"), [(zb_h1, 0), (zb_h2, 1)])
def test_the_orders_by_hand_reproduce_the_paper(
    simulate: Any,
    mesh: Any,
    stages: int,
    micro_batches: int,
    times_s: tuple[float, ...],
    model: tuple[int, int, int],
    published: tuple[float, ...],
    planner: ModuleType,
    column: int,
) -> None:
    schedule = planner.plan(stages, micro_batches)
    trace = simulate(schedule, mesh(stages, "latency", times_s[3]), [layer(*times_s[:3])])
    assert round(bubble(trace, sum(times_s[:3])), 4) == published[column]


@pytest.mark.parametrize(("stages", "micro_batches", "times_s", "model", "published"), PUBLISHED)
@pytest.mark.parametrize(("planner", "column", "tolerance"), [(zb_1p, 2, 0.002), (zb_2p, 3, 0.005)])
def test_the_searched_orders_are_as_good_as_the_paper_s(
    simulate: Any,
    mesh: Any,
    stages: int,
    micro_batches: int,
    times_s: tuple[float, ...],
    model: tuple[int, int, int],
    published: tuple[float, ...],
    planner: ModuleType,
    column: int,
    tolerance: float,
) -> None:
    (forward_s, input_s, weight_s, latency_s), state = times_s, weight_state(model)
    costs = StageCosts.equal(stages, forward_s, input_s, weight_s, latency_s, state)
    schedule = planner.plan(stages, micro_batches, costs=costs)
    trace = simulate(schedule, mesh(stages, "latency", times_s[3]), [layer(*times_s[:3])])
    assert bubble(trace, sum(times_s[:3])) <= published[column] + tolerance
    assert max(recounted(schedule, state)) <= (column - 1) * stages + 1e-9


@given(
    stages=st.integers(1, 8),
    further=st.integers(0, 8),
    forward_s=st.floats(1.0, 3.0),
    input_s=st.floats(1.0, 3.0),
    weight_s=st.floats(0.1, 1.0),
)
@settings(max_examples=60)
def test_bubbles_by_hand(stages: int, further: int, forward_s: float, input_s: float, weight_s: float) -> None:
    micro_batches, passes_s = 2 * stages + further, (forward_s, input_s, weight_s)
    work_s, both_s = micro_batches * sum(passes_s), forward_s + input_s
    for planner, weights in ((zb_h1, 1), (zb_h2, 2)):
        waiting_s = span_of(planner.plan(stages, micro_batches), *passes_s) - work_s
        assert waiting_s == pytest.approx((stages - 1) * (both_s - weights * weight_s), abs=1e-9 * work_s)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_in_flight_by_hand(stages: int) -> None:
    for planner, depth in ((zb_h1, 1), (zb_h2, 2)):
        schedule = planner.plan(stages, 4 * stages)
        expected = [(depth * (stages - 1 - stage) + 1, depth * stage + 1) for stage in range(stages)]
        assert in_flight(schedule) == expected
        for state in (0.0, 0.4, 1.0):
            assert max(recounted(schedule, state)) <= depth * (stages - 1) + 1


COSTS = st.tuples(*[st.sampled_from((0.1, 0.5, 1.0, 2.0, 3.0))] * 3)


@given(
    stages=st.integers(1, 6), micro_batches=st.integers(1, 14), passes_s=COSTS, state=st.sampled_from((0.0, 0.4, 1.0))
)
@settings(max_examples=60)
def test_a_search_is_never_worse_than_by_hand(
    stages: int, micro_batches: int, passes_s: tuple[float, float, float], state: float
) -> None:
    costs = StageCosts.equal(stages, *passes_s, 0.0, state)
    for searched, by_hand in ((zb_1p, zb_h1), (zb_2p, zb_h2)):
        found = span_of(searched.plan(stages, micro_batches, costs=costs), *passes_s)
        assert found <= span_of(by_hand.plan(stages, micro_batches), *passes_s) * (1 + 1e-9)


@given(data=st.data(), stages=st.integers(1, 6), micro_batches=st.integers(1, 12))
@settings(max_examples=60)
def test_any_costs_keep_the_limit(data: st.DataObject, stages: int, micro_batches: int) -> None:
    """Stages that differ, passes that take no time, weight states larger than activations."""
    column = st.tuples(*[st.sampled_from((0.0, 0.3, 1.0, 4.0))] * stages)
    state = data.draw(st.sampled_from((0.0, 0.5, 1.0, 1.5)))
    forward_s, input_s, weight_s, activation_s, gradient_s = (data.draw(column) for _ in range(5))
    held = (2.0,) * stages, (2.0 * state,) * stages
    costs = StageCosts(forward_s, input_s, weight_s, activation_s, gradient_s, *held)
    limit = data.draw(st.floats(max(state, 1.0), 2.0 * stages + 2))
    schedule = zb_2p.plan(stages, micro_batches, memory_limit=limit, costs=costs)
    assert max(recounted(schedule, state)) <= limit + 1e-6
    assert len(schedule) == stages * (3 * micro_batches + 1)


def test_more_memory_means_less_bubble() -> None:
    costs = StageCosts.equal(8, 18.522, 18.086, 9.337, 0.0, 0.4)
    spans = [
        span_of(zb_1p.plan(8, 24, memory_limit=limit, costs=costs), 18.522, 18.086, 9.337)
        for limit in (1, 2, 4, 8, 12, 16, 24)
    ]
    assert spans == sorted(spans, reverse=True)
    assert len(set(spans)) > 4


@pytest.mark.parametrize(("limit", "state", "needed"), [(0.5, 1.0, "1"), (1.2, 1.5, "1.5"), (-1.0, 0.2, "1")])
def test_a_limit_below_one_micro_batch_is_refused(limit: float, state: float, needed: str) -> None:
    with pytest.raises(UnsupportedPlan, match=f"memory_limit = {limit:g}: one micro-batch alone needs {needed}"):
        zb_1p.plan(2, 4, memory_limit=limit, costs=StageCosts.equal(2, weight_state=state))


@pytest.mark.parametrize("planner", [zb_h1, zb_h2, zb_1p, zb_2p])
@pytest.mark.parametrize("state", [0.25, 1.0])
def test_the_memory_of_a_run_is_the_recount(simulate: Any, planner: ModuleType, state: float) -> None:
    """Bytes that a run holds for activations and weight states, against the recount of the order."""
    schedule = planner.plan(4, 8)
    trace = simulate(schedule, layers=[layer(1.0, 1.0, 1.0, 1000.0, 1000.0 * state)])
    held = np.isin(trace.memory["kind"], (BufferKind.ACTIVATION, BufferKind.WEIGHT_STATE))
    for device, most in enumerate(recounted(schedule, state)):
        mine = trace.memory["bytes"][held & (trace.memory["device"] == device)]
        assert np.cumsum(mine).max() == 1000.0 * most
        assert mine.sum() == 0


def test_unless_stated_the_weight_gradient_needs_all_that_is_saved(compose: Any) -> None:
    _, binding = compose(zb_h1.plan(2, 2), layers=[Layer("stage", 1.0, 1.0, 1.0, 0.0, 7.0, 0.0)])
    assert binding.buffer_bytes[BufferKind.WEIGHT_STATE, 0] == binding.buffer_bytes[BufferKind.ACTIVATION, 0] == 7


def test_a_received_gradient_is_held_for_the_weight_gradient(compose: Any) -> None:
    plan, _ = compose(zb_h1.plan(2, 2))
    schedule, events = plan.work, plan.events
    mine = events[(events["kind"] == BufferKind.OUTPUT_GRADIENT) & (events["number"] == 0)]
    changes = {str(schedule.id(int(row["op"]))): (int(row["device"]), int(row["sign"])) for row in mine}
    assert changes == {"1SB0": (0, 1), "0W0": (0, -1)}


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("further", [-1, 0, 1, 7])
def test_zb_v_has_no_bubble_in_the_memory_of_1f1b(stages: int, further: int) -> None:
    micro_batches = 2 * stages + further
    schedule = zb_v.plan(stages, micro_batches)
    assert span_of(schedule, 1.0, 1.0, 1.0) == 6 * micro_batches
    for state in (0.0, 0.4, 1.0):
        assert max(recounted(schedule, state, chunk=0.5)) <= stages
    assert schedule.placement == {(chunk, 0): min(chunk, 2 * stages - 1 - chunk) for chunk in range(2 * stages)}


@pytest.mark.parametrize("planner", [zb_h1, zb_h2, zb_1p, zb_2p, zb_v])
@pytest.mark.parametrize("stages", range(1, 17))
def test_every_size_builds(planner: ModuleType, stages: int) -> None:
    for micro_batches in range(1, 17):
        _, end = unit_slots(planner.plan(stages, micro_batches))
        assert end.max() >= 3 * micro_batches


@pytest.mark.parametrize("planner", [zb_h1, zb_h2, zb_1p, zb_2p, zb_v])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 2), (2, 5), (4, 3), (4, 8)])
def test_simulated_equals_longest_path(
    compose: Any, mesh: Any, planner: ModuleType, stages: int, micro_batches: int
) -> None:
    work = Layer("stage", 1.0, 0.7, 0.6, 1.0, 2.0, 3.0, saved_for_weight_bytes=0.5)
    plan_and_binding = compose(planner.plan(stages, micro_batches, 2), mesh(stages, "in_order", 0.125, 3.0), [work])
    simulated, bound = run(*plan_and_binding), LONGEST_PATH.execute(*plan_and_binding)
    assert np.array_equal(simulated.start_s, bound.start_s)
    assert np.array_equal(simulated.end_s, bound.end_s)


SCENARIO = """\
name: searched
model:
  uniform:
    {{forward: 18.522 ms, backward_input: 18.086 ms, backward_weight: 9.337 ms, activation: 8 MB, parameters: 0 B{}}}
  batch_size: 24
cluster: {{devices: 8, link: {{kind: latency, latency: 0.601 ms}}}}
schedule: {{name: zb_2p, stages: 8, micro_batches: 24}}
"""


@pytest.mark.parametrize(("memory", "state"), [("", 1.0), (", saved: 40 MB, saved_for_weight: 16 MB", 0.4)])
def test_a_scenario_searches_by_its_own_figures(tmp_path: Path, memory: str, state: float) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO.format(memory), encoding="utf-8")
    document = load_document(str(file))
    plan, _ = compose_scenario(parse(document, PLANNERS), document)
    assert isinstance(plan.work, Schedule)
    costs = StageCosts.equal(8, 0.018522, 0.018086, 0.009337, 0.000601, state)
    expected = zb_2p.plan(8, 24, costs=costs)
    for wanted, found in zip(expected.order, plan.work.order, strict=True):
        assert [str(expected.id(int(op))) for op in wanted] == [str(plan.work.id(int(op))) for op in found]
