"""A snapshot's trace, undone: what the allocator held when the trace began.

The trace says what was requested, not how large the block was that served it. Of a block that is older than the trace
and freed in it, the part that was too small to split off is inferred from what came to lie behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sim.errors import BadTraceFile
from sim.memory.settings import SMALL_BUFFER, SMALL_SIZE
from sim.memory.snapshot import INACTIVE, PENDING, Entry, Frames, Snapshot


class Held(NamedTuple):
    """A block in use: ``size`` with its unsplit tail; ``pending`` when only streams still hold it."""

    address: int
    size: int
    requested: int
    pending: bool
    frames: Frames


class StartSegment(NamedTuple):
    """A segment, or a mapped range of an expandable one, with what is in use of it in order of address."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One device when its trace began; ``inferred`` blocks have a size that the file does not hold.

    ``expandable`` gives for each stream and pool (small or not) where its expandable segment begins.
    """

    segments: tuple[StartSegment, ...]
    expandable: dict[tuple[int, bool], int]
    inferred: int


@dataclass(slots=True)
class _Block:
    size: int | None  # None: only what was requested is known
    requested: int
    pending: bool
    frames: Frames
    freed_at: int  # the index of the event that gave it back, or the length of the trace


@dataclass(slots=True)
class _Segment:
    size: int
    stream: int
    small: bool
    expandable: bool


def rewind(snapshot: Snapshot, device: int, to: int = 0) -> Start:
    """Undo the trace of a device, event by event from its end, down to the event numbered ``to``.

    Raises
    ------
    BadTraceFile : the trace does not lead to the state that the file holds.
    """
    trace = snapshot.traces[device] if device < len(snapshot.traces) else ()
    history = _History(snapshot, device, trace, to)
    for index in range(len(trace) - 1, to - 1, -1):
        history.undo(index, trace[index])
    return history.start()


class _History:
    """Segments and blocks in use, going back in time."""

    def __init__(self, snapshot: Snapshot, device: int, trace: Sequence[Entry], to: int) -> None:
        self.settings = snapshot.settings
        self.segments: dict[int, _Segment] = {}
        self.blocks: dict[int, _Block] = {}
        self.lowest: dict[tuple[int, bool], int] = {}  # mapped page since an expandable segment was made
        later = list(enumerate(trace))[to:]
        self.allocated = sorted((entry.address, index, entry.size) for index, entry in later if entry.action == "alloc")
        self.freed = sorted((entry.address, entry.size) for _, entry in later if entry.action == "free_completed")
        for record in snapshot.segments:
            if record.device == device:
                segment = _Segment(record.size, record.stream, record.small, record.expandable)
                self.segments[record.address] = segment
                if record.expandable:
                    self._reach(record.address, (record.stream, record.small))
                for address, size, requested, state, frames in record.blocks:
                    if state != INACTIVE:
                        self.blocks[address] = _Block(size, requested, state == PENDING, frames, len(trace))

    def undo(self, index: int, entry: Entry) -> None:
        action, address, size, stream = entry[:4]
        if action == "free_completed":
            if address in self.blocks:
                raise _contradiction(index, entry, "the block is in use afterwards")
            self.blocks[address] = _Block(None, size, True, (), index)
        elif action == "free_requested":
            block = self.blocks.get(address)
            if block is None or not block.pending or block.requested != size:
                raise _contradiction(index, entry, "no such block waits to be freed")
            block.pending = False
        elif action == "alloc":
            block = self.blocks.pop(address, None)
            if block is None or block.requested != size:
                raise _contradiction(index, entry, "no such block is in use afterwards")
        elif action == "segment_alloc":
            if self.segments.pop(address, None) is None:
                raise _contradiction(index, entry, "there is no such segment afterwards")
        elif action == "segment_free":
            self.segments[address] = _Segment(size, stream, size == SMALL_BUFFER, False)
        elif action == "segment_map":
            self._unmap(index, entry)
        elif action == "segment_unmap":
            self._map(entry)

    def _reach(self, address: int, kind: tuple[int, bool]) -> None:
        self.lowest[kind] = min(address, self.lowest.get(kind, address))

    def _map(self, entry: Entry) -> None:
        """Pages that were unmapped join the ranges beside them."""
        first, last, kind = entry.address, entry.address + entry.size, (entry.stream, self._pages_are_small(entry))
        self._reach(first, kind)
        for address, segment in list(self.segments.items()):
            if segment.expandable and (segment.stream, segment.small) == kind:
                end = address + segment.size
                if first in (address, end) or last in (address, end):
                    first, last = min(first, address), max(last, end)
                    del self.segments[address]
        self.segments[first] = _Segment(last - first, *kind, True)

    def _unmap(self, index: int, entry: Entry) -> None:
        """Pages that were mapped leave their range."""
        around = [(a, s) for a, s in self.segments.items() if a <= entry.address < a + s.size and s.expandable]
        if not around or around[0][0] + around[0][1].size < entry.address + entry.size:
            raise _contradiction(index, entry, "these pages are not mapped afterwards")
        address, segment = around[0]
        kind = segment.stream, segment.small
        del self.segments[address]
        end, cut = address + segment.size, entry.address + entry.size
        for first, last in ((address, entry.address), (cut, end)):
            if last > first:
                self.segments[first] = _Segment(last - first, *kind, True)
        if not any(s.expandable and (s.stream, s.small) == kind for s in self.segments.values()):
            del self.lowest[kind]  # this made it

    def _pages_are_small(self, entry: Entry) -> bool:
        """The pool of unmapped pages: by the size of a page, else by what was on them."""
        if entry.size % self.settings.large_segment_bytes:
            return True
        first, last = entry.address, entry.address + entry.size
        at, done = bisect_left(self.allocated, (first,)), bisect_left(self.freed, (first,))
        requested = [size for address, _, size in self.allocated[at : at + 1] if address < last]
        requested += [size for address, size in self.freed[done : done + 1] if address < last]
        return any(self.settings.rounded(size) <= SMALL_SIZE for size in requested)

    def start(self) -> Start:
        """What is left is what there was."""
        addresses, inferred, segments = sorted(self.blocks), 0, []
        placed = 0
        for address, segment in sorted(self.segments.items()):
            end = address + segment.size
            inside = addresses[bisect_left(addresses, address) : bisect_left(addresses, end)]
            placed += len(inside)
            held = []
            for at, bound in pairwise([*inside, end]):
                block = self.blocks[at]
                if block.size is None:
                    block.size = self._size(at, bound, block, segment)
                    inferred += not (segment.small or segment.expandable)
                if at + block.size > bound:
                    raise BadTraceFile(f"the blocks at {at:#x} and {bound:#x} overlap when the trace begins")
                held.append(Held(at, block.size, block.requested, block.pending, block.frames))
            segments.append(StartSegment(address, *_fields(segment), tuple(held)))
        if placed < len(addresses):
            raise BadTraceFile("blocks are in use outside all segments when the trace begins")
        return Start(tuple(segments), self.lowest, inferred)

    def _size(self, address: int, bound: int, block: _Block, segment: _Segment) -> int:
        """The size of a block, given where the next one in use or the end of the segment is.

        A rest of at most 1 MiB in the large pool stays with the block, so a gap as small belongs to it. Where the gap
        is larger, a part of it may: a block that is allocated behind this one while it lives shows where it ends,
        since allocations start where free blocks do.
        """
        size = self.settings.rounded(block.requested)
        if segment.small or segment.expandable:
            return size
        least = address + size
        if bound - least <= SMALL_SIZE or size >= self.settings.max_split_size_bytes:
            return bound - address
        for other, index, _ in self.allocated[bisect_left(self.allocated, (least,)) :]:
            if other > least + SMALL_SIZE or other >= bound:
                break
            if index < block.freed_at:
                return other - address
        return size


def _fields(segment: _Segment) -> tuple[int, int, bool, bool]:
    return segment.size, segment.stream, segment.small, segment.expandable


def _contradiction(index: int, entry: Entry, why: str) -> BadTraceFile:
    return BadTraceFile(f"event {index} of the trace ({entry.action} {entry.address:#x}) contradicts its end: {why}")
