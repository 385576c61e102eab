"""When each op of a schedule runs if nothing but its predecessors holds it up.

``start = max(end of predecessors)``, ``end = start + duration``, in that order and never as a sum of durations, so
the times equal the discrete-event simulation to the last bit where that meets no contention. One sample of durations
is played on lists, a hundred or more on rows of numpy, a sample a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from sim.op_table import op_id
from sim.ops import COMPUTE_KINDS, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule import Schedule
from sim.schedule_grid import render

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Seconds = NDArray[np.float64]

DRAWN = 64
"""Ops whose durations `latest_ends` asks for at once."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Every op after all it waits for, in columns.

    Parameters
    ----------
    op : numbers of the ops.
    first, second : whom each waits for; −1: nobody.
    more : and the others, where there are more than two.
    """

    op: list[int]
    first: list[int]
    second: list[int]
    more: list[list[int]]

    @cached_property
    def rows(self) -> tuple[list[int], int]:
        """A row of memory for the end of each op, and how many that takes: one no longer waited for is used again.

        The last entry is for nobody: the row behind all others.
        """
        row, free, count = [0] * len(self.op) + [-1], list[int](), 0
        waiting = np.bincount(np.array([*self.first, *self.second, *chain(*self.more)]) + 1, minlength=len(row))
        left = [*waiting[1:].tolist(), len(row) * 2]  # nobody's is never used up
        for op, first, second, more in zip(self.op, self.first, self.second, self.more, strict=True):
            if not free:
                free.append(count)
                count += 1
            row[op] = free.pop()
            for other in (first, second, *more):
                left[other] -= 1
                if not left[other]:
                    free.append(row[other])
            if not left[op]:
                free.append(row[op])
        return row, count


_STEPS: WeakKeyDictionary[Schedule, Steps] = WeakKeyDictionary()


def steps(schedule: Schedule) -> Steps:
    """The steps of a schedule, worked out once, without the waits that the order of a lane implies."""
    if schedule not in _STEPS:
        waits, op = needed(schedule), np.array(schedule.topological)
        count, none = np.diff(waits.starts)[op], np.append(waits.values, -1)
        first = np.where(count > 0, none[waits.starts[op]], -1)
        second = np.where(count > 1, none[np.minimum(waits.starts[op] + 1, len(waits.values))], -1)
        more: list[list[int]] = [[]] * len(op)
        for place in np.flatnonzero(count > 2).tolist():
            more[place] = waits[op[place]][2:].tolist()
        _STEPS[schedule] = Steps(schedule.topological, first.tolist(), second.tolist(), more)
    return _STEPS[schedule]


def needed(schedule: Schedule) -> Rows:
    """`Schedule.waits_for` but for ops further back on a lane that both ops hold: nothing there ends later."""
    waits, order = schedule.waits_for, schedule.order
    lane, place = np.full(len(schedule), -1), np.zeros(len(schedule), np.int64)
    lane[order.values], place[order.values] = order.owners, np.arange(len(order.values))
    later, earlier = waits.owners, waits.values
    needed = (lane[later] < 0) | (lane[later] != lane[earlier]) | (place[later] - place[earlier] == 1)
    return Rows.from_pairs(later[needed], earlier[needed], len(schedule))


def times(schedule: Schedule, seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """Start and end of every op, in the unit of ``seconds`` (a duration per op)."""
    todo = steps(schedule)
    start, end = [0.0] * len(schedule), [0.0] * (len(schedule) + 1)  # the last stands for nobody
    for op, first, second, more in zip(todo.op, todo.first, todo.second, todo.more, strict=True):
        begin, other = end[first], end[second]
        if other > begin:
            begin = other
        for earlier in more:
            if end[earlier] > begin:
                begin = end[earlier]
        start[op] = begin
        end[op] = begin + seconds[op]
    end.pop()
    return start, end


def times_columns(schedule: Schedule, seconds: Seconds) -> tuple[Seconds, Seconds]:
    """`times` of many samples of durations at once: column s of start and end belongs to column s of ``seconds``.

    All three are [ops, samples]; see `latest_ends` where that is too much to hold.
    """
    todo, start, end = steps(schedule), np.empty_like(seconds), np.empty_like(seconds)
    ends = [*end, np.zeros(seconds.shape[1])]
    for op, first, second, more in zip(todo.op, todo.first, todo.second, todo.more, strict=True):
        np.maximum(ends[first], ends[second], out=start[op])
        for earlier in more:
            np.maximum(start[op], ends[earlier], out=start[op])
        np.add(start[op], seconds[op], out=end[op])
    return start, end


def latest_ends(
    schedule: Schedule, draw: Callable[[IntColumn, int], Seconds], samples: int, groups: Sequence[IntColumn]
) -> Seconds:
    """The latest end in each group of ops, for every sample: [groups, samples].

    ``draw(ops, samples)`` gives durations [ops, samples]; each op is asked for once, in topological order. An end is
    kept only until the last op that waits for it has begun, so memory does not grow with the length of the schedule.
    """
    todo, latest = steps(schedule), np.zeros((len(groups), samples))
    row, count = todo.rows
    rows = [*np.empty((count, samples)), np.zeros(samples)]
    asked: dict[int, list[int]] = {}
    for group, ops in enumerate(groups):
        for op in ops.tolist():
            asked.setdefault(op, []).append(group)
    for begin in range(0, len(todo.op), DRAWN):
        drawn = slice(begin, begin + DRAWN)
        durations = draw(np.array(todo.op[drawn]), samples)
        columns = todo.op[drawn], todo.first[drawn], todo.second[drawn], todo.more[drawn], durations
        for op, first, second, more, seconds in zip(*columns, strict=True):
            end = rows[row[op]]
            if second < 0:
                np.add(rows[row[first]], seconds, out=end)
            else:
                np.maximum(rows[row[first]], rows[row[second]], out=end)
                for earlier in more:
                    np.maximum(end, rows[row[earlier]], out=end)
                np.add(end, seconds, out=end)
            for group in asked.get(op, ()):
                np.maximum(latest[group], end, out=latest[group])
    return latest


def unit_slots(schedule: Schedule) -> tuple[IntColumn, IntColumn]:
    """Start and end slot of every op when each forward and backward takes one slot and everything else none."""
    free = [int(kind) for kind in OpKind if kind not in COMPUTE_KINDS or kind in (OpKind.UPDATE, OpKind.ACCUMULATE)]
    slots: NDArray[np.float64] = np.where(np.isin(schedule.ops["kind"], free), 0.0, 1.0)
    start, end = times(schedule, slots.tolist())
    return np.array(start, np.int64), np.array(end, np.int64)


def grid(schedule: Schedule, most: int = 64) -> str:
    """The schedule as the papers draw it: a row a compute lane, a column a unit slot."""
    start, end = unit_slots(schedule)
    computing = [number for number, lane in enumerate(schedule.lanes) if lane.computes]
    rows: list[list[str]] = []
    for number in computing:
        cells: list[str] = []
        for op in schedule.order[number]:
            if end[op] > start[op]:
                cells += [""] * (int(start[op]) - len(cells)) + [str(op_id(schedule.ops[op]))]
        rows.append(cells)
    return render([schedule.lanes[number] for number in computing], rows, most)
