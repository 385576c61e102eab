"""What a schedule accepts, what it refuses and how it says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.assembly import ScheduleBuilder
from sim.engine.run import run
from sim.errors import Deadlock, InvalidSchedule
from sim.longest_path import unit_slots
from sim.model import Layer
from sim.op_table import Halves
from sim.ops import Lane, OpId, OpKind
from sim.passes import weight_versions
from sim.plan import Plan
from sim.planners import dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.program import Actor, Ask, Do, Op, Program
from sim.rows import Rows
from sim.schedule import Schedule, Shape
from sim.training import Training

Written = Callable[..., Schedule]
Names = dict[Lane, list[OpId]]

SMALL = {
    "gpipe": gpipe.plan(2, 2, 2),
    "one_f_one_b": one_f_one_b.plan(3, 2, 2),
    "pipedream": pipedream.plan(2, 1, 4),
    "dualpipe_2018": dualpipe_2018.plan(2, 1, 6),
}


def names(schedule: Schedule) -> Names:
    """The op names on each lane."""
    return {
        lane: [schedule.id(int(op)) for op in row] for lane, row in zip(schedule.lanes, schedule.order, strict=True)
    }


def build(shape: Shape, lanes: Names) -> Schedule:
    """A schedule from the op names on each lane."""
    builder = ScheduleBuilder(shape)
    for lane, ops in lanes.items():
        builder.lane(*lane)
        for op in ops:
            builder.add(lane, op)
    return builder.build()


def refusal(shape: Shape, lanes: Names) -> InvalidSchedule:
    """What `build` says; the grid always stands in the message."""
    with pytest.raises(InvalidSchedule) as caught:
        build(shape, lanes)
    assert caught.value.grid in str(caught.value)
    return caught.value


@pytest.mark.parametrize("schedule", SMALL.values(), ids=SMALL.keys())
def test_each_op_left_out_is_missed_by_name(schedule: Schedule) -> None:
    lanes = names(schedule)
    for lane, ops in lanes.items():
        for place, op in enumerate(ops):
            error = refusal(schedule.shape, {**lanes, lane: ops[:place] + ops[place + 1 :]})
            assert error.op == str(op)
            assert f"{op} is missing" in str(error)
            row = next(line for line in error.grid.splitlines() if line.startswith(f"d{lane.device}.{lane.stream}"))
            assert row.count(f">{op}<") == error.grid.count(">") == 1


@pytest.mark.parametrize("schedule", SMALL.values(), ids=SMALL.keys())
def test_each_op_put_twice_is_found_by_name(schedule: Schedule) -> None:
    lanes = names(schedule)
    for lane, ops in lanes.items():
        for place, op in enumerate(ops):
            error = refusal(schedule.shape, {**lanes, lane: [*ops[: place + 1], *ops[place:]]})
            assert (error.op, error.grid.count(f">{op}<")) == (str(op), 1)
            assert f"{op} stands in the schedule twice" in str(error)


@pytest.mark.parametrize("schedule", SMALL.values(), ids=SMALL.keys())
def test_a_backward_before_its_own_forward_is_a_cycle(schedule: Schedule) -> None:
    lanes = names(schedule)
    for lane, ops in lanes.items():
        for op in ops:
            forward = op._replace(kind=OpKind.FORWARD)
            if op.kind is not OpKind.BACKWARD or forward not in ops:
                continue
            swap = {op: forward, forward: op}
            error = refusal(schedule.shape, {**lanes, lane: [swap.get(each, each) for each in ops]})
            assert "wait for each other" in str(error)
            assert f">{error.op}<" in error.grid
            assert str(error).splitlines()[0].count(error.op) == 2  # a cycle starts and ends with the op it names


@pytest.mark.parametrize(
    ("stray", "shape"),
    [
        ("2F0", Shape(2, 1)),
        ("0F1", Shape(2, 1)),
        ("0B7", Shape(2, 1)),
        ("1F0@1", Shape(2, 1)),
        ("0U1", Shape(2, 1)),
        ("0U2", Shape(2, 2)),
        ("0AR1", Shape(2, 1)),
        ("(0F0;2B0)", Shape(2, 1)),
    ],
)
def test_an_op_beyond_the_shape_is_unexpected(stray: str, shape: Shape) -> None:
    lanes = names(gpipe.plan(shape.stages, shape.micro_batches))
    lanes[Lane(0, "compute")].append(OpId.parse(stray))
    error = refusal(shape, lanes)
    assert (error.op, error.grid.count(f">{stray}<")) == (stray, 1)
    assert "unexpected" in str(error) or "twice" in str(error)


@pytest.mark.parametrize(
    ("order", "op", "reason"),
    [
        ("0F0 0I0", "0W0", "is missing"),
        ("0F0 0W0", "0I0", "is missing"),
        ("0F0 0B0 0I0 0W0", "0I0", "computes a gradient that a full backward computes already"),
        ("0F0", "0B0", "is missing"),
        ("0B0", "0F0", "is missing"),
        ("0F0 0B0 0F0", "0F0", "twice"),
    ],
)
def test_one_whole_backward_or_two_halves(order: str, op: str, reason: str) -> None:
    error = refusal(Shape(1, 1), {Lane(0, "compute"): [OpId.parse(name) for name in order.split()]})
    assert error.op == op
    assert reason in str(error)
    assert f">{op}<" in error.grid


def test_what_a_whole_backward_may_be(written: Written) -> None:
    for backward in ("0B0", "0I0 0W0", "0B0.1 0B0.0"):
        assert len(written(Shape(1, 1), {"0.compute": f"0F0 {backward}"})) == 1 + len(backward.split())


def test_replicas_each_do_all_micro_batches(written: Written) -> None:
    lanes = {"0.compute": "0F0 0B0 0F1 0B1", "1.compute": "0F0@1 0B0@1 0F1@1 0B1@1"}
    written(Shape(1, 2, 1, 2), lanes)
    for lane, missing in (("1.compute", "0F1@1"), ("0.compute", "0F1")):
        with pytest.raises(InvalidSchedule, match="is missing") as caught:
            written(Shape(1, 2, 1, 2), {**lanes, lane: lanes[lane].replace(missing, "").replace("  ", " ")})
        assert caught.value.op == missing
    with pytest.raises(InvalidSchedule, match="0F0@1 is missing"):
        written(Shape(1, 2, 1, 2), {"0.compute": lanes["0.compute"]})


def test_two_collectives_in_opposite_order_on_two_lanes(written: Written) -> None:
    lanes = {"0.compute": "0F0 0B0 0F1 0B1", "1.compute": "0F0@1 0B0@1 0F1@1 0B1@1"}
    shape = Shape(1, 1, 2, 2)
    written(shape, {**lanes, "0.collective": "0AR0 0AR1", "1.collective": "0AR0 0AR1"})
    with pytest.raises(InvalidSchedule, match="0AR0 waits for 0AR1 waits for 0AR0") as caught:
        written(shape, {**lanes, "0.collective": "0AR0 0AR1", "1.collective": "0AR1 0AR0"})
    assert caught.value.op in ("0AR0", "0AR1")
    assert [line.count(f">{caught.value.op}<") for line in caught.value.grid.splitlines()] == [0, 0, 1, 1]


def test_two_channels_that_wait_for_each_other(written: Written) -> None:
    lanes = {"0.compute": "0F0 0F1 0B0 0B1", "1.compute": "1F0 1F1 1B0 1B1"}
    sends = {"0.send>1": "0SF0 0SF1", "1.recv<0": "0SF0 0SF1", "1.send>0": "1SB0 1SB1", "0.recv<1": "1SB0 1SB1"}
    written(Shape(2, 2), {**lanes, **sends})
    for end in ("0.recv<1", "1.send>0"):
        with pytest.raises(InvalidSchedule, match="wait for each other") as caught:
            written(Shape(2, 2), {**lanes, **sends, end: "1SB1 1SB0"})
        assert f">{caught.value.op}<" in caught.value.grid
    turns = {"0.compute": "0F0 0B0 0F1 0B1", "1.compute": "1F0 1B0 1F1 1B1"}
    written(Shape(2, 2), {**turns, **sends})
    with pytest.raises(InvalidSchedule, match="wait for each other"):  # both ends agree, but not with the data
        written(Shape(2, 2), {**turns, **sends, "0.send>1": "0SF1 0SF0", "1.recv<0": "0SF1 0SF0"})


def test_the_marked_cell_is_shown_however_far_it_stands() -> None:
    lanes = names(gpipe.plan(2, 500))
    ops = lanes[Lane(1, "compute")]
    ops[900], ops[400] = ops[400], ops[900]
    error = refusal(Shape(2, 500), lanes)
    assert f">{error.op}<" in error.grid
    assert max(map(len, error.grid.splitlines())) < 1000


def test_a_long_cycle_is_told_in_short(written: Written) -> None:
    count = 3000
    backward = " ".join(f"0B{j}" for j in range(count))
    forward = " ".join(f"0F{j}" for j in range(count))
    with pytest.raises(InvalidSchedule) as caught:
        written(Shape(1, count), {"0.compute": f"{backward} {forward}"})
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("counts", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, -1, 1), (1, 1, 1, 0), (-1, -1, -1, -1)])
def test_a_shape_needs_one_of_each(counts: tuple[int, int, int, int], written: Written) -> None:
    for attempt in (ScheduleBuilder, lambda shape: written(shape, {"0.compute": "0F0 0B0"})):
        with pytest.raises(InvalidSchedule, match="at least 1") as caught:
            attempt(Shape(*counts))
        wrong = [name for name, count in zip(Shape._fields, counts, strict=False) if count < 1]
        assert all(name in str(caught.value) for name in wrong)


def test_nothing_at_all_is_refused() -> None:
    builder = ScheduleBuilder(Shape(1, 1))
    with pytest.raises(InvalidSchedule, match="empty"):
        builder.build()
    builder.lane(0, "compute")
    with pytest.raises(InvalidSchedule, match="empty"):
        builder.build()


def test_an_edge_to_nowhere_is_refused(written: Written) -> None:
    builder = ScheduleBuilder(Shape(1, 1))
    for kind in (OpKind.FORWARD, OpKind.BACKWARD):
        builder.add(builder.lane(0, "compute"), OpId(kind, 0, 0))
    builder.after(OpId(OpKind.BACKWARD, 0, 0), OpId(OpKind.UPDATE, 0, 0))
    with pytest.raises(InvalidSchedule, match="0B0 waits for 0U0, but there is no 0U0"):
        builder.build()


def test_the_data_dependencies_of_a_pipeline(written: Written) -> None:
    lanes = {"0.compute": "0F0 0F1 0B0 0B1 0U0", "1.compute": "1F0 1I0 1F1 1I1 1W0 1W1 1U0"}
    schedule = written(Shape(2, 2), {**lanes, "0.send>1": "0SF0", "1.recv<0": "0SF0"}, after=[("0F1", "0SF0")])
    after = {
        str(schedule.id(op)): {str(schedule.id(int(other))) for other in schedule.after[op]}
        for op in range(len(schedule))
    }
    assert after == {
        "0F0": set(), "0F1": {"0SF0"}, "0SF0": {"0F0"}, "1F0": {"0SF0"}, "1F1": {"0F1"},
        "1I0": {"1F0"}, "1I1": {"1F1"}, "1W0": {"1I0"}, "1W1": {"1I1"},
        "0B0": {"0F0", "1I0"}, "0B1": {"0F1", "1I1"},
        "0U0": {"0B0", "0B1"}, "1U0": {"1I0", "1I1", "1W0", "1W1"},
    }  # fmt: skip


def test_the_data_dependencies_of_a_ring(written: Written) -> None:
    lanes = {"0.compute": "0F0 0B0.1 0B0.0 0U0", "1.compute": "0F0@1 0B0@1.1 0B0@1.0 0U0@1"}
    schedule = written(Shape(1, 1, 1, 2), {**lanes, "0.collective": "0AR0.1 0AR0.0", "1.collective": "0AR0.1 0AR0.0"})
    after = {
        str(schedule.id(op)): {str(schedule.id(int(other))) for other in schedule.after[op]}
        for op in range(len(schedule))
    }
    assert after["0AR0.1"] == {"0B0.1", "0B0@1.1"}
    assert after["0AR0.0"] == {"0B0.0", "0B0@1.0"}
    assert {"0AR0.0", "0AR0.1"} <= after["0U0"] & after["0U0@1"]
    assert schedule.devices_of(int(Halves(schedule.ops).find(OpKind.ALL_REDUCE, 0, 0, 0, 1))) == [0, 1]


def test_a_fused_pair_stands_for_both_halves(written: Written) -> None:
    schedule = written(Shape(1, 2), {"0.compute": "0F0 (0F1;0B0) 0B1 0U0"})
    halves = Halves(schedule.ops)
    pair = int(halves.find(OpKind.FORWARD_BACKWARD, 0, 1, 0))
    assert pair == -1  # a pair is found by its halves
    assert int(halves.find(OpKind.FORWARD, 0, 1, 0)) == int(halves.find(OpKind.BACKWARD, 0, 0, 0))
    update = int(halves.find(OpKind.UPDATE, 0, 0, 0))
    assert {str(schedule.id(int(op))) for op in schedule.after[update]} == {"(0F1;0B0)", "0B1"}
    with pytest.raises(InvalidSchedule, match="twice"):
        written(Shape(1, 2), {"0.compute": "0F0 (0F1;0B0) 0F1 0B1"})


def test_versions_are_the_updates_before_an_op_on_its_lane(written: Written) -> None:
    schedule = written(Shape(1, 1, 3), {"0.compute": "0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2"})
    reads = {str(schedule.id(op)): int(schedule.ops["reads"][op]) for op in range(len(schedule))}
    assert reads == {"0F0": 0, "0F1": 0, "0B0": 0, "0U0": -1, "0F2": 1, "0B1": 1, "0U1": -1, "0B2": 2, "0U2": -1}
    stashed = weight_versions.apply(schedule, "stash")
    reads = {str(stashed.id(op)): int(stashed.ops["reads"][op]) for op in range(len(stashed))}
    assert [reads[name] for name in ("0B0", "0B1", "0B2")] == [0, 0, 1]
    writes = schedule.ops["writes"][schedule.ops["kind"] == OpKind.UPDATE]
    assert writes.tolist() == [1, 2, 3]


def test_on_two_lanes_versions_become_edges() -> None:
    schedule = dualpipe_2018.plan(1, 1, 6)
    halves = Halves(schedule.ops)
    for micro_batch in range(6):
        forward = int(halves.find(OpKind.FORWARD, 0, micro_batch, 0))
        version = int(schedule.ops["reads"][forward])
        assert version == max(micro_batch - 1, 0)
        if version:
            assert int(halves.find(OpKind.UPDATE, 0, version - 1, 0)) in schedule.after[forward]
        assert forward in schedule.after[int(halves.find(OpKind.UPDATE, 0, version, 0))]


@given(
    st.integers(0, 2**32), st.sampled_from([gpipe.plan(3, 3, 2), one_f_one_b.plan(3, 4), dualpipe_2018.plan(2, 1, 6)])
)
def test_the_order_of_building_leaves_no_mark(seed: int, schedule: Schedule) -> None:
    """Lanes filled in any interleaving give the same schedule, to the byte; lanes keep the order they were made in."""
    builder, dice = ScheduleBuilder(schedule.shape), random.Random(seed)
    left = {lane: list(row) for lane, row in zip(schedule.lanes, schedule.order, strict=True)}
    for lane in left:
        builder.lane(*lane)
    while any(left.values()):
        lane = dice.choice([lane for lane, ops in left.items() if ops])
        op = int(left[lane].pop(0))
        stated = int(schedule.ops["reads"][op]) if lane.stream == "forward" else -2
        builder.add(lane, schedule.id(op), stated)
    for earlier, later in dice.sample(schedule.extra.tolist(), len(schedule.extra)):
        builder.after(schedule.id(later), schedule.id(earlier))
    rebuilt = builder.build()
    assert rebuilt.lanes == schedule.lanes
    assert rebuilt.ops.tobytes() == schedule.ops.tobytes()
    for mine, theirs in ((rebuilt.order, schedule.order), (rebuilt.after, schedule.after)):
        assert np.array_equal(mine.starts, theirs.starts)
        assert np.array_equal(mine.values, theirs.values)


@pytest.mark.parametrize("kind", ["fifo", "fair_share", "in_order"])
def test_ties_go_by_name_whatever_lane_was_made_first(simulate: Any, mesh: Any, kind: str) -> None:
    """Exclusive GPUs with two lanes, equal times everywhere: lanes made in another order change no time."""
    schedule, layers = dualpipe_2018.plan(3, 1, 8), [Layer("layer", 1.0, 0.5, 0.5, 2.0, 1.0, 1.0)]
    first = simulate(schedule, mesh(3, kind, 0.0, 2.0), layers)
    for seed in range(4):
        lanes = list(names(schedule).items())
        random.Random(seed).shuffle(lanes)
        builder = ScheduleBuilder(schedule.shape)
        for lane, ops in lanes:
            builder.lane(*lane)
            for op in ops:
                stated = int(schedule.ops["reads"][int(Halves(schedule.ops).find(*op[:4]))])
                builder.add(lane, op, stated if op.kind is OpKind.FORWARD else -2)
        for earlier, later in schedule.extra:
            builder.after(schedule.id(later), schedule.id(earlier))
        again = simulate(builder.build(), mesh(3, kind, 0.0, 2.0), layers)
        for column in ("ops", "start_s", "end_s", "flows", "memory"):
            assert getattr(again, column).tobytes() == getattr(first, column).tobytes()


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=10))
def test_rows(rows: list[list[int]]) -> None:
    rows = [[value % len(rows) for value in row] for row in rows]
    table = Rows.of(rows)
    assert [row.tolist() for row in table] == rows
    assert [row.tolist() for row in table.reversed()] == [
        [owner for owner, row in enumerate(rows) for value in row if value == wanted] for wanted in range(len(rows))
    ]
    assert [row.tolist() for row in Rows.distinct(table.owners, table.values, len(rows))] == [
        sorted({*row}) for row in rows
    ]


def test_topological_order_and_unit_slots_of_a_pipeline() -> None:
    schedule = one_f_one_b.plan(4, 8)
    place = {op: index for index, op in enumerate(schedule.topological)}
    assert sorted(place) == list(range(len(schedule)))
    assert all(place[int(earlier)] < place[op] for op in range(len(schedule)) for earlier in schedule.waits_for[op])
    start, end = unit_slots(schedule)
    assert int(end.max()) == 2 * (8 + 4 - 1)
    updates = schedule.ops["kind"] == OpKind.UPDATE
    assert ((end - start) == np.where(updates, 0, 1)).all()


def unchecked(schedule: Schedule, lanes: Names) -> Schedule:
    """The schedule in another order, as nobody would let it pass."""
    number = {schedule.id(op): op for op in range(len(schedule))}
    return replace(schedule, order=Rows.of([[number[op] for op in ops] for ops in lanes.values()]))


def test_a_deadlock_of_the_engine_names_each_blocked_op(compose: Any) -> None:
    plan, binding = compose(gpipe.plan(2, 1))
    lanes = names(plan.work)
    forward, backward, update = lanes[Lane(1, "compute")]
    with pytest.raises(Deadlock) as caught:
        run(
            replace(plan, work=unchecked(plan.work, {**lanes, Lane(1, "compute"): [backward, forward, update]})),
            binding,
        )
    assert caught.value.blocked == {"0B0": "1SB0 (lane d0.compute)", "1B0": "1F0 (lane d1.compute)"}
    assert "0B0 waits for 1SB0" in str(caught.value)
    assert "1B0 waits for 1F0" in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_deadlock_of_collectives_names_both(jobs: Any, job: Any, mesh: Any) -> None:
    both = ("0.collective", "1.collective")
    plan, binding = jobs([job(both), job(both)], mesh(2))
    schedule = replace(plan.work, order=Rows.of([[0, 1], [1, 0]]))
    with pytest.raises(Deadlock) as caught:
        run(replace(plan, work=schedule), binding)
    assert caught.value.blocked == {
        "0AR0.0": "0AR1.1 (lane d0.collective)",
        "0AR1.1": "0AR0.0 (lane d1.collective)",
    }


class Deaf:
    """A policy that never releases."""

    def on(self, request: Ask) -> list[Ask]:
        """See `Policy.on`."""
        return []


def test_a_policy_that_never_releases_is_a_deadlock(compose: Any) -> None:
    def actor(number: int) -> Callable[[], Actor]:
        def play() -> Actor:
            yield Do(Op(OpId(OpKind.FORWARD, 0, 0, number), (Lane(number, "compute"),), number))
            yield Ask("applied", f"worker{number}", 0)

        return play

    program = Program(
        Shape(1, 1, 1, 2), {(0, 0): 0, (0, 1): 1}, {f"worker{number}": actor(number) for number in range(2)}, Deaf
    )
    _, binding = compose(gpipe.plan(2, 1))
    with pytest.raises(Deadlock) as caught:
        run(Plan("deaf", program, ((0, 0),), "none", Training()), binding)
    assert caught.value.blocked == {f"worker{number}": "the release of 'applied' at step 0" for number in range(2)}
    assert "worker1 waits for the release of 'applied' at step 0" in str(caught.value)
