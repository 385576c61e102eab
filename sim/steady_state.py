"""Where a run repeats itself, so that a long run follows from two short ones.

A run is cut into units: mini-batches, or the micro-batches of every mini-batch. Of two runs the longer has a period of
units more. Its beginning is that of the shorter one, and its end is too, a period later. Where these overlap by as many
units as ops reach to others, be it by waiting for them or by being under way beside them, there is a unit all of whose
surroundings stand in the longer run twice, a period apart. Put one more period between the two: everything in it and
around it sees the surroundings that it has in the longer run. So each further period adds what the first one added. All
that two runs cannot show is that the planner goes on as it began.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.longest_path import needed
from sim.op_table import PASS_KINDS
from sim.ops import OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule
from sim.trace import Trace

Axis = Literal["mini_batches", "micro_batches"]
"""What a longer run has more of."""

TOLERANCE = 1e-12
"""Times agree that differ by no more of a period, or by no more than the clock's last bits."""


@dataclass(frozen=True)
class Repetition:
    """A run of ``units`` grows by ``period_s`` for every ``period`` units more, in each of ``groups`` mini-batches.

    ``first`` and ``last`` bound what repeats in it: from unit ``first`` up to, not including, ``last``.
    """

    axis: Axis
    units: int
    period: int
    period_s: float
    groups: int
    first: int
    last: int


class Units:
    """The ops of a trace by the unit they belong to; those between mini-batches belong to the end of the last one."""

    def __init__(self, trace: Trace, axis: Axis) -> None:
        self.trace, self.axis = trace, axis
        ops, shape = trace.ops, trace.shape
        number, passes = ops["micro_batch"].astype(np.int64), np.isin(ops["kind"], PASS_KINDS)
        rounds = np.array(shape.rounds or [1] * shape.stages)[ops["stage"]]
        mini_batch = np.where(passes, number // shape.micro_batches, (number + 1) * rounds - 1)
        micro_batch = np.where(passes, number % shape.micro_batches, shape.micro_batches - 1)
        by_mini_batch = axis == "mini_batches"
        self.count = shape.mini_batches if by_mini_batch else shape.micro_batches
        self.groups = 1 if by_mini_batch else shape.mini_batches
        self.unit, self.group = (mini_batch, 0 * mini_batch) if by_mini_batch else (micro_batch, mini_batch)
        self.position = self.group * self.count + self.unit
        self._place = micro_batch if by_mini_batch else 0 * mini_batch

    @cached_property
    def names(self) -> IntColumn:
        """What tells the ops of a unit apart and what they read, the same in every unit: [columns, ops]."""
        ops, shape = self.trace.ops, self.trace.shape
        paired = np.where(ops["other_micro_batch"] >= 0, ops["other_micro_batch"] - ops["micro_batch"], 0)
        applied = np.where(np.isin(ops["kind"], PASS_KINDS), shape.update_of(ops["stage"], ops["micro_batch"]), 0)
        ages = (ops["kind"] == OpKind.UPDATE).any() & (ops["reads"] >= 0)
        read = np.where(ages & (ops["kind"] != OpKind.UPDATE), applied - ops["reads"], -1)
        columns = [ops[name] for name in ("kind", "stage", "replica", "part", "source", "target", "other_stage")]
        return np.stack([self._place, *columns, paired, read]).astype(np.int64)

    @cached_property
    def by_unit(self) -> IntColumn:
        """The ops in order of unit, mini-batch and name."""
        return np.lexsort([*self.names[::-1], self.group, self.unit])

    def spans(self, start_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least of ``start_s`` (a time per op) and the last end in each unit of each mini-batch, by position."""
        begin_s, end_s = np.full(self.count * self.groups, np.inf), np.full(self.count * self.groups, -np.inf)
        np.minimum.at(begin_s, self.position, start_s)
        np.maximum.at(end_s, self.position, self.trace.end_s)
        return begin_s, end_s


def period_of(trace: Trace, axis: Axis) -> int | None:
    """The least period, in units, that the middle of a run shows; to be confirmed by `find`."""
    units = Units(trace, axis)
    spans = np.stack(units.spans(trace.start_s))[:, : units.count]
    low, high = units.count // 3, units.count - units.count // 3
    for period in range(1, high - low):
        steps_s = spans[:, low + period : high] - spans[:, low : high - period]
        if steps_s.max() - steps_s.min() <= _tolerance_s(float(steps_s.max()), trace):
            return period
    return None


def find(short: Trace, long: Trace, schedule: Schedule, axis: Axis) -> Repetition | None:
    """How the longer of two runs repeats itself, if it does; ``schedule`` is that of the longer one."""
    less, more = Units(short, axis), Units(long, axis)
    if short.lanes != long.lanes or len(short.ops) >= len(long.ops):
        return None
    period_s = (long.makespan_s - short.makespan_s) / more.groups
    last, first = (_agreeing(less, more, period_s, at_end) for at_end in (False, True))
    if last - first < _reach(schedule, more) or np.sum(less.unit < last) != np.sum(more.unit < last):
        return None
    period = more.count - less.count
    return Repetition(axis, more.count, period, period_s, more.groups, first, last + period)


def _agreeing(less: Units, more: Units, period_s: float, at_end: bool) -> int:
    """The shorter run agrees with the beginning of the longer one before this unit; or with its end, from it on."""
    ours = less.by_unit
    theirs = more.by_unit[-len(ours) :] if at_end else more.by_unit[: len(ours)]
    same = less.group[ours] == more.group[theirs]
    same &= less.unit[ours] + at_end * (more.count - less.count) == more.unit[theirs]
    same &= (less.names[:, ours] == more.names[:, theirs]).all(axis=0)
    late_s, tolerance_s = (less.group[ours] + at_end) * period_s, _tolerance_s(period_s, more.trace)
    for name in ("start_s", "end_s"):
        same &= abs(getattr(less.trace, name)[ours] + late_s - getattr(more.trace, name)[theirs]) <= tolerance_s
    wrong = less.unit[ours[~same]]
    if at_end:
        return int(wrong.max(initial=-1)) + 1
    return int(wrong.min(initial=less.count))


def _reach(schedule: Schedule, units: Units) -> int:
    """How many units lie, behind and ahead together, between ops that wait for each other or are under way at once."""
    waits, position, trace = needed(schedule), units.position, units.trace
    behind = position[waits.owners] - position[waits.values]
    ready_s = np.zeros(len(trace.ops))
    np.maximum.at(ready_s, waits.owners, trace.end_s[waits.values])
    begin_s, end_s = units.spans(ready_s)
    begun_s = np.minimum.accumulate(begin_s[::-1])[::-1]
    beside = int((np.searchsorted(begun_s, end_s) - 1 - np.arange(len(end_s))).max())
    return max(int(behind.max(initial=0)), beside) + max(int(-behind.min(initial=0)), beside)


def _tolerance_s(period_s: float, trace: Trace) -> float:
    return max(TOLERANCE * abs(period_s), 8 * math.ulp(trace.makespan_s))
