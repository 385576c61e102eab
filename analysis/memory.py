"""Peak memory of each device, what it consists of and the op at which it occurs; and what the allocator reserved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.memory.buffers import BufferKind, Category
from sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Peak:
    """The most live bytes of one device, when they are first reached.

    ``op`` is the name of the op that allocated last before the peak; empty: what is resident was the most.
    """

    name: str
    peak_bytes: int
    by_category: dict[Category, int]
    op: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Reserve:
    """What the allocator of one device held from the driver at most, and what it asked for on the way.

    ``num_device_alloc``, ``num_device_free``: calls that took memory or gave some back; ``num_alloc_retries``: how
    often all that was cached was given back to try again. ``driver_s``: in calls; ``synchronize_s``: waiting for the
    device before them. Before the run they take no time.
    """

    peak_reserved_bytes: int
    num_device_alloc: int
    num_device_free: int
    num_alloc_retries: int
    driver_s: float
    synchronize_s: float


def reserve(trace: Trace) -> tuple[Reserve | None, ...]:
    """The reserve of every device of the plan; ``None`` where memory is only counted."""
    header = trace.header
    counted = set(header["devices"]) if header["allocator"]["name"] == "counting" else set(header["hosts"])
    return tuple(None if name in counted else _reserve(trace, k) for k, name in enumerate(header["devices"]))


def _reserve(trace: Trace, device: int) -> Reserve:
    asked = trace.driver[trace.driver["device"] == device]
    return Reserve(
        peak_reserved_bytes=int(np.cumsum(asked["bytes"]).max(initial=0)),
        num_device_alloc=int(asked["mallocs"].sum()),
        num_device_free=int(asked["frees"].sum()),
        num_alloc_retries=int(asked["retries"].sum()),
        driver_s=float((asked["done_s"] - asked["called_s"]).sum()),
        synchronize_s=float((asked["called_s"] - asked["time_s"]).sum()),
    )


def compute(trace: Trace) -> tuple[Peak, ...]:
    """The peak of every device of the plan, from the memory events in the order of the trace."""
    return tuple(_peak(trace, device, name) for device, name in enumerate(trace.header["devices"]))


def _peak(trace: Trace, device: int, name: str) -> Peak:
    events = trace.memory[trace.memory["device"] == device]
    if not len(events):
        return Peak(name, 0, {}, "", 0.0)
    live = np.cumsum(events["bytes"])
    at = int(live.argmax())
    upto = events[: at + 1]
    held = np.zeros(len(BufferKind), np.int64)
    np.add.at(held, upto["kind"], upto["bytes"])
    by_category: dict[Category, int] = {}
    for kind, size_bytes in zip(BufferKind, held.tolist(), strict=True):
        by_category[kind.category] = by_category.get(kind.category, 0) + size_bytes
    by_category = {category: size_bytes for category, size_bytes in by_category.items() if size_bytes}
    op = int(events["op"][at])
    return Peak(name, int(live[at]), by_category, str(trace.id(op)) if op >= 0 else "", float(events["time_s"][at]))
