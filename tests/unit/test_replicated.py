"""Replicated stages: PipeDream's 3-1 and 2-1-1 plans by hand, and the laws that every plan of replicas obeys."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import breakdown, occupancy, staleness, steady
from backends.base import load
from sim.errors import ScenarioError
from sim.longest_path import grid, unit_slots
from sim.model import Layer
from sim.op_table import Halves
from sim.ops import OpId, OpKind
from sim.passes import weight_versions
from sim.planners import data_parallel, pipedream
from sim.schedule import Schedule, Shape
from sim.trace import Trace

REPLICAS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def layer(forward_s: float, backward_s: float, parameter_bytes: float = 0.0, output_bytes: float = 0.0) -> Layer:
    return Layer("layer", forward_s, backward_s / 2, backward_s / 2, output_bytes, 0.0, parameter_bytes)


def slots(schedule: Schedule) -> dict[str, int]:
    """The unit slot in which each op starts, by name."""
    start, _ = unit_slots(schedule)
    return {str(schedule.id(op)): int(start[op]) for op in range(len(schedule))}


def test_the_3_1_plan_by_hand() -> None:
    """The sum of the first round waits for its last backward, 0B2@2; forwards 6, 7 and 8 wait for that."""
    schedule = pipedream.plan(2, mini_batches=6, replicas=(3, 1))
    assert grid(schedule).splitlines() == [
        "d0.compute │  0F0   0F3         0B0                                 0B3",
        "d1.compute │ 0F1@1 0F4@1                   0B1@1                               0B4@1",
        "d2.compute │ 0F2@2 0F5@2                               0B2@2                               0B5@2",
        "d3.compute │        1F0   1B0   1F1   1B1   1F2   1B2   1F3   1B3   1F4   1B4   1F5   1B5",
    ]
    at = slots(schedule)
    assert [at[f"0AR{update}"] for update in range(2)] == [8, 14]
    assert [at[name] for name in ("0U0", "0U0@1", "0U0@2", "0U1", "1U0", "1U5")] == [8, 8, 8, 14, 3, 13]
    assert schedule.shape == Shape(2, 1, 6, 1, (3, 1), (3, 1))


def test_the_2_1_1_plan_by_hand() -> None:
    """GPUs 0 and 1 share stage 0; two mini-batches in flight on each, two on stage 1, one on stage 2."""
    schedule = pipedream.plan(3, mini_batches=4, replicas=(2, 1, 1))
    assert grid(schedule).splitlines() == [
        "d0.compute │  0F0   0F2                     0B0                     0B2",
        "d1.compute │ 0F1@1 0F3@1                               0B1@1                   0B3@1",
        "d2.compute │        1F0   1F1         1B0   1F2   1B1   1F3   1B2         1B3",
        "d3.compute │              2F0   2B0   2F1   2B1   2F2   2B2   2F3   2B3",
    ]
    at = slots(schedule)
    assert [at[name] for name in ("0AR0", "0AR1", "1U0", "2U0", "1U3")] == [8, 12, 5, 4, 11]


@pytest.mark.parametrize(
    ("replicas", "in_flight", "forward"),
    [((3, 1), [2, 2, 2, 1], (1, 0)), ((2, 1, 1), [2, 2, 2, 1], (1, 1, 0)), ((1, 3), [4, 1, 1, 1], (3, 0))],
)
def test_in_flight_and_staleness_count_synchronised_updates(
    simulate: Any, mesh: Any, replicas: tuple[int, ...], in_flight: list[int], forward: tuple[int, ...]
) -> None:
    """In flight on each GPU: GPUs from its stage on over replicas, rounded up."""
    schedule = pipedream.plan(len(replicas), replicas=replicas)
    layers = [layer(float(count), float(count)) for count in replicas]
    trace = simulate(schedule, mesh(sum(replicas)), layers, "stash")
    measured = staleness.compute(trace)
    assert list(occupancy.compute(trace, measured).in_flight) == in_flight
    assert measured.forward.by_stage == measured.backward.by_stage == forward
    assert measured.staleness.tolist() == weight_versions.staleness(trace.as_schedule()).tolist()


def test_the_versions_of_a_3_1_plan(simulate: Any, mesh: Any) -> None:
    """Stage 0 is updated once a round: mini-batches 6 to 8 see the first update, 9 to 11 the second."""
    trace = simulate(pipedream.plan(2, mini_batches=12, replicas=(3, 1)), mesh(4), [layer(3.0, 3.0), layer(1.0, 1.0)])
    reads = {str(trace.id(op)): int(trace.ops["reads"][op]) for op in range(len(trace.ops))}
    assert [reads[str(OpId(OpKind.FORWARD, 0, j, j % 3))] for j in range(12)] == [0] * 6 + [1] * 3 + [2] * 3
    assert [reads[str(OpId(OpKind.BACKWARD, 0, j, j % 3))] for j in range(12)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [reads[f"1F{j}"] for j in range(12)] == list(range(12))


def busiest(trace: Trace) -> float:
    return max(device.compute_s for device in breakdown.compute(trace).devices)


def obeys(trace: Trace) -> None:
    """Each mini-batch on replica j mod r; a round's sum between all its backwards and all its updates."""
    ops, shape, halves = trace.ops, trace.shape, Halves(trace.ops)
    for stage, count in enumerate(shape.copies):
        mini_batch, first = np.arange(shape.mini_batches), sum(shape.copies[:stage])
        forward, backward = (
            halves.find(kind, stage, mini_batch, mini_batch % count) for kind in (OpKind.FORWARD, OpKind.BACKWARD)
        )
        for rows in (forward, backward):
            assert (rows >= 0).all()
            assert (ops["source"][rows] == first + mini_batch % count).all()
        update = halves.find(OpKind.UPDATE, stage, mini_batch // count, mini_batch % count)
        assert (update >= 0).all()
        if count > 1:
            total = halves.find(OpKind.ALL_REDUCE, stage, mini_batch // count, 0)
            assert (trace.end_s[backward] <= trace.start_s[total]).all()
            assert (trace.end_s[total] <= trace.start_s[update]).all()
            members = {trace.lanes[lane].device for lane in trace.lanes_of[int(total[0])].tolist()}
            assert members == set(range(first, first + count))


@given(replicas=REPLICAS, rounds=st.integers(1, 3), data=st.data(), kind=st.sampled_from(["latency", "in_order"]))
@settings(max_examples=60)
def test_any_replicas_run_the_same_on_both_backends(
    compose: Any, mesh: Any, replicas: tuple[int, ...], rounds: int, data: st.DataObject, kind: Any
) -> None:
    period = math.lcm(*replicas)
    schedule = pipedream.plan(len(replicas), 1, period * rounds, replicas)
    second = st.integers(0, 5).map(float)
    layers = [layer(*data.draw(st.tuples(second, second, second, second))) for _ in range(max(len(replicas), 2))]
    cluster = mesh(sum(replicas), kind, 0.25, 4.0)
    weights = data.draw(st.sampled_from(["latest", "stash"]))
    if len(replicas) == 1:
        layers = layers[:1]
    plan, binding = compose(schedule, cluster, layers, weights)
    simulated, exact = (load(name).execute(plan, binding) for name in ("simulated", "longest_path"))
    assert simulated.start_s.tobytes() == exact.start_s.tobytes()
    assert simulated.end_s.tobytes() == exact.end_s.tobytes()
    assert simulated.makespan_s >= busiest(simulated)
    if schedule.shape.copies:
        obeys(simulated)
    stale = staleness.compute(simulated)  # raises where a version is not that of the schedule
    assert stale.version.tolist() == np.where(stale.version >= 0, simulated.ops["reads"], -1).tolist()


def test_one_replicated_stage_is_data_parallelism(simulate: Any, mesh: Any) -> None:
    """A round of r mini-batches takes as long as a step of weak scaling: F + B and the sum."""
    cluster = mesh(4, "in_order", 0.125, 1024.0)
    work = [layer(1.0, 2.0, 4096.0)]
    pipeline = simulate(pipedream.plan(1, 1, 12, (4,)), cluster, work)
    ring = simulate(data_parallel.plan(4, 3, scaling="weak"), cluster, work)
    assert pipeline.makespan_s == ring.makespan_s == pytest.approx(3 * (3.0 + 6 * 0.125 + 1.5 * 4.0), rel=1e-12)


def test_step_time_counts_whole_rounds(simulate: Any, mesh: Any) -> None:
    """A round of three completes at once, so steps are taken from round to round."""
    trace = simulate(pipedream.plan(2, replicas=(3, 1)), mesh(4), [layer(3.0, 3.0), layer(1.0, 1.0)])
    found = steady.compute(trace)
    assert (found.first % 3, found.last % 3, found.steady) == (2, 2, True)
    assert found.step_time_s == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"replicas": (3, 1), "mini_batches": 10}, "mini_batches: 10 is no multiple of 3.*use 9 or 12"),
        ({"replicas": (3, 4), "mini_batches": 10}, "10 is no multiple of 12.*use 12"),
        ({"replicas": (3, 1, 1)}, "replicas: .3, 1, 1.: 3 of them for 2 stages"),
        ({"replicas": (3, 0)}, "replicas: .3, 0.: at least 1 GPU each"),
        ({"replicas": (3, 1), "micro_batches": 2}, "micro_batches: 2 with replicas"),
    ],
)
def test_replicas_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        pipedream.plan(**{"stages": 2, **keys})


def test_every_fault_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        pipedream.plan(3, 2, 5, (2, 1))
    assert [fault.path for fault in caught.value.faults] == ["schedule.replicas", "schedule.micro_batches"]


def test_one_gpu_for_each_stage_is_the_straight_pipeline() -> None:
    straight, named = pipedream.plan(3), pipedream.plan(3, replicas=(1, 1, 1))
    assert straight.shape == named.shape == Shape(3, 1, 24)
    assert straight.ops.tobytes() == named.ops.tobytes()


@pytest.mark.parametrize("replicas", [(2, 3), (3, 1), (2, 4)])
def test_mini_batches_default_to_whole_rounds(replicas: tuple[int, ...]) -> None:
    count = pipedream.plan(len(replicas), replicas=replicas).shape.mini_batches
    assert count >= 8 * sum(replicas)
    assert count % math.lcm(*replicas) == 0


def test_vertical_sync_needs_a_common_version() -> None:
    """After three mini-batches stage 0 has one update and stage 1 three; the other way round nothing matches."""
    schedule = weight_versions.apply(pipedream.plan(2, replicas=(3, 1)), "vertical_sync")
    reads, halves = schedule.ops["reads"], Halves(schedule.ops)
    mini_batch = np.arange(schedule.shape.mini_batches)
    first = reads[halves.find(OpKind.FORWARD, 0, mini_batch, mini_batch % 3)]
    for kind in (OpKind.FORWARD, OpKind.BACKWARD):
        assert (reads[halves.find(kind, 1, mini_batch, 0)] == 3 * first).all()
    with pytest.raises(Exception, match="no common version: stage 0 is updated after every 1 mini-batches, stage 1"):
        weight_versions.apply(pipedream.plan(2, replicas=(1, 3)), "vertical_sync")


def test_a_trace_of_replicas_is_kept(simulate: Any, mesh: Any, tmp_path: Path) -> None:
    trace = simulate(pipedream.plan(2, replicas=(3, 1)), mesh(4), [layer(3.0, 3.0), layer(1.0, 1.0)], "stash")
    trace.save(tmp_path / "trace.npz")
    again = Trace.load(tmp_path / "trace.npz")
    assert again.shape == trace.shape
    assert again.as_schedule().ops.tobytes() == trace.ops.tobytes()
