"""Blocks of memory and the sets of free ones, as PyTorch's allocator keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from sim.memory.memory_stats import Gauges
from sim.memory.rules import Tag


class Expandable:
    """An expandable segment: a range of addresses, mapped page by page."""

    __slots__ = ("address", "page_bytes", "size")

    def __init__(self, address: int, size: int, page_bytes: int) -> None:
        self.address, self.size, self.page_bytes = address, size, page_bytes


class Block:
    """A range of addresses within a segment, between its neighbours ``previous`` and ``next``.

    It is ``active`` from its allocation until every stream is done with it, ``allocated`` until it is freed.
    ``mapped`` is ``False`` for the part of an expandable segment that no memory backs.
    """

    __slots__ = (
        "active",
        "address",
        "allocated",
        "expandable",
        "inserted_at",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested",
        "size",
        "stream",
        "streams",
        "tag",
    )

    def __init__(self, pool: Pool, stream: int, address: int, size: int, expandable: Expandable | None = None) -> None:
        self.pool, self.stream, self.address, self.size, self.expandable = pool, stream, address, size, expandable
        self.requested = self.inserted_at = 0
        self.active = self.allocated = False
        self.mapped = True
        self.previous: Block | None = None
        self.next: Block | None = None
        self.streams: set[int] | None = None
        self.tag: Tag | None = None

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + self.size

    @property
    def split(self) -> bool:
        """Whether it is a part of a segment and not the whole."""
        return self.previous is not None or self.next is not None

    def splice(self, before: Block | None, after: Block | None) -> None:
        """Come between two neighbours."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self

    def absorb(self, neighbour: Block) -> None:
        """Become as large as both together; the neighbour is no more."""
        if neighbour is self.previous:
            self.address = neighbour.address
            self.splice(neighbour.previous, self.next)
        else:
            self.splice(self.previous, neighbour.next)
        self.size += neighbour.size
        neighbour.previous = neighbour.next = None  # no cycle is left for the garbage collector


Entry = tuple[int, int, Block]


class Pool:
    """The free blocks of one size class, for each stream ordered by size, then address.

    ``unmapped`` holds the parts of expandable segments without memory, ordered by address.
    ``lookups`` counts searches: the age of a free block is how many it has outlived.
    """

    def __init__(self, small: bool, gauges: tuple[Gauges, Gauges]) -> None:
        self.small, self.gauges = small, gauges
        self.free: dict[int, list[Entry]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        self.lookups = 0

    def insert(self, block: Block) -> None:
        """Make a block free to take."""
        block.inserted_at = self.lookups
        entry = block.size, block.address, block
        free = self.free.get(block.stream)
        if free is None:
            self.free[block.stream] = [entry]
        else:
            insort(free, entry)

    def best(self, stream: int, size: int) -> Block | None:
        """Take out the smallest block of at least ``size``."""
        free = self.free.get(stream, [])
        at = bisect_left(free, (size,))
        return free.pop(at)[2] if at < len(free) else None

    def remove(self, block: Block) -> None:
        """Take a block out of the free ones."""
        free = self.free[block.stream]
        del free[bisect_left(free, (block.size, block.address))]

    def insert_unmapped(self, block: Block) -> None:
        """Note addresses that can be mapped."""
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Forget addresses that are mapped now."""
        unmapped = self.unmapped[block.stream]
        del unmapped[bisect_left(unmapped, (block.address,))]

    def blocks(self) -> Iterator[Block]:
        """All free blocks by stream, size and address, as they are now."""
        for stream in sorted(self.free):
            yield from [block for _, _, block in self.free[stream]]
