"""When a worker may go on: bulk-synchronous with or without backup workers, stale-synchronous, asynchronous.

Events that actors ask for (`sim.program.Ask`): ``begin``, before a worker's step, whose answer is the step to do;
``pushed``, when a gradient has arrived at a server that may not need it, whose answer is whether it counts;
``applied``, when it has been added; ``gathered`` and ``updated``, before and after a server's update of a step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sim.program import Ask, Released


@dataclass(slots=True)
class Asynchronous:
    """Nobody waits (asp)."""

    def on(self, request: Ask) -> list[Released]:
        """See `Policy.on`."""
        return [Released(request, request.clock)]


@dataclass(slots=True)
class StaleSynchronous:
    """The fastest worker is at most ``bound`` steps ahead of the slowest (ssp; Ho et al., NIPS 2013).

    Step t begins when every worker has done step t − bound − 1.
    """

    workers: int
    bound: int
    _begun: dict[str, int] = field(default_factory=dict)
    _waiting: dict[str, Ask] = field(default_factory=dict)

    def on(self, request: Ask) -> list[Released]:
        """See `Policy.on`."""
        self._begun[request.actor] = request.clock
        self._waiting[request.actor] = request
        slowest = min(self._begun.values()) if len(self._begun) == self.workers else 0
        released = [each for each in self._waiting.values() if each.clock <= slowest + self.bound]
        for each in released:
            del self._waiting[each.actor]
        return [Released(each, each.clock) for each in released]


@dataclass(slots=True)
class _Barrier:
    """One part of the parameters: updates done, and who takes part in the next, which may be under way."""

    done: int = 0
    updating: bool = False
    taken: set[str] = field(default_factory=set)
    applied: dict[str, Ask] = field(default_factory=dict)
    late: list[Ask] = field(default_factory=list)
    gathering: Ask | None = None


@dataclass(slots=True)
class BulkSynchronous:
    """The barrier of synchronous training (bsp), one for each part of the parameters.

    The server proceeds when all workers have applied, the workers when it has updated. With ``spare`` backup workers
    (Chen et al., arXiv 1604.00981) it takes the first ``workers − spare`` gradients of a step; a late one is dropped
    when it arrives, and its worker goes on with the step that the servers have come to.
    """

    workers: int
    spare: int = 0
    _parts: defaultdict[int, _Barrier] = field(default_factory=lambda: defaultdict(_Barrier))

    def on(self, request: Ask) -> list[Released]:
        """See `Policy.on`."""
        if request.event == "begin":
            newest = min((part.done for part in self._parts.values()), default=0)
            return [Released(request, max(request.clock, newest))]
        part = self._parts[request.part]
        if request.event == "updated":
            return self._updated(part, request)
        if request.event == "pushed":
            return self._pushed(part, request)
        if request.event == "gathered":
            part.gathering = request
        elif request.clock < part.done:  # of a worker that died after it had applied
            return [Released(request)]
        else:
            part.applied[request.actor] = request
        if part.gathering is None or len(part.applied) < self.workers - self.spare:
            return []
        released, part.gathering, part.updating = part.gathering, None, True
        return [Released(released)]

    def _pushed(self, part: _Barrier, request: Ask) -> list[Released]:
        if request.clock < part.done:
            return [Released(request, 0)]
        full = request.actor not in part.taken and len(part.taken) == self.workers - self.spare
        if full or part.updating:
            part.late.append(request)  # until the update that it comes too late for has been done
            return []
        part.taken.add(request.actor)
        part.applied.pop(request.actor, None)  # of before its worker died
        return [Released(request, 1)]

    def _updated(self, part: _Barrier, request: Ask) -> list[Released]:
        released = [*part.applied.values(), *part.late, request]
        part.done += 1
        part.updating = False
        part.taken, part.applied, part.late = set(), {}, []
        return [Released(each) for each in released]
