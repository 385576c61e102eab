"""Insert a transfer wherever a pipeline's data cross from one device to another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.assembly import assemble
from sim.longest_path import unit_slots
from sim.op_table import OPS
from sim.ops import FORWARD_KINDS, Lane, OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule


def apply(schedule: Schedule, holds_lanes: Callable[[int, int], bool]) -> Schedule:
    """The schedule with its sends, and pulls of weights to devices that run forwards and do not update.

    A transfer is one op that holds the send lane of one device and the receive lane of the other (a channel), or no
    lane where ``holds_lanes(source, target)`` is false: a pure delay. A channel carries its transfers in the order in
    which a unit-slot run makes them ready: one order that fits all data dependencies, so channels cannot deadlock.
    """
    found = _sends(schedule, OpKind.SEND_ACTIVATION, +1), _sends(schedule, OpKind.SEND_GRADIENT, -1)
    moves, producer = (
        np.concatenate(columns) for columns in zip(*found, _saved(schedule), _pulls(schedule), strict=True)
    )
    if not len(moves):
        return schedule
    _, end = unit_slots(schedule)
    by_time = np.lexsort([moves["stage"], moves["micro_batch"], end[producer]])
    channels: dict[Lane, list[int]] = {}
    for place in by_time:
        source, target = int(moves["source"][place]), int(moves["target"][place])
        if holds_lanes(source, target):
            for lane in (Lane(source, f"send>{target}"), Lane(target, f"recv<{source}")):
                channels.setdefault(lane, []).append(len(schedule) + int(place))
    return assemble(
        schedule.shape,
        [*schedule.lanes, *channels],
        np.concatenate([schedule.ops, moves]),
        [*schedule.order, *channels.values()],
        schedule.extra,
        schedule.weights,
        schedule.distances,
        schedule.predict,
    )


Name = tuple[IntColumn, IntColumn, IntColumn]
"""Stages, micro-batches (of a pull: versions) and replicas."""

Moves = tuple[NDArray[np.void], IntColumn]
"""Transfers (dtype `OPS`), and the op that makes what each carries."""


def _sends(schedule: Schedule, kind: OpKind, step: int) -> Moves:
    """Transfers from every stage to the stage ``step`` further."""
    ops, halves = schedule.ops, schedule.halves
    forward = step > 0
    kinds = FORWARD_KINDS if forward else (OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.FORWARD_BACKWARD)
    producer = np.flatnonzero(np.isin(ops["kind"], kinds))
    op = ops[producer]
    name = (op["stage"], op["micro_batch"], op["replica"]) if forward else halves.backward_of(producer)
    stage, micro_batch, replica = name
    wanted = (OpKind.FORWARD,) if forward else (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)
    found = [halves.find(want, stage + step, micro_batch, replica, anywhere=True) for want in wanted]
    consumer = np.maximum.reduce(found)
    return _moves(schedule, kind, name, producer, consumer)


def _saved(schedule: Schedule) -> Moves:
    """What a forward saves, to the device of its backward."""
    ops, halves = schedule.ops, schedule.halves
    producer = np.flatnonzero(ops["kind"] == OpKind.FORWARD)
    op = ops[producer]
    name = op["stage"], op["micro_batch"], op["replica"]
    consumer = np.maximum(halves.find(OpKind.BACKWARD, *name), halves.find(OpKind.BACKWARD_INPUT, *name))
    return _moves(schedule, OpKind.SEND_SAVED, name, producer, consumer)


def _pulls(schedule: Schedule) -> Moves:
    """Each version of a stage's weights that is read on another device than the one that made it."""
    ops, halves = schedule.ops, schedule.halves
    reader = np.flatnonzero(ops["kind"] == OpKind.FORWARD)
    op = ops[reader]
    update = halves.find(OpKind.UPDATE, op["stage"], op["reads"] - 1, op["replica"])
    away = (update >= 0) & (ops["source"][update] != op["source"])
    update, first = np.unique(update[away], return_index=True)
    reader = reader[away][first]
    op = ops[reader]
    name = op["stage"], op["reads"], op["replica"]
    moves, producer = _moves(schedule, OpKind.PULL, name, update, reader)
    moves["reads"] = moves["micro_batch"]
    return moves, producer


def _moves(schedule: Schedule, kind: OpKind, name: Name, producer: IntColumn, consumer: IntColumn) -> Moves:
    """A transfer from each producer to its consumer (−1: none), where that is on another device and not there yet."""
    source, target = schedule.ops["source"][producer], schedule.ops["source"][consumer]
    crosses = (consumer >= 0) & (source != target) & (schedule.halves.find(kind, *name) < 0)
    moves = np.zeros(int(crosses.sum()), OPS)
    for column in ("part", "other_stage", "other_micro_batch", "reads", "writes"):
        moves[column] = -1
    columns = ("stage", "micro_batch", "replica", "source", "target")
    for column, values in zip(columns, (*name, source, target), strict=True):
        moves[column] = values[crosses]
    moves["kind"] = kind
    return moves, producer[crosses]
