"""One run of the simulator: set the scene, play, check the laws that every run must obey, hand over the trace."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sim.binding import Binding, Cost, ring_share
from sim.costs import per_op
from sim.engine.actors import Actors, rank
from sim.engine.allocator import Allocator
from sim.engine.core import Core, Station
from sim.engine.gpu import Exclusive, Shared
from sim.engine.lanes import Lanes
from sim.engine.link import FairShare, Fifo, Payload
from sim.errors import UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.plan import Plan
from sim.program import Op, Program
from sim.recording import MOVING_KINDS, record
from sim.schedule import Schedule
from sim.trace import Trace


class Scene:
    """Where ops contend: the stations of every device and link, made for one run.

    ``compute_lanes`` counts the compute lanes of each device of a schedule; ``None`` (a program): not known beforehand.
    """

    def __init__(self, binding: Binding, core: Core, compute_lanes: dict[int, int] | None) -> None:
        self._binding, self._core, self._compute_lanes = binding, core, compute_lanes
        self.payloads: dict[int, Payload] = {}
        self._fifo = Fifo(core, self.payloads, binding.cluster.links)
        self._fair = FairShare(core, self.payloads, binding.cluster.links)
        self._devices: dict[int, Station | None] = {}

    def place(
        self, op: OpId, source: int, target: int, members: list[int]
    ) -> tuple[float, Station | None, Payload | None]:
        """Seconds where nothing contends, station, and payload of an op."""
        binding = self._binding
        seconds = binding.op_seconds(op, source, target, members)
        if op.kind not in MOVING_KINDS:
            return seconds, self._device(source), None
        size = binding.payload_bytes[Cost(op.kind, op.stage, op.part)]
        if op.kind is OpKind.ALL_REDUCE:
            routes = binding.ring_hops(members)
            payload = Payload(routes, ring_share(size, len(members)), binding.ring_latency_s(members))
        else:
            routes = (binding.route(source, target),)
            payload = Payload(routes, size, binding.cluster.latency_s(routes[0]))
        return seconds, self._network(routes), payload

    def _network(self, routes: tuple[tuple[int, ...], ...]) -> Station | None:
        kinds = {self._binding.cluster.links[link].kind for route in routes for link in route}
        if {"fifo", "fair_share"} <= kinds:
            raise UnsupportedPlan("a ring over both fifo and fair_share links: use one kind")
        if "fair_share" in kinds:
            return self._fair
        return self._fifo if "fifo" in kinds else None

    def _device(self, device: int) -> Station | None:
        if device not in self._devices:
            self._devices[device] = self._make_device(device)
        return self._devices[device]

    def _make_device(self, device: int) -> Station | None:
        node = self._binding.cluster.node(self._binding.devices[device])
        lanes = None if self._compute_lanes is None else self._compute_lanes.get(device, 0)
        if node.kind == "host" or lanes in (0, 1) or (node.gain and lanes and node.gain >= lanes):
            return None  # a host's cores are lanes; one lane, or lanes that do not slow each other, cannot contend
        return Shared(self._core, node.gain) if node.gain else Exclusive(self._core)


def _schedule(plan: Plan, binding: Binding, header: dict[str, Any]) -> Trace:
    schedule = plan.work
    assert isinstance(schedule, Schedule)
    count = len(schedule)
    memory = Allocator(binding, plan.events, count, lambda op: str(schedule.id(op)))
    core = Core(list(range(count)), [0.0] * count, [None] * count, memory)
    compute_lanes = Counter(lane.device for lane in schedule.lanes if lane.computes)
    scene = Scene(binding, core, compute_lanes)
    for op, placed in enumerate(per_op(schedule, scene.place)):
        core.seconds[op], core.stations[op], payload = placed
        if payload is not None and core.stations[op] is not None:
            scene.payloads[op] = payload
    lanes = Lanes(core, schedule)
    core.env.run()
    end_s = np.array(core.end_s)
    if bool((end_s < 0).any()):
        raise lanes.deadlock()
    columns = schedule.ops, schedule.lanes, schedule.order
    return record(plan, binding, columns, np.array(core.start_s), end_s, memory.columns(), header)


def _program(plan: Plan, binding: Binding, header: dict[str, Any]) -> Trace:
    program = plan.work
    assert isinstance(program, Program)
    memory = Allocator(binding, None, 0, lambda op: str(actors.ops[op].id))
    core = Core([], [], [], memory)
    scene = Scene(binding, core, None)

    def admit(op: Op) -> int:
        number = len(core.keys)
        seconds, station, payload = scene.place(op.id, op.source, op.target, sorted({lane.device for lane in op.lanes}))
        if payload is not None:
            scene.payloads[number] = payload
        core.admit(rank(op.id), seconds, station)
        memory.grow(number, op.memory)
        return number

    actors = Actors(core, program, {}, admit)
    core.env.run()
    if actors.stuck:
        raise actors.deadlock()
    return record(plan, binding, *actors.columns(core.start_s, core.end_s, memory.columns()), header)


def run(plan: Plan, binding: Binding, seed: int = 0) -> Trace:
    """Play a plan in simulated time.

    Raises
    ------
    OutOfMemory, Deadlock, BrokenInvariant
    UnsupportedPlan : one collective would cross links whose kinds do not mix.
    """
    play = _schedule if isinstance(plan.work, Schedule) else _program
    return play(plan, binding, {"backend": "simulated", "seed": seed, "hardware": "simulated"})
