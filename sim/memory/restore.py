"""An allocator in the state that a trace begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sim.memory.blocks import Block, Expandable, Pool
from sim.memory.caching import Caching
from sim.memory.rewind import Start, StartSegment
from sim.memory.settings import SMALL_BUFFER
from sim.memory.snapshot import tag

_FAR = 2**44


def waiting(address: int) -> int:
    """A stream that stands for all those that a freed block at ``address`` waits for: a trace does not name them."""
    return -1 - address


def restore(caching: Caching, start: Start) -> list[Expandable]:
    """Give a new allocator segments and blocks, and count them as if it had just taken them.

    Returns its expandable segments.
    """
    for segment in start.segments:
        if not segment.expandable:
            _link(caching, [*_blocks(caching, segment, None)])
    places = [*_places(caching, start)]
    for place, ranges in places:
        _link(caching, [*_chain(caching, place, ranges)])
    caching.reserve.total_bytes = caching.reserved_bytes
    caching.statistics.reset_peaks()
    return [place for place, _ in places]


def _places(caching: Caching, start: Start) -> Iterator[tuple[Expandable, list[StartSegment]]]:
    """The expandable segments with their mapped ranges.

    A file does not say how far one may reach: as far as the device's memory asks, and at most to the next one.
    """
    total, starts = caching.driver.total_bytes, sorted(start.expandable.values())
    for (stream, small), address in start.expandable.items():
        page = SMALL_BUFFER if small else caching.settings.large_segment_bytes
        most = -(-(total + total // 8 if total is not None else _FAR) // page) * page
        ranges = [s for s in start.segments if s.expandable and (s.stream, s.small) == (stream, small)]
        while ranges:
            bound = min([other for other in starts if other > address], default=address + most)
            size = max(min(most, bound - address) // page * page, page)
            inside = [s for s in ranges if s.address < address + size]
            if inside:
                size = max(size, inside[-1].address + inside[-1].size - address)
                yield Expandable(address, size, page), inside
            ranges = ranges[len(inside) :]
            address = ranges[0].address if ranges else address


def _pool(caching: Caching, small: bool) -> Pool:
    return caching.reserve.small if small else caching.reserve.large


def _blocks(caching: Caching, segment: StartSegment, expandable: Expandable | None) -> Iterator[Block]:
    """The blocks of a segment: those in use, and what is free between them."""
    pool, at = _pool(caching, segment.small), segment.address
    for held in segment.held:
        if held.address > at:
            yield Block(pool, segment.stream, at, held.address - at, expandable)
        block = Block(pool, segment.stream, held.address, held.size, expandable)
        block.requested, block.active, block.allocated = held.requested, True, not held.pending
        block.tag = tag(held.frames)
        yield block
        at = block.end
    if at < segment.address + segment.size:
        yield Block(pool, segment.stream, at, segment.address + segment.size - at, expandable)
    for gauges in pool.gauges:
        gauges.segment.add(expandable is None)
        gauges.reserved_bytes.add(segment.size)


def _chain(caching: Caching, place: Expandable, ranges: Sequence[StartSegment]) -> Iterator[Block]:
    """The blocks of an expandable segment: mapped ranges, and what is not mapped before, between and behind them."""
    pool, stream, at = _pool(caching, ranges[0].small), ranges[0].stream, place.address
    for segment in (*ranges, None):
        until = place.address + place.size if segment is None else segment.address
        if until > at:
            gap = Block(pool, stream, at, until - at, place)
            gap.mapped = False
            yield gap
        if segment is not None:
            yield from _blocks(caching, segment, place)
            at = segment.address + segment.size


def _link(caching: Caching, blocks: Sequence[Block]) -> None:
    """Make neighbours of blocks in a row, and put each where it belongs."""
    for before, after in pairwise(blocks):
        before.next, after.previous = after, before
    for block in blocks:
        if block.active:
            caching.adopt(block)
            if not block.allocated:
                caching.waits.wait(block.address, (waiting(block.address),))
        elif block.mapped:
            block.pool.insert(block)
            if block.expandable is None and block.split:
                for gauges in block.pool.gauges:
                    gauges.inactive_split.add(1)
                    gauges.inactive_split_bytes.add(block.size)
        else:
            block.pool.insert_unmapped(block)
