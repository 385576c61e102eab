"""What a device keeps at once: micro-batches in flight, versions of its weights, predicted weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import staleness
from analysis.intervals import most_at_once
from analysis.staleness import Staleness
from sim.memory.buffers import BufferKind
from sim.op_table import of_kinds
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.rows import IntColumn
from sim.trace import Trace
from sim.weights import reader_of


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The most at any one time, per device of the plan; those of ``stage_`` per stage, all its replicas together.

    ``in_flight``: micro-batches whose forward has started and whose backward has not ended. ``weight_copies``: versions
    of a stage that live at once, the current one included; of the stage with the most, where a device holds several.
    ``predicted_copies``: predicted weights and what predictions are made of, apart from these.
    """

    in_flight: tuple[int, ...]
    stage_in_flight: tuple[int, ...]
    weight_copies: tuple[int, ...]
    stage_weight_copies: tuple[int, ...]
    predicted_copies: tuple[int, ...]


def compute(trace: Trace, measured: Staleness | None = None) -> Occupancy:
    """The occupancy of a run. ``measured`` saves measuring the versions again."""
    measured = measured or staleness.compute(trace)
    in_flight, copies = _in_flight(trace), _weight_copies(trace, measured.version)
    return Occupancy(
        in_flight=in_flight["source"],
        stage_in_flight=in_flight["stage"],
        weight_copies=_tuple(copies.max(axis=1)),
        stage_weight_copies=_tuple(copies.sum(axis=0)),
        predicted_copies=_predicted_copies(trace),
    )


def _in_flight(trace: Trace) -> dict[str, tuple[int, ...]]:
    ops, halves = trace.ops, trace.halves
    forward = np.flatnonzero(of_kinds(ops, FORWARD_KINDS))
    until_s = trace.end_s.copy()
    backward = np.flatnonzero(of_kinds(ops, (*BACKWARD_KINDS, OpKind.FORWARD_BACKWARD)))
    started = halves.find(OpKind.FORWARD, *halves.backward_of(backward))
    np.maximum.at(until_s, started[started >= 0], trace.end_s[backward[started >= 0]])
    sizes = {"source": len(trace.header["devices"]), "stage": trace.shape.stages}
    return {
        column: _tuple(most_at_once(ops[column][forward], trace.start_s[forward], until_s[forward], size))
        for column, size in sizes.items()
    }


def _weight_copies(trace: Trace, version: IntColumn) -> IntColumn:
    """The versions of each stage that live at once on each device: [devices, stages].

    A version lives from the end of its update until it is superseded and its last reader on the device has ended.
    """
    ops, stages = trace.ops, trace.shape.stages
    place = ops["source"].astype(np.int64) * stages + np.maximum(ops["stage"], 0)  # a copy of weights
    places = len(trace.header["devices"]) * stages
    updates = np.flatnonzero(ops["kind"] == OpKind.UPDATE)
    updates = updates[np.lexsort([ops["micro_batch"][updates], trace.end_s[updates], place[updates]])]
    readers = np.flatnonzero((version >= 0) & ~_on_copies(trace))
    held = np.bincount(place[updates], minlength=places)
    exists = held + np.bincount(place[readers], minlength=places) > 0
    first = np.concatenate([[0], np.cumsum((held + 1) * exists)])  # of each copy's versions, version 0 included
    born_s, dead_s = np.zeros(first[-1]), np.full(first[-1], trace.makespan_s)
    number = np.arange(len(updates)) - np.concatenate([[0], np.cumsum(held)])[place[updates]]
    born_s[first[place[updates]] + number + 1] = trace.end_s[updates]
    dead_s[first[place[updates]] + number] = trace.end_s[updates]
    here = version[readers] <= held[place[readers]]  # a worker of a parameter server reads versions made elsewhere
    np.maximum.at(dead_s, (first[place[readers]] + version[readers])[here], trace.end_s[readers[here]])
    owner = np.repeat(np.arange(places), np.diff(first))
    return most_at_once(owner, born_s, dead_s, places).reshape(-1, stages)


def _on_copies(trace: Trace) -> NDArray[np.bool_]:
    """Which ops compute with a prediction that another op made, and so need no version of the weights."""
    ops, header = trace.ops, trace.header
    if header["weights"] != "predict":
        return np.zeros(len(ops), bool)
    reader = reader_of(trace.shape, ops, trace.halves, header["weights"], header["predict"])
    predicting = [stage for stage, ahead in enumerate(header["distances"]) if any(ahead)]
    return np.not_equal(reader, np.arange(len(ops))) & np.isin(ops["stage"], predicting)


def _predicted_copies(trace: Trace) -> tuple[int, ...]:
    """From the buffers of predicted weights: of the events of one name every other one allocates."""
    devices = range(len(trace.header["devices"]))
    events = trace.memory[trace.memory["kind"] == BufferKind.PREDICTED_WEIGHTS]
    if not len(events):
        return (0,) * len(devices)
    by_name = np.lexsort([np.arange(len(events)), *(events[name] for name in ("number", "stage", "device"))])
    _, first, count = np.unique(events[["device", "stage", "number"]][by_name], return_index=True, return_counts=True)
    step = np.empty(len(events), np.int64)
    step[by_name] = 1 - 2 * ((np.arange(len(events)) - np.repeat(first, count)) % 2)
    return tuple(int(np.cumsum(step[events["device"] == device]).max(initial=0)) for device in devices)


def _tuple(column: IntColumn) -> tuple[int, ...]:
    return tuple(int(value) for value in column)
