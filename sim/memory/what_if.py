"""The requests of a recorded trace under other settings or on another GPU: would it have fitted?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.replay import the_device
from sim.memory.restore import restore, waiting
from sim.memory.rewind import Start, rewind
from sim.memory.settings import ROUND_LARGE, Settings
from sim.memory.snapshot import Entry, Snapshot

Layout = Literal["as recorded", "laid out afresh"]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What would have come of the same requests.

    ``layout`` says how blocks older than the trace lie: ``as recorded``, or ``laid out afresh`` in the order of their
    addresses, since other settings would have put them elsewhere. ``failed_at`` is the index in the trace of the first
    request that does not fit (−1: what was there before), ``message`` PyTorch's text for it. ``stats`` are those of
    ``torch.cuda.memory_stats``, up to there.
    """

    settings: Settings
    capacity_bytes: int | None
    layout: Layout
    fits: bool
    failed_at: int | None
    message: str
    stats: dict[str, int]


def what_if(
    snapshot: Snapshot, settings: Settings | None = None, capacity_bytes: int | None = None, device: int | None = None
) -> WhatIf:
    """Play the requests of a snapshot's trace with other ``settings`` or on a GPU of ``capacity_bytes``.

    Raises
    ------
    BadTraceFile : no such device, or the trace contradicts the final state.
    """
    number, settings = the_device(snapshot, device), settings or snapshot.settings
    start = rewind(snapshot, number)
    layout: Layout = "as recorded" if settings == snapshot.settings else "laid out afresh"
    caching, places = _recorded(start, settings, capacity_bytes, number)
    if caching is None or layout != "as recorded":
        layout, (caching, places) = "laid out afresh", _afresh(start, settings, capacity_bytes, number)
    trace = snapshot.traces[number] if number < len(snapshot.traces) else ()
    failed_at = -1 if caching.refusal else _play(caching, trace, places)
    return WhatIf(settings, capacity_bytes, layout, failed_at is None, failed_at, caching.refusal, caching.stats())


def least_capacity(snapshot: Snapshot, settings: Settings | None = None, device: int | None = None) -> int:
    """The least memory, in steps of 2 MiB, on which the same requests fit; found by bisection.

    Fragmentation may make a size above it fail and one below it fit.
    """
    roomy = what_if(snapshot, settings, None, device)
    low = roomy.stats["requested_bytes.all.peak"] // ROUND_LARGE
    high = -(-roomy.stats["reserved_bytes.all.peak"] // ROUND_LARGE)
    while low < high:
        middle = (low + high) // 2
        if what_if(snapshot, settings, middle * ROUND_LARGE, device).fits:
            high = middle
        else:
            low = middle + 1
    return high * ROUND_LARGE


def _recorded(
    start: Start, settings: Settings, capacity_bytes: int | None, device: int
) -> tuple[Caching | None, dict[int, int]]:
    """The state that the trace began with, less cached segments if need be; ``None`` where it still does not fit."""
    used = sum(segment.size for segment in start.segments)
    driver = SimulatedDriver(None, used)
    caching = Caching(settings, driver, device=device)
    restore(caching, start)
    driver.total_bytes = capacity_bytes
    if capacity_bytes is not None and used > capacity_bytes:
        caching.reserve.release_all()
        if driver.used_bytes > capacity_bytes:
            return None, {}
    return caching, {address: address for address in caching.active}


def _afresh(
    start: Start, settings: Settings, capacity_bytes: int | None, device: int
) -> tuple[Caching, dict[int, int]]:
    """A new process that asks for what was in use, in the order of addresses."""
    caching = Caching(settings, SimulatedDriver(capacity_bytes), device=device)
    places: dict[int, int] = {}
    for segment in start.segments:
        for held in segment.held:
            grant = caching.malloc(held.requested, segment.stream)
            if grant is None:
                return caching, places
            places[held.address] = grant.address
            if held.pending:
                caching.record_stream(grant.address, waiting(held.address))
                caching.free(grant.address)
    return caching, places


def _play(caching: Caching, trace: tuple[Entry, ...], places: dict[int, int]) -> int | None:
    """Play allocations and frees; the index of the first that does not fit. A recorded failure is tried again."""
    for index, entry in enumerate(trace):
        if entry.action in ("alloc", "oom"):
            grant = caching.malloc(entry.size, entry.stream)
            if grant is None:
                return index
            if entry.action == "alloc":
                places[entry.address] = grant.address
        elif entry.action == "free_requested":
            address = places.pop(entry.address)
            after = trace[index + 1] if index + 1 < len(trace) else None
            if after is None or after[:2] != ("free_completed", entry.address):
                caching.record_stream(address, waiting(entry.address))
            caching.free(address)
        elif entry.action == "free_completed":
            caching.finish(waiting(entry.address))
    return None
