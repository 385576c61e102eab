"""How compute lanes share a device, or devices that are processes the cores of their host."""

from __future__ import annotations

import heapq

from sim.engine.core import Core
from sim.engine.queue import FirstComeFirstServed


class Exclusive:
    """One lane computes at a time, in the order of asking."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._queue: FirstComeFirstServed[str] = FirstComeFirstServed(self._begin)

    def request(self, op: int) -> None:
        """See `Station`."""
        self._queue.request(op, ("device",))

    def _begin(self, op: int) -> None:
        self._core.completion(op).callbacks.append(lambda _: self._core.defer(lambda: self._queue.release(op)))
        self._core.start(op, self._core.work)


class Shared:
    """Processor sharing: busy lanes run at full speed up to a combined speed of ``most``, then at equal shares of it.

    Kept in virtual time, the seconds of work each running op has received: an op ends when virtual time has
    advanced by its seconds, so a start or an end costs O(log n) and nothing drifts.
    """

    def __init__(self, core: Core, most: float) -> None:
        self._core, self._most = core, most
        self._ends: list[tuple[float, int]] = []  # virtual end of each running op
        self._virtual = self._since = 0.0
        self._wakes = 0

    @property
    def _speed(self) -> float:
        return min(1.0, self._most / len(self._ends))

    def request(self, op: int) -> None:
        """See `Station`."""
        self._core.start(op, self._join)

    def _join(self, op: int) -> None:
        self._advance()
        heapq.heappush(self._ends, (self._virtual + self._core.seconds[op], op))
        self._schedule()

    def _advance(self) -> None:
        now = self._core.env.now
        self._virtual = self._virtual + (now - self._since) * self._speed if self._ends else 0.0
        self._since = now

    def _schedule(self) -> None:
        self._wakes += 1
        if self._ends:
            wake, delay_s = self._wakes, max(self._ends[0][0] - self._virtual, 0.0) / self._speed
            self._core.wake(lambda _: self._wake(wake), delay_s)

    def _wake(self, wake: int) -> None:
        if wake != self._wakes:  # the mix of running ops has changed since
            return
        self._virtual, self._since = self._ends[0][0], self._core.env.now
        while self._ends and self._ends[0][0] <= self._virtual:
            self._core.end(heapq.heappop(self._ends)[1])
        self._schedule()
