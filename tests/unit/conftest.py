"""A station of links by itself: transfers asked of it at stated times, bandwidths that change at stated times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sim.cluster import Link
from sim.engine.core import Core
from sim.engine.fair_share import FairShare
from sim.engine.link import Fifo, Payload

Routes = Sequence[tuple[int, ...]]


def _carry(
    links: Sequence[Link],
    asked: Sequence[tuple[Routes, float, float]],
    changes: Sequence[tuple[float, int, float]] = (),
    latency_s: float = 0.0,
    after_all: bool = False,
    withdrawn: Sequence[tuple[float, int]] = (),
) -> list[float]:
    count, fair = len(asked), any(link.kind == "fair_share" for link in links)
    nothing: Any = SimpleNamespace(idle=[True] * (2 * count))
    payloads = {op: Payload(tuple(routes), size, latency_s) for op, (routes, size, _) in enumerate(asked)}
    seconds = [0.0 if fair else alone_s(links, payload) for payload in payloads.values()]
    core = Core(list(range(count)), seconds, [None] * count, nothing)
    station = FairShare(core, payloads, links) if fair else Fifo(core, payloads, links)
    core.stations = [station] * count
    for op, (_, _, asked_s) in enumerate(asked):
        core.wake(lambda _, op=op: core.ready(op), asked_s)  # type: ignore[misc]
    for at_s, link, bytes_per_s in changes:
        change = partial(station.set_bandwidth, link, bytes_per_s)
        core.wake(lambda _, change=change: core.defer(change) if after_all else change(), at_s)  # type: ignore[misc]
    for at_s, op in withdrawn:
        core.wake(lambda _, op=op: core.defer(lambda: station.withdraw(op)), at_s)  # type: ignore[misc]
    core.env.run()
    return [end_s if end_s >= 0 else float("inf") for end_s in core.end_s]


def alone_s(links: Sequence[Link], payload: Payload) -> float:
    """How long a payload takes where nothing contends with it, as a binding has it."""
    hops = Counter(link for route in payload.routes for link in route)
    shares = {link: count if links[link].kind == "fifo" else 1 for link, count in hops.items()}
    return payload.latency_s + payload.size_bytes / min(links[link].bytes_per_s / shares[link] for link in hops)


@pytest.fixture(scope="session")
def carry() -> Callable[..., list[float]]:
    """Ends of transfers ``(routes, bytes, asked at)`` over links; infinite: never.

    ``changes`` are ``(at, link, bytes per second)``, before or after all that comes at that instant; ``withdrawn`` are
    ``(at, number of a transfer)``, after it.
    """
    return _carry
