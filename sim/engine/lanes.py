"""Play a schedule: one process per compute lane, which takes its ops in their static order.

Transfers and collectives need no process: the op before on each of their lanes is one more thing they wait for.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy

from sim.engine.core import Core
from sim.errors import Deadlock
from sim.schedule import Schedule


class Lanes:
    """The processes of a schedule's compute lanes.

    An op is ready when all it waits for has ended and the compute lane it holds has come to it.
    """

    def __init__(self, core: Core, schedule: Schedule) -> None:
        self._core, self._schedule = core, schedule
        computes = np.array([lane.computes for lane in schedule.lanes], bool)
        waits_for, walked = schedule.waits_for_on(~computes), computes[schedule.lanes_of.values]
        walks = np.bincount(schedule.lanes_of.owners[walked], minlength=len(schedule))
        self._waiting: list[int] = (np.diff(waits_for.starts) + walks).tolist()
        later = waits_for.reversed()
        self._starts, self._later = later.starts.tolist(), later.values.tolist()
        core.ended = self._ended
        for op, count in enumerate(self._waiting):
            if not count:
                core.ready(op)
        for lane in np.flatnonzero(computes).tolist():
            core.env.process(self._lane(schedule.order[lane].tolist()))

    def _lane(self, ops: list[int]) -> Generator[simpy.Event, None, None]:
        core, waiting = self._core, self._waiting
        for op in ops:
            waiting[op] -= 1
            if not waiting[op]:
                core.ready(op)
            yield core.completion(op)

    def _ended(self, op: int) -> None:
        waiting = self._waiting
        for later in self._later[self._starts[op] : self._starts[op + 1]]:
            waiting[later] -= 1
            if not waiting[later]:
                self._core.ready(later)

    def deadlock(self) -> Deadlock:
        """What each lane is stuck at, and for what."""
        ended, schedule = self._core.end_s, self._schedule
        blocked: dict[str, str] = {}
        for lane, ops in zip(schedule.lanes, schedule.order, strict=True):
            op = next((int(op) for op in ops if ended[op] < 0), -1)
            if op >= 0:
                missing = [str(schedule.id(int(earlier))) for earlier in schedule.waits_for[op] if ended[earlier] < 0]
                blocked[str(schedule.id(op))] = (
                    f"{', '.join(missing) or 'its turn'} (lane d{lane.device}.{lane.stream})"
                )
        return deadlock(blocked)


def deadlock(blocked: dict[str, str]) -> Deadlock:
    """The error for a run that went dry with work left."""
    lines = [f"  {name} waits for {what}" for name, what in blocked.items()]
    error = Deadlock("\n".join(["deadlock: work is left and nothing can move", *lines]))
    error.blocked = blocked
    return error
