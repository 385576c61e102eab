"""The dependencies of a pipeline, written once: who waits for whom by the data of training and by weight versions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.op_table import Halves
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule import Shape


def dependencies(
    shape: Shape, ops: NDArray[np.void], halves: Halves, order: Rows, reader: IntColumn
) -> tuple[IntColumn, IntColumn]:
    """Who waits for whom by the data of training: (earlier, later) rows.

    A forward waits for the forward before it (through its transfer where there is one), a backward for its own
    forward and the backward after it, a weight gradient for its input gradient, an all-reduce for the gradients it
    sums, an update for all gradients of its mini-batch; a recomputation comes between its forward and backward. For
    versions see `_version_edges`.
    """
    pairs: list[tuple[IntColumn, IntColumn]] = []

    def link(later: IntColumn, earlier: IntColumn) -> NDArray[np.bool_]:
        found = earlier >= 0
        pairs.append((earlier[found], later[found]))
        return found

    def feed(earlier: IntColumn, later: IntColumn) -> None:
        pairs.append((earlier[later >= 0], later[later >= 0]))

    def rows(*kinds: OpKind) -> tuple[IntColumn, Any]:
        index = np.flatnonzero(np.isin(ops["kind"], kinds))
        return index, ops[index]

    def gradient(stage: Any, micro_batch: Any, replica: Any, part: Any = -1) -> IntColumn:
        full = halves.find(OpKind.BACKWARD, stage, micro_batch, replica, part, anywhere=True)
        split = halves.find(OpKind.BACKWARD_INPUT, stage, micro_batch, replica, part, anywhere=True)
        return np.where(full >= 0, full, split)

    def needs_input(later: IntColumn, stage: Any, micro_batch: Any, replica: Any) -> None:
        arrived = link(later, halves.find(OpKind.SEND_ACTIVATION, stage - 1, micro_batch, replica, anywhere=True))
        link(later[~arrived], halves.find(OpKind.FORWARD, stage - 1, micro_batch, replica, anywhere=True)[~arrived])

    def needs_gradient(later: IntColumn, stage: Any, micro_batch: Any, replica: Any) -> None:
        brought = link(later, halves.find(OpKind.SEND_SAVED, stage, micro_batch, replica))
        link(later[~brought], halves.find(OpKind.FORWARD, stage, micro_batch, replica)[~brought])
        arrived = link(later, halves.find(OpKind.SEND_GRADIENT, stage + 1, micro_batch, replica, anywhere=True))
        link(later[~arrived], gradient(stage + 1, micro_batch, replica)[~arrived])

    index, op = rows(*FORWARD_KINDS)
    needs_input(index, op["stage"], op["micro_batch"], op["replica"])
    index, _ = rows(OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.FORWARD_BACKWARD)
    needs_gradient(index, *halves.backward_of(index))
    index, op = rows(OpKind.RECOMPUTE)
    name = op["stage"], op["micro_batch"], op["replica"]
    link(index, halves.find(OpKind.FORWARD, *name))
    for kind in (OpKind.BACKWARD, OpKind.BACKWARD_INPUT):
        feed(index, halves.find(kind, *name))
    index, op = rows(OpKind.SEND_ACTIVATION, OpKind.SEND_SAVED)
    link(index, halves.find(OpKind.FORWARD, op["stage"], op["micro_batch"], op["replica"]))
    index, op = rows(OpKind.SEND_GRADIENT)
    link(index, gradient(op["stage"], op["micro_batch"], op["replica"]))
    index, op = rows(OpKind.BACKWARD_WEIGHT)
    link(index, halves.find(OpKind.BACKWARD_INPUT, op["stage"], op["micro_batch"], op["replica"], op["part"]))
    index, op = rows(*BACKWARD_KINDS, OpKind.FORWARD_BACKWARD)
    stage, micro_batch, replica = halves.backward_of(index)
    mini_batch = shape.update_of(stage, micro_batch)
    feed(index, halves.find(OpKind.ALL_REDUCE, stage, mini_batch, 0, op["part"]))
    feed(index, halves.find(OpKind.UPDATE, stage, mini_batch, replica))
    index, op = rows(OpKind.ALL_REDUCE)
    for copy in range(shape.weight_sets):
        feed(index, halves.find(OpKind.UPDATE, op["stage"], op["micro_batch"], copy))
    pairs.extend(_version_edges(ops, halves, order, reader))
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _version_edges(
    ops: NDArray[np.void], halves: Halves, order: Rows, reader: IntColumn
) -> list[tuple[IntColumn, IntColumn]]:
    """Order between forwards and the updates of their stage where they stand on different lanes.

    A forward waits for the update it must see; the one it must not see waits for the forward, unless its version is
    kept. On a device that does not update, pulls take the place of updates; a pull itself stands between two updates.
    """
    lane = np.full(len(ops), -1, np.int64)
    lane[order.values] = order.owners
    forward, pull = (np.flatnonzero(ops["kind"] == kind) for kind in (OpKind.FORWARD, OpKind.PULL))

    def found(kind: OpKind, rows: IntColumn, ahead: int) -> IntColumn:
        op = ops[rows]
        return halves.find(kind, op["stage"], op["reads"] + ahead, op["replica"])

    pulled, pulled_next = (found(OpKind.PULL, forward, ahead) for ahead in (0, 1))
    pulled, pulled_next = (np.where(ops["reads"][pulls] >= 0, pulls, -1) for pulls in (pulled, pulled_next))
    made, made_next = (found(OpKind.UPDATE, forward, ahead) for ahead in (-1, 0))
    made_next = np.where(ops["source"][made_next] == ops["source"][forward], made_next, -1)
    seen, unseen = np.where(pulled >= 0, pulled, made), np.where(pulled_next >= 0, pulled_next, made_next)
    before = (seen >= 0) & (lane[seen] != lane[forward])
    behind = (unseen >= 0) & (lane[unseen] != lane[forward]) & (reader[forward] == forward)
    pairs = [(seen[before], forward[before]), (forward[behind], unseen[behind])]
    seen, unseen = (found(OpKind.UPDATE, pull, ahead) for ahead in (-1, 0))
    return [*pairs, (seen[seen >= 0], pull[seen >= 0]), (pull[unseen >= 0], unseen[unseen >= 0])]
