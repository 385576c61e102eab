"""What every allocator can do: the four verbs that the simulator and a replay speak, and statistics.

An allocator has no clock. What it asks of the driver on the way comes back with each allocation, so that whoever has a
clock can charge for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Action = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap", "synchronize"]


class DeviceCall(NamedTuple):
    """One call to the driver: a cudaMalloc, a cudaFree, pages mapped or unmapped, or a wait for all streams.

    ``bytes`` is 0 for a wait; ``failed`` says that there was no memory left. Mapped are ``pages`` of equal size.
    """

    action: Action
    bytes: int
    failed: bool = False
    pages: int = 1

    @property
    def synchronizes(self) -> bool:
        """Whether it waits for the work that the device has been given."""
        return self.action in ("segment_free", "segment_unmap", "synchronize")


class Grant(NamedTuple):
    """An allocation: where it is, how large the block is that holds it, and what it took from the driver, in order."""

    address: int
    block_bytes: int
    calls: tuple[DeviceCall, ...] = ()


class Tag(NamedTuple):
    """What an allocation is for: a category of `sim.memory.buffers` and the layer or stage that it belongs to."""

    category: str
    layer: str = ""


class Rules(Protocol):
    """A clockless allocator of one device.

    ``refusal`` says why `malloc` returned ``None``, in the words of whoever wrote the allocator.
    """

    refusal: str

    @property
    def waits(self) -> object:
        """True where freed memory is still used by streams."""
        ...

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the device, ``None`` where nothing limits it."""
        ...

    @property
    def live_bytes(self) -> int:
        """Bytes in blocks in use."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        ...

    def malloc(self, size_bytes: int, stream: int = 0, tag: Tag | None = None) -> Grant | None:
        """Room for ``size_bytes`` to be used on ``stream``; ``None`` where there is none. 0 bytes need no block."""
        ...

    def free(self, address: int) -> None:
        """Give back what `malloc` granted at ``address``."""
        ...

    def record_stream(self, address: int, stream: int) -> None:
        """Work on another stream uses the allocation too: freed, it stays taken until that work is done."""
        ...

    def finish(self, stream: int) -> None:
        """All work given to ``stream`` before this is over."""
        ...

    def stats(self) -> dict[str, int]:
        """Figures by the keys of ``torch.cuda.memory_stats``; fewer of them where an allocator has no such thing."""
        ...
