"""Play a schedule: one process per lane, which takes its ops in their static order."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from sim.engine.core import Core
from sim.errors import Deadlock
from sim.schedule import Schedule


class Lanes:
    """The processes of a schedule's lanes.

    An op is ready when all it depends on has ended and every lane it holds has come to it; the lanes go on when it
    ends. An op without lanes is ready as soon as what it depends on has ended.
    """

    def __init__(self, core: Core, schedule: Schedule) -> None:
        self._core, self._schedule = core, schedule
        after, lanes_of = schedule.after, schedule.lanes_of
        self._waiting: list[int] = (
            after.starts[1:] - after.starts[:-1] + lanes_of.starts[1:] - lanes_of.starts[:-1]
        ).tolist()
        dependents = schedule.dependents
        self._starts: list[int] = dependents.starts.tolist()
        self._dependents: list[int] = dependents.values.tolist()
        core.ended = self._ended
        for op, count in enumerate(self._waiting):
            if not count:
                core.ready(op)
        for ops in schedule.order:
            core.env.process(self._lane(ops.tolist()))

    def _lane(self, ops: list[int]) -> Generator[simpy.Event, None, None]:
        core = self._core
        for op in ops:
            done = core.completion(op)
            self._release(op)
            yield done

    def _release(self, op: int) -> None:
        self._waiting[op] -= 1
        if not self._waiting[op]:
            self._core.ready(op)

    def _ended(self, op: int) -> None:
        waiting = self._waiting
        for later in self._dependents[self._starts[op] : self._starts[op + 1]]:
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
