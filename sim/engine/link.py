"""How transfers share the links of their routes. On links of other kinds nothing contends: they need no station."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.cluster import Link
from sim.engine.core import Core
from sim.engine.fair_share import check_capacity, max_min
from sim.engine.queue import FirstComeFirstServed
from sim.errors import BrokenInvariant


@dataclass(frozen=True, slots=True)
class Payload:
    """What an op moves: after ``latency_s``, one flow of ``size_bytes`` over each of ``routes`` at once."""

    routes: tuple[tuple[int, ...], ...]
    size_bytes: float
    latency_s: float


class Fifo:
    """A transfer holds every fifo link of its route for as long as it lasts, in the order of asking."""

    def __init__(self, core: Core, payloads: Mapping[int, Payload], links: Sequence[Link]) -> None:
        self._core, self._payloads, self._links = core, payloads, links
        self._queue: FirstComeFirstServed[int] = FirstComeFirstServed(self._begin)

    def request(self, op: int) -> None:
        """See `Station`."""
        links = {link for route in self._payloads[op].routes for link in route if self._links[link].kind == "fifo"}
        self._queue.request(op, tuple(sorted(links)))

    def _begin(self, op: int) -> None:
        self._core.start(op)
        self._core.completion(op).callbacks.append(lambda _: self._core.defer(lambda: self._queue.release(op)))
        self._core.end(op, self._core.seconds[op])


@dataclass(slots=True)
class _Flow:
    """``left_bytes`` were left at ``since_s``, when ``rate`` last changed."""

    op: int
    route: tuple[int, ...]
    size_bytes: float
    left_bytes: float
    since_s: float
    rate: float = 0.0
    end_s: float = float("inf")

    def advance(self, now_s: float) -> None:
        """Bring the bytes left up to now."""
        if now_s > self.since_s:
            self.left_bytes -= self.rate * (now_s - self.since_s)
            self.since_s = now_s

    def check(self) -> None:
        """Raise `BrokenInvariant` if bytes are left or too many went; the clock is only good to its last bits."""
        slack_bytes = 1e-6 * max(self.size_bytes, 1.0) + 8 * math.ulp(self.since_s) * self.rate
        if abs(self.left_bytes) > slack_bytes:
            raise BrokenInvariant(f"a flow of {self.size_bytes:.6g} B ended with {self.left_bytes:.6g} B left")


class FairShare:
    """Flow-level max-min fair sharing over all links of a route, re-computed when a flow starts or ends.

    A link that is no ``fair_share`` limits each flow by itself: its bandwidth caps every flow that crosses it.
    """

    def __init__(self, core: Core, payloads: Mapping[int, Payload], links: Sequence[Link]) -> None:
        self._core, self._payloads, self._links = core, payloads, links
        self._flows: list[_Flow] = []
        self._open: dict[int, int] = {}  # flows under way of each op
        self._wakes = 0

    def request(self, op: int) -> None:
        """See `Station`."""
        self._core.start(op)
        self._core.wake(lambda _: self._arrive(op), self._payloads[op].latency_s)

    def _arrive(self, op: int) -> None:
        payload, now = self._payloads[op], self._core.env.now
        self._open[op] = len(payload.routes)
        self._flows += [_Flow(op, route, payload.size_bytes, payload.size_bytes, now) for route in payload.routes]
        self._share()

    def _share(self) -> None:
        """New rates; bytes left and end time are touched only where the rate changes, so nothing drifts."""
        now = self._core.env.now
        routes, capacity = self._constraints()
        rates = max_min(routes, capacity)
        check_capacity(routes, rates, capacity)
        for flow, rate in zip(self._flows, rates, strict=True):
            if rate != flow.rate:
                flow.advance(now)
                flow.rate = rate
                flow.end_s = now + max(flow.left_bytes, 0.0) / rate
        self._wakes += 1
        if self._flows:
            wake = self._wakes
            self._core.wake(lambda _: self._wake(wake), max(min(flow.end_s for flow in self._flows) - now, 0.0))

    def _constraints(self) -> tuple[list[tuple[int, ...]], dict[int, float]]:
        """Routes and capacities for `max_min`; a flow's own cap is a link of its own (a negative number)."""
        capacity: dict[int, float] = {}
        routes: list[tuple[int, ...]] = []
        for number, flow in enumerate(self._flows, 1):
            route = tuple(link for link in flow.route if self._links[link].kind == "fair_share")
            capacity |= {link: self._links[link].bytes_per_s for link in route}
            others = [self._links[link].bytes_per_s for link in flow.route if link not in route]
            if others:
                capacity[-number] = min(others)
                route = (*route, -number)
            routes.append(route)
        return routes, capacity

    def _wake(self, wake: int) -> None:
        if wake != self._wakes:  # the flows have changed since
            return
        soonest = min(flow.end_s for flow in self._flows)
        done = [flow for flow in self._flows if flow.end_s <= soonest]
        self._flows = [flow for flow in self._flows if flow.end_s > soonest]
        for flow in done:
            flow.advance(self._core.env.now)
            flow.check()
            self._open[flow.op] -= 1
            if not self._open[flow.op]:
                del self._open[flow.op]
                self._core.end(flow.op)
        self._share()
