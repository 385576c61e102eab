"""The clock where memory takes time: ops wait for the driver, and for the device where the driver does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import simpy

from sim.engine.blocks import Asked, BlockAllocator
from sim.engine.core import FIRST_KEY, Completion, Core, Station

Work = Callable[[int], None]


class WaitingCore(Core):
    """A core whose ops wait until the driver has done what their allocations ask of it.

    Calls that take memory lengthen the op that asked: it works after those at its start, and ends after those at its
    end. Calls that give memory back wait until no lane of the device is at work, and until they are done nothing starts
    there: the host that would launch it is held in the driver. An op that waits is not at work, so waits always end.
    """

    def __init__(
        self, keys: list[int], seconds: list[float], stations: list[Station | None], memory: BlockAllocator
    ) -> None:
        super().__init__(keys, seconds, stations, memory)
        self._blocks = memory
        self._held: list[tuple[int, Work]] = []  # ops whose station let them start while their device was shut
        self._shut: dict[int, int] = {}  # by how many ops a device is kept from starting others
        self._synchronizing: list[tuple[int, Callable[[], None]]] = []

    def start(self, op: int, work: Work) -> None:
        """See `Core.start`."""
        if self._shut and any(device in self._shut for device, _ in self._blocks.places(op)):
            self._held.append((op, work))
            return
        self.start_s[op] = now_s = self.env.now
        asked = [] if self._idle[2 * op] else self._blocks.ask(2 * op, now_s)
        self._when_done(asked, lambda: self._begin(op, work))

    def work(self, op: int) -> None:
        """See `Core.work`."""
        self.end(op, self.seconds[op])

    def end(self, op: int, delay_s: float = 0.0) -> None:
        """See `Core.end`; where the op allocates at its end, its work ends then, and the op when it has that memory."""
        if self._blocks.allocates(2 * op + 1):
            self.wake(lambda _: self._settle(op), delay_s, FIRST_KEY + self.keys[op])
        else:
            super().end(op, delay_s)

    def _begin(self, op: int, work: Work) -> None:
        self._blocks.begin(op)
        work(op)

    def _settle(self, op: int) -> None:
        self._blocks.over(op, self.env.now)
        asked = self._blocks.ask(2 * op + 1, self.env.now)
        self._idle[2 * op + 1] = True
        self._when_done(asked, lambda: super(WaitingCore, self).end(op))
        self._synchronized()

    def _complete(self, event: Completion) -> None:
        self._blocks.over(event.op, self.env.now)
        super()._complete(event)
        self._blocks.forget(event.op)
        self._synchronized()

    def _when_done(self, asked: Iterable[Asked], then: Callable[[], None]) -> None:
        """Go on once the drivers have done all that was asked of them."""
        left = [*asked]
        if not left:
            then()

        def done(each: Asked) -> None:
            left.remove(each)
            if each.synchronizes:
                self._open(each.device)
            if not left:
                then()

        for each in [*left]:
            self._call(each, done)

    def _call(self, asked: Asked, done: Callable[[Asked], None]) -> None:
        def call() -> None:
            asked.called_s = self.env.now
            self.wake(finish, asked.seconds)

        def finish(_: simpy.Event) -> None:
            asked.done_s = self.env.now
            done(asked)

        if not asked.synchronizes:
            call()
            return
        self._shut[asked.device] = self._shut.get(asked.device, 0) + 1
        self._synchronizing.append((asked.device, call))
        self._synchronized()

    def _synchronized(self) -> None:
        """Let those go on that waited for a device which is idle now."""
        if not self._synchronizing:
            return
        idle = [call for device, call in self._synchronizing if not self._blocks.works(device)]
        self._synchronizing = [each for each in self._synchronizing if self._blocks.works(each[0])]
        for call in idle:
            call()

    def _open(self, device: int) -> None:
        """A release is done: what was kept from starting does when the ends of this instant are done."""
        self._shut[device] -= 1
        if not self._shut[device]:
            del self._shut[device]
            if self._held:
                self.defer(self._start_held)

    def _start_held(self) -> None:
        held, self._held = self._held, []
        for op, work in sorted(held, key=lambda each: self.keys[each[0]]):
            self.start(op, work)
