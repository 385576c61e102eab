"""The longest path against a plain recursion over all an op waits for, and many samples against one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.assembly import ScheduleBuilder
from sim.longest_path import DRAWN, latest_ends, needed, steps, times, times_columns
from sim.ops import Lane, OpId, OpKind
from sim.passes import transfers
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.rows import IntColumn
from sim.schedule import Schedule, Shape

SECONDS = st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 1.0]) | st.floats(0, 10)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Pipelines whose transfers hold channels or no lane, concurrent lanes, and rings that hold many."""
    stages, micro_batches, mini_batches = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    name = draw(st.sampled_from(["gpipe", "1f1b", "pipedream", "concurrent", "ring"]))
    if name == "ring":
        schedule = data_parallel.plan(stages, mini_batches, buckets=draw(st.integers(1, 3)))
        assert isinstance(schedule, Schedule)
        return schedule
    planner: Any = {"gpipe": gpipe, "1f1b": one_f_one_b, "pipedream": pipedream, "concurrent": dualpipe_2018}[name]
    holds = draw(st.booleans())
    return transfers.apply(planner.plan(stages, micro_batches, mini_batches), lambda source, target: holds)


def recursion(schedule: Schedule, seconds: Sequence[float]) -> list[float]:
    """The end of every op from its definition."""

    @cache
    def end(op: int) -> float:
        return max([end(int(earlier)) for earlier in schedule.waits_for[op]], default=0.0) + seconds[op]

    return [end(op) for op in range(len(schedule))]


def drawn(schedule: Schedule, samples: int, seed: int) -> NDArray[np.float64]:
    """Durations of many sizes, a tenth of them none."""
    random = np.random.default_rng(seed)
    seconds = random.lognormal(0, 2, (len(schedule), samples))
    return np.where(random.random(seconds.shape) < 0.1, 0.0, seconds)


@given(data=st.data())
@settings(max_examples=100)
def test_an_op_ends_its_duration_after_the_last_it_waits_for(data: st.DataObject) -> None:
    schedule = data.draw(schedules())
    seconds = data.draw(st.lists(SECONDS, min_size=len(schedule), max_size=len(schedule)))
    start, end = times(schedule, seconds)
    assert end == recursion(schedule, seconds)
    waits = [max((end[earlier] for earlier in earliers), default=0.0) for earliers in schedule.waits_for]
    assert start == waits


@given(schedules(), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=100)
def test_each_column_is_what_its_sample_gives_alone(schedule: Schedule, samples: int, seed: int) -> None:
    seconds = drawn(schedule, samples, seed)
    start, end = times_columns(schedule, seconds)
    for sample in range(samples):
        alone = times(schedule, seconds[:, sample].tolist())
        assert (start[:, sample].tolist(), end[:, sample].tolist()) == alone


@given(schedules(), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=100)
def test_the_latest_ends_are_those_of_the_columns(schedule: Schedule, samples: int, seed: int) -> None:
    seconds = drawn(schedule, samples, seed)
    random = np.random.default_rng(seed)
    groups = [random.choice(len(schedule), random.integers(1, len(schedule) + 1)) for _ in range(3)]
    asked: list[int] = []

    def draw(ops: IntColumn, count: int) -> NDArray[np.float64]:
        asked.extend(ops.tolist())
        assert count == samples
        assert len(ops) <= DRAWN
        return seconds[ops]

    latest = latest_ends(schedule, draw, samples, groups)
    end = times_columns(schedule, seconds)[1]
    assert np.array_equal(latest, [end[group].max(axis=0) for group in groups])
    assert asked == schedule.topological


def test_a_hand_drawn_diamond() -> None:
    """0F0 on one GPU, its data twice over channels, met again: 1 + max(2, 5) + 4."""
    builder = ScheduleBuilder(Shape(1, 2))
    left, right = Lane(0, "compute"), Lane(1, "compute")
    for lane in (left, right):
        builder.lane(*lane)
    builder.add(left, OpId(OpKind.FORWARD, 0, 0))
    builder.add(left, OpId(OpKind.BACKWARD, 0, 0))
    builder.add(right, OpId(OpKind.FORWARD, 0, 1))
    builder.add(right, OpId(OpKind.BACKWARD, 0, 1))
    builder.after(OpId(OpKind.FORWARD, 0, 1), OpId(OpKind.FORWARD, 0, 0))
    builder.after(OpId(OpKind.BACKWARD, 0, 1), OpId(OpKind.BACKWARD, 0, 0))
    schedule = builder.build()
    seconds = {"0F0": 1.0, "0B0": 2.0, "0F1": 5.0, "0B1": 4.0}
    start, end = times(schedule, [seconds[str(schedule.id(op))] for op in range(4)])
    named = {str(schedule.id(op)): (start[op], end[op]) for op in range(4)}
    assert named == {"0F0": (0, 1), "0B0": (1, 3), "0F1": (1, 6), "0B1": (6, 10)}


def test_waits_that_a_lane_implies_are_left_out() -> None:
    schedule = one_f_one_b.plan(4, 16)
    kept = needed(schedule)
    assert len(kept.values) < len(schedule.waits_for.values)
    backward = next(op for op in range(len(schedule)) if str(schedule.id(op)) == "0B0")
    assert {str(schedule.id(int(op))) for op in schedule.waits_for[backward]} >= {"0F0", "0F3", "1B0"}
    assert {str(schedule.id(int(op))) for op in kept[backward]} == {"0F3", "1B0"}


@pytest.mark.parametrize("planner", [one_f_one_b.plan, pipedream.plan])
def test_memory_of_many_samples_does_not_grow_with_the_run(planner: Callable[..., Schedule]) -> None:
    rows = [steps(planner(4, 8, mini_batches)).rows[1] for mini_batches in (4, 16)]
    assert rows[0] == rows[1] < 32


def test_a_schedule_is_sorted_once() -> None:
    schedule = gpipe.plan(2, 3)
    assert steps(schedule) is steps(schedule)
