"""One run of the simulator: set the scene, play, check the laws that every run must obey, hand over the trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sim.binding import Binding, Cost
from sim.costs import per_op
from sim.engine import faults
from sim.engine.actors import Actors, rank
from sim.engine.allocator import Allocator
from sim.engine.blocks import BlockAllocator, plan_ahead
from sim.engine.core import Core, Station
from sim.engine.draws import Draws
from sim.engine.fair_share import FairShare
from sim.engine.gpu import Exclusive, Shared
from sim.engine.lanes import Lanes
from sim.engine.link import Fifo, Payload
from sim.engine.parameter_server import serve
from sim.engine.waiting import WaitingCore
from sim.errors import UnsupportedPlan
from sim.memory.allocators import COUNTING
from sim.memory.arena import Packing
from sim.ops import Lane, OpId, OpKind
from sim.plan import Plan
from sim.program import Op, Program
from sim.recording import MOVING_KINDS, record
from sim.schedule import Schedule
from sim.server_binding import about
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
        cores, lanes = binding.cluster.cores, math.inf if compute_lanes is None else sum(compute_lanes.values())
        self._cores = None if cores is None or cores >= lanes else Shared(core, cores)

    def set_bandwidth(self, link: int, bytes_per_s: float | None) -> None:
        """What a ``fair_share`` or ``fifo`` link carries from now on; ``None``: its own bandwidth again."""
        own = self._binding.cluster.links[link]
        station = self._fair if own.kind == "fair_share" else self._fifo
        station.set_bandwidth(link, own.bytes_per_s if bytes_per_s is None else bytes_per_s)

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
            payload = Payload(routes, binding.ring_bytes(size, members), binding.ring_latency_s(members))
        else:
            route = binding.route(source, target)
            window = binding.conditions.windows.get((source, target))
            routes = (route if window is None else (*route, window),)
            payload = Payload(routes, size, binding.cluster.latency_s(route))
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
        if self._cores is not None:
            return self._cores
        if device in self._binding.conditions.services:
            return serve(self._core, self._binding.conditions.services[device])
        node = self._binding.cluster.node(self._binding.devices[device])
        lanes = None if self._compute_lanes is None else self._compute_lanes.get(device, 0)
        if node.kind == "host" or lanes in (0, 1) or (node.gain and lanes and node.gain >= lanes):
            return None  # a host's cores are lanes; one lane, or lanes that do not slow each other, cannot contend
        return Shared(self._core, node.gain) if node.gain else Exclusive(self._core)


def _schedule(plan: Plan, binding: Binding, header: dict[str, Any]) -> Trace:
    schedule = plan.work
    assert isinstance(schedule, Schedule)
    core = _core(schedule, plan, binding, header)
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
    return record(plan, binding, columns, np.array(core.start_s), end_s, core.memory.columns(), header)


def _core(schedule: Schedule, plan: Plan, binding: Binding, header: dict[str, Any]) -> Core:
    """The clock of a schedule, with the memory that its ops use."""
    count = len(schedule)
    columns = list(range(count)), [0.0] * count, list[Station | None]([None] * count)

    def name(op: int) -> str:
        return str(schedule.id(op))

    if binding.allocator == COUNTING:
        return Core(*columns, Allocator(binding, plan.events, count, name))
    packings: list[Packing] = []
    if binding.allocator.name == "arena":
        rehearsal = replace(binding, allocator=COUNTING, capacity_bytes=(None,) * len(binding.devices))
        packings = plan_ahead(binding, _schedule(plan, rehearsal, header).memory)
    held = [tuple(schedule.lanes[lane] for lane in row) for row in schedule.lanes_of]
    kinds = schedule.ops[["kind", "stage", "micro_batch"]].tolist()
    memory = BlockAllocator(binding, plan.events, count, name, kinds.__getitem__, held.__getitem__, packings)
    return WaitingCore(*columns, memory)


def _program(plan: Plan, binding: Binding, header: dict[str, Any]) -> Trace:
    program, conditions = plan.work, binding.conditions
    assert isinstance(program, Program)
    core = _growing_core(plan, binding, lambda op: actors.ops[op])
    scene, draws = Scene(binding, core, None), Draws(conditions, header["seed"])
    admission = Admission(core, scene, draws)
    actors = Actors(core, program, _unlimited(program), admission.admit)
    for name in sorted(program.actors):
        latest_s = conditions.latest_start_s.get(name, 0.0)
        actors.start(name, draws.start_s(latest_s, program.homes.get(name, 0)) if latest_s else 0.0)
    faults.play(core, actors, scene, program, conditions)
    core.env.run()
    if not actors.over:
        raise actors.deadlock()
    columns = actors.columns(core.memory.columns())
    faults.check_time(conditions, float(columns.end_s.max(initial=0.0)))
    shape = program.shape._replace(mini_batches=1 + int(columns.ops["micro_batch"].max(initial=0)))
    ran = replace(plan, work=replace(program, shape=shape))
    if program.layout is not None:
        header = {**header, "parameter_servers": about(program.layout, binding)}
    return record(ran, binding, columns[:3], *columns[3:], header)


def _unlimited(program: Program) -> set[Lane]:
    """Lanes that nobody waits for: a worker computes one thing at a time, and a server's cores are its station's."""
    layout = program.layout
    if layout is None:
        return set()
    workers = range(layout.workers + layout.background)
    found = {Lane(worker, "compute") for worker in workers} | {Lane(server, "core") for server in layout.servers}
    if len(layout.blocks) > 1 or len({part.server for part in layout.parts}) < len(layout.parts):
        return found
    for worker in workers:  # one part for each connection
        for server in layout.servers:
            found |= {Lane(server, f"send>{worker}"), Lane(worker, f"recv<{server}")}
            found |= {Lane(worker, f"send>{server}"), Lane(server, f"recv<{worker}")}
    return found


class Admission:
    """Takes the ops of a program in as they come: what each costs, where it contends, how it varies."""

    def __init__(self, core: Core, scene: Scene, draws: Draws) -> None:
        self._core, self._scene, self._draws, self._varies = core, scene, draws, draws.any
        self._alike: dict[tuple[int, ...], tuple[float, Station | None, Payload | None]] = {}

    def admit(self, op: Op) -> int:
        """Its number, one after the last."""
        core, number = self._core, len(self._core.keys)
        kind, stage, _, _, part, _, _ = op.id
        alike = (kind, stage, part, op.source, op.target)
        placed = self._alike.get(alike)
        if placed is None:
            members = sorted({lane.device for lane in op.lanes})
            placed = self._alike[alike] = self._scene.place(op.id, op.source, op.target, members)
        seconds, station, payload = placed
        if self._varies and (factor := self._draws.factor(op.id)) != 1.0:
            latency_s = payload.latency_s if payload else 0.0
            seconds = latency_s + (seconds - latency_s) * factor
            payload = payload and Payload(payload.routes, payload.size_bytes * factor, payload.latency_s)
        if payload is not None and station is not None:
            self._scene.payloads[number] = payload
        core.admit(rank(op.id), seconds, station)
        core.memory.grow(number, op.memory)
        return number


def _growing_core(plan: Plan, binding: Binding, op_of: Callable[[int], Op]) -> Core:
    """The clock of a program, whose ops come one by one."""
    if binding.allocator.name == "arena":
        raise UnsupportedPlan(
            f"memory.allocator: arena plans all allocations ahead, and the order of '{plan.method}' depends on time: "
            "use caching or best_fit"
        )

    def name(op: int) -> str:
        return str(op_of(op).id)

    if binding.allocator == COUNTING:
        return Core([], [], [], Allocator(binding, None, 0, name))
    memory = BlockAllocator(binding, None, 0, name, lambda op: op_of(op).id[:3], lambda op: op_of(op).lanes)
    return WaitingCore([], [], [], memory)


def run(plan: Plan, binding: Binding, seed: int = 0) -> Trace:
    """Play a plan in simulated time.

    Raises
    ------
    OutOfMemory, Deadlock, BrokenInvariant
    UnsupportedPlan : one collective would cross links whose kinds do not mix.
    """
    play = _schedule if isinstance(plan.work, Schedule) else _program
    return play(plan, binding, {"backend": "simulated", "seed": seed, "hardware": "simulated"})
