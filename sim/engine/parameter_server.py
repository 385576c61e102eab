"""How the cores of a parameter server serve."""

from __future__ import annotations

import heapq

from sim.conditions import Service
from sim.engine.core import Core
from sim.engine.gpu import Shared
from sim.engine.queue import FirstComeFirstServed


class InTurn:
    """Each op has a core to itself, in the order of asking."""

    def __init__(self, core: Core, cores: int) -> None:
        self._core = core
        self._queue: FirstComeFirstServed[str] = FirstComeFirstServed(self._begin, {"core": cores})

    def request(self, op: int) -> None:
        """See `Station`."""
        self._queue.request(op, ("core",))

    def _begin(self, op: int) -> None:
        self._core.completion(op).callbacks.append(lambda _: self._core.defer(lambda: self._queue.release(op)))
        self._core.start(op, self._core.work)

    def withdraw(self, op: int) -> None:
        """Forget an op: it waits no more and holds no core."""
        self._queue.withdraw(op)


class ProcessorSharing(Shared):
    """All ops share the cores equally; none runs faster than one core does."""

    def withdraw(self, op: int) -> None:
        """Forget an op: it runs no more."""
        self._advance()
        self._ends = [each for each in self._ends if each[1] != op]
        heapq.heapify(self._ends)
        self._schedule()


def serve(core: Core, service: Service) -> InTurn | ProcessorSharing:
    """The station of a server."""
    if service.discipline == "fcfs":
        return InTurn(core, service.cores)
    return ProcessorSharing(core, service.cores)
