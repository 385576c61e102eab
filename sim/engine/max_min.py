"""Max-min fair rates of flows over shared links (Bertsekas & Gallager, Data Networks, 6.5.2), from scratch and kept."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from sim.errors import BrokenInvariant


def max_min(routes: Sequence[Sequence[int]], capacity: Mapping[int, float]) -> list[float]:
    """Rates of flows over their routes, in the unit of ``capacity`` (per link), by progressive filling.

    All rates rise together; the first link to fill fixes the rates of its flows; the rest rise on. No rate could be
    raised without lowering one that is no larger. A flow without links, or whose links are all infinite, is unlimited.
    """
    rates = [float("inf")] * len(routes)
    crossing: dict[int, set[int]] = {}
    for flow, route in enumerate(routes):
        for link in (link for link in route if capacity[link] < float("inf")):
            crossing.setdefault(link, set()).add(flow)
    left = {link: capacity[link] for link in crossing}
    while crossing:
        share, tightest = min((left[link] / len(flows), link) for link, flows in crossing.items())
        for flow in tuple(crossing[tightest]):
            rates[flow] = share
            for link in crossing.keys() & set(routes[flow]):
                crossing[link].discard(flow)
                left[link] = max(left[link] - share, 0.0)
                if not crossing[link]:
                    del crossing[link]
    return rates


class MaxMin:
    """Max-min fair rates, kept while flows come and go: only what an arrival or departure can change is filled anew.

    Flows over the same links have the same rate: they are one *bundle*. The ``bottleneck`` of a bundle is a full link
    on which none is faster, and holds it back; its rate is the ``level`` of that link. Rates are max-min fair if and
    only if no link carries more than it can and every bundle has a bottleneck. So a local answer is exact:

    - Free are the bundles that the bottlenecks on a changed route hold back, then those that the other bottlenecks on
      their routes hold back, and so on.
    - They are filled anew into the room that the others leave.
    - Where a link overflows, it joins. Where one is now full and another bundle on it faster, that one's bottleneck
      joins. Then filling is repeated. When none joins, every bundle has its bottleneck.

    A link below zero is a limit on every single flow of the one bundle that crosses it, not on their sum.
    """

    def __init__(self) -> None:
        self.level: dict[int | None, float] = {}  # of each bottleneck
        self.bottleneck: list[int | None] = []  # of each bundle; None: it has no flows, or no rate yet
        self._routes: list[tuple[int, ...]] = []
        self._count: list[int] = []
        self._capacity: dict[int, float] = {}
        self._crossing: dict[int, dict[int, int]] = {}  # of each link: its bundles, and what each counts for
        self._total: dict[int, int] = {}
        self._held: dict[int, set[int]] = {}  # of each link: the bundles that it holds back
        self._changes: dict[int, int] = {}
        self._resized: set[int] = set()

    def set_capacity(self, link: int, capacity: float) -> None:
        """What a link carries from the next `refill` on; 0 stalls its flows."""
        if link not in self._capacity:
            self._crossing[link], self._total[link], self._held[link] = {}, 0, set()
        elif self._capacity[link] != capacity:
            self._resized.add(link)
        self._capacity[link] = capacity

    def bundle(self, links: tuple[int, ...]) -> int:
        """The number of a new bundle. Each of its links has a capacity; without links it never has flows."""
        self._routes.append(links)
        self._count.append(0)
        self.bottleneck.append(None)
        return len(self._count) - 1

    def add(self, bundle: int, flows: int) -> None:
        """Flows come (below zero: go) with the next `refill`."""
        self._changes[bundle] = self._changes.get(bundle, 0) + flows

    def refill(self) -> tuple[set[int], dict[int, int | None]]:
        """Bring levels and bottlenecks up to date.

        Returns the links that may have a new level, or none any more, and the bundles that may have a new bottleneck,
        each with its old one.

        Raises
        ------
        BrokenInvariant : a link that was filled anew would carry more than it can.
        """
        if len(self._changes) == 1 and not self._resized and (link := self._lone_link()) is not None:
            return {link}, {}
        affected, touched, free = self._take_in()
        if self._goes_on(affected, touched, free):
            return affected, free
        joining = affected
        while joining:
            affected |= joining
            self._spread(joining, affected, touched, free)
            fastest = self._fill(affected, free)
            joining = self._violated(affected, touched, fastest)
        self._check(affected)
        return affected, free

    def _lone_link(self) -> int | None:
        """The link of the one bundle that changes, now up to date, if neither crosses another and flows stay."""
        ((bundle, flows),) = self._changes.items()
        link, *others = self._routes[bundle]
        if others or self.bottleneck[bundle] != link or len(self._crossing[link]) > 1:
            return None
        if not flows or not self._count[bundle] + flows:
            return None
        self._changes.clear()
        self._recount(bundle, flows)
        self.level[link] = self._capacity[link] / self._total[link]
        return link

    def _take_in(self) -> tuple[set[int], set[int], dict[int, int | None]]:
        """Counts up to date. Returns bottlenecks that change, other links that do, and bundles without a bottleneck."""
        affected, touched = self._squeezed() if self._resized else set(), set[int]()
        free: dict[int, int | None] = {}
        for bundle, flows in self._changes.items():
            if not flows:
                continue
            route, holder = self._routes[bundle], self.bottleneck[bundle]
            for link in route:
                (affected if self._held[link] else touched).add(link)
            count = self._recount(bundle, flows)
            if holder is None:
                free[bundle] = None
                if affected.isdisjoint(route):
                    affected.add(min(route, key=lambda link: self._capacity[link] / self._total[link]))
            elif not count:
                self._held[holder].discard(bundle)
                self.bottleneck[bundle] = None
        self._changes.clear()
        return affected, touched, free

    def _squeezed(self) -> set[int]:
        """Links of a new capacity, and the bottlenecks of all that crosses them."""
        resized, self._resized = self._resized, set()
        holders = {self.bottleneck[bundle] for link in resized for bundle in self._crossing[link]}
        return {link for link in resized if self._crossing[link]}.union(link for link in holders if link is not None)

    def _recount(self, bundle: int, flows: int) -> int:
        count = self._count[bundle] = self._count[bundle] + flows
        for link in self._routes[bundle]:
            crossing = self._crossing[link]
            weight = count if link >= 0 else min(count, 1)
            self._total[link] += weight - crossing.get(bundle, 0)
            if weight:
                crossing[bundle] = weight
            else:
                del crossing[bundle]
        return count

    def _goes_on(self, affected: set[int], touched: set[int], new: Collection[int]) -> bool:
        """Whether one link alone holds back all that crosses it, and goes on doing so: only its level is new."""
        if len(affected) != 1:
            return False
        (link,) = affected
        crossing, held, level = self._crossing[link], self._held, self.level
        others = touched.union(*[self._routes[bundle] for bundle in crossing])
        others.discard(link)
        for other in others:
            if held[other]:
                return False
        before = level.pop(link, None)
        if crossing:
            level[link] = self._capacity[link] / self._total[link]
        for bundle in new:
            self.bottleneck[bundle] = link
        if others and self._overflowing(others):
            for bundle in new:
                self.bottleneck[bundle] = None
            if before is not None:
                level[link] = before
            return False
        held[link].update(new)
        return True

    def _spread(
        self, joining: Iterable[int], affected: set[int], touched: set[int], free: dict[int, int | None]
    ) -> None:
        """Free what the joining links hold back, and what the bottlenecks on its way hold back, and so on."""
        held, bottleneck, routes = self._held, self.bottleneck, self._routes
        todo = list(joining)
        while todo:
            for bundle in held[todo.pop()]:
                if bundle not in free:
                    free[bundle] = bottleneck[bundle]
                    for link in routes[bundle]:
                        if link not in affected:
                            if held[link]:
                                affected.add(link)
                                todo.append(link)
                            else:
                                touched.add(link)

    def _fill(self, affected: set[int], free: Collection[int]) -> dict[int, float]:
        """Fill the free bundles. Returns the fastest of the others on each affected link."""
        level, bottleneck = self.level, self.bottleneck
        for bundle in free:
            bottleneck[bundle] = None
        for link in affected:
            level.pop(link, None)
            self._held[link] = set()
        room: dict[int, list[float]] = {}  # of each link: capacity left, flows to share it
        fastest: dict[int, float] = {}
        for link in affected:
            left, flows, fast = self._capacity[link], 0, -1.0
            for bundle, weight in self._crossing[link].items():
                holder = bottleneck[bundle]
                if holder is None:
                    flows += weight
                else:
                    rate = level[holder]
                    left -= weight * rate
                    if rate > fast:
                        fast = rate
            fastest[link] = fast
            if flows:
                room[link] = [left, flows]
        self._rise(room, len(free))
        return fastest

    def _rise(self, room: dict[int, list[float]], free: int) -> None:
        """Progressive filling: again and again the tightest link becomes the bottleneck of all on it that are free."""
        bottleneck, routes, count = self.bottleneck, self._routes, self._count
        shares = [(left / flows, link) for link, (left, flows) in room.items()]
        heapify(shares)
        while free:
            before, link = shares[0]
            left, flows = room[link]
            share = left / flows if flows > 0 else math.inf
            if share > before:  # slower flows have left its others more
                heapreplace(shares, (share, link))
                continue
            heappop(shares)
            del room[link]
            self.level[link] = share
            held = self._held[link]
            for bundle in self._crossing[link]:
                if bottleneck[bundle] is None:
                    bottleneck[bundle] = link
                    held.add(bundle)
                    free -= 1
                    flows = count[bundle]
                    for other in routes[bundle]:
                        if other in room:
                            rest = room[other]
                            rest[0] -= flows * share
                            rest[1] -= flows

    def _violated(self, affected: set[int], touched: set[int], fastest: Mapping[int, float]) -> set[int]:
        """Links that overflow, and the bottlenecks of bundles that are too fast for a link that has become full."""
        level, bottleneck = self.level, self.bottleneck
        violated = self._overflowing(touched - affected)
        for link in affected:
            if link in level and fastest[link] > level[link]:
                holders = {bottleneck[bundle] for bundle in self._crossing[link]}
                violated |= {holder for holder in holders if holder is not None and level[holder] > level[link]}
        return violated - affected

    def _overflowing(self, links: Iterable[int]) -> set[int]:
        total, capacity = self._total, self._capacity
        top = max(self.level.values(), default=0.0)  # a link is safe if it could carry all its flows at this
        return {link for link in links if total[link] * top > capacity[link] and self._load(link) > capacity[link]}

    def _load(self, link: int) -> float:
        level, bottleneck = self.level, self.bottleneck
        return sum([weight * level[bottleneck[bundle]] for bundle, weight in self._crossing[link].items()])

    def _check(self, links: Iterable[int]) -> None:
        for link in links:
            load, capacity = self._load(link), self._capacity[link]
            if load > capacity * (1 + 1e-9):
                raise BrokenInvariant(f"link {link} carries {load:.6g} B/s of {capacity:.6g} B/s")
