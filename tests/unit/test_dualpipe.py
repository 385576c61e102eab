"""DualPipe of 2025 and DualPipeV against their closed forms and PyTorch's recording; what a fused pair is."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from analysis import occupancy, staleness
from backends.longest_path import BACKEND as LONGEST_PATH
from sim.engine.run import run
from sim.errors import InvalidSchedule, UnsupportedPlan
from sim.longest_path import unit_slots
from sim.memory.buffers import BufferKind
from sim.model import Layer
from sim.op_table import Halves
from sim.ops import Lane, OpId, OpKind
from sim.passes import buffers, transfers
from sim.planners import dualpipe_2025, dualpipe_v
from sim.schedule import Schedule, Shape
from sim.trace import Trace

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "pytorch" / "dualpipev_4rank_10mb.csv"
UNIT = Layer("stage", 1.0, 1.0, 1.0, 0.0, 1.0, 4.0)
BOTH = [(dualpipe_2025, 2), (dualpipe_v, 1)]
"""The planner, and its GPUs for each of the half that the formulas count."""


def busy_s(trace: Trace) -> list[float]:
    """Time that each GPU computes."""
    compute = [lane for lane, name in enumerate(trace.lanes) if name.computes]
    return [float((trace.end_s - trace.start_s)[trace.order[lane]].sum()) for lane in compute]


def test_eight_gpus_and_twenty_micro_batches(simulate: Any) -> None:
    trace = simulate(dualpipe_2025.plan(8, 20), layers=[UNIT])
    assert trace.makespan_s == 66
    assert busy_s(trace) == [60] * 8


@pytest.mark.parametrize(("planner", "gpus"), BOTH)
@pytest.mark.parametrize("half", [2, 4, 8])
@pytest.mark.parametrize("pair_s", [None, 3.0, 2.5])
@pytest.mark.parametrize("further", [0, 6])
def test_bubble(simulate: Any, planner: ModuleType, gpus: int, half: int, pair_s: float | None, further: int) -> None:
    """(half − 1)(F&B + B − 3W) where there are most pairs: 2, 6, 14 where these are serial; else 1.5, 4.5, 10.5."""
    stages = gpus * half
    trace = simulate(planner.plan(stages, 2 * stages + further), layers=[UNIT], pair_s=pair_s)
    bubble_s = (half - 1) * ((pair_s or 3.0) + 2.0 - 3.0)
    assert trace.makespan_s - min(busy_s(trace)) == pytest.approx(bubble_s)
    assert {2: (2.0, 1.5), 4: (6.0, 4.5), 8: (14.0, 10.5)}[half][pair_s == 2.5] == bubble_s
    if pair_s != 2.5:
        assert len(set(busy_s(trace))) == 1


def test_the_order_that_pytorch_records() -> None:
    if not RECORDED.exists():
        pytest.skip(f"{RECORDED} is not there")
    schedule = dualpipe_v.plan(4, 10)
    for lane, line in zip(schedule.order, RECORDED.read_text(encoding="utf-8").splitlines(), strict=True):
        names = [str(schedule.id(int(op))) for op in lane if schedule.ops["kind"][op] != OpKind.UPDATE]
        assert names == [cell.removesuffix("OVERLAP_F_B") for cell in line.split(",") if cell]


def test_dualpipe_v_is_one_half_of_dualpipe() -> None:
    """Folded at its middle: the same passes in the same order, stage N − 1 − d being the chunk that comes back."""
    folded, whole = dualpipe_v.plan(3, 8), dualpipe_2025.plan(6, 16)

    def shapes(schedule: Schedule, device: int) -> list[str]:
        lane = schedule.lanes.index(Lane(device, "compute"))
        rows = schedule.ops[schedule.order[lane]]
        number = rows["micro_batch"] % 8
        kinds = rows["kind"] != OpKind.UPDATE
        return [f"{row['kind']} {row['stage']} {at}" for row, at in zip(rows[kinds], number[kinds], strict=True)]

    for device in range(3):
        assert shapes(folded, device) == shapes(whole, device) == shapes(whole, 5 - device)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_in_flight(simulate: Any, stages: int) -> None:
    """At most N + 1 micro-batches on a GPU; folded, 2N + 1 of half as large chunks."""
    most = occupancy.compute(simulate(dualpipe_2025.plan(stages, 4 * stages), layers=[UNIT])).in_flight
    assert max(most) == stages + 1
    most = occupancy.compute(simulate(dualpipe_v.plan(stages, 4 * stages), layers=[UNIT])).in_flight
    assert max(most) == 2 * stages + 1


def test_copies_take_half_the_micro_batches_each_and_sum_their_gradients() -> None:
    schedule = dualpipe_2025.plan(4, 8, 2)
    ops, halves = schedule.ops, Halves(schedule.ops)
    assert schedule.placement == {(stage, copy): (stage, 3 - stage)[copy] for stage in range(4) for copy in (0, 1)}
    for stage, mini_batch in np.ndindex(4, 2):
        numbers = np.arange(8) + 8 * mini_batch
        forward = halves.find(OpKind.FORWARD, stage, numbers, 0, anywhere=True)
        assert ops["replica"][forward].tolist() == [0] * 4 + [1] * 4
        (ring,) = halves.find(OpKind.ALL_REDUCE, stage, [mini_batch], 0).tolist()
        last = [halves.find(kind, stage, numbers, ops["replica"][forward]) for kind in (4, 5, 7)]
        assert set(chain(*last)) - {-1} == set(schedule.after[ring].tolist())
        for update in halves.find(OpKind.UPDATE, stage, mini_batch, [0, 1]).tolist():
            assert ring in schedule.after[update]


def test_a_pair_waits_for_both_and_both_wait_for_it(written: Any) -> None:
    lanes = {"0.compute": "0F0 0F1 1F0 (1F1;1B0) 1B1 0B0 0B1 0U0 1U0"}
    schedule = written(Shape(2, 2), lanes)
    pair = int(Halves(schedule.ops).find(OpKind.FORWARD, 1, 1, 0))
    assert {str(schedule.id(int(op))) for op in schedule.after[pair]} == {"0F1", "1F0"}
    waiting = {str(schedule.id(op)) for op in range(len(schedule)) if pair in schedule.after[op]}
    assert waiting == {"1B1", "0B0", "1U0"}


def test_the_halves_of_a_pair_may_be_of_two_copies() -> None:
    schedule = transfers.apply(dualpipe_2025.plan(4, 8), lambda *_: True)
    ops, halves = schedule.ops, Halves(schedule.ops)
    pairs = np.flatnonzero(ops["kind"] == OpKind.FORWARD_BACKWARD)
    stage, micro_batch, copy = halves.backward_of(pairs)
    assert np.array_equal(stage, ops["other_stage"][pairs])
    assert np.array_equal(micro_batch, ops["other_micro_batch"][pairs])
    assert np.array_equal(copy, 1 - ops["replica"][pairs])
    assert np.array_equal(halves.find(OpKind.BACKWARD, stage, micro_batch, copy), pairs)
    assert (halves.find(OpKind.BACKWARD, stage, micro_batch, 1 - copy) == -1).all()
    sent = halves.find(OpKind.SEND_GRADIENT, stage, micro_batch, copy)
    assert np.array_equal(sent >= 0, stage > 0)
    assert all(pair in schedule.after[move] for pair, move in zip(pairs, sent, strict=True) if move >= 0)


def test_the_buffers_of_a_pair() -> None:
    """One GPU each for stages 0 and 3, 1 and 2: the pair (1F…;2B…) frees what 2F… saved, and holds what it sends."""
    schedule = transfers.apply(dualpipe_v.plan(2, 4), lambda *_: False)
    events = buffers.apply(schedule)
    pair = next(op for op in range(len(schedule)) if str(schedule.id(op)) == "(2F3;1B1)")
    found = {
        (BufferKind(int(row["kind"])).name, int(row["stage"]), int(row["number"]), int(row["sign"]), int(row["when"]))
        for row in events[events["op"] == pair]
    }
    assert found == {
        ("ACTIVATION", 2, 3, 1, 0),
        ("ACTIVATION", 1, 1, -1, 1),
        ("RECEIVED_ACTIVATION", 1, 1, -1, 1),
        ("INPUT_GRADIENT", 1, 1, 1, 0),
    }


@pytest.mark.parametrize("stages", range(1, 17))
def test_every_size_builds_or_is_refused(stages: int) -> None:
    for micro_batches in range(1, 17):
        if micro_batches < 2 * stages:
            with pytest.raises(UnsupportedPlan, match=f"needs at least {2 * stages}"):
                dualpipe_v.plan(stages, micro_batches)
        else:
            assert unit_slots(dualpipe_v.plan(stages, micro_batches))[1].max() > 2 * micro_batches
        if stages % 2 or micro_batches % 2 or micro_batches < 2 * stages:
            with pytest.raises(UnsupportedPlan, match="even number"):
                dualpipe_2025.plan(stages, micro_batches)
        else:
            assert unit_slots(dualpipe_2025.plan(stages, micro_batches))[1].max() > micro_batches


@pytest.mark.parametrize(
    "schedule",
    [dualpipe_2025.plan(2, 4, 2), dualpipe_2025.plan(4, 10, 2), dualpipe_v.plan(1, 2, 2), dualpipe_v.plan(3, 7, 2)],
)
def test_simulated_equals_longest_path(compose: Any, mesh: Any, schedule: Schedule) -> None:
    layer = Layer("stage", 1.0, 0.7, 0.6, 1.0, 2.0, 12.0, saved_for_weight_bytes=0.5)
    plan_and_binding = compose(schedule, mesh(4, "in_order", 0.125, 3.0), [layer], pair_s=2.0)
    simulated, bound = run(*plan_and_binding), LONGEST_PATH.execute(*plan_and_binding)
    assert np.array_equal(simulated.start_s, bound.start_s)
    assert np.array_equal(simulated.end_s, bound.end_s)
    assert staleness.compute(simulated).staleness.max() == 0


def test_a_pair_whose_backward_is_not_there_is_refused(written: Any) -> None:
    with pytest.raises(InvalidSchedule, match="0B1 is missing"):
        written(Shape(1, 2), {"0.compute": "0F0 (0F1;0B0) 0U0"})
    assert str(OpId.parse("(0F1;0B0)")) == "(0F1;0B0)"
