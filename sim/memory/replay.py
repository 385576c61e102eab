"""A recorded trace played through the rules, compared event by event.

Where new segments lie is the driver's choice and comes from the file; that one was needed, how large it was, where
every cached allocation went and what was released in which order is predicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sim.errors import BadTraceFile, UnsupportedPlan
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.restore import restore, waiting
from sim.memory.rewind import rewind
from sim.memory.settings import SMALL_BUFFER, SMALL_SIZE
from sim.memory.snapshot import INACTIVE, Entry, Snapshot, state

_TAKES, _GIVES = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_ON_THE_WAY = frozenset((*_TAKES, *_GIVES, "free_completed"))
_SHOWN, _MOST_MISMATCHES = 10, 100
_ELSEWHERE = 2**56  # where no GPU has memory

Watch = Callable[[int, Entry, Caching], None]


@dataclass(slots=True)
class Agreement:
    """How many events of a kind the file holds, and how many of them came out the same."""

    checked: int = 0
    matched: int = 0

    def count(self, matches: bool) -> bool:
        """Count one; says whether it matches."""
        self.checked += 1
        self.matched += matches
        return matches


@dataclass(slots=True)
class Replay:
    """What a replay found. Bytes are the model's, at the end and at most while the trace ran.

    ``inferred_blocks`` are older than the trace and were freed in it: the file does not hold the size of such a block.
    ``mismatches`` words the first few of the ``mismatched``; after each the replay goes on from what the file says at
    the next ``event``.
    """

    cached_allocations: Agreement = field(default_factory=Agreement)
    new_segments: Agreement = field(default_factory=Agreement)
    releases: Agreement = field(default_factory=Agreement)
    final_blocks: Agreement = field(default_factory=Agreement)
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    inferred_blocks: int = 0
    event: int = 0
    mismatched: int = 0
    mismatches: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether everything that could be checked matches."""
        kinds = self.cached_allocations, self.new_segments, self.releases, self.final_blocks
        return not self.mismatched and all(kind.checked == kind.matched for kind in kinds)

    def disagree(self, message: str) -> None:
        """Remember a mismatch."""
        self.mismatched += 1
        if len(self.mismatches) < _SHOWN:
            self.mismatches.append(f"event {self.event}: {message}")


def replay(
    snapshot: Snapshot, device: int | None = None, total_bytes: int | None = None, watch: Watch | None = None
) -> Replay:
    """Rewind the trace of one device, play it, and compare.

    Parameters
    ----------
    device : its number; not needed where the snapshot holds only one.
    total_bytes : memory of the GPU it was recorded on, which no file holds; garbage collection goes by it, and it
        limits how far an expandable segment reaches.
    watch : called after every event with its index, the event, and the state that it led to; an allocation with all
        that it took from the driver, and a free that completes at once, count as one event.

    Raises
    ------
    BadTraceFile : no such device, or the trace contradicts the final state.
    UnsupportedPlan : garbage collection was on and nobody says how much memory there was.
    """
    number = the_device(snapshot, device)
    return _Player(snapshot, number, total_bytes, watch).play()


def the_device(snapshot: Snapshot, device: int | None) -> int:
    """The device asked for, or the only one.

    Raises
    ------
    BadTraceFile : there is none, no such one, or more than one to choose from.
    """
    there = {segment.device for segment in snapshot.segments}
    there |= {index for index, trace in enumerate(snapshot.traces) if trace}
    names = ", ".join(map(str, sorted(there)))
    if not there:
        raise BadTraceFile("the snapshot is empty: no device holds a segment or has a trace")
    if device is None and len(there) > 1:
        raise BadTraceFile(f"the snapshot holds devices {names}: say which one")
    if device is not None and device not in there:
        raise BadTraceFile(f"the snapshot holds no device {device}; it holds {names}")
    return device if device is not None else there.pop()


class _Recorded(SimulatedDriver):
    """Answers as the driver did: ``ahead`` are the segment events until the next allocation, ``fails`` its outcome.

    ``coming`` are the pages that will be mapped: the first for the ``stream`` at work is where a new segment begins,
    and it ends before those of others.
    """

    def __init__(self, total_bytes: int | None, found: Replay, coming: Callable[[], Iterator[Entry]]) -> None:
        super().__init__(total_bytes, first_address=_ELSEWHERE)
        self.ahead: deque[Entry] = deque()
        self.fails, self.stream, self.coming = False, 0, coming
        self._found = found
        self.reserved: list[tuple[int, int]] = []

    def _takes(self, action: str, size_bytes: int, address: int | None = None) -> Entry | None:
        """The event that answers a call for memory; ``None`` where the driver had none left."""
        entry = self.ahead[0] if self.ahead else None
        if entry is None or entry.action != action:
            return None
        self.ahead.popleft()
        same = entry.size == size_bytes and address in (None, entry.address)
        if not self._found.new_segments.count(same):
            self._found.disagree(
                f"{action} at {entry.address:#x}: {entry.size:,} B recorded, {size_bytes:,} B predicted"
            )
        return entry

    def _gives(self, action: str, address: int, size_bytes: int) -> None:
        entry = self.ahead[0] if self.ahead else None
        if entry is None or entry.action != action:
            self._found.disagree(f"{action} at {address:#x} predicted, not recorded")
            return
        self.ahead.popleft()
        if not self._found.releases.count((entry.address, entry.size) == (address, size_bytes)):
            self._found.disagree(f"{action} at {entry.address:#x} recorded, at {address:#x} predicted")

    @property
    def _had_none(self) -> bool:
        return self.fails or bool(self.ahead)

    def malloc(self, size_bytes: int) -> int | None:
        entry = self._takes("segment_alloc", size_bytes)
        if entry is not None:
            return entry.address
        return None if self._had_none else super().malloc(size_bytes)

    def free(self, address: int, size_bytes: int) -> None:
        self._gives("segment_free", address, size_bytes)

    def reserve(self, page_bytes: int) -> tuple[int, int]:
        address, size = super().reserve(page_bytes)
        small = page_bytes == SMALL_BUFFER  # a small request maps one page, and large pages are larger
        mine, others = list[int](), [begin for begin, _ in self.reserved]
        for entry in self.coming():
            same = (entry.stream, entry.size == SMALL_BUFFER) == (self.stream, small)
            (mine if same else others).append(entry.address)
        first = mine[0] if mine else address
        size = min([size, *(other - first for other in others if other > first)]) // page_bytes * page_bytes
        self.reserved.append((first, first + size))
        return first, size

    def map(self, address: int, size_bytes: int) -> bool:
        return self._takes("segment_map", size_bytes, address) is not None or not self._had_none

    def unmap(self, address: int, size_bytes: int) -> None:
        self._gives("segment_unmap", address, size_bytes)


class _Player:
    """Feeds a trace to an allocator that begins where the trace does."""

    def __init__(self, snapshot: Snapshot, device: int, total_bytes: int | None, watch: Watch | None) -> None:
        self.trace: Sequence[Entry] = snapshot.traces[device] if device < len(snapshot.traces) else ()
        self.snapshot, self.device, self.total_bytes, self.watch = snapshot, device, total_bytes, watch
        if snapshot.settings.garbage_collection_threshold and total_bytes is None:
            raise UnsupportedPlan(
                "recorded with garbage collection, which depends on the GPU's memory: say how much it is"
            )
        self.found, self.at = Replay(), 0
        self.found.inferred_blocks = self._begin()

    def _begin(self) -> int:
        """Start from what the file says at the next event; how many blocks had to be inferred."""
        start = rewind(self.snapshot, self.device, self.at)
        self.driver = _Recorded(self.total_bytes, self.found, self._coming)
        self.caching = Caching(self.snapshot.settings, self.driver, device=self.device)
        self.driver.reserved = [(place.address, place.address + place.size) for place in restore(self.caching, start)]
        return start.inferred

    def play(self) -> Replay:
        left = _MOST_MISMATCHES
        while self.at < len(self.trace) and left:
            known, self.found.event = self.found.mismatched, self.at
            self.at = self._step(self.at)
            if self.watch is not None:
                self.watch(self.at - 1, self.trace[self.at - 1], self.caching)
            if self.found.mismatched > known:
                self._note_peaks()
                self._begin()
                left -= 1
        self.found.event = self.at
        self._give_up(self.trace[self.at :])
        self._compare_blocks()
        self._note_peaks()
        return self.found

    def _note_peaks(self) -> None:
        gauges, found = self.caching.statistics.pools["all"], self.found
        found.allocated_bytes, found.reserved_bytes = gauges.allocated_bytes.current, gauges.reserved_bytes.current
        found.peak_allocated_bytes = max(found.peak_allocated_bytes, gauges.allocated_bytes.peak)
        found.peak_reserved_bytes = max(found.peak_reserved_bytes, gauges.reserved_bytes.peak)

    def _give_up(self, rest: Sequence[Entry]) -> None:
        """Count what is left as not matched."""
        for entry in rest:
            if entry.action == "alloc":
                self.found.cached_allocations.count(False)
            elif entry.action in (*_TAKES, *_GIVES):
                self._kind(entry).count(False)

    def _kind(self, entry: Entry) -> Agreement:
        return self.found.new_segments if entry.action in _TAKES else self.found.releases

    def _step(self, index: int) -> int:
        """Play one event, or all that one allocation took; the index behind them."""
        entry = self.trace[index]
        if entry.action == "alloc":
            self._allocate(entry, ())
            return index + 1
        if entry.action == "free_requested":
            return self._free(index)
        if entry.action == "free_completed" and not self._awaited(index):
            self.caching.finish(waiting(entry.address))
            self.caching.poll()
            return index + 1
        end = self._end(index)
        outcome = self.trace[end] if end < len(self.trace) else None
        if outcome is None or outcome.action not in ("alloc", "oom"):
            self._empty_cache(self.trace[index:end])
            return max(end, index + 1)
        self._allocate(outcome, self.trace[index:end])
        return end + 1

    def _end(self, index: int) -> int:
        """The index behind all that an allocation may have taken."""
        while index < len(self.trace) and self.trace[index].action in _ON_THE_WAY:
            index += 1
        return index

    def _free(self, index: int) -> int:
        address = self.trace[index].address
        after = self.trace[index + 1] if index + 1 < len(self.trace) else None
        at_once = after is not None and after.action == "free_completed" and after.address == address
        at_once = at_once and not self._awaited(index + 1)
        if not at_once:
            self.caching.record_stream(address, waiting(address))
        self.caching.free(address)
        return index + 1 + at_once

    def _awaited(self, index: int) -> bool:
        """Whether a block came back only because an allocation that found none waited for all streams.

        It did if nothing else explains why the allocation, which released segments or failed, had not found this one.
        """
        end = self._end(index)
        outcome = self.trace[end] if end < len(self.trace) else None
        fails = outcome is not None and outcome.action == "oom"
        if outcome is None or (end == index + 1 and not fails):
            return False
        if not fails and not any(event.action in _GIVES for event in self.trace[index:end]):
            return False
        block = self.caching.active[self.trace[index].address]
        merged = block.size + sum(
            beside.size for beside in (block.previous, block.next) if beside and beside.mapped and not beside.active
        )
        size = self.caching.settings.rounded(outcome.size)
        same = (block.stream, block.pool.small) == (outcome.stream, size <= SMALL_SIZE)
        return same and self.caching.suits(merged, size)

    def _coming(self) -> Iterator[Entry]:
        later = (self.trace[index] for index in range(self.at, len(self.trace)))
        return (entry for entry in later if entry.action == "segment_map")

    def _allocate(self, entry: Entry, before: Sequence[Entry]) -> None:
        """Play an allocation, or the failure of one, and what it took from the driver before."""
        fails, events = entry.action == "oom", self._asked(entry, before) if before else ()
        self.driver.ahead.extend(events)
        self.driver.fails, self.driver.stream = fails, entry.stream
        grant = self.caching.malloc(entry.size, entry.stream)
        self._drain()
        if fails or grant is None:
            if fails != (grant is None):
                outcome = "out of memory" if fails else "an allocation"
                self.found.disagree(f"{entry.size:,} B: {outcome} recorded, the other predicted")
            return
        same = grant.address == entry.address
        if not events:
            self.found.cached_allocations.count(same and not grant.calls)
        if not same:
            self.found.disagree(f"{entry.size:,} B: {entry.address:#x} recorded, {grant.address:#x} predicted")

    def _asked(self, entry: Entry, before: Sequence[Entry]) -> Sequence[Entry]:
        """What an allocation took from the driver, without releases before that the program asked for."""
        events = [event for event in before if event.action != "free_completed"]
        first = next((at for at, event in enumerate(events) if event.action in _TAKES), len(events))
        if not first or entry.action == "oom" or (first < len(events) and not self._unasked(entry, events[:first])):
            return events
        self._empty_cache(events[:first])
        return events[first:]

    def _unasked(self, entry: Entry, releases: Sequence[Entry]) -> bool:
        """Whether releases before an allocation may be the program's wish: nothing had to go, or all went at once."""
        pools, gone = (self.caching.reserve.large, self.caching.reserve.small), [e.address for e in releases]
        whole = [block.address for pool in pools for block in pool.blocks() if not block.split]
        return self.caching.fits(entry.size, entry.stream) or (whole == gone and not self.caching.waits)

    def _drain(self) -> None:
        """What the file has and the model did not ask for."""
        while self.driver.ahead:
            entry = self.driver.ahead.popleft()
            self._kind(entry).count(False)
            self.found.disagree(f"{entry.action} at {entry.address:#x} recorded, not predicted")

    def _empty_cache(self, events: Sequence[Entry]) -> None:
        self.driver.ahead.extend(event for event in events if event.action != "free_completed")
        if self.driver.ahead:
            self.caching.empty_cache()
            self._drain()

    def _compare_blocks(self) -> None:
        blocks = {
            block.address: (block.size, state(block), block.requested if block.active else 0)
            for run in self.caching.segments()
            for block in run
        }
        for segment in self.snapshot.segments:
            if segment.device != self.device:
                continue
            for address, size, requested, name, _ in segment.blocks:
                wanted = size, name, 0 if name == INACTIVE else requested
                if not self.found.final_blocks.count(blocks.pop(address, None) == wanted):
                    self.found.disagree(
                        f"the block at {address:#x} came out otherwise than recorded ({size:,} B, {name})"
                    )
        if blocks:
            self.found.disagree(f"{len(blocks):,} blocks at the end that the file does not have")
