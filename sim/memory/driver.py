"""Where an allocator gets its memory: the calls to the CUDA driver that it makes, and a simulated device."""

from __future__ import annotations

from typing import Protocol

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
