"""How transfers share the links of their routes. On links of other kinds nothing contends: they need no station."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.cluster import Link
from sim.engine.core import Core
from sim.engine.queue import FirstComeFirstServed


@dataclass(frozen=True, slots=True)
class Payload:
    """What an op moves: after ``latency_s``, one flow of ``size_bytes`` over each of ``routes`` at once."""

    routes: tuple[tuple[int, ...], ...]
    size_bytes: float
    latency_s: float


@dataclass(slots=True)
class _Transfer:
    """``left_bytes`` are left at ``since_s``, from when on they move. Only the last of its ``wakes`` counts."""

    op: int
    left_bytes: float
    since_s: float
    end_s: float = math.inf
    wakes: int = 0


class Fifo:
    """A transfer holds every fifo link of its route for as long as it lasts, in the order of asking."""

    def __init__(self, core: Core, payloads: Mapping[int, Payload], links: Sequence[Link]) -> None:
        self._core, self._payloads, self._links = core, payloads, links
        self._queue: FirstComeFirstServed[int] = FirstComeFirstServed(self._begin)
        self._bytes_per_s: dict[int, float] = {}  # of links whose bandwidth has changed
        self._under_way: dict[int, _Transfer] = {}

    def request(self, op: int) -> None:
        """See `Station`."""
        links = {link for link in self._hops(op) if self._links[link].kind == "fifo"}
        self._queue.request(op, tuple(sorted(links)))

    def set_bandwidth(self, link: int, bytes_per_s: float) -> None:
        """The bandwidth of a link from now on, also for what is under way; 0 stalls what crosses it."""
        now = self._core.env.now
        crossing = [transfer for op, transfer in self._under_way.items() if link in self._hops(op)]
        moving = [transfer for transfer in crossing if transfer.end_s > now]
        for transfer in moving:
            if now > transfer.since_s:
                transfer.left_bytes -= self._rate(transfer.op) * (now - transfer.since_s)
                transfer.since_s = now
        self._bytes_per_s[link] = bytes_per_s
        for transfer in moving:
            self._end_after(transfer, self._remaining_s(transfer))

    def withdraw(self, op: int) -> None:
        """Forget an op: it waits no more, moves no more bytes, and never ends."""
        if (transfer := self._under_way.pop(op, None)) is not None:
            transfer.wakes += 1
        self._queue.withdraw(op)

    def _hops(self, op: int) -> Counter[int]:
        """How many flows of an op cross each link."""
        return Counter(link for route in self._payloads[op].routes for link in route)

    def _begin(self, op: int) -> None:
        self._core.completion(op).callbacks.append(lambda _: self._core.defer(lambda: self._queue.release(op)))
        self._core.start(op, self._carry)

    def _carry(self, op: int) -> None:
        now, payload = self._core.env.now, self._payloads[op]
        transfer = self._under_way[op] = _Transfer(op, payload.size_bytes, now + payload.latency_s)
        as_planned = not self._bytes_per_s or self._bytes_per_s.keys().isdisjoint(self._hops(op))
        self._end_after(transfer, self._core.seconds[op] if as_planned else self._remaining_s(transfer))

    def _remaining_s(self, transfer: _Transfer) -> float:
        """Until a transfer ends at the present rate: for ever, if it is stalled."""
        latency_s = transfer.since_s - self._core.env.now
        if transfer.left_bytes <= 0:
            return latency_s
        rate = self._rate(transfer.op)
        return latency_s + transfer.left_bytes / rate if rate else math.inf

    def _rate(self, op: int) -> float:
        """Of each flow of an op: those that cross one link share it, if it is one for which transfers contend."""
        return min(
            self._bytes_per_s.get(link, self._links[link].bytes_per_s)
            / (flows if self._links[link].kind == "fifo" else 1)
            for link, flows in self._hops(op).items()
        )

    def _end_after(self, transfer: _Transfer, delay_s: float) -> None:
        transfer.end_s, transfer.wakes = self._core.env.now + delay_s, transfer.wakes + 1
        if delay_s < math.inf:
            wake = transfer.wakes
            self._core.wake(lambda _: self._wake(transfer, wake), delay_s)

    def _wake(self, transfer: _Transfer, wake: int) -> None:
        if wake == transfer.wakes:  # else its end has moved since
            del self._under_way[transfer.op]
            self._core.end(transfer.op)
