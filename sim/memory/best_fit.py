"""One range of addresses, the smallest free block that fits: no segments, pools or streams divide it.

What fragmentation costs here is the price of not knowing the future alone.
"""

from __future__ import annotations

from sim.errors import BrokenInvariant
from sim.memory.blocks import Block, Pool
from sim.memory.memory_stats import MemoryStats
from sim.memory.rules import Grant, Tag
from sim.memory.settings import MIN_BLOCK
from sim.memory.stream_waits import StreamWaits

_FIRST_ADDRESS = MIN_BLOCK  # 0 is no address


class BestFit:
    """Blocks of multiples of 512 bytes; ``reserved`` is everything up to the end of the last one in use."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes, self.refusal = capacity_bytes, ""
        self.statistics, self.waits = MemoryStats(), StreamWaits()
        self.pool = Pool(False, self.statistics.of("large_pool"))
        self.active: dict[int, Block] = {}
        self._last: Block | None = None

    @property
    def live_bytes(self) -> int:
        """Bytes in blocks in use."""
        return self.statistics.pools["all"].allocated_bytes.current

    @property
    def reserved_bytes(self) -> int:
        """Bytes up to the end of the last block in use."""
        return self.statistics.pools["all"].reserved_bytes.current

    def malloc(self, size_bytes: int, stream: int = 0, tag: Tag | None = None) -> Grant | None:
        """The smallest free block that fits, else more at the end; ``None`` where that is beyond the capacity."""
        if not size_bytes:
            return Grant(0, 0)
        for address in self.waits.completed():
            self._release(self.active[address])
        size = -(-size_bytes // MIN_BLOCK) * MIN_BLOCK
        block = self.pool.best(0, size) or self._extend(size)
        if block is None:
            self.statistics.num_ooms += 1
            self.refusal = self._refuse(size)
            return None
        if block.size > size:
            rest = Block(self.pool, 0, block.address + size, block.size - size)
            rest.splice(block, block.next)
            block.size = size
            self.pool.insert(rest)
        block.active = block.allocated = True
        block.requested, block.tag = size_bytes, tag
        self.active[block.address] = block
        for gauges in self.pool.gauges:
            gauges.allocation.add(1)
            gauges.allocated_bytes.add(size)
            gauges.requested_bytes.add(size_bytes)
        return Grant(block.address, size)

    def _refuse(self, size: int) -> str:
        largest = max((block.size for block in self.pool.blocks()), default=0)
        behind = (self.capacity_bytes or 0) - self.reserved_bytes
        return f"best fit for {size:,} B: the largest free block has {largest:,} B, behind the last are {behind:,} B"

    def _extend(self, size: int) -> Block | None:
        end = self._last.end if self._last is not None else _FIRST_ADDRESS
        if self.capacity_bytes is not None and end - _FIRST_ADDRESS + size > self.capacity_bytes:
            return None
        block = Block(self.pool, 0, end, size)
        block.splice(self._last, None)
        self._last = block
        for gauges in self.pool.gauges:
            gauges.reserved_bytes.add(size)
        return block

    def free(self, address: int) -> None:
        """Give a block back, merged with its free neighbours."""
        block = self.active.get(address)
        if block is None or not block.allocated:
            if not address:
                return
            raise BrokenInvariant(f"invalid device pointer: {address:#x}")
        block.allocated = False
        if block.streams:
            self.waits.wait(address, block.streams)
            block.streams = None
        else:
            self._release(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Freed, the block stays taken until `finish` says that the stream's work is over."""
        block = self.active[address]
        block.streams = {*(block.streams or ()), stream}

    def finish(self, stream: int) -> None:
        """All work given to ``stream`` before this is over."""
        self.waits.finish(stream)

    def stats(self) -> dict[str, int]:
        """Figures by the keys of ``torch.cuda.memory_stats``."""
        return self.statistics.flat(None)

    def _release(self, block: Block) -> None:
        del self.active[block.address]
        block.active = False
        for gauges in self.pool.gauges:
            gauges.allocation.subtract(1)
            gauges.allocated_bytes.subtract(block.size)
            gauges.requested_bytes.subtract(block.requested)
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.active:
                self.pool.remove(neighbour)
                block.absorb(neighbour)
        if block.next is not None:
            self.pool.insert(block)
            return
        self._last = block.previous
        if self._last is not None:
            self._last.next = None
        for gauges in self.pool.gauges:
            gauges.reserved_bytes.subtract(block.size)
