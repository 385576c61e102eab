"""Chimera against its closed forms; what two copies of every stage mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis import occupancy, staleness
from backends.longest_path import BACKEND as LONGEST_PATH
from sim.engine.run import run
from sim.errors import UnsupportedPlan
from sim.longest_path import unit_slots
from sim.memory.buffers import BufferKind
from sim.model import Layer
from sim.ops import OpKind
from sim.passes.weight_versions import staleness as promised
from sim.planners.chimera import plan
from sim.schedule import Schedule
from sim.trace import Trace

EVEN = (2, 4, 6, 8, 16)


def stage(forward_s: float, backward_s: float) -> Layer:
    return Layer("stage", forward_s, backward_s / 2, backward_s / 2, 0.0, 1.0, 4.0)


def bubble(trace: Trace, work_s: float) -> float:
    """Share of the makespan in which a GPU does not compute; all do equally much."""
    return 1 - work_s / trace.makespan_s


@pytest.mark.parametrize("stages", EVEN)
@pytest.mark.parametrize("units", [1, 2, 3])
def test_bubble_of_equal_passes(simulate: Any, stages: int, units: int) -> None:
    """Units of N micro-batches follow each other without a gap."""
    micro_batches = units * stages
    trace = simulate(plan(stages, micro_batches), layers=[stage(1.0, 1.0)])
    closed_form = (stages - 2) / (2 * micro_batches + stages - 2)
    assert bubble(trace, 2.0 * micro_batches) == pytest.approx(closed_form, abs=1e-12)


@pytest.mark.parametrize("stages", EVEN)
def test_bubble_of_long_backwards(simulate: Any, stages: int) -> None:
    trace = simulate(plan(stages, stages), layers=[stage(1.0, 2.0)])
    assert bubble(trace, 3.0 * stages) == pytest.approx((stages - 2) / (1.5 * stages + stages - 2), abs=1e-12)


@pytest.mark.parametrize("stages", EVEN)
def test_in_flight(simulate: Any, stages: int) -> None:
    """N/2 + 1 at the ends of the pipeline, N in its middle."""
    most = occupancy.compute(simulate(plan(stages, stages), layers=[stage(1.0, 1.0)])).in_flight[:stages]
    half = [stages // 2 + 1 + device for device in range(stages // 2)]
    assert list(most) == half + half[::-1]


@pytest.mark.parametrize("stages", EVEN)
def test_no_pass_is_later_than_in_the_figure(stages: int) -> None:
    """There each direction starts a micro-batch every other slot, N/2 of them every 2N, which run without a stop."""
    schedule = plan(stages, 3 * stages)
    start, _ = unit_slots(schedule)
    for op, row in enumerate(schedule.ops):
        unit, within = divmod(int(row["micro_batch"]) % (3 * stages // 2), stages // 2)
        first = 2 * stages * unit + 2 * within
        if row["kind"] == OpKind.FORWARD:
            assert start[op] <= first + row["stage"]
        elif row["kind"] == OpKind.BACKWARD:
            assert start[op] <= first + 2 * stages - 1 - row["stage"]


def test_the_figure_of_the_paper() -> None:
    """Four GPUs, four micro-batches: 0 and 1 run down, 2 and 3 up."""
    schedule = plan(4, 4)
    compute = [row for lane, row in zip(schedule.lanes, schedule.order, strict=True) if lane.stream == "compute"]
    rows = [[str(schedule.id(int(op))) for op in row if schedule.ops["kind"][op] != OpKind.UPDATE] for row in compute]
    assert [" ".join(row) for row in rows] == [
        "0F0 0F1 3F2@1 3B2@1 3F3@1 3B3@1 0B0 0B1",
        "1F0 2F2@1 1F1 2F3@1 2B2@1 1B0 2B3@1 1B1",
        "1F2@1 2F0 1F3@1 2F1 2B0 1B2@1 2B1 1B3@1",
        "0F2@1 0F3@1 3F0 3B0 3F1 3B1 0B2@1 0B3@1",
    ]


@pytest.mark.parametrize("micro_batches", [2, 4, 5])
def test_copies_share_the_work_and_the_gradient(micro_batches: int) -> None:
    schedule = plan(4, micro_batches, 2)
    ops = schedule.ops
    assert schedule.placement == {(k, copy): (k, 3 - k)[copy] for k in range(4) for copy in (0, 1)}
    for number in range(4):
        for mini_batch in range(2):
            forward = ops[(ops["kind"] == OpKind.FORWARD) & (ops["stage"] == number)]
            mine = forward[forward["micro_batch"] // micro_batches == mini_batch]
            assert sorted(mine["micro_batch"] - mini_batch * micro_batches) == list(range(micro_batches))
            assert (mine["replica"] == 1).sum() == micro_batches // 2
            (ring,) = find(schedule, OpKind.ALL_REDUCE, number, mini_batch)
            waits = {str(schedule.id(int(op))) for op in schedule.after[ring]}
            assert waits == {str(schedule.id(int(op))) for op in backwards(schedule, number, mini_batch)}
            for update in find(schedule, OpKind.UPDATE, number, mini_batch):
                assert ring in schedule.after[update]
    assert promised(schedule).max() == 0


def find(schedule: Schedule, kind: OpKind, number: int, mini_batch: int) -> list[int]:
    ops = schedule.ops
    mine = (ops["kind"] == kind) & (ops["stage"] == number) & (ops["micro_batch"] == mini_batch)
    return np.flatnonzero(mine).tolist()


def backwards(schedule: Schedule, number: int, mini_batch: int) -> list[int]:
    ops = schedule.ops
    mine = (ops["kind"] == OpKind.BACKWARD) & (ops["stage"] == number)
    return np.flatnonzero(mine & (ops["micro_batch"] // schedule.shape.micro_batches == mini_batch)).tolist()


@pytest.mark.parametrize("stages", range(1, 17))
def test_every_size_builds_or_is_refused(stages: int) -> None:
    for micro_batches in range(1, 17):
        if stages % 2 or micro_batches < 2:
            with pytest.raises(UnsupportedPlan, match=r"two directions need (an even number|at least 2); use"):
                plan(stages, micro_batches)
        else:
            _, end = unit_slots(plan(stages, micro_batches))
            assert end.max() >= 2 * micro_batches


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 5), (4, 4), (4, 11), (6, 8)])
def test_simulated_equals_longest_path(compose: Any, mesh: Any, stages: int, micro_batches: int) -> None:
    layer = Layer("stage", 1.0, 0.7, 0.6, 1.0, 2.0, 12.0)
    plan_and_binding = compose(plan(stages, micro_batches, 2), mesh(stages, "in_order", 0.125, 3.0), [layer])
    simulated, bound = run(*plan_and_binding), LONGEST_PATH.execute(*plan_and_binding)
    assert np.array_equal(simulated.start_s, bound.start_s)
    assert np.array_equal(simulated.end_s, bound.end_s)
    assert staleness.compute(simulated).staleness.max() == 0


def test_each_gpu_holds_two_stages(compose: Any) -> None:
    _, binding = compose(plan(4, 4), layers=[Layer("stage", 1.0, 1.0, 1.0, 0.0, 0.0, 4.0)])
    held = {(resident.device, resident.stage) for resident in binding.resident if resident.kind is BufferKind.WEIGHTS}
    assert held == {(device, number) for device in range(4) for number in (device, 3 - device)}
