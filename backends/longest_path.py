"""The schedule as a graph: exact where nothing contends, and refused where something does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding
from sim.cluster import CONTENDED
from sim.costs import seconds_column
from sim.errors import UnsupportedPlan
from sim.jitter import Jitter
from sim.longest_path import latest_ends, times
from sim.memory.buffers import EVENTS
from sim.ops import OpKind
from sim.plan import Plan
from sim.recording import MOVING_KINDS, Tables, memory_columns, record
from sim.rows import IntColumn
from sim.schedule import Schedule
from sim.trace import Trace

AT_ONCE = 1024
"""Samples played side by side: a row of them fits the cache many times over."""


class LongestPath:
    """Start = latest end of what an op waits for, end = start + seconds."""

    name: ClassVar[str] = "longest_path"

    def execute(self, plan: Plan, binding: Binding, seed: int = 0) -> Trace:
        """See `backends.base.Backend.execute`. Equals `simulated` to the last bit where it does not refuse."""
        schedule = uncontended(plan, binding)
        start, end = (np.array(column) for column in times(schedule, seconds_column(schedule, binding)))
        header = {"backend": self.name, "seed": seed, "hardware": "simulated"}
        return traced(plan, binding, schedule, start, end, header)

    def sample(
        self, plan: Plan, binding: Binding, jitter: Jitter, samples: int, groups: Sequence[IntColumn], seed: int = 0
    ) -> NDArray[np.float64]:
        """Makespan, and the latest end in each group of ops, when durations vary: [1 + groups, samples], in seconds.

        Every op of every sample draws its own factor, from PCG64. Memory is not played: `execute` tells what the run
        without jitter holds.

        Raises
        ------
        UnsupportedPlan : as `execute`.
        """
        schedule = uncontended(plan, binding)
        mean_s = np.array(seconds_column(schedule, binding))
        moves = np.isin(schedule.ops["kind"], MOVING_KINDS)
        ends = np.flatnonzero(np.diff(schedule.successors.starts) == 0)
        random = np.random.Generator(np.random.PCG64(seed))

        def draw(ops: IntColumn, count: int) -> NDArray[np.float64]:
            return jitter.seconds(random, mean_s[ops], moves[ops], count)

        counts = [min(AT_ONCE, samples - begin) for begin in range(0, samples, AT_ONCE)]
        blocks = [latest_ends(schedule, draw, count, [ends, *groups]) for count in counts]
        return np.concatenate(blocks, axis=1)


def traced(
    plan: Plan,
    binding: Binding,
    schedule: Schedule,
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    header: dict[str, Any],
) -> Trace:
    """The trace of an `uncontended` schedule at times that are known. ``header``: backend, seed, hardware.

    Raises
    ------
    UnsupportedPlan : its memory overflows.
    """
    events = np.empty(0, EVENTS) if plan.events is None else plan.events
    memory = Tables(memory_columns(binding, schedule, events, start_s, end_s))
    _refuse_overflow(binding, memory.events)
    return record(plan, binding, (schedule.ops, schedule.lanes, schedule.order), start_s, end_s, memory, header)


def uncontended(plan: Plan, binding: Binding) -> Schedule:
    """The schedule of a plan that does not contend.

    Raises
    ------
    UnsupportedPlan : it does.
    """
    if not isinstance(plan.work, Schedule):
        raise UnsupportedPlan(f"the order of '{plan.method}' depends on time: use backend simulated")
    if binding.allocator.name != "counting":
        raise UnsupportedPlan(f"memory.allocator: {binding.allocator.name} takes time: use backend simulated")
    _refuse_contention(plan.work, binding)
    return plan.work


def _refuse_contention(schedule: Schedule, binding: Binding) -> None:
    """Refuse links and devices whose sharing depends on time."""
    for op, source, target, members in schedule.alike[0]:
        if op.kind not in MOVING_KINDS:
            continue
        ring = op.kind is OpKind.ALL_REDUCE
        routes = binding.ring_hops(members) if ring else (binding.route(source, target),)
        for link in (binding.cluster.links[link] for route in routes for link in route):
            if link.kind in CONTENDED:
                raise UnsupportedPlan(f"link '{link.name}' is {link.kind}: use backend simulated")
    lanes = Counter(lane.device for lane in schedule.lanes if lane.computes)
    if binding.cluster.cores is not None and binding.cluster.cores < lanes.total():
        raise UnsupportedPlan(
            f"{lanes.total()} compute lanes share {binding.cluster.cores} cores: use backend simulated"
        )
    for device, count in lanes.items():
        node = binding.cluster.node(binding.devices[device])
        if count > 1 and (node.gain is None or node.gain < count):
            raise UnsupportedPlan(
                f"'{node.name}' has {count} compute lanes that slow each other: use backend simulated"
            )


def _refuse_overflow(binding: Binding, memory: NDArray[np.void]) -> None:
    """Refuse a run whose live bytes pass a capacity: where it stops depends on the allocator."""
    for device, capacity in enumerate(binding.capacity_bytes):
        live = np.cumsum(memory["bytes"][memory["device"] == device])
        if capacity is not None and len(live) and int(live.max()) > capacity:
            raise UnsupportedPlan(f"'{binding.devices[device]}' runs out of memory: use backend simulated to see where")


BACKEND = LongestPath()
