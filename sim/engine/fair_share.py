"""Max-min fair rates of flows over shared links (progressive filling; Bertsekas & Gallager, Data Networks, 6.5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.errors import BrokenInvariant


def max_min(routes: Sequence[Sequence[int]], capacity: Mapping[int, float]) -> list[float]:
    """Rates of flows over their routes, in the unit of ``capacity`` (per link).

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


def check_capacity(routes: Sequence[Sequence[int]], rates: Sequence[float], capacity: Mapping[int, float]) -> None:
    """Raise `BrokenInvariant` where a link carries more than it can."""
    load: dict[int, float] = {}
    for route, rate in zip(routes, rates, strict=True):
        for link in set(route):
            load[link] = load.get(link, 0.0) + rate
    for link, used in load.items():
        if used > capacity[link] * (1 + 1e-9):
            raise BrokenInvariant(f"link {link} carries {used:.6g} B/s of {capacity[link]:.6g} B/s")
