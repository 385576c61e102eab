"""The clock of a run: ops become ready, start, and end.

Ops that end at one instant end in the order of their keys; then those that are ready start in the order of theirs.
So equal times have one total order, whatever order processes were made in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

import simpy

from sim.engine.allocator import Allocator
from sim.memory.buffers import END, START

_FIRST_KEY = 2  # SimPy's own priorities are 0 and 1
_LAST = 1 << 126


class Station(Protocol):
    """Where ops contend: it decides when a ready op starts (`Core.start`) and when it ends (`Core.end`)."""

    def request(self, op: int) -> None:
        """Take a ready op in."""
        ...


class Completion(simpy.Event):
    """The end of one op: an event that is scheduled once, at the op's end, by the op's key."""

    def __init__(self, env: simpy.Environment, op: int) -> None:
        super().__init__(env)
        self.op = op


class Core:
    """Clock, op columns and the two transitions start and end.

    Parameters
    ----------
    keys : the rank of each op among equals in time.
    seconds : of each op where nothing contends with it.
    stations : where each op contends; ``None``: nowhere, it just lasts its seconds.
    """

    def __init__(
        self, keys: list[int], seconds: list[float], stations: list[Station | None], memory: Allocator
    ) -> None:
        self.env = simpy.Environment()
        self.keys, self.seconds, self.stations, self.memory = keys, seconds, stations, memory
        self.start_s = [-1.0] * len(keys)
        self.end_s = [-1.0] * len(keys)
        self.ended: Callable[[int], None] = lambda op: None
        self._completions: dict[int, Completion] = {}
        self._ready: list[tuple[int, int]] = []
        self._dispatching = False

    def admit(self, key: int, seconds: float, station: Station | None) -> None:
        """Append an op that was not known beforehand."""
        self.keys.append(key)
        self.seconds.append(seconds)
        self.stations.append(station)
        self.start_s.append(-1.0)
        self.end_s.append(-1.0)

    def completion(self, op: int) -> Completion:
        """The event of an op's end, for processes to wait on."""
        event = self._completions.get(op)
        if event is None:
            event = self._completions[op] = Completion(self.env, op)
            event.callbacks.append(self._complete)
        return event

    def ready(self, op: int) -> None:
        """Nothing but its station holds this op up any more; it is dispatched when this instant's ends are done."""
        heapq.heappush(self._ready, (self.keys[op], op))
        if not self._dispatching:
            self._dispatching = True
            self.wake(self._dispatch, 0.0, _LAST)

    def wake(self, callback: Callable[[simpy.Event], None], delay_s: float, key: int = _FIRST_KEY - 1) -> None:
        """Call ``callback`` after ``delay_s``, among equals in time by ``key``."""
        event = simpy.Event(self.env)
        event.callbacks.append(callback)
        event._ok, event._value = True, None
        self.env.schedule(event, key, delay_s)  # type: ignore[arg-type]  # any int orders the queue

    def defer(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the ends of this instant are done."""
        self.wake(lambda _: callback(), 0.0, _LAST)

    def _dispatch(self, _: simpy.Event) -> None:
        self._dispatching = False
        ready, self._ready = self._ready, []
        while ready:
            op = heapq.heappop(ready)[1]
            station = self.stations[op]
            if station is None:
                self.start(op)
                self.end(op, self.seconds[op])
            else:
                station.request(op)

    def start(self, op: int) -> None:
        """The op starts now, and allocates."""
        self.start_s[op] = self.env.now
        self.memory.play(op, START, self.env.now)

    def end(self, op: int, delay_s: float = 0.0) -> None:
        """The op will end after ``delay_s``."""
        event = self.completion(op)
        event._ok, event._value = True, None
        self.env.schedule(event, _FIRST_KEY + self.keys[op], delay_s)  # type: ignore[arg-type]

    def _complete(self, event: Completion) -> None:
        op = event.op
        del self._completions[op]
        self.end_s[op] = self.env.now
        self.memory.play(op, END, self.env.now)
        self.ended(op)
