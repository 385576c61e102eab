"""Memory planned ahead: every allocation of a run is known, and gets its place before the run.

As STAlloc and GMLake's successors do for training steps that repeat: pack the requests offline, then hand out places in
the order of asking. First fit in order of size, as in Pisarchyk & Lee (2001.03288), "greedy by size".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import BrokenInvariant, UnsupportedPlan
from sim.memory.memory_stats import MemoryStats
from sim.memory.rules import Grant, Tag
from sim.memory.settings import MIN_BLOCK

_FIRST_ADDRESS = MIN_BLOCK  # 0 is no address


class Request(NamedTuple):
    """One allocation: bytes, and its life from the time ``start`` up to, not including, ``end``."""

    size_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Packing:
    """A place for every request: offsets in bytes, in the order of the requests, and how many bytes they take together.

    ``live_bytes`` is the most that lives at once: no packing is smaller.
    """

    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    total_bytes: int
    live_bytes: int


def pack(requests: Sequence[Request]) -> Packing:
    """Place the requests so that no two overlap in time and place: the largest first, each as low as it goes."""
    table = np.array(requests, np.int64).reshape(-1, 3)
    sizes, start, end = -(-table[:, 0] // MIN_BLOCK) * MIN_BLOCK, table[:, 1], table[:, 2]
    order = np.lexsort((np.arange(len(table)), start - end, -sizes))
    offsets = np.zeros(len(table), np.int64)
    for count, item in enumerate(order):
        placed = order[:count]
        beside = placed[(start[placed] < end[item]) & (end[placed] > start[item])]
        offsets[item] = _lowest_gap(offsets[beside], sizes[beside], int(sizes[item]))
    return Packing(sizes, offsets, int((offsets + sizes).max(initial=0)), _most_live(sizes, start, end))


def _lowest_gap(offsets: NDArray[np.int64], sizes: NDArray[np.int64], wanted: int) -> int:
    """The lowest offset with room for ``wanted`` bytes between what is there."""
    order = np.argsort(offsets)
    begins = offsets[order]
    ends = np.concatenate([[0], np.maximum.accumulate(begins + sizes[order])])
    fits = np.flatnonzero(begins - ends[:-1] >= wanted)
    return int(ends[fits[0]] if len(fits) else ends[-1])


def _most_live(sizes: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    times = np.concatenate([end, start])  # what ends at a time is gone before what starts
    changes = np.concatenate([-sizes, sizes])[np.argsort(times, kind="stable")]
    return int(np.cumsum(changes).max(initial=0))


class Arena:
    """Hands out the places of a packing in the order of its requests; ``reserved`` is the whole arena from the start.

    Raises
    ------
    UnsupportedPlan : the arena is larger than the device, or the run asks for something else than was planned.
    """

    def __init__(self, packing: Packing, capacity_bytes: int | None = None) -> None:
        if capacity_bytes is not None and packing.total_bytes > capacity_bytes:
            raise UnsupportedPlan(f"the planned arena of {packing.total_bytes:,} B is larger than {capacity_bytes:,} B")
        self.capacity_bytes, self._packing, self._next = capacity_bytes, packing, 0
        self.refusal, self.waits = "", False
        self.statistics, self._held = MemoryStats(), dict[int, tuple[int, int]]()
        self._gauges = self.statistics.of("large_pool")
        for gauges in self._gauges:
            gauges.reserved_bytes.add(packing.total_bytes)

    @property
    def live_bytes(self) -> int:
        """Bytes in blocks in use."""
        return self.statistics.pools["all"].allocated_bytes.current

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the arena."""
        return self._packing.total_bytes

    def malloc(self, size_bytes: int, stream: int = 0, tag: Tag | None = None) -> Grant | None:
        """The place planned for the next request."""
        if not size_bytes:
            return Grant(0, 0)
        size, planned = -(-size_bytes // MIN_BLOCK) * MIN_BLOCK, self._packing.sizes[self._next : self._next + 1]
        if not len(planned) or planned[0] != size:
            raise UnsupportedPlan(f"request {self._next} of {size_bytes:,} B is not what the arena was planned for")
        address = _FIRST_ADDRESS + int(self._packing.offsets[self._next])
        self._next += 1
        self._held[address] = size, size_bytes
        for gauges in self._gauges:
            gauges.allocation.add(1)
            gauges.allocated_bytes.add(size)
            gauges.requested_bytes.add(size_bytes)
        return Grant(address, size)

    def free(self, address: int) -> None:
        """The request's life is over."""
        if not address:
            return
        if address not in self._held:
            raise BrokenInvariant(f"invalid device pointer: {address:#x}")
        size, requested = self._held.pop(address)
        for gauges in self._gauges:
            gauges.allocation.subtract(1)
            gauges.allocated_bytes.subtract(size)
            gauges.requested_bytes.subtract(requested)

    def record_stream(self, address: int, stream: int) -> None:
        """Nothing: whoever planned a life made it as long as every stream needs."""

    def finish(self, stream: int) -> None:
        """Nothing, likewise."""

    def stats(self) -> dict[str, int]:
        """Figures by the keys of ``torch.cuda.memory_stats``."""
        return self.statistics.flat(None)
