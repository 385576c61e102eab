"""What memory every op of a pipeline allocates and releases, as symbolic events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.memory.buffers import END, EVENTS, START, BufferKind
from sim.ops import Lane, OpKind
from sim.schedule import BACKWARD_KINDS, FORWARD_KINDS, Halves, IntColumn, Schedule

Events = NDArray[np.void]


def apply(schedule: Schedule) -> Events:
    """Buffer events of a schedule (dtype `EVENTS`), sorted by op and when, allocations first.

    Activations and the received input of a stage live from forward to the end of the last backward op; the received
    output gradient and the input gradient to send live until the op that uses them ends; a weight version is stashed by
    the update that supersedes it until its last reader ends; a prediction lives as long as the op that predicts.
    """
    ops = schedule.ops
    forward = np.flatnonzero(np.isin(ops["kind"], FORWARD_KINDS))
    chunks = [_live(schedule, forward, _released_by(schedule, forward), BufferKind.ACTIVATION)]
    send = np.flatnonzero(ops["kind"] == OpKind.SEND_ACTIVATION)
    halves = Halves(ops)
    op = ops[send]
    consumer = halves.find(OpKind.FORWARD, op["stage"] + 1, op["micro_batch"], op["replica"], anywhere=True)
    chunks.append(_live(schedule, send, _released_by(schedule, consumer), BufferKind.RECEIVED_ACTIVATION, consumer))
    send = np.flatnonzero(ops["kind"] == OpKind.SEND_GRADIENT)
    op = ops[send]
    consumer = _gradient_of(halves, op["stage"] - 1, op["micro_batch"], op["replica"])
    chunks.append(_live(schedule, send, consumer, BufferKind.OUTPUT_GRADIENT, consumer))
    producer = _gradient_of(halves, op["stage"], op["micro_batch"], op["replica"])
    chunks.append(_live(schedule, producer, send, BufferKind.INPUT_GRADIENT, producer))
    chunks.append(_stashes(schedule))
    predicting = _predicting(schedule)
    chunks.append(_live(schedule, predicting, predicting, BufferKind.PREDICTED_WEIGHTS))
    events = np.concatenate(chunks)
    return events[np.lexsort([-events["sign"], events["when"], events["op"]])]


def _predicting(schedule: Schedule) -> IntColumn:
    """The ops that run on a predicted copy of their weights.

    Where forward and backward have lanes of their own, the backward lane, which also updates, moves the weights ahead
    in place and back, and only the forward beside it needs a copy: one temporary at a time on either time line.
    """
    ops = schedule.ops
    chosen = np.zeros(len(ops), bool)
    for stage, ahead in enumerate(schedule.distances):
        for kind, distance in zip((OpKind.FORWARD, OpKind.BACKWARD), ahead, strict=True):
            in_place = kind is OpKind.BACKWARD and Lane(stage, "forward") in schedule.lanes
            if distance and not in_place:
                chosen |= (ops["kind"] == kind) & (ops["stage"] == stage)
    return np.flatnonzero(chosen)


def _gradient_of(halves: Halves, stage: IntColumn, micro_batch: IntColumn, replica: IntColumn) -> IntColumn:
    full = halves.find(OpKind.BACKWARD, stage, micro_batch, replica, anywhere=True)
    return np.where(full >= 0, full, halves.find(OpKind.BACKWARD_INPUT, stage, micro_batch, replica, anywhere=True))


def _released_by(schedule: Schedule, forward: IntColumn) -> IntColumn:
    """The op whose end frees what each forward saved: the weight gradient, else the (last part of the) backward."""
    op, halves = schedule.ops[forward], Halves(schedule.ops)
    name = op["stage"], op["micro_batch"], op["replica"]
    candidates = [halves.find(OpKind.BACKWARD_WEIGHT, *name), halves.find(OpKind.BACKWARD, *name)]
    candidates.append(halves.find(OpKind.BACKWARD, *name, 0))
    return np.select([found >= 0 for found in candidates], candidates, -1)


def _live(
    schedule: Schedule, alloc: IntColumn, free: IntColumn, kind: BufferKind, owner: IntColumn | None = None
) -> Events:
    """Buffers allocated when ``alloc`` starts and released when ``free`` ends, of the stage of ``owner``."""
    op = schedule.ops[alloc if owner is None else owner]
    events = np.zeros(2 * len(alloc), EVENTS)
    for half, (at, when, sign) in zip(np.split(events, 2), ((alloc, START, 1), (free, END, -1)), strict=True):
        half["op"], half["when"], half["sign"], half["kind"] = at, when, sign, kind
        half["device"], half["stage"], half["number"] = op["source"], op["stage"], op["micro_batch"]
    return events


def _stashes(schedule: Schedule) -> Events:
    """Copies of weight versions: one for each version that still has a reader when it is superseded."""
    ops = schedule.ops
    place = np.zeros(len(ops), np.int64)
    place[schedule.order.values] = np.arange(len(schedule.order.values))
    updates = np.flatnonzero(ops["kind"] == OpKind.UPDATE)
    last_reader = np.full(len(ops), -1, np.int64)
    readers = np.flatnonzero(np.isin(ops["kind"], BACKWARD_KINDS) & (ops["reads"] >= 0))
    op = ops[readers]
    superseding = Halves(ops).find(OpKind.UPDATE, op["stage"], op["reads"], op["replica"])
    by_place = np.argsort(place[readers], kind="stable")
    late = by_place[(superseding[by_place] >= 0) & (place[readers] > place[superseding])[by_place]]
    last_reader[superseding[late]] = readers[late]
    stashed = updates[last_reader[updates] >= 0]
    return _live(schedule, stashed, last_reader[stashed], BufferKind.STASHED_WEIGHTS)
