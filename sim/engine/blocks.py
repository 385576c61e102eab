"""Allocators that place every buffer: what ops ask of them, and what they ask of the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding, Resident
from sim.engine.allocator import Allocator, named
from sim.errors import BrokenInvariant, OutOfMemory
from sim.memory.arena import Packing, Request, pack
from sim.memory.buffers import BufferKind
from sim.memory.rules import DeviceCall, Rules, Tag
from sim.ops import COMPUTE_KINDS, Lane
from sim.pieces import split
from sim.recording import Tables
from sim.trace import DRIVER, FINISH, FREE, MALLOC, MEMORY, RECORD_STREAM, REQUESTS

DEFAULT_STREAM = 0
"""The stream of a device's first compute lane, of what is resident, and of transfers that hold no lane."""

_RECEIVED = int(BufferKind.RECEIVED_ACTIVATION)

Key = tuple[int, int, int, int]
"""Device, kind, stage and number of a buffer."""


@dataclass(slots=True, eq=False)
class Asked:
    """What an op asked of the driver of one device, and how long that takes; a row of `DRIVER`."""

    time_s: float
    op: int
    device: int
    bytes: int = 0
    calls: list[DeviceCall] = field(default_factory=list)
    seconds: float = 0.0
    called_s: float = 0.0
    done_s: float = 0.0

    @property
    def synchronizes(self) -> bool:
        """Whether it waits until the device is idle."""
        return any(call.synchronizes for call in self.calls)

    def row(self) -> tuple[float, float, float, int, int, int, int, int, int]:
        """The row of the table."""
        done = Counter[str](call.action for call in self.calls if not call.failed)
        mallocs, frees = (done[f"segment_{a}"] + done[f"segment_{b}"] for a, b in (("alloc", "map"), ("free", "unmap")))
        times = self.time_s, self.called_s, self.done_s
        return (*times, self.op, self.device, self.bytes, mallocs, frees, done["synchronize"])


@dataclass(slots=True)
class _Buffer:
    """Where a buffer lies: an address for each of its pieces; on whose stream, and which streams used it."""

    bytes: int
    addresses: list[int]
    stream: int
    users: set[int] = field(default_factory=set)


class BlockAllocator(Allocator):
    """One allocator with addresses per GPU, and exact counts for hosts, fed in the order of the run.

    ``kind_of`` tells kind, stage and micro-batch of an op, ``lanes_of`` the lanes that it holds: each is a stream of
    its device. ``packings``: of each device, for an arena (`plan_ahead`).
    """

    def __init__(
        self,
        binding: Binding,
        events: NDArray[np.void] | None,
        ops: int,
        name: Callable[[int], str],
        kind_of: Callable[[int], tuple[int, int, int]],
        lanes_of: Callable[[int], tuple[Lane, ...]],
        packings: Sequence[Packing] = (),
    ) -> None:
        self._kind_of, self._lanes_of = kind_of, lanes_of
        self._rows: list[tuple[float, int, int, int, int, int, int]] = []
        self._requests: list[tuple[float, int, int, int, int, int, int]] = []
        self._tags: dict[Tag, int] = {}
        self._buffers: dict[Key, _Buffer] = {}
        self._pieces: dict[tuple[int, int, int], list[tuple[int, Tag]]] = {}
        self._places: dict[tuple[Lane, ...], list[tuple[int, int]]] = {}
        self._open: dict[int, list[tuple[int, int]]] = {}  # of ops that have begun
        self._streams: list[dict[str, int]] = [{} for _ in binding.devices]
        self._working: list[set[int]] = [set() for _ in binding.devices]
        self._rules: list[Rules | None] = [
            None if binding.cluster.node(name).kind == "host" else binding.allocator.rules(device, capacity, packing)
            for device, (name, capacity, packing) in enumerate(
                zip_longest(binding.devices, binding.capacity_bytes, packings)
            )
        ]
        reserved = [(device, rules.reserved_bytes) for device, rules in enumerate(self._rules) if rules is not None]
        self._asked = [Asked(0.0, -1, device, size_bytes) for device, size_bytes in reserved if size_bytes]
        super().__init__(binding, events, ops, name)
        self._table: list[tuple[int, ...]] = self._known.tolist() or self._grown  # which goes on growing

    def _hold(self, resident: Resident) -> None:
        key = int(resident.device), int(resident.kind), resident.stage, 0
        asked: dict[int, Asked] = {}
        self._take(key, resident.size_bytes, -1, 0.0, asked, lambda: named(resident))

    # Streams

    def places(self, op: int) -> list[tuple[int, int]]:
        """Device and stream of each lane that an op holds."""
        if op in self._open:
            return self._open[op]
        lanes = self._lanes_of(op)
        if lanes not in self._places:
            self._places[lanes] = [(lane.device, self._stream(lane)) for lane in lanes]
        return self._places[lanes]

    def _stream(self, lane: Lane) -> int:
        numbers = self._streams[lane.device]
        if lane.stream not in numbers:
            first = lane.computes and DEFAULT_STREAM not in numbers.values()
            numbers[lane.stream] = DEFAULT_STREAM if first else 1 + max(numbers.values(), default=DEFAULT_STREAM)
        return numbers[lane.stream]

    def _stream_on(self, op: int, device: int) -> int:
        return next((stream for where, stream in self.places(op) if where == device), DEFAULT_STREAM)

    def begin(self, op: int) -> None:
        """The op has its memory and goes to work."""
        kind, stage, micro_batch = self._kind_of(op)
        self._open[op] = self.places(op)
        for device, stream in self._open[op]:
            self._working[device].add(stream)
            if kind in COMPUTE_KINDS:
                received = self._buffers.get((device, _RECEIVED, stage, micro_batch))
                if received is not None:
                    received.users.add(stream)

    def over(self, op: int, now_s: float) -> None:
        """The op's work is done, and with it all that its streams were given."""
        for device, stream in self._open[op]:
            self._working[device].discard(stream)
            if (rules := self._rules[device]) is not None and rules.waits:
                rules.finish(stream)
                self._requests.append((now_s, device, FINISH, stream, 0, 0, -1))

    def forget(self, op: int) -> None:
        """The op has ended."""
        del self._open[op]

    def works(self, device: int) -> bool:
        """Whether some stream of a device is at work."""
        return bool(self._working[device])

    # Buffers

    def allocates(self, slot: int) -> bool:
        """Whether an op allocates at its start (``slot`` 2·op) or its end (2·op + 1)."""
        return any(self._delta[event] > 0 for event in range(self._first[slot], self._first[slot + 1]))

    def play(self, slot: int, now_s: float) -> None:
        """See `Allocator.play`; what is asked of the driver takes no time."""
        self.ask(slot, now_s)

    def ask(self, slot: int, now_s: float) -> list[Asked]:
        """`play`; returns what takes time.

        Raises
        ------
        OutOfMemory : see `Allocator.play`; ends with the allocator's own words.
        """
        op, asked = slot // 2, dict[int, Asked]()
        for event in range(self._first[slot], self._first[slot + 1]):
            _, _, sign, kind, device, stage, number = self._table[event]
            key = device, kind, stage, number
            if sign < 0:
                self._give(key, op, now_s, asked)
            elif key in self._buffers:
                raise BrokenInvariant(f"{self._name(op)} allocates {BufferKind(kind).name} {number} again")
            else:
                self._buffers[key] = self._take(key, self._delta[event], op, now_s, asked, lambda: self._name(op))
        return [each for each in asked.values() if each.seconds or each.synchronizes]

    def _take(
        self, key: Key, size_bytes: int, op: int, now_s: float, asked: dict[int, Asked], wanted_for: Callable[[], str]
    ) -> _Buffer:
        device, kind, stage, _ = key
        stream = self._stream_on(op, device) if op >= 0 else DEFAULT_STREAM
        buffer = _Buffer(0, [], stream)
        rules = self._rules[device]
        if rules is None:
            if not self.devices[device].malloc(size_bytes):
                raise self._out_of_memory(self.devices[device], device, size_bytes, wanted_for())
            buffer.bytes = size_bytes
        else:
            reserved, calls = rules.reserved_bytes, list[DeviceCall]()
            for piece_bytes, tag in self._pieces_of(kind, stage, size_bytes):
                grant = rules.malloc(piece_bytes, stream, tag)
                if grant is None:
                    self._note(key, buffer.bytes, op, now_s)
                    raise self._out_of_memory(
                        rules, device, piece_bytes, f"{wanted_for()} ({tag.category} of {tag.layer})", rules.refusal
                    )
                number = self._tags.setdefault(tag, len(self._tags))
                self._requests.append((now_s, device, MALLOC, stream, grant.address, piece_bytes, number))
                buffer.addresses.append(grant.address)
                buffer.bytes += grant.block_bytes
                calls += grant.calls
            self._charge(device, rules.reserved_bytes - reserved, calls, op, now_s, asked)
        self._note(key, buffer.bytes, op, now_s)
        return buffer

    def _give(self, key: Key, op: int, now_s: float, asked: dict[int, Asked]) -> None:
        """Release a buffer: what a stream that is still at work has used waits for that work."""
        buffer, device = self._buffers.pop(key), key[0]
        rules = self._rules[device]
        if rules is None:
            self.devices[device].free(buffer.bytes)
        else:
            reserved = rules.reserved_bytes
            for address in buffer.addresses:
                for stream in sorted((buffer.users - {buffer.stream}) & self._working[device]):
                    rules.record_stream(address, stream)
                    self._requests.append((now_s, device, RECORD_STREAM, stream, address, 0, -1))
                rules.free(address)
                self._requests.append((now_s, device, FREE, buffer.stream, address, 0, -1))
            self._charge(device, rules.reserved_bytes - reserved, [], op, now_s, asked)
        self._note(key, -buffer.bytes, op, now_s)

    def _note(self, key: Key, size_bytes: int, op: int, now_s: float) -> None:
        device, kind, stage, number = key
        self._rows.append((now_s, op, device, kind, stage, number, size_bytes))

    def _charge(
        self, device: int, size_bytes: int, calls: list[DeviceCall], op: int, now_s: float, asked: dict[int, Asked]
    ) -> None:
        """Put calls, and a change of what is reserved, on the op's account; before the run they take no time."""
        if not calls and not size_bytes:
            return
        if device not in asked:
            asked[device] = Asked(now_s, op, device, called_s=now_s, done_s=now_s)
            self._asked.append(asked[device])
        asked[device].bytes += size_bytes
        asked[device].calls += calls
        asked[device].seconds += self._binding.allocator.costs.seconds(calls)

    def _pieces_of(self, kind: int, stage: int, size_bytes: int) -> list[tuple[int, Tag]]:
        key = kind, stage, size_bytes
        if key not in self._pieces:
            self._pieces[key] = pieces_of(self._binding, *key)
        return self._pieces[key]

    def columns(self) -> Tables:
        """See `Allocator.columns`; bytes are those of the blocks."""
        return Tables(
            np.array(self._rows, dtype=MEMORY),
            np.array([asked.row() for asked in self._asked], dtype=DRIVER),
            np.array(self._requests, dtype=REQUESTS),
            [*self._tags],
        )


def pieces_of(binding: Binding, kind: int, stage: int, size_bytes: int) -> list[tuple[int, Tag]]:
    """Bytes of every piece of a buffer, and what it is for."""
    named, category = BufferKind(kind), str(BufferKind(kind).category)
    pieces = split(size_bytes, binding.shares.get((named, stage), ()))
    return [(piece.size_bytes, Tag(category, piece.layer or f"stage {stage}")) for piece in pieces]


def plan_ahead(binding: Binding, memory: NDArray[np.void]) -> list[Packing]:
    """A place on each device for all that a run will allocate there.

    ``memory`` (dtype `MEMORY`) are the events of a run by an allocator that takes no time.

    Raises
    ------
    OutOfMemory : a device has no room for all that.
    """
    packings = []
    for device, (name, capacity) in enumerate(zip(binding.devices, binding.capacity_bytes, strict=True)):
        requests, live = list[Request](), dict[tuple[int, int, int], range]()
        events = memory[memory["device"] == device]
        for time, (_, _, _, kind, stage, number, size_bytes) in enumerate(events.tolist()):
            if size_bytes > 0:
                begin = len(requests)
                pieces = pieces_of(binding, kind, stage, size_bytes)
                requests += [Request(piece_bytes, time, len(events)) for piece_bytes, _ in pieces]
                live[kind, stage, number] = range(begin, len(requests))
            elif size_bytes < 0:
                for request in live.pop((kind, stage, number)):
                    requests[request] = requests[request]._replace(end=time)
        packings.append(packing := pack(requests))
        if capacity is not None and packing.total_bytes > capacity:
            error = OutOfMemory(
                f"{name} is out of memory: the arena planned for this run takes {packing.total_bytes:,} B "
                f"of {capacity:,} B; at most {packing.live_bytes:,} B live at once"
            )
            error.device, error.requested_bytes, error.capacity_bytes = name, packing.total_bytes, capacity
            raise error
    return packings
