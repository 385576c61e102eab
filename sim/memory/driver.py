"""Where an allocator gets its memory: the calls to the CUDA driver that it makes, and a simulated device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sim.memory.rules import DeviceCall

GIB = 2**30
_FIRST_ADDRESS = 0x7F00_0000_0000
_ALIGNMENT = 2**21
_ADDRESSES_WITHOUT_LIMIT = 2**44


class Driver(Protocol):
    """Memory and addresses of one device. ``total_bytes`` is ``None`` where nothing limits it."""

    total_bytes: int | None

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo reports as free."""
        ...

    def malloc(self, size_bytes: int) -> int | None:
        """cudaMalloc: the address of new memory, or ``None``."""
        ...

    def free(self, address: int, size_bytes: int) -> None:
        """cudaFree."""
        ...

    def reserve(self, page_bytes: int) -> tuple[int, int]:
        """cuMemAddressReserve for an expandable segment: address and bytes, 9/8 of the device in whole pages."""
        ...

    def map(self, address: int, size_bytes: int) -> bool:
        """cuMemCreate and cuMemMap: back addresses with memory; ``False`` where there is too little."""
        ...

    def unmap(self, address: int, size_bytes: int) -> None:
        """cuMemUnmap and cuMemRelease."""
        ...


@dataclass(frozen=True, slots=True)
class DriverCosts:
    """Seconds that a call to the driver takes by itself, beyond waiting for the device.

    A cudaMalloc or a cudaFree takes a time of its own and more with every byte; pages of expandable segments are made
    and unmade one by one. A call that fails takes what it would without a byte, or with one page.

    They differ from machine to machine and are seldom published, so the defaults are assumed, of the size that people
    report. A cudaMalloc: 0.2 ms for 64 KB to 1.2 ms for 64 MB (github.com/rtj1/cuda-mempool, README). A page of 2 MiB
    on an A100: cuMemCreate, cuMemMap and cuMemSetAccess 0.23 ms together, cuMemUnmap 0.03 ms
    (github.com/magnate3/linux-riscv-dev, nccl/gpu/shm/bench_vmm, README).
    """

    malloc_s: float = 0.5e-3
    malloc_s_per_byte: float = 0.5e-3 / GIB
    free_s: float = 0.5e-3
    free_s_per_byte: float = 0.5e-3 / GIB
    map_s: float = 0.25e-3
    unmap_s: float = 0.05e-3
    ASSUMED: ClassVar[DriverCosts]

    def __str__(self) -> str:
        malloc, free = (
            f"{1e3 * each:g} ms + {1e3 * GIB * per_byte:g} ms/GiB"
            for each, per_byte in ((self.malloc_s, self.malloc_s_per_byte), (self.free_s, self.free_s_per_byte))
        )
        pages = f"{1e3 * self.map_s:g} ms to map a page, {1e3 * self.unmap_s:g} ms to unmap it"
        return f"cudaMalloc {malloc}, cudaFree {free}, {pages}"

    def seconds(self, calls: Iterable[DeviceCall]) -> float:
        """What some calls take, one after another."""
        return sum(self._seconds(call) for call in calls)

    def _seconds(self, call: DeviceCall) -> float:
        size, pages = (0, 1) if call.failed else (call.bytes, call.pages)
        match call.action:
            case "segment_alloc":
                return self.malloc_s + self.malloc_s_per_byte * size
            case "segment_free":
                return self.free_s + self.free_s_per_byte * size
            case "segment_map":
                return self.map_s * pages
            case "segment_unmap":
                return self.unmap_s * pages
        return 0.0


DriverCosts.ASSUMED = DriverCosts()


class SimulatedDriver:
    """A device whose addresses only grow.

    ``taken_bytes`` is in use by others than the allocator (the CUDA context, say).
    """

    def __init__(
        self, total_bytes: int | None = None, taken_bytes: int = 0, first_address: int = _FIRST_ADDRESS
    ) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = taken_bytes
        self._next = first_address

    @property
    def free_bytes(self) -> int:
        """Bytes left, 0 where no limit is known."""
        return max(self.total_bytes - self.used_bytes, 0) if self.total_bytes is not None else 0

    def _take(self, size_bytes: int) -> bool:
        if self.total_bytes is not None and self.used_bytes + size_bytes > self.total_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def _addresses(self, size_bytes: int) -> int:
        address = self._next
        self._next += -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        return address

    def malloc(self, size_bytes: int) -> int | None:
        """The next addresses, or ``None`` where the bytes left are too few."""
        return self._addresses(size_bytes) if self._take(size_bytes) else None

    def free(self, address: int, size_bytes: int) -> None:
        """Give the bytes back; the addresses are not used again."""
        self.used_bytes -= size_bytes

    def reserve(self, page_bytes: int) -> tuple[int, int]:
        """Addresses for 9/8 of the device, which take no memory."""
        total = self.total_bytes
        size = total + total // 8 if total is not None else _ADDRESSES_WITHOUT_LIMIT
        size = -(-size // page_bytes) * page_bytes
        return self._addresses(size), size

    def map(self, address: int, size_bytes: int) -> bool:
        """Take the bytes, all or none."""
        return self._take(size_bytes)

    def unmap(self, address: int, size_bytes: int) -> None:
        """Give the bytes back."""
        self.used_bytes -= size_bytes
