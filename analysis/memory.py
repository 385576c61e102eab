"""Peak memory of each device, what it consists of, and the op at which it occurs."""

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
    held = {kind: int(upto["bytes"][upto["kind"] == kind].sum()) for kind in BufferKind}
    by_category: dict[Category, int] = {}
    for kind, size_bytes in held.items():
        by_category[kind.category] = by_category.get(kind.category, 0) + size_bytes
    by_category = {category: size_bytes for category, size_bytes in by_category.items() if size_bytes}
    op = int(events["op"][at])
    return Peak(name, int(live[at]), by_category, str(trace.id(op)) if op >= 0 else "", float(events["time_s"][at]))
