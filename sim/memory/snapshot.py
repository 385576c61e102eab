"""PyTorch's memory snapshots (``torch.cuda.memory._dump_snapshot``): read without trust, and written from a simulation.

A snapshot is the state of the allocator when it was taken, and a trace of the last events before.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import BadTraceFile, ScenarioError, UnsupportedPlan
from sim.memory import plain_pickle
from sim.memory.blocks import Block
from sim.memory.caching import Caching, Happening
from sim.memory.rules import Tag
from sim.memory.settings import MIN_BLOCK, UNLIMITED, Settings, parse_settings

ALLOCATED, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"
_STATES = {state: state for state in (ALLOCATED, PENDING, INACTIVE)} | {"active_awaiting_free": PENDING}
_MOVES = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
_ACTIONS = ("alloc", "free_requested", "free_completed", "oom", *_MOVES)
_MOST_RECORDS = 20_000_000
_CONF_KEYS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

Frames = Sequence[Any]


class BlockRecord(NamedTuple):
    """A block as a snapshot describes it; ``state`` is `ALLOCATED`, `PENDING` or `INACTIVE`."""

    address: int
    size: int
    requested: int
    state: str
    frames: Frames


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment, or a mapped range of an expandable one, with its blocks in order of address."""

    device: int
    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockRecord, ...]


class Entry(NamedTuple):
    """One event of a trace; ``address`` of an ``oom`` is the bytes that were free on the device."""

    action: str
    address: int
    size: int
    stream: int
    time_us: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Segments of all devices in order of address, the trace of each device, and the settings they ran under."""

    segments: tuple[SegmentRecord, ...]
    traces: tuple[tuple[Entry, ...], ...]
    settings: Settings


def read(path: str | Path) -> Snapshot:
    """Read a snapshot file.

    Raises
    ------
    BadTraceFile : missing, damaged, hostile, or no snapshot; says where in the file.
    UnsupportedPlan : it holds what the rules do not model (the private pools of CUDA graphs).
    """
    try:
        if not Path(path).is_file():  # a device or a pipe may never end
            raise BadTraceFile(f"{path}: {'no ordinary' if Path(path).exists() else 'no such'} file")
        if Path(path).stat().st_size > plain_pickle.MOST_BYTES:
            raise BadTraceFile(f"{path}: larger than any snapshot")
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadTraceFile(f"{path}: cannot be read: {error.strerror}") from None
    return parse(plain_pickle.loads(data, str(path)), str(path))


def parse(value: object, name: str = "snapshot") -> Snapshot:
    """Check what PyTorch's ``_snapshot()`` returns; see `read`."""
    reader = _Reader(name)
    top = reader.mapping(value, "")
    segments = sorted(
        (reader.segment(item, f"segments[{index}]") for index, item in enumerate(reader.items(top, "segments", ""))),
        key=lambda segment: (segment.device, segment.address),
    )
    for before, after in pairwise(segments):
        if before.device == after.device and before.address + before.size > after.address:
            raise BadTraceFile(f"{name}: the segments at {before.address:#x} and {after.address:#x} overlap")
    traces = reader.items(top, "device_traces", "")
    return Snapshot(
        tuple(segments),
        tuple(reader.trace(trace, f"device_traces[{index}]") for index, trace in enumerate(traces)),
        reader.settings(top.get("allocator_settings", {})),
    )


class _Reader:
    """Takes values out of the file, each checked, each fault with its place."""

    def __init__(self, name: str) -> None:
        self.name, self.left = name, _MOST_RECORDS

    def fail(self, place: str, message: str) -> BadTraceFile:
        return BadTraceFile(": ".join(part for part in (self.name, place, message) if part))

    def mapping(self, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(place, f"expected a dict, got {type(value).__name__}")
        return value

    def sequence(self, value: object, place: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise self.fail(place, f"expected a list, got {type(value).__name__}")
        self.left -= len(value)
        if self.left < 0:
            raise self.fail(place, f"more than {_MOST_RECORDS:,} blocks and events")
        return list(value)

    def items(self, record: dict[str, Any], key: str, place: str) -> list[Any]:
        if key not in record:
            raise self.fail(place, f"no '{key}'; is this a snapshot of PyTorch's CUDA memory?")
        return self.sequence(record[key], f"{place}.{key}".strip("."))

    def whole(self, record: dict[str, Any], key: str, place: str, least: int = 0, default: int | None = None) -> int:
        value = record.get(key, default)
        if type(value) is not int or not least <= value < 2**63:
            shown = value if isinstance(value, int | float | bool) else type(value).__name__
            raise self.fail(f"{place}.{key}", f"expected a whole number, at least {least}, got {shown}")
        return value

    def choice(self, record: dict[str, Any], key: str, place: str, choices: Sequence[str]) -> str:
        value = record.get(key)
        if not isinstance(value, str) or value not in choices:
            shown = repr(value[:40]) if isinstance(value, str) else type(value).__name__
            raise self.fail(f"{place}.{key}", f"expected one of {', '.join(choices)}, got {shown}")
        return value

    def frames(self, record: dict[str, Any]) -> Frames:
        frames = record.get("frames", ())
        return frames if isinstance(frames, list | tuple) else ()

    def segment(self, value: object, place: str) -> SegmentRecord:
        record = self.mapping(value, place)
        if record.get("segment_pool_id", (0, 0)) not in ((0, 0), [0, 0]):
            raise UnsupportedPlan(f"{self.name}: {place} is a private pool of a CUDA graph, which is not modelled")
        address, size = (self.whole(record, key, place, 1) for key in ("address", "total_size"))
        small = self.choice(record, "segment_type", place, ("small", "large")) == "small"
        blocks, at = [], address
        for index, item in enumerate(self.items(record, "blocks", place)):
            block = self.block(item, f"{place}.blocks[{index}]", at)
            blocks.append(block)
            at += block.size
        if at != address + size:
            raise self.fail(place, f"its blocks fill {at - address:,} of its {size:,} bytes")
        device, stream = (self.whole(record, key, place, default=0) for key in ("device", "stream"))
        return SegmentRecord(
            device, address, size, stream, small, record.get("is_expandable", False) is True, tuple(blocks)
        )

    def block(self, value: object, place: str, address: int) -> BlockRecord:
        record = self.mapping(value, place)
        if "history" in record:
            raise self.fail(place, "written by a PyTorch before 2.1; take the snapshot with a newer one")
        size = self.whole(record, "size", place, MIN_BLOCK)
        if self.whole(record, "address", place, default=address) != address:
            raise self.fail(f"{place}.address", f"expected {address}, where the block before it ends")
        state = _STATES[self.choice(record, "state", place, tuple(_STATES))]
        requested = self.whole(record, "requested_size", place, default=size)
        if state != INACTIVE and requested > size:
            raise self.fail(place, f"{requested:,} bytes were requested of a block of {size:,}")
        return BlockRecord(address, size, requested, state, self.frames(record))

    def trace(self, value: object, place: str) -> tuple[Entry, ...]:
        entries = []
        for index, item in enumerate(self.sequence(value, place)):
            record = self.mapping(item, f"{place}[{index}]")
            if record.get("action") in _ACTIONS:
                entries.append(self.entry(record, f"{place}[{index}]"))
        return tuple(entries)

    def entry(self, record: dict[str, Any], place: str) -> Entry:
        action = record["action"]
        return Entry(
            action,
            self.whole(record, "device_free" if action == "oom" else "addr", place),
            self.whole(record, "size", place, 1),
            self.whole(record, "stream", place, default=0),
            self.whole(record, "time_us", place, default=0),
            self.frames(record),
        )

    def settings(self, value: object) -> Settings:
        record = self.mapping(value, "allocator_settings")
        text = next((record[key] for key in _CONF_KEYS if isinstance(record.get(key), str)), "")
        try:
            settings = parse_settings(text)
        except ScenarioError as error:
            raise UnsupportedPlan(f"{self.name}: recorded under settings that are not modelled: {error}") from None
        found: dict[str, Any] = {}
        if isinstance(record.get("expandable_segments"), bool):
            found["expandable_segments"] = record["expandable_segments"]
        if isinstance(record.get("garbage_collection_threshold"), float):
            found["garbage_collection_threshold"] = record["garbage_collection_threshold"]
        if "max_split_size" in record:
            size = self.whole(record, "max_split_size", "allocator_settings", -1)
            found["max_split_size_bytes"] = UNLIMITED if size == -1 else size
        if divisions := record.get("roundup_power2_divisions"):
            place = "allocator_settings.roundup_power2_divisions"
            numbers = self.mapping(divisions, place)
            found["roundup_power2_divisions"] = tuple(
                self.whole(numbers, str(1 << index), place) for index in range(len(settings.roundup_power2_divisions))
            )
        return replace(settings, **found)


def tag(frames: Frames) -> Tag:
    """What an allocation is for: as `write` noted it, or by the calls that led to it in a real program."""
    named = [frame for frame in frames if isinstance(frame, dict)]
    names = [str(frame.get("name", "")) for frame in named]
    if len(named) == 1 and named[0].get("line") == 0:
        return Tag(names[0], str(named[0].get("filename", "")))
    if any("torch/optim/" in str(frame.get("filename", "")) for frame in named):
        return Tag("optimizer")
    if any("autograd::Engine" in name for name in names):
        return Tag("backward")
    return Tag("forward" if names else "unknown")


def write(path: str | Path, devices: Sequence[Caching]) -> None:
    """Write the state and the history of simulated devices as a file for PyTorch's memory viewer.

    Category and layer of a block stand in its one stack frame.
    """
    dump(path, as_pytorch(devices))


def dump(path: str | Path, value: dict[str, Any]) -> None:
    """Write what `as_pytorch` returns."""
    Path(path).write_bytes(pickle.dumps(value, protocol=4))


def as_pytorch(devices: Sequence[Caching]) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` would return."""
    segments = [_segment(blocks, caching.device) for caching in devices for blocks in caching.segments()]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max((device.device for device in devices), default=-1) + 1)]
    for caching in devices:
        traces[caching.device] = [_entry(happening) for happening in caching.history or ()]
    settings = devices[0].settings if devices else Settings.DEFAULT
    return {"segments": segments, "device_traces": traces, "allocator_settings": _settings(settings)}


def _segment(blocks: Sequence[Block], device: int) -> dict[str, Any]:
    head = blocks[0]
    return {
        "device": device,
        "address": head.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in blocks if block.active),
        "requested_size": sum(block.requested for block in blocks if block.active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": state(block),
                "frames": _frames(block.tag),
            }
            for block in blocks
        ],
    }


def state(block: Block) -> str:
    """The state of a block in the words of a snapshot."""
    return ALLOCATED if block.allocated else PENDING if block.active else INACTIVE


def _entry(happening: Happening) -> dict[str, Any]:
    action, address, size, stream, time_us, tag = happening
    place = "device_free" if action == "oom" else "addr"
    entry = {"action": action, place: address, "size": size, "stream": stream, "time_us": time_us}
    entry["frames"] = _frames(tag)
    return entry | {"category": tag.category} if tag is not None else entry


def _frames(tag: Tag | None) -> list[dict[str, Any]]:
    return [] if tag is None else [{"name": tag.category, "filename": tag.layer, "line": 0}]


def _settings(settings: Settings) -> dict[str, Any]:
    most = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": str(settings),
        "max_split_size": -1 if most == UNLIMITED else most,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << index): number for index, number in enumerate(settings.roundup_power2_divisions)
        },
    }
