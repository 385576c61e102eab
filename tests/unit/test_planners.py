"""Every planner against its closed forms: makespans, periods, staleness, micro-batches in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.errors import InvalidSchedule
from sim.longest_path import unit_slots
from sim.memory.buffers import BufferKind
from sim.model import Layer, total
from sim.op_table import Halves
from sim.ops import OpKind
from sim.partition import balanced
from sim.passes import buffers, weight_versions
from sim.passes.weight_versions import distances_at, prediction_distances
from sim.planners import data_parallel, dualpipe_2018, gpipe, model_parallel, one_f_one_b, pipedream, single
from sim.schedule import Schedule
from sim.trace import Trace

Pair = tuple[int, int]
SECONDS = st.floats(1e-6, 1e3)
DEPTHS = (2, 3, 4, 8)


def layer(forward_s: float, backward_s: float, parameter_bytes: float = 0.0) -> Layer:
    """A layer that moves nothing."""
    return Layer("layer", forward_s, backward_s / 2, backward_s / 2, 0.0, 0.0, parameter_bytes)


def ends(trace: Trace, kind: OpKind, stage: int = 0) -> Any:
    """When the ops of a kind end on a stage, by micro-batch."""
    return trace.end_s[(trace.ops["kind"] == kind) & (trace.ops["stage"] == stage)]


@given(stages=st.integers(1, 12), micro_batches=st.integers(1, 24), forward_s=SECONDS, backward_s=SECONDS)
@settings(max_examples=80)
@pytest.mark.parametrize("planner", [gpipe, one_f_one_b])
def test_makespan_of_a_synchronous_pipeline(
    simulate: Any, planner: Any, stages: int, micro_batches: int, forward_s: float, backward_s: float
) -> None:
    """(M + N - 1)(F + B), micro-batches fewer than stages included; each further mini-batch takes as long again."""
    schedule = planner.plan(stages, micro_batches, 2)
    closed_form = 2 * (micro_batches + stages - 1) * (forward_s + backward_s)
    assert simulate(schedule, layers=[layer(forward_s, backward_s)]).makespan_s == pytest.approx(closed_form, rel=1e-9)


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_makespan_of_one_mini_batch_at_a_time(simulate: Any, stages: int) -> None:
    trace = simulate(model_parallel.plan(stages, 3), layers=[layer(1.0, 2.5)])
    assert trace.makespan_s == 3 * stages * 3.5
    assert simulate(single.plan(4), layers=[layer(1.0, 2.5)]).makespan_s == 4 * 3.5


@pytest.mark.parametrize(
    ("stages", "micro_batches", "times", "latency_s", "bubble"),
    [
        (8, 24, (18.522, 18.086, 9.337), 0.601, 0.2431),
        (8, 32, (18.513, 18.086, 9.331), 0.626, 0.1985),
        (8, 64, (18.546, 18.097, 9.321), 0.762, 0.1240),
        (16, 48, (11.347, 11.248, 8.132), 0.377, 0.2552),
    ],
)
def test_bubble_of_1f1b_in_the_zero_bubble_paper(
    simulate: Any,
    mesh: Any,
    stages: int,
    micro_batches: int,
    times: tuple[float, float, float],
    latency_s: float,
    bubble: float,
) -> None:
    """arXiv 2401.10241, table 5: (span - work) / span of the stage with the longest span."""
    work = Layer("layer", *times, 0.0, 0.0, 0.0)
    trace = simulate(one_f_one_b.plan(stages, micro_batches), mesh(stages, "latency", latency_s), [work])
    computing = np.isin(trace.ops["kind"], (OpKind.FORWARD, OpKind.BACKWARD))
    spans = []
    for stage in range(stages):
        mine = computing & (trace.ops["stage"] == stage)
        spans.append(float(trace.end_s[mine].max() - trace.start_s[mine].min()))
    assert round(1 - micro_batches * sum(times) / max(spans), 4) == bubble


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("forward_s", "backward_s"), [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
def test_steady_period_of_the_asynchronous_pipelines(
    simulate: Any, mesh: Any, stages: int, forward_s: float, backward_s: float
) -> None:
    """1F1B: F + B. Concurrent: max(F, B) where lanes do not slow each other, F + B where they only take turns."""

    def period(schedule: Schedule, gain: float | None) -> float:
        trace = simulate(schedule, mesh(stages, gain=gain), [layer(forward_s, backward_s)])
        count = schedule.shape.mini_batches
        gaps = np.diff(ends(trace, OpKind.UPDATE)[count // 3 : count - count // 3])
        return float(gaps.mean())

    both = forward_s + backward_s
    assert period(pipedream.plan(stages), None) == pytest.approx(both, rel=1e-12)
    assert period(dualpipe_2018.plan(stages, timeline="alternating"), 2.0) == pytest.approx(both, rel=1e-12)
    assert period(dualpipe_2018.plan(stages), 2.0) == pytest.approx(max(forward_s, backward_s), rel=1e-12)
    assert period(dualpipe_2018.plan(stages), 1.0) == pytest.approx(both, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("backward_s", [1.0, 2.0])
def test_concurrent_lanes_that_take_turns_lose_nothing(
    simulate: Any, mesh: Any, stages: int, backward_s: float
) -> None:
    """Exclusive or gain 1: no more than one pipeline depth beyond the work of a stage."""
    schedule = dualpipe_2018.plan(stages)
    work_s = schedule.shape.total * (1.0 + backward_s)
    for gain in (None, 1.0):
        makespan_s = simulate(schedule, mesh(stages, gain=gain), [layer(1.0, backward_s)]).makespan_s
        assert work_s <= makespan_s <= work_s + 2 * stages * (1.0 + backward_s)


def switch(gpus: int, kind: LinkKind, latency_s: float, bytes_per_s: float) -> Cluster:
    """GPUs behind a PCIe switch: a link up and a link down each."""
    nodes = (*(Node(f"gpu{k}", "gpu") for k in range(gpus)), Node("switch", "switch"))
    links = []
    for k in range(gpus):
        links.append(Link(f"up{k}", f"gpu{k}", "switch", kind, latency_s / 2, bytes_per_s))
        links.append(Link(f"down{k}", "switch", f"gpu{k}", kind, latency_s / 2, bytes_per_s))
    return Cluster("switch", nodes, links)


@pytest.mark.parametrize("kind", ["latency", "in_order", "fifo", "fair_share"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
def test_a_step_of_data_parallelism_by_ring(simulate: Any, mesh: Any, kind: LinkKind, replicas: int) -> None:
    """F + B + 2(R - 1) latencies + 2(R - 1)/R of the gradients over the bandwidth: on a tree, hops share no link."""
    latency_s, bytes_per_s, parameter_bytes = 0.125, 1024.0, 4096.0
    reduce_s = 2 * (replicas - 1) * latency_s + 2 * (replicas - 1) / replicas * parameter_bytes / bytes_per_s
    for cluster in (switch(replicas, kind, latency_s, bytes_per_s), mesh(replicas, kind, latency_s, bytes_per_s)):
        trace = simulate(data_parallel.plan(replicas, 3), cluster, [layer(1.0, 2.0, parameter_bytes)])
        assert trace.makespan_s == pytest.approx(3 * (3.0 + reduce_s), rel=1e-12)


@pytest.mark.parametrize(("kind", "sharing"), [("latency", 1), ("in_order", 1), ("fifo", 2), ("fair_share", 2)])
def test_hops_of_a_ring_that_cross_one_link_share_it(simulate: Any, kind: LinkKind, sharing: int) -> None:
    """gpu0 and gpu2 here, gpu1 and gpu3 there: two hops each way over the slow link between the two switches."""
    nodes = (*(Node(f"gpu{k}", "gpu") for k in range(4)), Node("switch0", "switch"), Node("switch1", "switch"))
    pairs = [*((f"gpu{k}", f"switch{k % 2}", 8.0) for k in range(4)), ("switch0", "switch1", 2.0)]
    both_ways = [(a, b, rate) for pair in pairs for a, b, rate in (pair, (pair[1], pair[0], pair[2]))]
    cluster = Cluster("two roots", nodes, [Link(f"{a}>{b}", a, b, kind, 0.5, rate) for a, b, rate in both_ways])
    trace = simulate(data_parallel.plan(4), cluster, [layer(1.0, 2.0, 8.0)])
    assert trace.makespan_s == 3.0 + 6 * 1.5 + 1.5 * 8.0 * sharing / 2.0


@given(
    times=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 40)), min_size=3, max_size=12),
    buckets=st.integers(1, 3),
    kind=st.sampled_from(["latency", "in_order", "fair_share"]),
)
@settings(max_examples=60)
def test_buckets_overlap_the_backward_pass(
    simulate: Any, mesh: Any, times: list[tuple[int, int, int]], buckets: int, kind: LinkKind
) -> None:
    """From the last bucket to the first: it is summed when its gradients are there and the one before it is through."""
    layers = [layer(float(f), float(b), 16.0 * p) for f, b, p in times]
    trace = simulate(data_parallel.plan(4, 1, buckets=buckets), mesh(4, kind, 0.25, 8.0), layers, buckets=buckets)
    parts = balanced([each.parameter_bytes for each in layers], buckets)
    computed_s, reduced_s = total(layers, "forward_s"), 0.0
    for low, high in reversed(parts):
        bucket = layers[low : high + 1]
        computed_s += total(bucket, "backward_s")
        reduced_s = max(computed_s, reduced_s) + 6 * 0.25 + 1.5 * total(bucket, "parameter_bytes") / 8.0
    assert trace.makespan_s == pytest.approx(reduced_s, rel=1e-12)


def test_two_buckets_by_hand(simulate: Any, mesh: Any) -> None:
    """F 2, B of the last layer 4, of the first 3; sums of 12 and 9 s: 2 + 4 = 6, summed at 18, then 18 + 9 = 27."""
    layers = [layer(1.0, 3.0, 6.0), layer(1.0, 4.0, 8.0)]
    trace = simulate(data_parallel.plan(4, 1, buckets=2), mesh(4, bytes_per_s=1.0), layers, buckets=2)
    assert ends(trace, OpKind.ALL_REDUCE).tolist() == [27.0, 18.0]  # part 0 last
    assert trace.makespan_s == 27.0


SIZES = [(stages, micro_batches) for stages in range(1, 17) for micro_batches in range(1, 17)]
PLANNERS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe.plan,
    "one_f_one_b": one_f_one_b.plan,
    "pipedream": lambda stages, micro_batches: pipedream.plan(stages, micro_batches, 2),
    "dualpipe_2018": lambda stages, micro_batches: dualpipe_2018.plan(stages, micro_batches, 2),
    "data_parallel": lambda replicas, buckets: data_parallel.plan(replicas, 2, buckets=buckets),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("name", PLANNERS)
def test_every_size_builds(name: str) -> None:
    """Each forward and backward once, in a topological order: `check` runs on every build."""
    for stages, micro_batches in SIZES:
        schedule = PLANNERS[name](stages, micro_batches)
        forwards = (schedule.ops["kind"] == OpKind.FORWARD).sum()
        assert forwards == schedule.shape.stages * schedule.shape.total * schedule.shape.replicas


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("size", [(1, 1), (1, 16), (16, 1), (2, 1), (3, 2), (16, 15), (7, 5)])
def test_a_sample_of_sizes_runs(compose: Any, name: str, size: Pair) -> None:
    schedule = PLANNERS[name](*size)
    layers = [layer(1.0, 2.0, 4.0)] if schedule.shape.stages > 1 else [layer(1.0, 2.0, 4.0)] * 16
    buckets = size[1] if name == "data_parallel" else 1
    assert run(*compose(schedule, layers=layers, buckets=buckets)).makespan_s > 0


def test_the_simple_ones_are_special_cases() -> None:
    for schedule, other in (
        (dualpipe_2018.plan(3, 2, 5, "alternating"), pipedream.plan(3, 2, 5)),
        (model_parallel.plan(3, 2), gpipe.plan(3, 1, 2)),
        (single.plan(2), gpipe.plan(1, 1, 2)),
    ):
        assert schedule.ops.tobytes() == other.ops.tobytes()
        assert schedule.order.values.tobytes() == other.order.values.tobytes()


@pytest.mark.parametrize("count", [0, -1, -16])
@pytest.mark.parametrize(
    "plan",
    [
        lambda n: gpipe.plan(n, 4),
        lambda n: gpipe.plan(4, n),
        lambda n: gpipe.plan(4, 4, n),
        lambda n: one_f_one_b.plan(n, 4),
        lambda n: one_f_one_b.plan(4, n),
        lambda n: pipedream.plan(n),
        lambda n: pipedream.plan(4, n),
        lambda n: dualpipe_2018.plan(n),
        lambda n: dualpipe_2018.plan(4, n),
        lambda n: dualpipe_2018.plan(4, n, timeline="alternating"),
        lambda n: model_parallel.plan(n),
        lambda n: single.plan(n),
        lambda n: data_parallel.plan(n),
        lambda n: data_parallel.plan(4, n),
        lambda n: data_parallel.plan(4, 1, buckets=n),
        lambda n: data_parallel.plan(n, 1, "parameter_server"),
        lambda n: data_parallel.plan(4, n, "parameter_server"),
    ],
)
def test_none_or_fewer_is_refused(plan: Callable[[int], object], count: int) -> None:
    with pytest.raises(
        InvalidSchedule, match=f"= {count}.*at least 1|= {count * 8}.*at least 1|= {count * 16}.*at least 1"
    ):
        plan(count)


def in_flight(schedule: Schedule, start: Any, end: Any) -> list[int]:
    """The most micro-batches of each stage whose forward has started and whose backward has not ended."""
    halves, numbers = Halves(schedule.ops), np.arange(schedule.shape.total)
    most = []
    for stage in range(schedule.shape.stages):
        begin = start[halves.find(OpKind.FORWARD, stage, numbers, 0)]
        until = end[halves.find(OpKind.BACKWARD, stage, numbers, 0)]
        most.append(max(int(((begin <= now) & (until > now)).sum()) for now in begin))
    return most


def steady(schedule: Schedule, kind: OpKind) -> list[int]:
    """The staleness of each stage in the middle of a run."""
    stale, middle = weight_versions.staleness(schedule), schedule.shape.total // 2
    found = Halves(schedule.ops).find(kind, np.arange(schedule.shape.stages), middle, 0)
    return [int(value) for value in stale[found]]


def copies(schedule: Schedule) -> list[int]:
    """Weight versions alive at once per stage: the current one and those stashed."""
    events = buffers.apply(schedule)
    stash = events[events["kind"] == BufferKind.STASHED_WEIGHTS]
    start, end = unit_slots(schedule)
    lane = np.full(len(schedule), -1)
    lane[schedule.order.values] = np.arange(len(schedule.order.values))
    time = np.where(stash["when"] == 0, start[stash["op"]], end[stash["op"]])
    stash = stash[np.lexsort([lane[stash["op"]], time])]
    return [
        1 + int(np.cumsum(stash["sign"][stash["device"] == k]).max(initial=0)) for k in range(schedule.shape.stages)
    ]


@pytest.mark.parametrize("stages", DEPTHS)
@pytest.mark.parametrize("micro_batches", [1, 3, 16])
def test_synchronous_pipelines_in_flight_and_never_stale(stages: int, micro_batches: int) -> None:
    for planner, expected in (
        (gpipe, [micro_batches] * stages),
        (one_f_one_b, [min(micro_batches, stages - k) for k in range(stages)]),
    ):
        schedule = planner.plan(stages, micro_batches, 3)
        assert in_flight(schedule, *unit_slots(schedule)) == expected
        assert set(weight_versions.staleness(schedule).tolist()) == {-1, 0}
        assert copies(weight_versions.apply(schedule, "stash")) == [1] * stages


@pytest.mark.parametrize("stages", DEPTHS)
def test_asynchronous_1f1b_in_flight_stale_and_copied(stages: int) -> None:
    vanilla = pipedream.plan(stages)
    left = [stages - k for k in range(stages)]
    assert in_flight(vanilla, *unit_slots(vanilla)) == left
    assert steady(vanilla, OpKind.FORWARD) == [n - 1 for n in left]
    assert steady(vanilla, OpKind.BACKWARD) == [0] * stages
    assert copies(vanilla) == [1] * stages
    stashing = weight_versions.apply(vanilla, "stash")
    assert steady(stashing, OpKind.FORWARD) == steady(stashing, OpKind.BACKWARD) == [n - 1 for n in left]
    assert copies(stashing) == left


@pytest.mark.parametrize("stages", DEPTHS)
@pytest.mark.parametrize("backward_s", [1.0, 2.0])
def test_concurrent_dualpipe_in_flight_and_stale(simulate: Any, mesh: Any, stages: int, backward_s: float) -> None:
    schedule = dualpipe_2018.plan(stages)
    twice = [2 * (stages - k) for k in range(stages)]
    assert steady(schedule, OpKind.FORWARD) == [n - 1 for n in twice]
    assert steady(schedule, OpKind.BACKWARD) == [0] * stages
    trace = simulate(schedule, mesh(stages, gain=2.0), [layer(1.0, backward_s)])
    assert in_flight(trace.as_schedule(), trace.start_s, trace.end_s) == twice


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8])
def test_prediction_distances_of_spectrain(stages: int) -> None:
    """Alternating with F = B as published; concurrent 2N - 1 - k and k."""
    published = tuple((k // 2 + stages - k - 1, k // 2) for k in range(stages))
    assert prediction_distances(pipedream.plan(stages)) == published
    assert prediction_distances(dualpipe_2018.plan(stages, timeline="alternating")) == published
    assert prediction_distances(dualpipe_2018.plan(stages)) == tuple((2 * stages - 1 - k, k) for k in range(stages))


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "forward", "backward"),
    [
        (1.0, 1.0, (3, 2, 2, 1), (0, 0, 1, 1)),
        (1.0, 2.0, (3, 2, 2, 2), (0, 0, 1, 2)),
        (2.0, 1.0, (3, 2, 1, 1), (0, 0, 0, 1)),
    ],
)
def test_realised_distances_depend_on_durations(
    simulate: Any, forward_s: float, backward_s: float, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    schedule = pipedream.plan(4)
    trace = simulate(schedule, layers=[layer(forward_s, backward_s)])
    assert distances_at(trace.shape, trace.ops, trace.start_s, trace.end_s) == tuple(
        zip(forward, backward, strict=True)
    )


def test_weights_that_are_predicted_need_distances() -> None:
    with pytest.raises(Exception, match="needs a prediction distance"):
        weight_versions.apply(pipedream.plan(2), "predict")


def test_two_micro_batches_to_an_update() -> None:
    """Versions count updates, not micro-batches."""
    schedule = pipedream.plan(3, 2, 12)
    reads = {str(schedule.id(op)): int(schedule.ops["reads"][op]) for op in range(len(schedule))}
    assert [reads[f"2F{j}"] for j in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [reads[f"0F{j}"] for j in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert steady(schedule, OpKind.FORWARD) == [1, 1, 0]
