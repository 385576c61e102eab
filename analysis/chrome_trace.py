"""A run as Chrome-trace JSON, which opens in Perfetto and chrome://tracing.

Trace Event Format: a process per device and one for the links, a thread per lane, an ``X`` slice per op and lane it
holds, ``s``/``f`` arrows along transfers, ``C`` counters for live memory and for transfers under way on each link.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from analysis.intervals import Times
from sim.memory.buffers import BufferKind, Category
from sim.op_table import Halves
from sim.ops import BACKWARD_KINDS, OpId, OpKind
from sim.rows import IntColumn
from sim.trace import Trace

Event = dict[str, Any]

_MICROSECONDS = 1e6
_INSIDE_S = 1e-9
"""An arrow leaves this long before its slice ends: at the very end it would miss the slice."""


def export(trace: Trace) -> dict[str, Any]:
    """The JSON object of a run; times in microseconds."""
    return {
        "traceEvents": [
            *_labels(trace),
            *_slices(trace),
            *_arrows(trace),
            *_memory(trace),
            *_transfers_under_way(trace),
        ],
        "displayTimeUnit": "ms",
        "otherData": {key: trace.header[key] for key in ("method", "model", "backend", "seed", "versions")},
    }


def _labels(trace: Trace) -> Iterator[Event]:
    """Names and order of processes and threads."""

    def label(what: str, process: int, thread: int, argument: str, value: str | int) -> Event:
        return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": {argument: value}}

    for process, name in enumerate([*trace.header["devices"], "links"], 1):
        yield label("process_name", process, 0, "name", name)
        yield label("process_sort_index", process, 0, "sort_index", process)
    for thread, lane in enumerate(trace.lanes, 1):
        yield label("thread_name", lane.device + 1, thread, "name", lane.stream)
        yield label("thread_sort_index", lane.device + 1, thread, "sort_index", thread)


def _slices(trace: Trace) -> Iterator[Event]:
    kinds = list(OpKind)
    names = [OpId(kinds[row[0]], *row[1:7]) for row in trace.ops.tolist()]
    start_us, reads = (trace.start_s * _MICROSECONDS).tolist(), trace.ops["reads"].tolist()
    length_us = ((trace.end_s - trace.start_s) * _MICROSECONDS).tolist()
    for number, op in zip(trace.lanes_of.values.tolist(), trace.lanes_of.owners.tolist(), strict=True):
        name = names[op]
        arguments = {"stage": name.stage, "micro_batch": name.micro_batch, "replica": name.replica}
        if reads[op] >= 0:
            arguments["reads_version"] = reads[op]
        yield {
            "name": str(name),
            "cat": name.kind.name.lower(),
            "ph": "X",
            "ts": start_us[op],
            "dur": length_us[op],
            "pid": trace.lanes[number].device + 1,
            "tid": number + 1,
            "args": arguments,
        }


def _arrows(trace: Trace) -> Iterator[Event]:
    """From the op that made what a transfer carries to the op that uses it; along the transfer itself at a server."""
    op, producer, leaves, consumer, arrives = carried(trace)
    leaves_s = np.where(producer == op, trace.start_s[producer], _inside_end(trace, producer))
    arrives_s = np.where(consumer == op, _inside_end(trace, consumer), trace.start_s[consumer])
    for phase, lanes, times_s, more in (("s", leaves, leaves_s, {}), ("f", arrives, arrives_s, {"bp": "e"})):
        for number, lane, time_us in zip(op.tolist(), lanes.tolist(), (times_s * _MICROSECONDS).tolist(), strict=True):
            event = {"name": "transfer", "cat": "transfer", "ph": phase, "id": number, "ts": time_us}
            yield event | {"pid": trace.lanes[lane].device + 1, "tid": lane + 1} | more


def _inside_end(trace: Trace, op: IntColumn) -> Times:
    return np.maximum(trace.end_s[op] - _INSIDE_S, trace.start_s[op])


class Carried(NamedTuple):
    """Transfers by op number, with the op that made what each carries and the op that uses it, and their lanes.

    At a server both are the transfer itself.
    """

    transfer: IntColumn
    producer: IntColumn
    leaves: IntColumn
    consumer: IntColumn
    arrives: IntColumn


def carried(trace: Trace) -> Carried:
    """What was sent from a lane to a lane."""
    ops, halves = trace.ops, Halves(trace.ops)

    def passes(kinds: tuple[OpKind, ...], transfers: IntColumn, step: int) -> IntColumn:
        name = ops["stage"][transfers] + step, ops["micro_batch"][transfers], ops["replica"][transfers]
        found: IntColumn = np.maximum.reduce([halves.find(kind, *name) for kind in kinds])
        return found

    rows: list[IntColumn] = []
    for kind, kinds, step in (
        (OpKind.SEND_ACTIVATION, (OpKind.FORWARD,), 1),
        (OpKind.SEND_GRADIENT, BACKWARD_KINDS[:2], -1),
    ):
        transfers = np.flatnonzero(ops["kind"] == kind)
        rows.append(np.stack([transfers, passes(kinds, transfers, 0), passes(kinds, transfers, step)]))
    served = np.flatnonzero(np.isin(ops["kind"], (OpKind.PULL, OpKind.PUSH)))
    found = np.concatenate([*rows, np.stack([served, served, served])], axis=1)
    transfer, producer, consumer = found[:, (found >= 0).all(axis=0)]
    leaves = _lane_on(trace, producer, ops["source"][transfer])
    arrives = _lane_on(trace, consumer, ops["target"][transfer])
    shown = (leaves >= 0) & (arrives >= 0)
    return Carried(*(column[shown] for column in (transfer, producer, leaves, consumer, arrives)))


def _lane_on(trace: Trace, op: IntColumn, device: IntColumn) -> IntColumn:
    """The lane that each op holds on a device, −1 where it holds none."""
    devices = len(trace.header["devices"])
    device_of = np.array([lane.device for lane in trace.lanes], np.int64)
    held, first = np.unique(trace.lanes_of.owners * devices + device_of[trace.lanes_of.values], return_index=True)
    wanted = op * devices + device
    place = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
    return np.where(held[place] == wanted, trace.lanes_of.values[first[place]], -1)


def live_bytes(trace: Trace, device: int) -> Iterator[tuple[float, dict[str, int]]]:
    """Time and live bytes by category of a device, whenever they change."""
    category_of = {kind: list(Category).index(kind.category) for kind in BufferKind}
    events = trace.memory[trace.memory["device"] == device]
    category = np.array([category_of[BufferKind(kind)] for kind in events["kind"].tolist()], np.int64)
    live = {
        str(name): np.cumsum(np.where(category == number, events["bytes"], 0)).tolist()
        for number, name in enumerate(Category)
        if (category == number).any()
    }
    for row, time_s in _last_of_each(events["time_s"]):
        yield time_s, {name: column[row] for name, column in live.items()}


def _memory(trace: Trace) -> Iterator[Event]:
    for device in range(len(trace.header["devices"])):
        for time_s, live in live_bytes(trace, device):
            yield {
                "name": "live bytes",
                "ph": "C",
                "ts": time_s * _MICROSECONDS,
                "pid": device + 1,
                "tid": 0,
                "args": live,
            }


def _transfers_under_way(trace: Trace) -> Iterator[Event]:
    """The number of transfers under way on each link, whenever it changes."""
    for link in np.unique(trace.flows["link"]).tolist():
        flows = trace.flows[trace.flows["link"] == link]
        time_s, step = np.concatenate([flows["start_s"], flows["end_s"]]), np.repeat([1, -1], len(flows))
        in_order = np.argsort(time_s, kind="stable")
        under_way = np.cumsum(step[in_order]).tolist()
        for row, at_s in _last_of_each(time_s[in_order]):
            yield {
                "name": trace.header["links"][link]["name"],
                "ph": "C",
                "ts": at_s * _MICROSECONDS,
                "pid": len(trace.header["devices"]) + 1,
                "tid": 0,
                "args": {"transfers": under_way[row]},
            }


def _last_of_each(time_s: Times) -> Iterator[tuple[int, float]]:
    """The last row of each instant, with its time."""
    rows = np.flatnonzero(np.append(time_s[1:] > time_s[:-1], True)[: len(time_s)])
    return zip(rows.tolist(), time_s[rows].tolist(), strict=True)
