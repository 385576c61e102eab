"""What the caching allocator holds from the driver: whole segments and pages, taken, kept and given back.

The rules of c10/cuda/CUDACachingAllocator.cpp at commit `sim.memory.settings.RULES`; docstrings give the names of its
functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from sim.memory.blocks import Block, Expandable, Pool
from sim.memory.driver import Driver
from sim.memory.memory_stats import MemoryStats
from sim.memory.rules import Action, DeviceCall
from sim.memory.settings import SMALL_BUFFER, UNLIMITED, Settings

Log = Callable[[str, int, int, int], None]
"""Called with action, address, bytes and stream of everything that happens to segments."""


class Reserve:
    """The segments of one device and their free blocks.

    ``calls`` collects what was asked of the driver since it was last emptied.
    """

    def __init__(self, settings: Settings, driver: Driver, stats: MemoryStats, log: Log) -> None:
        self.settings, self.driver, self.stats, self._log = settings, driver, stats, log
        self.small, self.large = Pool(True, stats.of("small_pool")), Pool(False, stats.of("large_pool"))
        self.calls: list[DeviceCall] = []
        self.total_bytes = 0

    @property
    def allowed_bytes(self) -> int | None:
        """What the process may reserve, where a fraction of the device was set."""
        fraction, total = self.settings.memory_fraction, self.driver.total_bytes
        return None if fraction is None or total is None else int(fraction * total)

    @property
    def collects(self) -> bool:
        """Whether garbage collection is on."""
        return self.settings.garbage_collection_threshold > 0 and self.allowed_bytes is not None

    def grow(self, pool: Pool, stream: int, size: int) -> Block | None:
        """A block of at least ``size`` from the driver: ``alloc_block``."""
        segment = self.settings.segment_bytes(size)
        allowed = self.allowed_bytes
        if allowed is not None and self.total_bytes + segment > allowed:
            return None
        if self.settings.expandable_segments:
            return self._expand(pool, stream, size)
        address = self.driver.malloc(segment)
        self.calls.append(DeviceCall("segment_alloc", segment, failed=address is None))
        if address is None:
            return None
        for gauges in pool.gauges:
            gauges.segment.add(1)
        if segment >= self.settings.max_split_size_bytes:
            self.stats.oversize_segments.add(1)
        self._took("segment_alloc", pool, stream, address, segment)
        return Block(pool, stream, address, segment)

    def _took(self, action: Action, pool: Pool, stream: int, address: int, size: int) -> None:
        self.total_bytes += size
        for gauges in pool.gauges:
            gauges.reserved_bytes.add(size)
        self.stats.num_device_alloc += 1
        self._log(action, address, size, stream)

    def _gave(self, action: Action, block: Block, address: int, size: int) -> None:
        self.total_bytes -= size
        for gauges in block.pool.gauges:
            gauges.reserved_bytes.subtract(size)
        self.stats.num_device_free += 1
        pages = size // block.expandable.page_bytes if block.expandable is not None else 1
        self.calls.append(DeviceCall(action, size, pages=pages))
        self._log(action, address, size, block.stream)

    def release(self, block: Block) -> None:
        """Give a whole free segment back: ``release_block``."""
        self.driver.free(block.address, block.size)
        self._gave("segment_free", block, block.address, block.size)
        for gauges in block.pool.gauges:
            gauges.segment.subtract(1)
        if block.size >= self.settings.max_split_size_bytes:
            self.stats.oversize_segments.subtract(1)
        block.pool.remove(block)

    def release_all(self) -> None:
        """Give back all whole free segments and pages: ``release_blocks`` of the large pool, then of the small one."""
        for pool in (self.large, self.small):
            free = list(pool.blocks())
            for block in free:
                if block.expandable is None and not block.split:
                    self.release(block)
            for block in free:
                if block.expandable is not None:
                    self._shrink(block)

    def release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """Give back oversize free blocks until ``size`` is reached: ``release_available_cached_blocks``."""
        most = self.settings.max_split_size_bytes
        if most == UNLIMITED or self.settings.expandable_segments:  # the commit would assert on an expandable block
            return False
        size, free = max(size, most), pool.free.get(stream, [])
        at = bisect_left(free, (size,))
        if at < len(free):
            self.release(free[at][2])
            return True
        released = 0
        while released < size and free and free[-1][0] >= most:
            released += free[-1][0]
            self.release(free[-1][2])
        return released >= size

    def collect_garbage(self) -> None:
        """Give back the large free segments that were passed over most often: ``garbage_collect_cached_blocks``."""
        threshold = int(self.settings.garbage_collection_threshold * (self.allowed_bytes or 0))
        wanted, pool, reclaimed = self.total_bytes - threshold, self.large, 0
        if wanted <= 0:
            return
        whole = [block for block in pool.blocks() if not block.split and block.expandable is None]
        age = sum(pool.lookups - block.inserted_at for block in whole)
        while reclaimed < wanted and whole:
            oldest = age / len(whole)
            old = [block for block in whole if pool.lookups - block.inserted_at >= oldest]
            for block in old:
                reclaimed += block.size
                age -= pool.lookups - block.inserted_at
                self.release(block)
            whole = [block for block in whole if pool.lookups - block.inserted_at < oldest]

    # Expandable segments

    def _expand(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Map pages until a block of ``size`` is free: ``try_allocate_expandable_block``."""
        block = self._expandable_room(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            assert after is not None
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _expandable_room(self, pool: Pool, stream: int, size: int) -> Block:
        """The lowest free or unmapped block where ``size`` fits: ``find_expandable_block``."""
        for _, unmapped in pool.unmapped.get(stream, ()):
            before = unmapped.previous
            start = before if before is not None and not before.active else unmapped
            if _room(start, size) >= size:
                return start
        page = SMALL_BUFFER if pool.small else self.settings.large_segment_bytes
        address, reserved = self.driver.reserve(page)
        whole = Block(pool, stream, address, reserved, Expandable(address, reserved, page))
        whole.mapped = False
        pool.insert_unmapped(whole)
        return whole

    def _map(self, block: Block, size: int) -> bool:
        """Back the first ``size`` bytes of an unmapped block with memory, in whole pages: ``map_block``."""
        segment, pool = block.expandable, block.pool
        assert segment is not None
        mapped = -(-size // segment.page_bytes) * segment.page_bytes
        backed = self.driver.map(block.address, mapped)
        self.calls.append(DeviceCall("segment_map", mapped, not backed, mapped // segment.page_bytes))
        if not backed:
            return False
        address = block.address
        pool.remove_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(pool, block.stream, block.address + mapped, block.size - mapped, segment)
            rest.mapped = False
            rest.splice(block, block.next)
            pool.insert_unmapped(rest)
            block.size = mapped
        self._merge(block)
        pool.insert(block)
        self._took("segment_map", pool, block.stream, address, mapped)
        return True

    def _shrink(self, block: Block) -> None:
        """Unmap the whole pages of a free block: ``unmap_block``."""
        segment, pool = block.expandable, block.pool
        assert segment is not None
        page = segment.page_bytes
        first = segment.address + -(-(block.address - segment.address) // page) * page
        last = segment.address + (block.end - segment.address) // page * page
        if first >= last:
            return
        pool.remove(block)
        self.driver.unmap(first, last - first)
        if first > block.address:
            before = Block(pool, block.stream, block.address, first - block.address, segment)
            before.splice(block.previous, block)
            pool.insert(before)
        if block.end > last:
            after = Block(pool, block.stream, last, block.end - last, segment)
            after.splice(block, block.next)
            pool.insert(after)
        block.address, block.size, block.mapped = first, last - first, False
        self._merge(block)
        if block.split:  # else the segment is empty and its addresses go back too
            pool.insert_unmapped(block)
        self._gave("segment_unmap", block, first, last - first)

    def _merge(self, block: Block) -> None:
        """Join a block that is in no set with free or unmapped neighbours of its kind: ``try_merge_blocks``."""
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.active and neighbour.mapped == block.mapped:
                if neighbour.mapped:
                    block.pool.remove(neighbour)
                else:
                    block.pool.remove_unmapped(neighbour)
                block.absorb(neighbour)


def _room(start: Block, wanted: int) -> int:
    """Bytes without use from a block on, counted until they are as many as wanted."""
    room, block = 0, start
    while not block.active:
        room += block.size
        if room >= wanted or block.next is None:
            break
        block = block.next
    return room
