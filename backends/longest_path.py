"""The schedule as a graph: exact where nothing contends, and refused where something does."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from sim.binding import Binding
from sim.costs import seconds_column
from sim.errors import UnsupportedPlan
from sim.longest_path import times
from sim.memory.buffers import EVENTS
from sim.plan import Plan
from sim.recording import MOVING_KINDS, memory_columns, record
from sim.schedule import Schedule
from sim.trace import Trace


class LongestPath:
    """Start = latest end of what an op waits for, end = start + seconds."""

    name: ClassVar[str] = "longest_path"

    def execute(self, plan: Plan, binding: Binding, seed: int = 0) -> Trace:
        """See `backends.base.Backend.execute`. Equals `simulated` to the last bit where it does not refuse."""
        schedule = plan.work
        if not isinstance(schedule, Schedule):
            raise UnsupportedPlan(f"the order of '{plan.method}' depends on time: use backend simulated")
        _refuse_contention(schedule, binding)
        start, end = (np.array(column) for column in times(schedule, seconds_column(schedule, binding)))
        events = np.empty(0, EVENTS) if plan.events is None else plan.events
        memory = memory_columns(binding, events, start, end)
        _refuse_overflow(binding, memory)
        columns = schedule.ops, schedule.lanes, schedule.lanes_of
        header = {"backend": self.name, "seed": seed, "hardware": "simulated"}
        return record(plan, binding, columns, start, end, memory, header)


def _refuse_contention(schedule: Schedule, binding: Binding) -> None:
    """Refuse links and devices whose sharing depends on time."""
    moving = np.flatnonzero(np.isin(schedule.ops["kind"], MOVING_KINDS))
    for source, target in np.unique(schedule.ops[["source", "target"]][moving]).tolist():
        for link in binding.route(source, target) if target >= 0 else range(len(binding.cluster.links)):
            if (kind := binding.cluster.links[link].kind) in ("fifo", "fair_share"):
                raise UnsupportedPlan(f"link '{binding.cluster.links[link].name}' is {kind}: use backend simulated")
    lanes = Counter(lane.device for lane in schedule.lanes if lane.computes)
    for device, count in lanes.items():
        node = binding.cluster.node(binding.devices[device])
        if count > 1 and (node.gain is None or node.gain < count):
            raise UnsupportedPlan(
                f"'{node.name}' has {count} compute lanes that slow each other: use backend simulated"
            )


def _refuse_overflow(binding: Binding, memory: np.ndarray[tuple[int, ...], np.dtype[np.void]]) -> None:
    """Refuse a run whose live bytes pass a capacity: where it stops depends on the allocator."""
    for device, capacity in enumerate(binding.capacity_bytes):
        live = np.cumsum(memory["bytes"][memory["device"] == device])
        if capacity is not None and len(live) and int(live.max()) > capacity:
            raise UnsupportedPlan(f"'{binding.devices[device]}' runs out of memory: use backend simulated to see where")


BACKEND = LongestPath()
