"""The requests of a recorded trace under other settings or on another GPU: would it have fitted?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sim.memory.arena import Arena, Request, pack
from sim.memory.best_fit import BestFit
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.replay import the_device
from sim.memory.restore import restore, waiting
from sim.memory.rewind import Start, rewind
from sim.memory.rules import Rules
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
    """A new process that asks for what was in use."""
    caching = Caching(settings, SimulatedDriver(capacity_bytes), device=device)
    return caching, _occupy(caching, start)


def _occupy(rules: Rules, start: Start) -> dict[int, int]:
    """Ask for what was in use, in the order of addresses; where it is now, up to the first that does not fit."""
    places: dict[int, int] = {}
    for segment in start.segments:
        for held in segment.held:
            grant = rules.malloc(held.requested, segment.stream)
            if grant is None:
                return places
            places[held.address] = grant.address
            if held.pending:
                rules.record_stream(grant.address, waiting(held.address))
                rules.free(grant.address)
    return places


def compare(snapshot: Snapshot, device: int | None = None) -> dict[str, int]:
    """The least memory that each allocator would have needed for the same requests, laid out afresh, in bytes.

    ``live`` is the most that lives at once, which none can beat; ``arena`` knows the whole run beforehand; ``caching``
    and ``expandable_segments`` are PyTorch's without and with that setting.
    """
    number = the_device(snapshot, device)
    start, trace = rewind(snapshot, number), snapshot.traces[number] if number < len(snapshot.traces) else ()
    packing = pack(_requests(start, trace))
    allocators: dict[str, Rules] = {
        "arena": Arena(packing),
        "best_fit": BestFit(),
        "caching": Caching(replace(snapshot.settings, expandable_segments=False)),
        "expandable_segments": Caching(replace(snapshot.settings, expandable_segments=True)),
    }
    found = {"live": packing.live_bytes}
    for name, rules in allocators.items():
        _play(rules, trace, _occupy(rules, start))
        found[name] = rules.stats()["reserved_bytes.all.peak"]
    return found


def _requests(start: Start, trace: Sequence[Entry]) -> list[Request]:
    """Every allocation with its life, counted in events; what is never freed lives to the end."""
    requests = [Request(held.requested, -1, len(trace)) for segment in start.segments for held in segment.held]
    number = {held.address: index for index, held in enumerate(h for s in start.segments for h in s.held)}
    for index, entry in enumerate(trace):
        if entry.action in ("alloc", "oom"):
            if entry.action == "alloc":
                number[entry.address] = len(requests)
            requests.append(Request(entry.size, index, len(trace)))
        elif entry.action == "free_completed":
            requests[number[entry.address]] = requests[number[entry.address]]._replace(end=index)
    return requests


def _play(rules: Rules, trace: Sequence[Entry], places: dict[int, int]) -> int | None:
    """Play allocations and frees; the index of the first that does not fit. A recorded failure is tried again."""
    for index, entry in enumerate(trace):
        if entry.action in ("alloc", "oom"):
            grant = rules.malloc(entry.size, entry.stream)
            if grant is None:
                return index
            if entry.action == "alloc":
                places[entry.address] = grant.address
        elif entry.action == "free_requested":
            address = places.pop(entry.address)
            after = trace[index + 1] if index + 1 < len(trace) else None
            if after is None or after[:2] != ("free_completed", entry.address):
                rules.record_stream(address, waiting(entry.address))
            rules.free(address)
        elif entry.action == "free_completed":
            rules.finish(waiting(entry.address))
    return None
