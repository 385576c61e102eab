"""Memory over time, by category: of a recorded snapshot, or of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis import pytorch_snapshot
from sim.memory.buffers import BufferKind
from sim.memory.caching import Caching
from sim.memory.replay import replay, the_device
from sim.memory.rewind import rewind
from sim.memory.snapshot import Entry, Frames, Snapshot, parse, tag
from sim.trace import Trace

BEFORE = "before the trace"
"""The category of a block that is older than the trace and says nothing of itself."""

Column = NDArray[np.float64]


class Part(NamedTuple):
    """A range of a segment: what it is used for, empty where it is free."""

    offset: int
    size: int
    category: str


class MappedSegment(NamedTuple):
    """A segment with everything in it, in order of address."""

    size: int
    small: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """One device. Columns have a row for each moment at which something changed, in order of time.

    ``by_category`` are bytes in use, ``reserved`` bytes held from the driver (``None`` where nothing is reserved beyond
    what is used). ``segments`` is the map at the moment ``at_peak`` when most is in use; empty where there are none.
    """

    time_s: Column
    by_category: dict[str, Column]
    reserved: Column | None
    at_peak: int
    segments: tuple[MappedSegment, ...] = ()

    @property
    def allocated(self) -> Column:
        """Bytes in use."""
        return sum(self.by_category.values(), np.zeros(len(self.time_s)))


class _Sample(NamedTuple):
    time_us: int
    category: str
    change: int
    reserved: int
    event: int


class _Watch:
    """Takes down what every allocation and free changes."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        start = rewind(snapshot, device)
        self.trace = snapshot.traces[device] if device < len(snapshot.traces) else ()
        self.samples: list[_Sample] = []
        self.live: dict[int, tuple[str, int]] = {}
        began_us = self.trace[0].time_us if self.trace else 0
        reserved = sum(segment.size for segment in start.segments)
        for held in (held for segment in start.segments for held in segment.held):
            category = category_of(held.frames) if _tagged(held.frames) else BEFORE
            if not held.pending:
                self.live[held.address] = category, held.size
                self.samples.append(_Sample(began_us, category, held.size, reserved, -1))

    def __call__(self, event: int, entry: Entry, caching: Caching) -> None:
        category, size = "", 0
        if entry.action == "alloc":
            category, size = category_of(entry.frames), caching.active[entry.address].size
            self.live[entry.address] = category, size
        elif entry.action in ("free_requested", "free_completed"):
            category, size = self.live.pop(entry.address, ("", 0))
            size = -size
        self.samples.append(_Sample(entry.time_us, category, size, caching.reserved_bytes, event))


def category_of(frames: Frames) -> str:
    """What an allocation is for, in one word."""
    return tag(frames).category


def _tagged(frames: Frames) -> bool:
    return len(frames) == 1


def of_snapshot(snapshot: Snapshot, device: int | None = None) -> Timeline:
    """The time line of a snapshot's trace, played through the rules, and its segments at the peak.

    Raises
    ------
    BadTraceFile : no such device, or the trace contradicts the final state.
    UnsupportedPlan : it cannot be played.
    """
    number = the_device(snapshot, device)
    watch = _Watch(snapshot, number)
    replay(snapshot, number, watch=watch)
    samples = watch.samples or [_Sample(0, "", 0, 0, -1)]
    names = sorted({sample.category for sample in samples if sample.category})
    column = {name: index for index, name in enumerate(names)}
    changes = np.zeros((len(samples), len(names)))
    for row, sample in enumerate(samples):
        if sample.category:
            changes[row, column[sample.category]] = sample.change
    levels = np.cumsum(changes, axis=0)
    at_peak = int(levels.sum(axis=1).argmax())
    return Timeline(
        np.array([sample.time_us - samples[0].time_us for sample in samples]) / 1e6,
        {name: levels[:, index] for name, index in column.items()},
        np.array([sample.reserved for sample in samples], np.float64),
        at_peak,
        _segments(snapshot, number, watch.trace, samples[at_peak].event + 1),
    )


def _segments(snapshot: Snapshot, device: int, trace: Sequence[Entry], to: int) -> tuple[MappedSegment, ...]:
    """The segments before the event numbered ``to``."""
    allocated = {entry.address: category_of(entry.frames) for entry in trace[:to] if entry.action == "alloc"}
    mapped = []
    for segment in rewind(snapshot, device, to).segments:
        parts, at = [], segment.address
        for held in segment.held:
            if held.address > at:
                parts.append(Part(at - segment.address, held.address - at, ""))
            category = allocated.get(held.address, category_of(held.frames) if _tagged(held.frames) else BEFORE)
            parts.append(Part(held.address - segment.address, held.size, category))
            at = held.address + held.size
        if at < segment.address + segment.size:
            parts.append(Part(at - segment.address, segment.address + segment.size - at, ""))
        mapped.append(MappedSegment(segment.size, segment.small, tuple(parts)))
    return tuple(mapped)


def of_trace(trace: Trace, device: int = 0) -> Timeline:
    """The time line of one device of a run; its segments at the peak, where PyTorch's allocator had some."""
    events = trace.memory[trace.memory["device"] == device]
    by_category: dict[str, Column] = {}
    for kind in BufferKind:
        change = np.where(events["kind"] == kind, events["bytes"], 0)
        if change.any():
            name = str(kind.category)
            by_category[name] = by_category.get(name, np.zeros(len(events))) + np.cumsum(change)
    total, time_s = sum(by_category.values(), np.zeros(len(events))), events["time_s"].astype(np.float64)
    at_peak, asked = int(total.argmax()) if len(total) else 0, trace.driver[trace.driver["device"] == device]
    if not len(asked):
        return Timeline(time_s, by_category, None, at_peak)
    reserved = np.append(0, np.cumsum(asked["bytes"]))[np.searchsorted(asked["time_s"], time_s, "right")]
    segments: tuple[MappedSegment, ...] = ()
    if trace.header["allocator"]["name"] == "caching":
        segments = of_snapshot(parse(pytorch_snapshot.export(trace)), device).segments
    return Timeline(time_s, by_category, reserved.astype(np.float64), at_peak, segments)
