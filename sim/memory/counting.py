"""The exact count of live bytes: no rounding, no caching, no fragmentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counting:
    """A clockless allocator that adds and subtracts.

    ``capacity_bytes`` is ``None`` where nothing limits it.
    """

    capacity_bytes: int | None = None
    live_bytes: int = 0
    peak_bytes: int = 0

    def malloc(self, size_bytes: int) -> bool:
        """Take ``size_bytes``; ``False``, and nothing taken, where they do not fit."""
        live = self.live_bytes + size_bytes
        if self.capacity_bytes is not None and live > self.capacity_bytes:
            return False
        self.live_bytes = live
        if live > self.peak_bytes:
            self.peak_bytes = live
        return True

    def free(self, size_bytes: int) -> None:
        """Give ``size_bytes`` back."""
        self.live_bytes -= size_bytes

    def stats(self) -> dict[str, int]:
        """Bytes live now and at most."""
        return {"allocated_bytes": self.live_bytes, "peak_allocated_bytes": self.peak_bytes}
