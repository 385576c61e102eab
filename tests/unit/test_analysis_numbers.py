"""The numbers of a run against closed forms, the facts' tables, brute force, and traces small enough to do by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import breakdown, links, memory, occupancy, result, staleness, steady, why
from analysis.intervals import most_at_once, union
from sim.binding import Figures, bind
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.errors import BrokenInvariant
from sim.memory.buffers import BufferKind
from sim.model import Layer, uniform
from sim.op_table import OPS
from sim.ops import Lane, OpId, OpKind
from sim.passes import buffers, transfers, weight_versions
from sim.plan import Plan
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.program import Program
from sim.rows import Rows
from sim.schedule import Schedule, Shape
from sim.trace import FLOWS, MEMORY, Trace
from sim.training import Training

STAGES = (2, 3, 4, 8)
ONE = Shape(stages=1, micro_batches=1)


def simulate(
    work: Schedule | Program,
    forward_s: float = 1.0,
    backward_s: float = 2.0,
    *,
    weights: weight_versions.Weights = "latest",
    link: LinkKind = "latency",
    latency_s: float = 0.0,
    bytes_per_s: float = math.inf,
    gain: float | None = None,
    update_s: float = 0.0,
) -> Trace:
    """Run uniform stages of 1 B activations and 8 B of parameters on a full mesh of GPUs, and a host for a server."""
    shape, serves = work.shape, isinstance(work, Program)
    names = [f"gpu{index}" for index in range(max(shape.stages, shape.replicas))] + ["host"] * serves
    nodes = tuple(Node(name, "host" if name == "host" else "gpu", None, gain) for name in names)
    mesh = [Link(f"{a}>{b}", a, b, link, latency_s, bytes_per_s) for a in names for b in names if a != b]
    layer = Layer("layer", forward_s, backward_s / 2, backward_s / 2, 1.0, 1.0, 8.0)
    figures = Figures(
        profile=uniform(shape.stages, layer, 1.0),
        partition=tuple((stage, stage) for stage in range(shape.stages)),
        training=Training(),
        cluster=Cluster("mesh", nodes, mesh),
        devices=tuple(names),
        samples=4.0,
        update_s=update_s,
        server=len(names) - 1 if serves else None,
    )
    binding = bind(work, figures)
    events = None
    if isinstance(work, Schedule):
        ahead = weight_versions.prediction_distances(work) if weights == "predict" else ()
        work = transfers.apply(weight_versions.apply(work, weights, ahead), binding.holds_lanes)
        events = buffers.apply(work)
    return run(Plan("method", work, figures.partition, "uniform", figures.training, events), binding)


def _order(rows: Sequence[tuple[str, Sequence[int], float, float]], lanes: int) -> Rows:
    """The rows of each lane by time."""
    by_time = sorted(range(len(rows)), key=lambda row: rows[row][2:])
    return Rows.of([[row for row in by_time if lane in rows[row][1]] for lane in range(lanes)])


def by_hand(
    rows: Sequence[tuple[str, Sequence[int], float, float]],
    lanes: Sequence[Lane],
    shape: Shape = ONE,
    flows: Sequence[tuple[int, int, float, float, float]] = (),
    events: Sequence[tuple[float, int, int, int, int, int, int]] = (),
    links: Sequence[tuple[str, str, float]] = (),
    **header: Any,
) -> Trace:
    """A trace of (op, lanes it holds, start, end): from the device of its first lane to that of its last."""
    ops = np.zeros(len(rows), OPS)
    for row, (name, held, _, _) in zip(ops, rows, strict=True):
        op = OpId.parse(name)
        for field, value in zip(op._fields, op, strict=True):
            row[field] = value
        row["source"], row["target"] = lanes[held[0]].device, lanes[held[-1]].device if len(held) > 1 else -1
        row["reads"], row["writes"] = -1, op.micro_batch + 1 if op.kind is OpKind.UPDATE else -1
    defaults = {
        "devices": [f"gpu{device}" for device in sorted({lane.device for lane in lanes})],
        "hosts": [],
        "links": [{"name": name, "kind": kind, "bytes_per_s": rate} for name, kind, rate in links],
        "weights": "latest",
        "predict": "",
        "samples": 1.0,
    }
    return Trace(
        header=defaults | header,
        shape=shape,
        ops=ops,
        lanes=tuple(lanes),
        order=_order(rows, len(lanes)),
        extra=np.empty((0, 2), np.int64),
        start_s=np.array([start_s for *_, start_s, _ in rows]),
        end_s=np.array([end_s for *_, end_s in rows]),
        flows=np.array(list(flows), FLOWS),
        memory=np.array(list(events), MEMORY),
    )


# intervals

integers = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=12)


@given(integers, st.integers(0, 12), st.integers(0, 12))
def test_union_covers_the_unit_cells_that_some_interval_covers(
    pairs: list[tuple[int, int]], low: int, high: int
) -> None:
    start = np.array([begin for begin, _ in pairs], float)
    length = np.array([length for _, length in pairs], float)
    cells = {cell for begin, length in pairs for cell in range(begin, begin + length)}
    spans = union(start, start + length)
    assert spans.length_s == len(cells)
    assert bool((spans.start_s[1:] > spans.end_s[:-1]).all())
    assert spans.within(low, max(low, high)).length_s == len(cells & set(range(low, high)))


@given(integers.filter(bool))
def test_the_most_intervals_at_once_by_looking_into_every_cell(pairs: list[tuple[int, int]]) -> None:
    start, length = (np.array(column, float) for column in zip(*pairs, strict=True))
    group = np.arange(len(pairs)) % 2
    for number, most in enumerate(most_at_once(group, start, start + length, 3).tolist()):
        mine = [pair for pair, owner in zip(pairs, group, strict=True) if owner == number]
        cells = [sum(begin <= cell < begin + long for begin, long in mine) for cell in range(18)]
        assert most == max(max(cells), min(len(mine), 1))


# breakdown

COMPUTE, SEND, RECEIVE = (Lane(0, "compute"), Lane(1, "compute")), Lane(0, "send>1"), Lane(1, "recv<0")


def two_devices() -> Trace:
    """gpu0 computes in [0, 2] and [5, 9] (recomputing [5, 6]), gpu1 in [6, 8]; transfers 0→1 in [1, 4] and [7, 10]."""
    rows = [
        ("0F0", [0], 0.0, 2.0),
        ("0SF0", [2, 3], 1.0, 4.0),
        ("1F0", [1], 6.0, 8.0),
        ("0R0", [0], 5.0, 6.0),
        ("0B0", [0], 6.0, 9.0),
        ("0SF1", [2, 3], 7.0, 10.0),
    ]
    return by_hand(rows, [*COMPUTE, SEND, RECEIVE], Shape(2, 1, 2))


def test_breakdown_by_hand() -> None:
    first, second = breakdown.compute(two_devices()).devices
    assert (first.compute_s, first.recompute_s, first.communication_s, first.idle_s) == (6.0, 1.0, 3.0, 1.0)
    assert (second.compute_s, second.recompute_s, second.communication_s, second.idle_s) == (2.0, 0.0, 5.0, 3.0)
    bubble = breakdown.compute(two_devices()).bubble
    assert bubble.of_total == 1 - 8 / 20
    assert bubble.of_ideal == 12 / 8
    assert bubble.longest_stage_span == pytest.approx(3 / 9)  # gpu0 from 0 to 9, of which 6 at work


def test_hosts_and_unused_devices_are_no_accelerators() -> None:
    trace = two_devices()
    trace = replace(trace, header=trace.header | {"devices": ["gpu0", "host", "gpu2"], "hosts": ["host"]})
    found = breakdown.compute(trace)
    assert [device.name for device in found.devices] == ["gpu0"]
    assert [host.name for host in found.hosts] == ["host"]
    assert found.bubble.of_total == 1 - 6 / 10


def test_a_run_that_takes_no_time_has_no_bubble() -> None:
    bubble = breakdown.compute(by_hand([("0F0", [0], 0.0, 0.0)], COMPUTE)).bubble
    assert (bubble.of_total, bubble.of_ideal, bubble.longest_stage_span) == (None, None, None)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e3), st.floats(0, 1e2)), min_size=1, max_size=30))
def test_compute_communication_and_idle_are_the_makespan_to_the_last_bit(
    ops: list[tuple[bool, float, float]],
) -> None:
    rows = [
        (f"0SF{index}" if moves else f"0F{index}", [2, 3] if moves else [0], start_s, start_s + length_s)
        for index, (moves, start_s, length_s) in enumerate(ops)
    ]
    trace = by_hand(rows, [*COMPUTE, SEND, RECEIVE])
    for device in breakdown.compute(trace).devices:
        assert min(device.compute_s, device.communication_s, device.idle_s) >= 0
        assert device.compute_s + device.communication_s + device.idle_s == trace.makespan_s


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("planner", [gpipe, one_f_one_b])
def test_bubble_of_synchronous_pipelines(planner: Any, stages: int) -> None:
    found = breakdown.compute(simulate(planner.plan(stages, 8, 2), 1.25, 2.125)).bubble
    assert found.of_total == pytest.approx((stages - 1) / (8 + stages - 1), abs=1e-12)
    assert found.of_ideal == pytest.approx((stages - 1) / 8, abs=1e-12)  # Megatron-LM


@pytest.mark.parametrize(
    ("stages", "micro_batches", "times_ms", "published"),
    [
        (8, 24, (18.522, 18.086, 9.337, 0.601), 0.2431),
        (8, 32, (18.513, 18.086, 9.331, 0.626), 0.1985),
        (8, 64, (18.546, 18.097, 9.321, 0.762), 0.1240),
        (16, 48, (11.347, 11.248, 8.132, 0.377), 0.2552),
    ],
)
def test_longest_stage_span_is_table_5_of_zero_bubble(
    stages: int, micro_batches: int, times_ms: tuple[float, ...], published: float
) -> None:
    forward, input_gradient, weight_gradient, communication = times_ms
    work = one_f_one_b.plan(stages, micro_batches)
    trace = simulate(work, forward, input_gradient + weight_gradient, latency_s=communication)
    found = breakdown.compute(trace).bubble.longest_stage_span
    assert found is not None
    assert round(found, 4) == published


# staleness, copies, in-flight


def measured(trace: Trace) -> tuple[list[int | None], list[int | None], list[int], list[int], list[int]]:
    """Steady staleness (forward, backward), copies, predicted copies and in-flight, stage by stage."""
    found, kept = staleness.compute(trace), occupancy.compute(trace)
    columns = kept.weight_copies, kept.predicted_copies, kept.in_flight
    copies, predicted, in_flight = (list(column) for column in columns)
    return list(found.forward.by_stage), list(found.backward.by_stage), copies, predicted, in_flight


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(
    ("times", "update_s"), [((1.0, 1.0), 0.0), ((1.0, 2.0), 0.0), ((1.0, 2.0), 0.25), ((2.0, 1.0), 0.0)]
)
def test_the_table_of_methods(stages: int, times: tuple[float, float], update_s: float) -> None:
    none, one, left = [0] * stages, [1] * stages, [stages - stage for stage in range(stages)]
    stale = [count - 1 for count in left]
    trace = simulate(pipedream.plan(stages), *times, update_s=update_s)
    assert measured(trace) == (stale, none, one, none, left)
    trace = simulate(pipedream.plan(stages), *times, weights="stash", update_s=update_s)
    assert measured(trace) == (stale, stale, left, none, left)
    trace = simulate(gpipe.plan(stages, 6, 3), *times, update_s=update_s)
    assert measured(trace) == (none, none, one, none, [6] * stages)
    trace = simulate(one_f_one_b.plan(stages, 6, 3), *times, update_s=update_s)
    assert measured(trace) == (none, none, one, none, [min(6, count) for count in left])
    twice = [2 * count for count in left]
    trace = simulate(dualpipe_2018.plan(stages), *times, gain=2.0, update_s=update_s)
    ahead = [count - 1 for count in twice]
    if times[0] <= times[1]:  # the table's rows are for forwards that take no longer than backwards
        assert measured(trace) == (ahead, none, one, none, twice)


def test_predictions_are_counted_apart() -> None:
    *_, copies, predicted, in_flight = measured(simulate(dualpipe_2018.plan(4), weights="predict", gain=2.0))
    assert (copies, predicted, in_flight) == ([1] * 4, [1] * 4, [8, 6, 4, 2])
    alternating = dualpipe_2018.plan(4, timeline="alternating")
    *_, copies, predicted, in_flight = measured(simulate(alternating, weights="predict"))
    assert (copies, predicted, in_flight) == ([1] * 4, [1] * 4, [4, 3, 2, 1])


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("weights", ["latest", "stash"])
def test_staleness_from_times_is_that_of_the_schedule(micro_batches: int, weights: weight_versions.Weights) -> None:
    for plan in (pipedream.plan(3, micro_batches, 9), dualpipe_2018.plan(3, micro_batches, 9)):
        schedule = transfers.apply(weight_versions.apply(plan, weights), lambda source, target: True)
        trace = simulate(plan, 1.5, 2.0, weights=weights, link="in_order", bytes_per_s=7.0, gain=1.3)
        assert trace.ops.tolist() == schedule.ops.tolist()
        assert staleness.compute(trace).staleness.tolist() == weight_versions.staleness(schedule).tolist()


def test_in_flight_of_fused_and_split_passes() -> None:
    rows = [
        ("0F0", [0], 0.0, 1.0),
        ("(0F1;0B0)", [0], 1.0, 3.0),
        ("0I1", [0], 3.0, 4.0),
        ("0F2", [1], 4.5, 5.0),
        ("0W1", [0], 4.0, 5.0),
        ("0F3", [1], 5.0, 6.0),
    ]
    lanes = [Lane(0, "backward"), Lane(0, "forward")]
    assert occupancy.compute(by_hand(rows[:3], lanes)).in_flight == (2,)  # 0 until 3, 1 until 4
    assert occupancy.compute(by_hand(rows[1:5], lanes)).in_flight == (2,)  # 1 until its weight gradient at 5, 2
    assert occupancy.compute(by_hand(rows[3:], lanes)).in_flight == (1,)  # 3 begins when 2 is over


def test_a_version_lives_until_its_last_reader_has_ended() -> None:
    rows = [("0F0", [0], 0.0, 1.0), ("0B0", [1], 1.0, 2.0), ("0U0", [1], 2.0, 3.0), ("0F1", [0], 2.0, 5.0)]
    trace = by_hand(rows, [Lane(0, "forward"), Lane(0, "backward")], Shape(1, 1, 2))
    trace.ops["reads"] = [0, 0, -1, 0]
    assert staleness.compute(trace).staleness.tolist() == [0, 0, -1, -1]  # mini-batch 1 is never applied
    assert occupancy.compute(trace).weight_copies == (2,)
    early = replace(trace, end_s=np.array([1.0, 2.0, 3.0, 3.0]))
    assert occupancy.compute(early).weight_copies == (1,)


def test_data_parallelism_is_never_stale() -> None:
    for sync in ("ring", "parameter_server"):
        work = data_parallel.plan(3, 3, sync=sync)
        found = measured(simulate(work, link="fair_share", bytes_per_s=8.0, update_s=0.5))
        assert found[0] == found[1] == [0]
        assert found[2][:3] == [1, 1, 1]
        assert found[3][:3] == [0, 0, 0]
    trace = simulate(data_parallel.plan(3, 3), update_s=0.5)
    assert occupancy.compute(trace).in_flight == (1, 1, 1)


def test_a_worker_reads_when_its_pull_starts() -> None:
    rows = [("0P1@1", [0, 1], 1.0, 4.0), ("0U0", [2], 2.0, 3.0), ("0F1@1", [3], 4.0, 5.0), ("0U1", [2], 6.0, 7.0)]
    lanes = [Lane(0, "send>1"), Lane(1, "recv<0"), Lane(0, "core"), Lane(1, "compute")]
    trace = by_hand(rows, lanes, Shape(1, 1, 2, 2))
    trace.ops["reads"][2] = 0
    assert staleness.compute(trace).staleness.tolist() == [-1, -1, 1, -1]


def test_a_run_on_other_weights_than_promised_is_caught() -> None:
    trace = simulate(pipedream.plan(2, 1, 4), update_s=0.5)
    late = trace.end_s.copy()
    update = next(op for op in range(len(trace.ops)) if str(trace.id(op)) == "0U0")
    late[update] += 2.0
    with pytest.raises(BrokenInvariant, match=r"0B1 should read weight version 1, but 0 updates"):
        staleness.compute(replace(trace, end_s=late))


def test_a_run_without_updates_has_no_staleness() -> None:
    rows = [("0F0", [0], 0.0, 1.0), ("0B0", [0], 1.0, 2.0)]
    found = staleness.compute(by_hand(rows, COMPUTE[:1]))
    assert (found.forward.mean, found.forward.max, found.forward.by_stage) == (None, None, (None,))
    assert found.realised is None


@pytest.mark.parametrize(
    ("times", "forward", "backward"),
    [
        ((1.0, 1.0), [3, 2, 2, 1], [0, 0, 1, 1]),
        ((1.0, 2.0), [3, 2, 2, 2], [0, 0, 1, 2]),
        ((2.0, 1.0), [3, 2, 1, 1], [0, 0, 0, 1]),
    ],
)
def test_realised_prediction_distances_depend_on_durations(
    times: tuple[float, float], forward: list[int], backward: list[int]
) -> None:
    found = staleness.compute(simulate(pipedream.plan(4), *times, weights="predict")).realised
    assert found == tuple(zip(forward, backward, strict=True))
    found = staleness.compute(simulate(dualpipe_2018.plan(4), weights="predict", gain=2.0)).realised
    assert found == tuple((7 - stage, stage) for stage in range(4))


# steady state


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("times", [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
def test_period_of_uniform_stages(stages: int, times: tuple[float, float]) -> None:
    forward_s, backward_s = times
    alternating = steady.compute(simulate(pipedream.plan(stages), *times))
    assert alternating.steady
    assert alternating.step_time_s == pytest.approx(forward_s + backward_s, rel=1e-12)
    assert (alternating.first, alternating.last) == (stages, 8 * stages - 1 - stages)
    concurrent = steady.compute(simulate(dualpipe_2018.plan(stages), *times, gain=2.0))
    assert concurrent.step_time_s == pytest.approx(max(times), rel=1e-12)
    micro_batches = steady.compute(simulate(pipedream.plan(stages, 2, 8 * stages), *times))
    assert micro_batches.step_time_s == pytest.approx(2 * (forward_s + backward_s), rel=1e-12)
    assert micro_batches.first == math.ceil(stages / 2)


def test_synchronous_methods_count_every_mini_batch() -> None:
    found = steady.compute(simulate(gpipe.plan(4, 8, 3)))
    assert (found.steady, found.first, found.last, found.step_time_s) == (True, 0, 2, 33.0)
    assert found.samples_per_s == found.overall_samples_per_s == 4.0 / 33
    once = steady.compute(simulate(gpipe.plan(4, 8)))
    assert (once.steady, once.step_time_s, once.start_s, once.end_s) == (False, 33.0, 0.0, 33.0)


def test_an_asynchronous_run_too_short_for_a_steady_state_says_so() -> None:
    trace = simulate(pipedream.plan(4, 1, 9))
    assert not steady.compute(trace).steady
    assert steady.compute(trace).step_time_s == trace.makespan_s / 9
    assert steady.compute(simulate(pipedream.plan(4, 1, 10))).steady


def test_without_updates_overlap_in_time_tells_asynchronous_from_synchronous() -> None:
    def pipeline(second_start_s: float) -> Trace:
        rows = [
            ("0F0", [0], 0.0, 1.0),
            ("0B0", [1], 1.0, 3.0),
            ("0F1", [0], second_start_s, second_start_s + 1),
            ("0B1", [1], 4.0, 5.0),
        ]
        return by_hand(rows, [Lane(0, "forward"), Lane(0, "backward")], Shape(1, 1, 2))

    apart, overlapping = (steady.compute(pipeline(start_s)) for start_s in (3.0, 2.0))
    assert (apart.steady, apart.step_time_s) == (True, 2.0)
    assert (overlapping.steady, overlapping.step_time_s) == (False, 2.5)


# memory

DYNAMIC = tuple(kind for kind in BufferKind if kind > BufferKind.OPTIMIZER)


@given(st.lists(st.tuples(st.sampled_from(DYNAMIC), st.integers(0, 1), st.integers(-5, 9)), max_size=20))
def test_peak_memory_against_a_ledger(changes: list[tuple[BufferKind, int, int]]) -> None:
    resident = [(0.0, -1, device, BufferKind.WEIGHTS, 0, 0, 7) for device in range(2)]
    events = [(1.0 + index, 0, device, kind, 0, 0, size) for index, (kind, device, size) in enumerate(changes)]
    trace = by_hand([("0F0", [0], 0.0, 1.0)], COMPUTE, events=[*resident, *events])
    for device, peak in enumerate(memory.compute(trace)):
        ledger: dict[str, int] = {"weights": 7}
        best = dict(ledger)
        for kind, where, size in changes:
            if where == device:
                ledger[kind.category] = ledger.get(kind.category, 0) + size
                best = dict(ledger) if sum(ledger.values()) > sum(best.values()) else best
        assert peak.peak_bytes == sum(best.values())
        assert dict(peak.by_category) == {category: size for category, size in best.items() if size}
        assert (peak.op == "") == (peak.time_s == 0.0)


def test_peak_memory_of_gpipe_and_of_a_stash() -> None:
    last = memory.compute(simulate(gpipe.plan(3, 5)))[2]
    # 5 activations and 5 received inputs, the gradient about to be sent, and thrice 8 B: weights, gradients, momentum
    assert (last.peak_bytes, last.op) == (5 + 5 + 1 + 24, "2B0")
    stashing = memory.compute(simulate(pipedream.plan(4), weights="stash"))
    assert [peak.by_category.get("stash", 0) for peak in stashing] == [24, 16, 8, 0]  # type: ignore[call-overload]


# links and the bottleneck


def test_a_ring_moves_its_share_over_every_hop() -> None:
    trace = simulate(data_parallel.plan(4, 3), link="in_order", latency_s=0.5, bytes_per_s=6.0)
    used = links.compute(trace)
    assert [link.name for link in used] == ["gpu0>gpu1", "gpu1>gpu2", "gpu2>gpu3", "gpu3>gpu0"]
    step_s = 2 * 3 * 0.5 + 12.0 / 6  # 2(R − 1) latencies, 2(R − 1)/R of 8 B
    for link in used:
        assert link.bytes == 36.0
        assert link.busy_s == pytest.approx(3 * step_s)
        assert link.utilization == pytest.approx(36 / (6 * trace.makespan_s))
    assert links.compute(simulate(gpipe.plan(2, 2)))[0].utilization is None


def test_why_names_the_busiest_lane_link_or_the_lack_of_one() -> None:
    assert why.compute(simulate(pipedream.plan(4))) == "gpu0 computes 100 % of the time"
    assert why.compute(simulate(dualpipe_2018.plan(2), gain=2.0)) == "gpu0 backward computes 100 % of the time"
    assert why.compute(simulate(gpipe.plan(4, 8, 2))) == "latency and dependencies: gpu0 busiest, 73 %"
    assert why.compute(by_hand([("0F0", [0], 0.0, 0.0)], COMPUTE)) == "nothing takes time"
    clogged = simulate(
        dualpipe_2018.plan(2), link="in_order", bytes_per_s=0.25, gain=2.0
    )  # 4 s to send, 2 s to compute
    assert why.compute(clogged) == "link gpu0>gpu1 is 100 % busy"
    exposed = simulate(data_parallel.plan(2, 2), link="fair_share", latency_s=1.0, bytes_per_s=4.0)
    assert (
        why.compute(exposed) == "transfers exposed 57 % of the time (link gpu0>gpu1)"
    )  # 2 × 1 s latency and 8 B / (4 B/s) of 7 s


def test_a_shared_link_is_as_busy_as_the_bytes_it_carries() -> None:
    """Two flows cross link 0; each takes all of its own link 1 or 2 of half the rate for the same time."""
    lanes = [*COMPUTE, SEND, RECEIVE]
    rows = [("0F0", [0], 0.0, 1.0), ("0SF0", [2, 3], 0.0, 10.0), ("0SF1", [2, 3], 0.0, 10.0)]
    flows = [(0, 1, 0.0, 10.0, 45.0), (0, 2, 0.0, 10.0, 45.0), (1, 1, 0.0, 10.0, 45.0), (2, 2, 0.0, 10.0, 45.0)]
    trunk = [("trunk", "fair_share", 10.0), ("a", "fair_share", 20.0), ("b", "fair_share", 20.0)]
    assert why.compute(by_hand(rows, lanes, flows=flows, links=trunk)) == "link trunk is 90 % busy"
    assert "latency" in why.compute(by_hand(rows, lanes, flows=flows, links=[(a, "latency", b) for a, _, b in trunk]))


@given(st.text(min_size=1, max_size=120), st.sampled_from([0.1, 3.0, 9.0]))
@settings(max_examples=30)
def test_why_stays_short_whatever_the_names(name: str, busy_s: float) -> None:
    rows = [("0F0", [0], 0.0, busy_s), ("0SF0", [1, 2], 0.0, 9.0)]
    lanes = [Lane(0, "compute"), SEND, RECEIVE]
    link = [(name, "fair_share", 9.0)]
    trace = by_hand(rows, lanes, flows=[(0, 1, 0.0, 9.0, 5.0)], links=link, devices=[name, "gpu1"])
    assert len(why.compute(trace)) < 60


# the result

KEYS = [
    "scenario", "name", "backend", "seed", "makespan_s", "step_time_s", "steady", "samples_per_s",
    "overall_samples_per_s", "mfu", "why", "bubble", "devices", "links", "staleness", "partition", "provenance",
]  # fmt: skip
DEVICE_KEYS = [
    "name", "compute_s", "recompute_s", "communication_s", "idle_s", "peak_memory_bytes", "memory_by_category",
    "weight_copies", "predicted_copies", "in_flight",
]  # fmt: skip


def test_the_result_is_the_contract_in_plain_json() -> None:
    for work in (one_f_one_b.plan(4, 8), data_parallel.plan(2, 2, sync="parameter_server"), pipedream.plan(2)):
        found = result.compute(simulate(work, link="fair_share", bytes_per_s=8.0), "scenario", "point")
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert set(KEYS) <= set(found)
        assert (found["scenario"], found["name"], found["method"], found["backend"]) == (
            "scenario",
            "point",
            "method",
            "simulated",
        )
        for device in found["devices"]:
            assert set(DEVICE_KEYS) <= set(device)
            assert sum(device["memory_by_category"].values()) == device["peak_memory_bytes"]
        assert set(found["bubble"]) == {"of_total", "of_ideal", "longest_stage_span"}
        assert set(found["staleness"]["forward"]) == {"mean", "max", "by_stage"}


def test_hosts_are_listed_apart() -> None:
    work = data_parallel.plan(2, 2, sync="parameter_server")
    found = result.compute(simulate(work, link="fair_share", bytes_per_s=8.0, update_s=0.5), "", "")
    assert [device["name"] for device in found["devices"]] == ["gpu0", "gpu1"]
    (host,) = found["hosts"]
    assert (host["name"], host["compute_s"], host["communication_s"]) == ("host", 1.0, 4.0)


def test_model_flops_utilization() -> None:
    trace = simulate(gpipe.plan(4, 8, 2))
    assert result.compute(trace, "", "")["mfu"] is None
    known = trace.header | {"flops": 660.0, "peak_flops_per_s": [10.0, 10.0, 10.0, 20.0]}
    assert result.compute(replace(trace, header=known), "", "")["mfu"] == pytest.approx(660 / (33 * 50))
    partly = known | {"peak_flops_per_s": [10.0, 10.0, 10.0, 0.0]}
    assert result.compute(replace(trace, header=partly), "", "")["mfu"] is None
