"""The statistics of PyTorch's allocator, by the names of ``torch.cuda.memory_stats``."""

from __future__ import annotations

from collections.abc import Iterator

METRICS = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)
POOLS = ("all", "large_pool", "small_pool")


class Gauge:
    """A quantity that goes up and down: what it is, what it was at most, and all that was ever taken away."""

    __slots__ = ("current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.freed = 0

    def add(self, amount: int) -> None:
        """Go up."""
        self.current = current = self.current + amount
        if current > self.peak:
            self.peak = current

    def subtract(self, amount: int) -> None:
        """Go down."""
        self.current -= amount
        self.freed += amount

    def change(self, amount: int) -> None:
        """Go up or down."""
        if amount > 0:
            self.add(amount)
        elif amount < 0:
            self.subtract(-amount)

    def items(self, name: str) -> Iterator[tuple[str, int]]:
        """The four figures under their keys; ``allocated`` is all that was ever added."""
        yield f"{name}.current", self.current
        yield f"{name}.peak", self.peak
        yield f"{name}.allocated", self.current + self.freed
        yield f"{name}.freed", self.freed


class Gauges:
    """The metrics of one pool, or of all: counts of blocks and segments, and bytes."""

    __slots__ = METRICS

    def __init__(self) -> None:
        for metric in METRICS:
            setattr(self, metric, Gauge())

    allocation: Gauge
    allocated_bytes: Gauge
    active: Gauge
    active_bytes: Gauge
    requested_bytes: Gauge
    segment: Gauge
    reserved_bytes: Gauge
    inactive_split: Gauge
    inactive_split_bytes: Gauge


class MemoryStats:
    """All statistics of one device.

    ``allocated`` counts blocks in use, ``active`` also those freed whose streams still work, ``requested`` what was
    asked for, ``inactive_split`` the free parts of segments in use, ``reserved`` whole segments.
    """

    def __init__(self) -> None:
        self.pools = {pool: Gauges() for pool in POOLS}
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def of(self, pool: str) -> tuple[Gauges, Gauges]:
        """The two sets of gauges that a change in a pool moves."""
        return self.pools["all"], self.pools[pool]

    def reset_peaks(self) -> None:
        """Let every peak be the current value: the peak of what comes next."""
        gauges = [getattr(pool, metric) for pool in self.pools.values() for metric in METRICS]
        for gauge in (*gauges, self.oversize_allocations, self.oversize_segments):
            gauge.peak = gauge.current

    def flat(self, max_split_size_bytes: int | None) -> dict[str, int]:
        """What ``torch.cuda.memory_stats`` returns, in its order."""
        stats = {
            "max_split_size": -1 if max_split_size_bytes is None else max_split_size_bytes,
            "num_alloc_retries": self.num_alloc_retries,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
        }
        for pool, gauges in self.pools.items():
            for metric in METRICS:
                stats.update(getattr(gauges, metric).items(f"{metric}.{pool}"))
        stats.update(self.oversize_allocations.items("oversize_allocations"))
        stats.update(self.oversize_segments.items("oversize_segments"))
        return dict(sorted(stats.items()))
