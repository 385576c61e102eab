"""Flow-level fair sharing: every link of a flow's route limits it at once, and all rates are max-min fair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from sim.cluster import Link
from sim.engine.core import Core
from sim.engine.link import Payload
from sim.engine.max_min import MaxMin
from sim.engine.pool import Flow, Pool

_SETTLED = 1 << 127  # the key of what comes after all else at an instant
_UNLIMITED = 0  # the bundle of flows that nothing limits


class FairShare:
    """Max-min fair sharing over all links of a route, re-shared once at each instant at which flows start or end.

    A link that is no ``fair_share`` limits each flow by itself: its bandwidth caps every flow that crosses it.
    """

    def __init__(self, core: Core, payloads: Mapping[int, Payload], links: Sequence[Link]) -> None:
        self._core, self._payloads, self._links = core, payloads, links
        self._bytes_per_s: dict[int, float] = {}  # of links whose bandwidth has changed
        self._rates = MaxMin()
        self._rates.bundle(())
        self._bundles: dict[tuple[tuple[int, ...], float], int] = {}  # by shared links and cap
        self._bundle_of: dict[tuple[int, ...], int] = {}  # by route
        self._flows: list[dict[int, Flow]] = [{}]  # of each bundle
        self._flows_made = 0
        self._open: dict[int, int] = {}  # flows under way of each op
        self._withdrawn: set[int] = set()
        self._pools: dict[int, Pool] = {}  # by bottleneck
        self._without_pool: list[Flow] = []
        self._left: set[int] = set()  # pools that flows have left
        self._dues: list[tuple[float, int]] = []
        self._due_s = math.inf  # what the next wake-up is for
        self._wakes = 0
        self._settling = False

    def request(self, op: int) -> None:
        """See `Station`."""
        self._core.start(op, self._depart)

    def set_bandwidth(self, link: int, bytes_per_s: float) -> None:
        """The bandwidth of a link from now on; 0 stalls what crosses it."""
        self._finish(self._core.env.now)
        self._bytes_per_s[link] = bytes_per_s
        self._rates.set_capacity(link, bytes_per_s)
        for route in [route for route in self._bundle_of if link in route]:
            before = self._bundle_of.pop(route)
            if self._bundle(route) != before:
                self._rebundle(before, route)

    def withdraw(self, op: int) -> None:
        """Forget an op under way: it moves no more bytes, and never ends."""
        if self._open.pop(op, None) is None:
            self._withdrawn.add(op)  # before it departs
            return
        for route in self._payloads[op].routes:
            for flow in [flow for flow in self._flows[self._bundle(route)].values() if flow.op == op]:
                self._take_out(flow)
        self._settle_soon()

    def _depart(self, op: int) -> None:
        latency_s = self._payloads[op].latency_s
        if latency_s:
            self._core.wake(lambda _: self._arrive(op), latency_s)
        else:
            self._arrive(op)

    def _arrive(self, op: int) -> None:
        if op in self._withdrawn:
            return
        payload = self._payloads[op]
        self._open[op] = len(payload.routes)
        for route in payload.routes:
            self._flows_made += 1
            self._join(Flow(self._flows_made, op, route, payload.size_bytes))

    def _join(self, flow: Flow) -> None:
        if not flow.left_bytes:
            self._close(flow.op)
            return
        flow.bundle = self._bundle(flow.route)
        self._flows[flow.bundle][flow.number] = flow
        if flow.bundle != _UNLIMITED:
            self._rates.add(flow.bundle, 1)
        self._without_pool.append(flow)
        self._settle_soon()

    def _leave(self, flow: Flow) -> None:
        del self._flows[flow.bundle][flow.number]
        if flow.bundle != _UNLIMITED:
            self._rates.add(flow.bundle, -1)

    def _close(self, op: int) -> None:
        self._open[op] -= 1
        if not self._open[op]:
            del self._open[op]
            self._core.end(op)

    def _bundle(self, route: tuple[int, ...]) -> int:
        """The bundle of the flows over a route."""
        if route not in self._bundle_of:
            speed = {link: self._bytes_per_s.get(link, self._links[link].bytes_per_s) for link in route}
            shares = {link: self._links[link].kind == "fair_share" for link in route}
            shared = tuple(sorted(link for link in speed if shares[link] and speed[link] < math.inf))
            cap = min((speed[link] for link in speed if not shares[link]), default=math.inf)
            if cap >= min((speed[link] for link in shared), default=math.inf):
                cap = math.inf  # what is shared is no faster
            self._bundle_of[route] = self._bundle_over(shared, cap, speed)
        return self._bundle_of[route]

    def _bundle_over(self, shared: tuple[int, ...], cap: float, speed: Mapping[int, float]) -> int:
        if not shared and cap == math.inf:
            return _UNLIMITED
        if (shared, cap) not in self._bundles:
            self._flows.append({})
            own = -len(self._flows)
            limits = {link: speed[link] for link in shared} | ({own: cap} if cap < math.inf else {})
            for link, bytes_per_s in limits.items():
                self._rates.set_capacity(link, bytes_per_s)
            self._bundles[shared, cap] = self._rates.bundle(tuple(limits))
        return self._bundles[shared, cap]

    def _rebundle(self, before: int, route: tuple[int, ...]) -> None:
        for flow in [flow for flow in self._flows[before].values() if flow.route == route]:
            self._take_out(flow)
            self._join(flow)

    def _take_out(self, flow: Flow) -> None:
        if flow.pool is None:
            self._without_pool.remove(flow)
        else:
            flow.pool.let_go(flow, self._core.env.now)
        self._leave(flow)

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._core.wake(self._settle, 0.0, _SETTLED)

    def _settle(self, _: object) -> None:
        """Share anew, when all that starts and ends at this instant has; only pools that this changes are touched."""
        self._settling = False
        now, pools, rates = self._core.env.now, self._pools, self._rates
        links, bundles = rates.refill()
        for bundle, before in bundles.items():
            if before is not None and rates.bottleneck[bundle] != before:
                self._empty(pools[before], bundle)
        for link in links:
            rate = rates.level.get(link)
            if rate is None:
                pools.pop(link, None)
            elif link in pools:
                pools[link].set_rate(rate, now)
            else:
                pools[link] = Pool(rate, now)
        changed = links.union(self._left)
        for flow in self._without_pool:
            bottleneck = rates.bottleneck[flow.bundle]
            if bottleneck is None:
                self._leave(flow)
                self._close(flow.op)
            else:
                pools[bottleneck].put(flow, now)
                changed.add(bottleneck)
        self._without_pool.clear()
        self._left.clear()
        self._announce(changed)

    def _empty(self, pool: Pool, bundle: int) -> None:
        """Take the flows of a bundle out of a pool."""
        for flow in self._flows[bundle].values():
            if flow.pool is not None:
                pool.let_go(flow, self._core.env.now)
                self._without_pool.append(flow)

    def _announce(self, changed: set[int]) -> None:
        """Wake up when the next flow ends."""
        for link in changed:
            pool = self._pools.get(link)
            if pool is None:
                continue
            due_s = pool.next_end_s()
            if due_s != pool.due_s:
                pool.due_s = due_s
                heappush(self._dues, (due_s, link))
        due_s = self._next_due_s()
        if due_s != self._due_s:
            self._due_s = due_s
            self._wakes += 1
            if due_s < math.inf:
                wake = self._wakes
                self._core.wake(lambda _: self._wake(wake), max(due_s - self._core.env.now, 0.0))

    def _next_due_s(self) -> float:
        dues, pools = self._dues, self._pools
        while dues and (dues[0][1] not in pools or pools[dues[0][1]].due_s != dues[0][0]):
            heappop(dues)  # announced otherwise since
        return dues[0][0] if dues else math.inf

    def _wake(self, wake: int) -> None:
        if wake == self._wakes:  # else the next end has changed since
            due_s, self._due_s = self._due_s, math.inf
            self._finish(due_s)

    def _finish(self, due_s: float) -> None:
        """End the flows that are due by then."""
        while self._next_due_s() <= due_s:
            link = heappop(self._dues)[1]
            pool = self._pools[link]
            pool.due_s = math.inf
            self._left.add(link)
            for flow in pool.finish(due_s, self._core.env.now):
                self._leave(flow)
                self._close(flow.op)
        self._settle_soon()
