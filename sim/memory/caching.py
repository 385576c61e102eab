"""PyTorch's CUDA caching allocator: the same addresses, segments and statistics for the same requests.

The rules of c10/cuda/CUDACachingAllocator.cpp at commit `sim.memory.settings.RULES`, without CUDA graphs: `malloc` and
`free` with their free sets here, segments in `sim.memory.reserve`. There is no clock: work on other streams ends when
`finish` says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from sim.errors import BrokenInvariant
from sim.memory.blocks import Block, Entry, Pool
from sim.memory.driver import Driver, SimulatedDriver
from sim.memory.memory_stats import MemoryStats
from sim.memory.reserve import Reserve
from sim.memory.rules import DeviceCall, Grant, Tag
from sim.memory.settings import MIN_BLOCK, SMALL_SIZE, Settings
from sim.memory.stream_waits import StreamWaits

NOTHING = Grant(0, 0)
"""What 0 bytes get: no block."""


class Happening(NamedTuple):
    """One entry of a recorded history; ``address`` of an ``oom`` is the bytes that were free on the device."""

    action: str
    address: int
    size: int
    stream: int
    time_us: int
    tag: Tag | None


class Caching:
    """The allocator of one device.

    Parameters
    ----------
    settings, driver : PyTorch's settings, and where memory comes from (a simulated device without limit).
    record : keep a ``history`` of everything that happens, stamped ``now_us``, as ``_record_memory_history`` does.
    device : its number, for PyTorch's message.

    ``refusal`` is that message after `malloc` returned ``None``.
    """

    def __init__(
        self,
        settings: Settings = Settings.DEFAULT,
        driver: Driver | None = None,
        record: bool = False,
        device: int = 0,
    ) -> None:
        self.settings, self.driver, self.device = settings, driver or SimulatedDriver(), device
        self.statistics = MemoryStats()
        self.history: list[Happening] | None = [] if record else None
        self.now_us, self.refusal = 0, ""
        self.reserve = Reserve(settings, self.driver, self.statistics, self._note)
        self.active: dict[int, Block] = {}
        self.waits = StreamWaits()
        self._collects = self.reserve.collects
        self._simple = settings.rounds_simply
        self._max_split, self._expandable = settings.max_split_size_bytes, settings.expandable_segments

    # The four verbs

    def malloc(self, size_bytes: int, stream: int = 0, tag: Tag | None = None) -> Grant | None:
        """A block for ``size_bytes`` on ``stream``: cached, else from the driver; ``None`` when out of memory."""
        if not size_bytes:
            return NOTHING
        if self.waits.done:
            self.poll()
        size = (size_bytes + MIN_BLOCK - 1) & -MIN_BLOCK if self._simple else self.settings.rounded(size_bytes)
        pool = self.reserve.small if size <= SMALL_SIZE else self.reserve.large
        block = self._cached(pool, stream, size)
        calls: tuple[DeviceCall, ...] = ()
        if block is None:
            block = self._fetched(pool, stream, size)
            calls = tuple(self.reserve.calls)
            if block is None:
                self._refuse(size, stream)
                return None
        block = self._occupy(block, size)
        block.requested, block.tag, block.allocated = size_bytes, tag, True
        self.adopt(block)
        if self.history is not None:
            self._note("alloc", block.address, size_bytes, stream, tag)
        return Grant(block.address, block.size, calls)

    def free(self, address: int) -> None:
        """Give a block back: at once, or when the streams that used it are done with it."""
        block = self.active.get(address)
        if block is None or not block.allocated:
            if address == NOTHING.address:
                return
            raise BrokenInvariant(f"invalid device pointer: {address:#x}")
        block.allocated = False
        size = block.size
        for gauges in block.pool.gauges:
            gauges.allocation.subtract(1)
            gauges.allocated_bytes.subtract(size)
        if size >= self._max_split:
            self.statistics.oversize_allocations.subtract(1)
        if self.history is not None:
            self._note("free_requested", address, block.requested, block.stream, block.tag)
        if block.streams:
            self.waits.wait(address, block.streams)
            block.streams = None
        else:
            self._free_block(block)

    def record_stream(self, address: int, stream: int) -> None:
        """The block is used on another stream too, whose work so far must end before the block can be used again."""
        block = self.active.get(address)
        if block is not None and block.allocated and stream != block.stream:
            block.streams = {*(block.streams or ()), stream}

    def finish(self, stream: int) -> None:
        """All work given to ``stream`` before this is over; the next `malloc` notices."""
        self.waits.finish(stream)

    # What else a program can do or ask

    def stats(self) -> dict[str, int]:
        """What ``torch.cuda.memory_stats`` returns."""
        return self.statistics.flat(self._max_split)

    def empty_cache(self) -> tuple[DeviceCall, ...]:
        """Give back every whole free segment and page (``torch.cuda.empty_cache``); what was asked of the driver."""
        self.reserve.calls.clear()
        self._release_cached()
        return tuple(self.reserve.calls)

    def fits(self, size_bytes: int, stream: int = 0) -> bool:
        """Whether a cached block would serve the request."""
        size = self.settings.rounded(size_bytes)
        pool = self.reserve.small if size <= SMALL_SIZE else self.reserve.large
        return self._choice(pool.free.get(stream, []), size) is not None

    @property
    def live_bytes(self) -> int:
        """Bytes in blocks in use: ``torch.cuda.memory_allocated``."""
        return self.statistics.pools["all"].allocated_bytes.current

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver: ``torch.cuda.memory_reserved``."""
        return self.statistics.pools["all"].reserved_bytes.current

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the device, ``None`` where nothing limits it."""
        return self.driver.total_bytes

    def segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment in order of address; of an expandable segment each mapped range is one."""
        pools = self.reserve.small, self.reserve.large
        blocks = [*self.active.values(), *(block for pool in pools for block in pool.blocks())]
        for head in sorted(blocks, key=lambda block: block.address):
            if head.previous is None or not head.previous.mapped:
                yield [*_run(head)]

    # Free sets

    def _cached(self, pool: Pool, stream: int, size: int) -> Block | None:
        """The block of the free set that a request gets: ``get_free_block``."""
        if self._collects:
            pool.lookups += 1
        free = pool.free.get(stream)
        if not free:
            return None
        at = self._choice(free, size)
        if at is None:
            return None
        block = free[at][2]
        del free[at]
        return block

    def _choice(self, free: list[Entry], size: int) -> int | None:
        """The position of the first block that fits, and no other; ``None`` where it must not be used."""
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        block = free[at][2]
        if block.expandable is not None:
            at = _expandable_choice(free, at)
            block = free[at][2]
        return at if self.suits(block.size, size) else None

    def suits(self, block_bytes: int, size: int) -> bool:
        """Whether a free block may serve a request of a rounded size: oversize ones only those nearly as large."""
        if size < self._max_split:
            return size <= block_bytes < self._max_split
        return size <= block_bytes < size + self.settings.max_non_split_rounding_bytes

    def _occupy(self, block: Block, size: int) -> Block:
        """Take a block that is in no set; what it has too much becomes a free block: ``alloc_found_block``."""
        pool, rest = block.pool, block.size - size
        counts, was_split = block.expandable is None, block.previous is not None or block.next is not None
        least = MIN_BLOCK if pool.small or self._expandable else SMALL_SIZE + 1
        if rest >= least and (least == MIN_BLOCK or size < self._max_split):
            remaining, block = block, Block(pool, block.stream, block.address, size, block.expandable)
            block.splice(remaining.previous, remaining)
            remaining.address += size
            remaining.size = rest
            pool.insert(remaining)
            if counts:
                for gauges in pool.gauges:
                    if was_split:
                        gauges.inactive_split_bytes.subtract(size)
                    else:
                        gauges.inactive_split_bytes.add(rest)
                        gauges.inactive_split.add(1)
        elif was_split and counts:
            for gauges in pool.gauges:
                gauges.inactive_split_bytes.subtract(block.size)
                gauges.inactive_split.subtract(1)
        return block

    def adopt(self, block: Block) -> None:
        """Count a block that is in no set as one in use; one that is not allocated waits for its streams."""
        block.active, size = True, block.size
        self.active[block.address] = block
        for gauges in block.pool.gauges:
            if block.allocated:
                gauges.allocation.add(1)
                gauges.allocated_bytes.add(size)
            gauges.active.add(1)
            gauges.active_bytes.add(size)
            gauges.requested_bytes.add(block.requested)
        if block.allocated and size >= self._max_split:
            self.statistics.oversize_allocations.add(1)

    def _free_block(self, block: Block) -> None:
        """Merge a block with its free neighbours and put it into the free set: ``free_block``."""
        if self.history is not None:
            self._note("free_completed", block.address, block.requested, block.stream, block.tag)
        pool, size = block.pool, block.size
        del self.active[block.address]
        block.active, block.tag = False, None
        blocks = change = 0
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.active and neighbour.mapped:
                pool.remove(neighbour)
                blocks -= 1
                change -= neighbour.size
                block.absorb(neighbour)
        pool.insert(block)
        if block.previous is not None or block.next is not None:
            blocks += 1
            change += block.size
        counts = (blocks or change) and block.expandable is None
        for gauges in pool.gauges:
            if counts:
                gauges.inactive_split.change(blocks)
                gauges.inactive_split_bytes.change(change)
            gauges.active.subtract(1)
            gauges.active_bytes.subtract(size)
            gauges.requested_bytes.subtract(block.requested)

    # Out of free blocks

    def _fetched(self, pool: Pool, stream: int, size: int) -> Block | None:
        """A block that no free set holds: collect, grow, release and grow again."""
        reserve = self.reserve
        reserve.calls.clear()
        if self._collects:
            reserve.collect_garbage()
        block = reserve.grow(pool, stream, size)
        if block is None and reserve.release_oversize(pool, stream, size):
            block = reserve.grow(pool, stream, size)
        if block is None:
            self._release_cached()
            self.statistics.num_alloc_retries += 1
            block = reserve.grow(pool, stream, size)
        return block

    def _release_cached(self) -> None:
        """Wait for all streams, then give back what is free: ``release_cached_blocks``."""
        self.statistics.num_sync_all_streams += 1
        self.reserve.calls.append(DeviceCall("synchronize", 0))
        self.waits.finish_all()
        self.poll()
        self.reserve.release_all()

    def poll(self) -> None:
        """Free the blocks whose streams are done with them, as every `malloc` does first: ``process_events``."""
        for address in self.waits.completed():
            self._free_block(self.active[address])

    def _refuse(self, size: int, stream: int) -> None:
        """Count and word an OutOfMemoryError."""
        self._note("oom", self.driver.free_bytes, size, stream)
        self.statistics.num_ooms += 1
        self.refusal = self._out_of_memory(self.settings.segment_bytes(size))

    def _out_of_memory(self, segment_bytes: int) -> str:
        total, free, allowed = self.driver.total_bytes or 0, self.driver.free_bytes, self.reserve.allowed_bytes
        limit = f"{format_size(allowed)} allowed; " if allowed is not None else ""
        return (
            f"CUDA out of memory. Tried to allocate {format_size(segment_bytes)}. GPU {self.device} has a total "
            f"capacity of {format_size(total)} of which {format_size(free)} is free. Including non-PyTorch memory, "
            f"this process has {format_size(total - free)} memory in use. {limit}Of the allocated memory "
            f"{format_size(self.live_bytes)} is allocated by PyTorch, and "
            f"{format_size(self.reserved_bytes - self.live_bytes)} is reserved by PyTorch but unallocated. If reserved "
            "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )

    def _note(self, action: str, address: int, size: int, stream: int, tag: Tag | None = None) -> None:
        if self.history is not None:
            self.history.append(Happening(action, address, size, stream, self.now_us, tag))


def _expandable_choice(free: list[Entry], at: int) -> int:
    """Of blocks that can still grow, the one that would end up smallest, looking on as long as they get smaller."""
    while free[at][2].expandable is not None and at + 1 < len(free):
        if _growable(free[at + 1][2]) >= _growable(free[at][2]):
            break
        at += 1
    return at


def _growable(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _run(head: Block) -> Iterator[Block]:
    block: Block | None = head
    while block is not None and block.mapped:
        yield block
        block = block.next


def format_size(size_bytes: int) -> str:
    """A size as PyTorch words it in messages."""
    if size_bytes <= 2**10:
        return f"{size_bytes} bytes"
    for power, unit in ((20, "KiB"), (30, "MiB")):
        if size_bytes <= 2**power:
            return f"{size_bytes / 2 ** (power - 10):.2f} {unit}"
    return f"{size_bytes / 2**30:.2f} GiB"
