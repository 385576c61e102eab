"""Fair sharing: completions per second of flows that come and go, against max-min from scratch at each of these."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.measure import Row, cpu_seconds
from sim.cluster import Link
from sim.engine.core import Core, Station
from sim.engine.fair_share import FairShare
from sim.engine.link import Payload
from sim.engine.max_min import max_min

COMPARED = 1000
"""Completions of the reference, which must be the same as our first ones."""

Make = Callable[[Core, Mapping[int, Payload], Sequence[Link]], Station]


class Case(NamedTuple):
    """Sources that each send a flow over their route, and the next one some time after that has ended."""

    name: str
    routes: list[tuple[int, ...]]
    bytes_per_s: list[float]
    pause_s: float
    completions: int
    wanted_ratio: int
    wanted_per_s: int | None = None


def star(workers: int, servers: int, faster: float) -> tuple[list[tuple[int, ...]], list[float]]:
    """A route from each worker to each server, and the speeds of the links of workers and servers."""
    routes: list[tuple[int, ...]] = [(w, workers + s) for w in range(workers) for s in range(servers)]
    return routes, [1.0] * workers + [faster] * servers


CASES = (
    Case("fair share, one link, 64 flows", [(0,)] * 64, [1.0], 0.01, 20_000, 10, 50_000),
    Case("fair share, star of 64 x 4", *star(64, 4, 1.0), 10.0, 8_000, 10, 5_000),
    Case("fair share, star, both ends scarce", *star(64, 4, 16.0), 1.0, 2_000, 4),
)
"""In the last one servers are 16 x as fast: links of both ends hold flows back, and a change moves many rates."""


class FromScratch:
    """Fair sharing by the book: at each arrival and departure `max_min` over all flows, and all ends anew."""

    def __init__(self, core: Core, payloads: Mapping[int, Payload], links: Sequence[Link]) -> None:
        self._core, self._payloads = core, payloads
        self._capacity = {number: link.bytes_per_s for number, link in enumerate(links)}
        self._left: dict[int, float] = {}
        self._rates: list[float] = []
        self._since_s, self._wakes = 0.0, 0

    def request(self, op: int) -> None:
        """See `Station`."""
        self._core.start(op, self._arrive)

    def _arrive(self, op: int) -> None:
        self._advance()
        self._left[op] = self._payloads[op].size_bytes
        self._share()

    def _advance(self) -> None:
        passed_s, self._since_s = self._core.env.now - self._since_s, self._core.env.now
        for op, rate in zip(self._left, self._rates, strict=True):
            self._left[op] -= rate * passed_s

    def _share(self) -> None:
        self._rates = max_min([self._payloads[op].routes[0] for op in self._left], self._capacity)
        self._wakes += 1
        if self._left:
            due = [(left / rate, op) for (op, left), rate in zip(self._left.items(), self._rates, strict=True)]
            after_s, op = min(due)
            wake = self._wakes
            self._core.wake(lambda _: self._wake(wake, op), max(after_s, 0.0))

    def _wake(self, wake: int, op: int) -> None:
        if wake == self._wakes:
            self._advance()
            del self._left[op]
            self._core.end(op)
            self._share()


def play(case: Case, make: Make, completions: int) -> list[tuple[int, float]]:
    """Flows in the order in which they end, and when."""
    chance = random.Random(0)
    count, sources = completions + len(case.routes), len(case.routes)
    sizes = [chance.expovariate(1.0) for _ in range(count)]
    pauses = [case.pause_s * chance.expovariate(1.0) for _ in range(count)]
    links = [Link(f"{k}", "", "", "fair_share", 0.0, rate) for k, rate in enumerate(case.bytes_per_s)]
    payloads = {op: Payload((case.routes[op],), sizes[op], 0.0) for op in range(sources)}
    nothing: Any = SimpleNamespace(idle=[True] * (2 * count))
    core = Core(list(range(count)), [0.0] * count, [None] * count, nothing)
    station = make(core, payloads, links)
    source, ended = list(range(sources)), list[tuple[int, float]]()

    def go_on(op: int) -> None:
        ended.append((op, core.env.now))
        following = len(source)
        if following < count:
            source.append(source[op])
            payloads[following] = Payload((case.routes[source[op]],), sizes[following], 0.0)
            core.wake(lambda _: station.request(following), pauses[following])

    core.ended = go_on
    for op in range(sources):
        station.request(op)
    core.env.run()
    return ended


def _per_second(case: Case) -> tuple[float, float]:
    """Completions of ours and of the reference: medians, measured in turn so that a slow moment meets both."""
    pairs = [
        (
            cpu_seconds(partial(play, case, FairShare, case.completions)),
            cpu_seconds(partial(play, case, FromScratch, COMPARED)),
        )
        for _ in range(3)
    ]
    ours_s, reference_s = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    return (case.completions + len(case.routes)) / ours_s, (COMPARED + len(case.routes)) / reference_s


def _rows(case: Case) -> list[Row]:
    ours, reference = (play(case, make, COMPARED)[:COMPARED] for make in (FairShare, FromScratch))
    for (op, end_s), (same, expected_s) in zip(ours, reference, strict=True):
        assert op == same
        assert abs(end_s - expected_s) <= 1e-9 * expected_s
    mine, theirs = _per_second(case)
    text, book = f"{mine:,.0f} completions/s", "max-min from scratch, same ends"
    rows = [Row(case.name, text, f"{theirs:,.0f} completions/s", mine / theirs, f"{case.wanted_ratio}", book)]
    if (limit := case.wanted_per_s) is not None:
        rows.append(Row(case.name, text, f"{limit:,} completions/s", mine / limit, "1", "the rate that was asked for"))
    return rows


def measure() -> list[Row]:
    """The rows of this benchmark."""
    return [row for case in CASES for row in _rows(case)]
