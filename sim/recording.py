"""From the columns of a run to its `Trace`: the same last step for every backend."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sim
from sim.binding import Binding, Cost
from sim.cluster import CONTENDED
from sim.errors import BrokenInvariant
from sim.memory.buffers import START, BufferKind
from sim.op_table import alike, of_kinds
from sim.ops import TRANSFER_KINDS, Lane, OpKind
from sim.plan import Plan
from sim.rows import IntColumn, Rows
from sim.schedule import Schedule
from sim.trace import DRIVER, FLOWS, MEMORY, REQUESTS, Trace

MOVING_KINDS = (*sorted(TRANSFER_KINDS), OpKind.ALL_REDUCE)
"""Kinds of op that put bytes on links."""


class Tables(NamedTuple):
    """What a run tells of memory: tables of dtype `MEMORY`, `DRIVER` and `REQUESTS`, and the tags of the last."""

    events: NDArray[np.void]
    driver: NDArray[np.void] = np.empty(0, DRIVER)
    requests: NDArray[np.void] = np.empty(0, REQUESTS)
    tags: Sequence[tuple[str, str]] = ()


def record(
    plan: Plan,
    binding: Binding,
    columns: tuple[NDArray[np.void], tuple[Lane, ...], Rows],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    memory: Tables,
    run: dict[str, Any],
) -> Trace:
    """The trace of a run.

    Parameters
    ----------
    columns : op table, lanes, and the order of each lane. ``run`` : backend, seed, hardware.

    Raises
    ------
    BrokenInvariant : an op did not run, a lane overlaps itself, or memory did not return to its start.
    """
    ops, lanes, order = columns
    extra = plan.work.extra if isinstance(plan.work, Schedule) else np.empty((0, 2), np.int64)
    trace = Trace(
        header={**_header(plan, binding), "tags": [list(tag) for tag in memory.tags], **run},
        shape=plan.work.shape,
        ops=ops,
        lanes=lanes,
        order=order,
        extra=extra,
        start_s=start_s,
        end_s=end_s,
        flows=np.empty(0, FLOWS),
        memory=memory.events[np.argsort(memory.events["time_s"], kind="stable")],
        driver=memory.driver,
        requests=memory.requests,
    )
    trace = replace(trace, flows=_flows(binding, trace))
    _check(trace)
    return trace


def _header(plan: Plan, binding: Binding) -> dict[str, Any]:
    work = plan.work
    return {
        "method": plan.method,
        "model": plan.model,
        "weights": work.weights,
        "predict": work.predict,
        "distances": [list(pair) for pair in work.distances],
        "partition": [list(stage) for stage in plan.partition],
        "devices": list(binding.devices),
        "hosts": [node.name for node in binding.cluster.hosts],
        "links": [
            {"name": link.name, "kind": link.kind, "bytes_per_s": link.bytes_per_s} for link in binding.cluster.links
        ],
        "capacity_bytes": list(binding.capacity_bytes),
        "allocator": {"name": binding.allocator.name, "settings": str(binding.allocator.settings)},
        "samples": binding.samples,
        "flops": binding.flops,
        "peak_flops_per_s": list(binding.peak_flops_per_s),
        "provenance": dict(binding.provenance),
        "versions": {"twinrail": sim.VERSION, "python": platform.python_version(), "numpy": np.__version__},
    }


def _flows(binding: Binding, trace: Trace) -> NDArray[np.void]:
    """A row for each link that each op put bytes on, from the op's start to its end."""
    ops, (start_s, end_s) = trace.ops, trace.working_s
    carried: list[tuple[int, float, IntColumn]] = []
    moving = np.flatnonzero(of_kinds(ops, MOVING_KINDS))
    first, member = alike(ops[moving])
    for op, rows in zip(moving[first].tolist(), Rows.from_pairs(member, moving, len(first)), strict=True):
        kind, stage, part, source, target = (
            int(ops[name][op]) for name in ("kind", "stage", "part", "source", "target")
        )
        size = binding.payload_bytes[Cost(OpKind(kind), stage, part)]
        routes: tuple[tuple[int, ...], ...] = ()
        if kind == OpKind.ALL_REDUCE:
            members = sorted({trace.lanes[lane].device for lane in trace.lanes_of[op].tolist()})
            routes, size = binding.ring_hops(members), binding.ring_bytes(size, members)
        else:
            routes = (binding.route(source, target),)
        carried += [(link, size, rows) for route in routes for link in route]
    flows = np.empty(sum(len(rows) for _, _, rows in carried), FLOWS)
    if carried:
        links, sizes, moved = zip(*carried, strict=True)
        counts, op = [len(rows) for rows in moved], np.concatenate(moved)
        flows["link"], flows["bytes"], flows["op"] = np.repeat(links, counts), np.repeat(sizes, counts), op
        flows["start_s"], flows["end_s"] = start_s[op], end_s[op]
    return flows[np.lexsort([flows["link"], flows["op"], flows["start_s"]])]


def memory_columns(
    binding: Binding,
    schedule: Schedule,
    events: NDArray[np.void],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
) -> NDArray[np.void]:
    """Memory events at the times of a run without an allocator, of equal times in the order of the simulator.

    Of an instant the ends come first, then the starts that they allow, then the ends of those of them that take no
    time, and so on; each by name.
    """
    resident = np.array([(0.0, -1, r.device, r.kind, r.stage, 0, r.size_bytes) for r in binding.resident], dtype=MEMORY)
    memory = np.empty(len(events), MEMORY)
    for name in ("op", "device", "kind", "stage", "number"):
        memory[name] = events[name]
    op, starts = events["op"], events["when"] == START
    memory["time_s"] = np.where(starts, start_s[op], end_s[op])
    memory["bytes"] = buffer_sizes(binding, events) * events["sign"]
    turn = np.where(starts | (start_s == end_s)[op], _turns(schedule, start_s, end_s)[op] + ~starts, 0)
    memory = memory[np.lexsort([op, starts, turn, memory["time_s"]])]
    return np.concatenate([resident, memory])


def _turns(schedule: Schedule, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> IntColumn:
    """How many ops that take no time must start and end one after another, in its instant, before each op starts."""
    turns, waits = np.zeros(len(schedule), np.int64), schedule.waits_for
    at_once = (start_s == end_s)[waits.values] & (end_s[waits.values] == start_s[waits.owners])
    earlier, later = waits.values[at_once], waits.owners[at_once]
    while bool((turns[later] <= turns[earlier]).any()):
        np.maximum.at(turns, later, turns[earlier] + 1)
    return turns


def buffer_sizes(binding: Binding, events: NDArray[np.void]) -> IntColumn:
    """Bytes of the buffer of each event (dtype `EVENTS`)."""
    code = events["kind"].astype(np.int64) * (int(events["stage"].max(initial=0)) + 1) + events["stage"]
    _, first, member = np.unique(code, return_index=True, return_inverse=True)
    each = zip(events["kind"][first].tolist(), events["stage"][first].tolist(), strict=True)
    return np.array([binding.buffer_bytes[BufferKind(kind), stage] for kind, stage in each], np.int64)[member]


def _check(trace: Trace) -> None:
    """The laws of every run, whatever the backend."""
    if not len(trace.ops):
        raise BrokenInvariant("a run without a single op")
    if bool((trace.start_s < 0).any()) or bool((trace.end_s < trace.start_s).any()):
        raise BrokenInvariant("an op did not run, or ended before it started")
    for lane, ops in zip(trace.lanes, trace.order, strict=True):
        if bool((trace.start_s[ops[1:]] < trace.end_s[ops[:-1]]).any()) and lane.stream != "core":
            raise BrokenInvariant(f"lane d{lane.device}.{lane.stream} overlaps itself or leaves its order")
    dynamic = trace.memory[trace.memory["op"] >= 0]
    if len(dynamic) and int(dynamic["bytes"].sum()):
        raise BrokenInvariant(f"{int(dynamic['bytes'].sum())} bytes were allocated and never released")
    _check_links(trace)


def _check_links(trace: Trace) -> None:
    """No link carries more than its bandwidth allows over the span of its flows, where transfers do not vary."""
    if trace.header.get("parameter_servers", {}).get("variation", {}).get("communication"):
        return
    links = trace.header["links"]
    shared = np.array([link["kind"] in CONTENDED for link in links], bool)
    flows = trace.flows[shared[trace.flows["link"]]] if shared.any() else trace.flows[:0]
    for link in np.unique(flows["link"]).tolist():
        mine = flows[flows["link"] == link]
        end_s = float(mine["end_s"].max())
        span = end_s - float(mine["start_s"].min()) + 8 * math.ulp(end_s)  # the clock is only good to its last bits
        if float(mine["bytes"].sum()) > links[link]["bytes_per_s"] * span * (1 + 1e-9) + 1e-6:
            raise BrokenInvariant(f"link {links[link]['name']} carried more than its bandwidth")
