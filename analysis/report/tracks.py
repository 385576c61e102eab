"""What the time line of a page draws: lanes, memory and links of a trace, as JSON types and columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import memory_plot, memory_timeline, usage, utilization
from analysis.gantt import STYLES
from analysis.report.columns import Columns
from sim.op_table import OPS, PASS_KINDS
from sim.ops import OpKind
from sim.recording import MOVING_KINDS
from sim.trace import Trace

Json = dict[str, Any]


def kinds() -> list[Json]:
    """What each kind of op is called and how it looks, by its code. ``whole``: named by mini-batch, not micro-batch."""
    return [
        {
            "text": kind.text,
            "name": kind.name.lower().replace("_", " "),
            "label": STYLES[kind].label,
            "colour": STYLES[kind].colour,
            "ink": STYLES[kind].ink,
            "moves": kind in MOVING_KINDS,
            "whole": kind not in PASS_KINDS,
        }
        for kind in OpKind
    ]


def compute(trace: Trace) -> Json:
    """The tracks of a run.

    ``ops`` has the columns of the trace's op table, the times, and ``bytes`` of what moves (0 elsewhere). ``rows`` are
    lanes with their ops in order of start, by device. ``memory`` has a level in bytes for each category at each moment.
    ``links`` has the share of the bandwidth in use from each time on (`analysis.utilization`).
    """
    columns, used = Columns(), usage.compute(trace)
    carried_bytes = np.zeros(len(trace.ops))
    np.maximum.at(carried_bytes, trace.flows["op"], trace.flows["bytes"])
    ops = {name: columns.add(trace.ops[name]) for name in OPS.names or ()}
    ops |= {
        "start_s": columns.add(trace.start_s),
        "end_s": columns.add(trace.end_s),
        "bytes": columns.add(carried_bytes),
    }
    devices = (*used.accelerators, *used.hosts)
    return {
        "count": len(trace.ops),
        "end_s": trace.makespan_s,
        "micro_batches": trace.shape.micro_batches,
        "replicas": trace.shape.replicas,
        "devices": [str(name) for name in trace.header["devices"]],
        "ops": ops,
        "rows": [row for device in devices for row in _rows(trace, device, columns)],
        "memory": [found for device in devices if (found := _memory(trace, device, columns))],
        "links": [_link(trace, link, columns) for link in utilization.limited(trace)],
        "columns": columns.text,
    }


def _rows(trace: Trace, device: int, columns: Columns) -> list[Json]:
    """The lanes of a device on which something runs, those that compute first."""
    lanes = [number for number, lane in enumerate(trace.lanes) if lane.device == device and len(trace.order[number])]
    lanes.sort(key=lambda number: (not trace.lanes[number].computes, number))
    rows = []
    for number in lanes:
        lane, ops = trace.lanes[number], trace.order[number]
        by_start = ops[np.lexsort([trace.end_s[ops], trace.start_s[ops]])]
        label = _stream(trace, lane.stream)
        row = {"device": device, "label": label, "computes": lane.computes, "ops": columns.add(by_start)}
        rows.append(row)
    return rows


def _stream(trace: Trace, stream: str) -> str:
    """The name of a lane, its peer by name."""
    for mark in "><":
        what, found, peer = stream.partition(mark)
        if found and peer.isdigit() and int(peer) < len(trace.header["devices"]):
            return f"{what} {mark} {trace.header['devices'][int(peer)]}"
    return stream


def _memory(trace: Trace, device: int, columns: Columns) -> Json | None:
    timeline = memory_timeline.of_trace(trace, device)
    if not len(timeline.time_s):
        return None
    return {
        "device": device,
        "capacity_bytes": capacity_bytes(trace, device),
        "time_s": columns.add(timeline.time_s),
        "categories": [
            {"name": name, "colour": memory_plot.colour(name), "bytes": columns.add(timeline.by_category[name])}
            for name in memory_plot.ordered(timeline.by_category)
        ],
        "reserved": None if timeline.reserved is None else columns.add(timeline.reserved),
    }


def capacity_bytes(trace: Trace, device: int) -> int | None:
    """What a device holds; ``None``: nothing limits it, or the trace does not say."""
    known = trace.header.get("capacity_bytes", ())
    return known[device] if device < len(known) else None


def _link(trace: Trace, link: int, columns: Columns) -> Json:
    figures = trace.header["links"][link]
    time_s, share = utilization.compute(trace, link)
    return {
        "name": str(figures["name"]),
        "kind": str(figures["kind"]),
        "bytes_per_s": float(figures["bytes_per_s"]),
        "time_s": columns.add(time_s),
        "utilization": columns.add(share),
    }
