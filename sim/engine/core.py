"""The clock of a run: ops become ready, start, and end.

Ops that end at one instant end in the order of their keys; then those that are ready start in the order of theirs.
So equal times have one total order, whatever order processes were made in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import simpy

from sim.engine.allocator import Allocator

FIRST_KEY = 2  # of ops among equals in time: SimPy's own priorities are 0 and 1
_LAST = 1 << 126


class Station(Protocol):
    """Where ops contend: it decides when a ready op starts (`Core.start`) and when it ends (`Core.end`)."""

    def request(self, op: int) -> None:
        """Take a ready op in."""
        ...


class Completion(simpy.Event):
    """An event that succeeds when it is scheduled, as SimPy's own `Timeout`: the end of op ``op``, or a wake-up."""

    def __init__(self, env: simpy.Environment, callback: Callable[[Any], None], op: int = -1) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok, self._value = True, None
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
        self._completions: list[Completion | None] = [None] * len(keys)
        self._ready: list[int] = []
        self._idle = memory.idle
        self._dispatching = False

    def admit(self, key: int, seconds: float, station: Station | None) -> None:
        """Append an op that was not known beforehand."""
        self.keys.append(key)
        self.seconds.append(seconds)
        self.stations.append(station)
        self.start_s.append(-1.0)
        self.end_s.append(-1.0)
        self._completions.append(None)

    def completion(self, op: int) -> Completion:
        """The event of an op's end, for processes to wait on."""
        event = self._completions[op]
        if event is None:
            event = self._completions[op] = Completion(self.env, self._complete, op)
        return event

    def ready(self, op: int) -> None:
        """Nothing but its station holds this op up any more; it is dispatched when this instant's ends are done."""
        self._ready.append(op)
        if not self._dispatching:
            self._dispatching = True
            self.wake(self._dispatch, 0.0, _LAST)

    def wake(self, callback: Callable[[simpy.Event], None], delay_s: float, key: int = FIRST_KEY - 1) -> None:
        """Call ``callback`` after ``delay_s``, among equals in time by ``key``."""
        event = Completion(self.env, callback)
        self.env.schedule(event, key, delay_s)  # type: ignore[arg-type]  # any int orders the queue

    def defer(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the ends of this instant are done."""
        self.wake(lambda _: callback(), 0.0, _LAST)

    def _dispatch(self, _: simpy.Event) -> None:
        self._dispatching = False
        ready, self._ready = self._ready, []
        self.dispatch(ready)

    def dispatch(self, ready: list[int]) -> None:
        """Hand ops to their stations, when this instant's ends are done: see `ready`."""
        if len(ready) > 1:
            ready.sort(key=self.keys.__getitem__)
        for op in ready:
            station = self.stations[op]
            if station is None:
                self.start(op, self.work)
            else:
                station.request(op)

    def start(self, op: int, work: Callable[[int], None]) -> None:
        """The op starts now and allocates; ``work`` goes on once it has its memory."""
        self.start_s[op] = now_s = self.env.now
        if not self._idle[2 * op]:
            self.memory.play(2 * op, now_s)
        work(op)

    def work(self, op: int) -> None:
        """The op will end after its seconds: nothing contends with it any more."""
        self.env.schedule(self.completion(op), FIRST_KEY + self.keys[op], self.seconds[op])  # type: ignore[arg-type]

    def end(self, op: int, delay_s: float = 0.0) -> None:
        """The op will end after ``delay_s``."""
        self.env.schedule(self.completion(op), FIRST_KEY + self.keys[op], delay_s)  # type: ignore[arg-type]

    def _complete(self, event: Completion) -> None:
        op = event.op
        self._completions[op] = None
        self.end_s[op] = now_s = self.env.now
        if not self._idle[2 * op + 1]:
            self.memory.play(2 * op + 1, now_s)
        self.ended(op)
