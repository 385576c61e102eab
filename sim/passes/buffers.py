"""What memory every op of a pipeline allocates and releases, as symbolic events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.memory.buffers import END, EVENTS, START, BufferKind
from sim.op_table import Halves
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule

Events = NDArray[np.void]

GRADIENT_KINDS = (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)
"""Backwards that compute with weights; a weight gradient needs none."""


def apply(schedule: Schedule) -> Events:
    """Buffer events of a schedule (dtype `EVENTS`), sorted by op and when, releases first.

    Activations live from forward (or from their recomputation) to the end of backward; where that is split, the
    input gradient leaves the weight state of them to the weight gradient. What a stage receives, input and output
    gradient, lives to the end of the last op of backward, the input gradient it sends until that has left; a weight
    version is stashed by the update that supersedes it until its last reader ends; a prediction lives until the
    last op that uses it ends.
    """
    ops = schedule.ops
    halves, forward = schedule.halves, np.flatnonzero(np.isin(ops["kind"], FORWARD_KINDS))
    op = ops[forward]
    again = halves.find(OpKind.RECOMPUTE, op["stage"], op["micro_batch"], op["replica"])
    recomputes = again >= 0
    saving = np.where(recomputes, again, forward)
    chunks = [_saved(schedule, saving, forward, BufferKind.ACTIVATION), _weight_states(schedule)]
    chunks.append(_saved(schedule, forward[recomputes], forward[recomputes], BufferKind.CHECKPOINT))
    send = np.flatnonzero(ops["kind"] == OpKind.SEND_ACTIVATION)
    op = ops[send]
    consumer = halves.find(OpKind.FORWARD, op["stage"] + 1, op["micro_batch"], op["replica"], anywhere=True)
    chunks.append(_saved(schedule, send, consumer, BufferKind.RECEIVED_ACTIVATION))
    send = np.flatnonzero(ops["kind"] == OpKind.SEND_GRADIENT)
    op = ops[send]
    consumer = _gradient_of(halves, op["stage"] - 1, op["micro_batch"], op["replica"])
    name = halves.backward_of(consumer)
    weight = halves.find(OpKind.BACKWARD_WEIGHT, *name)
    last = np.where(weight >= 0, weight, consumer)
    chunks.append(_live(schedule, send, last, BufferKind.OUTPUT_GRADIENT, consumer, name))
    producer = _gradient_of(halves, op["stage"], op["micro_batch"], op["replica"])
    name = halves.backward_of(producer)
    chunks.append(_live(schedule, producer, send, BufferKind.INPUT_GRADIENT, producer, name))
    chunks.append(_stashes(schedule))
    chunks.append(_predictions(schedule))
    chunks.append(_averages(schedule))
    events = np.concatenate(chunks)
    return events[np.lexsort([events["sign"], events["when"], events["op"]])]


def _saved(schedule: Schedule, alloc: IntColumn, forward: IntColumn, kind: BufferKind) -> Events:
    """What each backward needs of its forward; on a device of its own from the transfer that brings it."""
    last = OpKind.BACKWARD_INPUT if kind is BufferKind.ACTIVATION else OpKind.BACKWARD_WEIGHT
    op, backward = schedule.ops[forward], _released_by(schedule, forward, last)
    sent = schedule.halves.find(OpKind.SEND_SAVED, op["stage"], op["micro_batch"], op["replica"])
    away = sent >= 0
    here = _live(schedule, alloc, np.where(away, sent, backward), kind, forward)
    return np.concatenate([here, _live(schedule, sent[away], backward[away], kind, backward[away])])


def _weight_states(schedule: Schedule) -> Events:
    """What each weight gradient needs, from the end of its input gradient."""
    weight = np.flatnonzero(schedule.ops["kind"] == OpKind.BACKWARD_WEIGHT)
    op = schedule.ops[weight]
    split = schedule.halves.find(OpKind.BACKWARD_INPUT, op["stage"], op["micro_batch"], op["replica"])
    events = _live(schedule, split, weight, BufferKind.WEIGHT_STATE)
    events["when"] = END
    return events


def _predictions(schedule: Schedule) -> Events:
    """Predicted copies of weights: from the op that predicts to the last that computes with the copy.

    Where forward and backward have lanes of their own, the backward lane, which also updates, moves the weights ahead
    in place and back, and only the forward beside it needs a copy: one temporary at a time on either time line.
    """
    forward, backward = _predicting(schedule, FORWARD_KINDS[:1], 0), _predicting(schedule, GRADIENT_KINDS, 1)
    if schedule.predict == "pipeoptim":
        return _live(
            schedule, forward, _released_by(schedule, forward, OpKind.BACKWARD_INPUT), BufferKind.PREDICTED_WEIGHTS
        )
    backward = backward[~_in_place(schedule, backward)]
    (forward, forward_last), (backward, last) = (_shared(schedule, each) for each in (forward, backward))
    ahead = _live(schedule, forward, forward_last, BufferKind.PREDICTED_WEIGHTS)
    return np.concatenate([ahead, _live(schedule, backward, last, BufferKind.PREDICTED_WEIGHTS, last)])


def _shared(schedule: Schedule, predicting: IntColumn) -> tuple[IntColumn, IntColumn]:
    """The first and last user of each prediction: under XPipe a mini-batch shares one."""
    if schedule.predict != "xpipe":
        return predicting, predicting
    count = schedule.shape.micro_batches
    first = predicting[schedule.ops["micro_batch"][predicting] % count == 0]
    op = schedule.ops[first]
    return first, schedule.halves.find(op["kind"], op["stage"], op["micro_batch"] + count - 1, op["replica"])


def _predicting(schedule: Schedule, kinds: tuple[OpKind, ...], side: int) -> IntColumn:
    """The forwards (side 0) or backwards (1) of stages that predict."""
    stages = [stage for stage, ahead in enumerate(schedule.distances) if ahead[side]]
    return np.flatnonzero(np.isin(schedule.ops["kind"], kinds) & np.isin(schedule.ops["stage"], stages))


def _in_place(schedule: Schedule, backward: IntColumn) -> NDArray[np.bool_]:
    """Whether a backward runs on another lane than its forward."""
    lane, op = np.full(len(schedule), -1), schedule.ops[backward]
    lane[schedule.order.values] = schedule.order.owners
    forward = schedule.halves.find(OpKind.FORWARD, op["stage"], op["micro_batch"], op["replica"])
    return np.asarray(lane[forward] != lane[backward])


def _averages(schedule: Schedule) -> Events:
    """PipeMare's average of updates: one more buffer of the size of the weights, number −1, all along."""
    if schedule.predict != "pipemare":
        return np.empty(0, EVENTS)
    ops, updates = schedule.ops, schedule.ops["kind"] == OpKind.UPDATE
    first, last = list[int](), list[int]()
    for stage in (stage for stage, (_, back) in enumerate(schedule.distances) if back):
        for row in schedule.order:
            mine = row[ops["stage"][row] == stage]
            if updates[mine].any():
                first, last = [*first, int(mine[0])], [*last, int(mine[-1])]
    events = _live(schedule, np.array(first, np.int64), np.array(last, np.int64), BufferKind.PREDICTED_WEIGHTS)
    events["number"] = -1
    return events


def _gradient_of(halves: Halves, stage: IntColumn, micro_batch: IntColumn, replica: IntColumn) -> IntColumn:
    full = halves.find(OpKind.BACKWARD, stage, micro_batch, replica, anywhere=True)
    return np.where(full >= 0, full, halves.find(OpKind.BACKWARD_INPUT, stage, micro_batch, replica, anywhere=True))


def _released_by(schedule: Schedule, forward: IntColumn, last: OpKind = OpKind.BACKWARD_WEIGHT) -> IntColumn:
    """The op whose end frees what each forward saved: ``last`` where backward is split, else its (last part)."""
    op, halves = schedule.ops[forward], schedule.halves
    name = op["stage"], op["micro_batch"], op["replica"]
    candidates = [halves.find(last, *name), halves.find(OpKind.BACKWARD, *name)]
    candidates.append(halves.find(OpKind.BACKWARD, *name, 0))
    return np.select([found >= 0 for found in candidates], candidates, -1)


def _live(
    schedule: Schedule,
    alloc: IntColumn,
    free: IntColumn,
    kind: BufferKind,
    owner: IntColumn | None = None,
    name: tuple[IntColumn, IntColumn, IntColumn] | None = None,
) -> Events:
    """Buffers allocated when ``alloc`` starts and released when ``free`` ends, on the device of ``owner``.

    ``name``: stage and micro-batch they belong to, where these are not the owner's.
    """
    op = schedule.ops[alloc if owner is None else owner]
    stage, micro_batch, _ = name or (op["stage"], op["micro_batch"], None)
    events = np.zeros(2 * len(alloc), EVENTS)
    for half, (at, when, sign) in zip(np.split(events, 2), ((alloc, START, 1), (free, END, -1)), strict=True):
        half["op"], half["when"], half["sign"], half["kind"] = at, when, sign, kind
        half["device"], half["stage"], half["number"] = op["source"], stage, micro_batch
    return events


def _stashes(schedule: Schedule) -> Events:
    """Copies of weight versions: one for each version that still has a reader when it is superseded."""
    ops = schedule.ops
    place = np.zeros(len(ops), np.int64)
    place[schedule.order.values] = np.arange(len(schedule.order.values))
    updates = np.flatnonzero(ops["kind"] == OpKind.UPDATE)
    last_reader = np.full(len(ops), -1, np.int64)
    readers = np.flatnonzero(np.isin(ops["kind"], BACKWARD_KINDS) & (ops["reads"] >= 0))
    if schedule.predict == "pipeoptim":
        readers = np.setdiff1d(
            readers, _predicting(schedule, BACKWARD_KINDS, 0)
        )  # they keep their forward's prediction
    op = ops[readers]
    superseding = schedule.halves.find(OpKind.UPDATE, op["stage"], op["reads"], op["replica"])
    by_place = np.argsort(place[readers], kind="stable")
    late = by_place[(superseding[by_place] >= 0) & (place[readers] > place[superseding])[by_place]]
    last_reader[superseding[late]] = readers[late]
    stashed = updates[last_reader[updates] >= 0]
    return _live(schedule, stashed, last_reader[stashed], BufferKind.STASHED_WEIGHTS)
