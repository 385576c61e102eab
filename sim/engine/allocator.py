"""The memory of every device: plays the buffer events of each op and counts live bytes.

Allocators that place buffers build on this: see `sim.engine.blocks`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding, Resident
from sim.errors import OutOfMemory
from sim.memory.buffers import END, EVENTS, START, BufferKind
from sim.memory.counting import Counting
from sim.memory.rules import Rules
from sim.recording import Tables, buffer_sizes
from sim.trace import MEMORY

_IDLE = (True, True)


class Allocator:
    """One state machine per device, fed in the order of the run.

    ``events`` (dtype `EVENTS`) are known beforehand for a schedule and grow op by op for a program; ``name`` tells an
    op's name for messages.
    """

    def __init__(self, binding: Binding, events: NDArray[np.void] | None, ops: int, name: Callable[[int], str]) -> None:
        self._binding, self._name = binding, name
        self.devices = [Counting(capacity) for capacity in binding.capacity_bytes]
        events = np.empty(0, EVENTS) if events is None else events
        delta = buffer_sizes(binding, events) * events["sign"]
        self._known, self._grown = events, list[tuple[int, ...]]()
        self._device = array("q", events["device"].astype(np.int64).tobytes())
        self._delta = array("q", delta.tobytes())
        slots = np.arange(2 * ops + 1)
        self._first: list[int] = np.searchsorted(events["op"] * 2 + events["when"], slots).tolist()
        self.idle: list[bool] = (np.diff(self._first) == 0).tolist()
        self._played, self._times = array("q"), array("d")
        self._refused: int | None = None  # the event that did not fit, where one did not
        self._resident: list[Resident] = []
        for resident in binding.resident:
            self._hold(resident)

    def _hold(self, resident: Resident) -> None:
        rules = self.devices[resident.device]
        if not rules.malloc(resident.size_bytes):
            raise self._out_of_memory(rules, resident.device, resident.size_bytes, named(resident))
        self._resident.append(resident)

    def grow(self, op: int, events: Sequence[tuple[int, ...]]) -> None:
        """Add the events of a program's next op, numbered one after the last."""
        if not events:
            self._first += (self._first[-1],) * 2
            self.idle += _IDLE
            return
        for when in (START, END):
            now = [event for event in events if event[0] == when]
            for event in now:
                _, sign, kind, device, stage, _ = event
                self._grown.append((op, *event))
                self._device.append(device)
                self._delta.append(sign * self._binding.buffer_bytes[BufferKind(kind), stage])
            self._first.append(len(self._delta))
            self.idle.append(not now)

    def play(self, slot: int, now_s: float) -> None:
        """Do what an op does to memory at its start (``slot`` 2·op) or its end (2·op + 1); nothing in an `idle` slot.

        Raises
        ------
        OutOfMemory : an allocation does not fit; the message says what held the memory.
        """
        self._played.append(slot)
        self._times.append(now_s)
        for event in range(self._first[slot], self._first[slot + 1]):
            device, delta = self._device[event], self._delta[event]
            rules = self.devices[device]
            if delta < 0:
                rules.free(-delta)
            elif not rules.malloc(delta):
                self._refused = event
                raise self._out_of_memory(rules, device, delta, self._name(slot // 2))

    def columns(self) -> Tables:
        """What happened so far: every change of live memory, in order of time."""
        resident = np.array(
            [(0.0, -1, r.device, r.kind, r.stage, 0, r.size_bytes) for r in self._resident], dtype=MEMORY
        )
        first, slots = np.array(self._first), np.frombuffer(self._played, np.int64)
        counts = first[slots + 1] - first[slots]
        if self._refused is not None:
            counts[-1] = self._refused - first[slots[-1]]
        begins = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum())) - np.repeat(begins - first[slots], counts)
        events = np.concatenate([self._known, np.array(self._grown, dtype=EVENTS)])[rows]
        played = np.empty(len(rows), MEMORY)
        for name in ("op", "device", "kind", "stage", "number"):
            played[name] = events[name]
        played["time_s"] = np.repeat(np.frombuffer(self._times), counts)
        played["bytes"] = np.array(self._delta)[rows]
        return Tables(np.concatenate([resident, played]))

    def _out_of_memory(
        self, rules: Counting | Rules, device: int, requested: int, wanted_for: str, refusal: str = ""
    ) -> OutOfMemory:
        name = self._binding.devices[device]
        held: dict[str, int] = {}
        columns = self.columns().events
        for row in columns[columns["device"] == device]:
            category = BufferKind(int(row["kind"])).category
            held[category] = held.get(category, 0) + int(row["bytes"])
        holding = ", ".join(f"{category} {size:,} B" for category, size in held.items() if size)
        capacity = rules.capacity_bytes or 0
        error = OutOfMemory(
            f"{name} is out of memory: {requested:,} B wanted for {wanted_for}, "
            f"{capacity - rules.live_bytes:,} B free of {capacity:,} B; held: {holding or 'nothing'}"
            + (f"\n{refusal}" if refusal else "")
        )
        error.device, error.requested_bytes = name, requested
        error.live_bytes, error.capacity_bytes = rules.live_bytes, capacity
        return error


def named(resident: Resident) -> str:
    """What a message calls it."""
    return f"the {resident.kind.category} of stage {resident.stage}"
