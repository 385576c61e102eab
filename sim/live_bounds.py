"""Live bytes that every run of a schedule reaches on each device, whatever its times: for many bindings at once.

Look at the moment when an op x of a compute lane has started. A buffer is there if it was allocated at an op of the
lane up to x, or at one that an op of the lane up to x waits for; and it is not released yet if that happens at the end
of x or of a later op of the lane, or of one that waits for x or for a later op of the lane. So the live bytes are at
least those allocated in this way less all that may have been released; the most over all x is a bound on the peak.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding
from sim.memory.buffers import END, START, BufferKind
from sim.rows import IntColumn
from sim.schedule import Schedule


def least_live_bytes(schedule: Schedule, events: NDArray[np.void], bindings: Sequence[Binding]) -> NDArray[np.int64]:
    """Bytes beside what is resident: [devices, bindings]. ``events``: of the schedule's buffers (dtype `EVENTS`)."""
    least = np.zeros((len(bindings[0].devices), len(bindings)), np.int64)
    for lane, row in zip(schedule.lanes, schedule.order, strict=True):
        mine = events[events["device"] == lane.device]
        if lane.computes and len(mine):
            kinds, counts = _counts(schedule, mine, row)
            sizes = np.array([[each.buffer_bytes[kind, stage] for each in bindings] for kind, stage in kinds])
            np.maximum(least[lane.device], (counts @ sizes).max(axis=0), out=least[lane.device])
    return least


def _counts(
    schedule: Schedule, events: NDArray[np.void], row: IntColumn
) -> tuple[list[tuple[BufferKind, int]], NDArray[np.int64]]:
    """The buffers there are at least when each op of a lane has started: [distinct ones, kinds], and the kinds."""
    by_kind, member = np.unique(events[["kind", "stage"]], return_inverse=True)
    kinds = [(BufferKind(kind), stage) for kind, stage in by_kind.tolist()]
    from_place, to_place = _places(schedule, row)
    op, allocates = events["op"], events["sign"] > 0
    here = np.isin(op, row)
    began = from_place[op] + (here & (events["when"] == END))
    over = to_place[op] + 1 - (here & (events["when"] == START))
    changes = np.zeros((len(row) + 2, len(kinds)), np.int64)
    place = np.minimum(np.where(allocates, began, over), len(row) + 1)
    np.add.at(changes, (place, member.reshape(-1)), events["sign"])
    return kinds, np.unique(np.cumsum(changes, axis=0)[: len(row)], axis=0)


def _places(schedule: Schedule, row: IntColumn) -> tuple[IntColumn, IntColumn]:
    """For every op the first place on a lane where it has ended or is at work; and the last one where it is not over.

    Of an op elsewhere: the first that waits for it, and the last that it waits for.
    """
    place = np.full(len(schedule), -1, np.int64)
    place[row] = np.arange(len(row))
    waits = schedule.waits_for
    later, earlier = place[waits.owners], place[waits.values]
    first, last = np.full(len(schedule), len(row) + 1), np.full(len(schedule), -1)
    np.minimum.at(first, waits.values[later >= 0], later[later >= 0])
    np.maximum.at(last, waits.owners, earlier)
    return np.where(place >= 0, place, first), np.where(place >= 0, place, last)
