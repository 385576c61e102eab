"""When each op of a schedule runs if nothing but its predecessors holds it up.

``start = max(end of predecessors)``, ``end = start + duration``, in that order and never as a sum of durations, so
the times equal the discrete-event simulation to the last bit where that meets no contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sim.ops import COMPUTE_KINDS, OpKind
from sim.schedule import IntColumn, Schedule, op_id, render

if TYPE_CHECKING:
    from numpy.typing import NDArray


def times(schedule: Schedule, seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """Start and end of every op, in the unit of ``seconds`` (a duration per op)."""
    starts, values = schedule.waits_for.starts.tolist(), schedule.waits_for.values.tolist()
    start, end = [0.0] * len(schedule), [0.0] * len(schedule)
    for op in schedule.topological:
        begin = 0.0
        for earlier in values[starts[op] : starts[op + 1]]:
            if end[earlier] > begin:
                begin = end[earlier]
        start[op] = begin
        end[op] = begin + seconds[op]
    return start, end


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
