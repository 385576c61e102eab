"""Recompute activations before backward instead of keeping them (Chen et al., arXiv 1604.06174)."""

from __future__ import annotations

import numpy as np

from sim.assembly import assemble
from sim.errors import UnsupportedPlan
from sim.ops import OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule

NEEDING = (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)
"""Backwards that need what forward computed; a weight gradient uses what its input gradient left."""


def apply(schedule: Schedule) -> Schedule:
    """The schedule with a recomputation right before every backward, on its lane and with the weights it reads.

    It need not wait for the gradient from the next stage, so it may fill a bubble.

    Raises
    ------
    UnsupportedPlan : a forward and a backward are fused, or backward is cut into parts.
    """
    ops = schedule.ops
    if (ops["kind"] == OpKind.FORWARD_BACKWARD).any():
        raise UnsupportedPlan("memory.checkpoint: a fused forward and backward leaves no room to recompute")
    backward = np.flatnonzero(np.isin(ops["kind"], NEEDING))
    if (ops["part"][backward] >= 0).any():
        raise UnsupportedPlan("memory.checkpoint: not with a backward pass cut into buckets: write buckets: 1")
    op = ops[backward]
    forward = schedule.halves.find(OpKind.FORWARD, op["stage"], op["micro_batch"], op["replica"])
    if (ops["source"][forward] != op["source"]).any():
        raise UnsupportedPlan("memory.checkpoint: not with forward and backward of a stage on different GPUs")
    again = op.copy()
    again["kind"] = OpKind.RECOMPUTE
    number = np.full(len(ops), -1, np.int64)
    number[backward] = len(ops) + np.arange(len(backward))
    return assemble(
        schedule.shape,
        schedule.lanes,
        np.concatenate([ops, again]),
        [_with_recomputations(row, number) for row in schedule.order],
        schedule.extra,
        schedule.weights,
        schedule.distances,
        schedule.predict,
    )


def _with_recomputations(row: IntColumn, number: IntColumn) -> IntColumn:
    """A lane's order with the recomputation of each backward in front of it."""
    pairs = np.stack([number[row], row], axis=1).ravel()
    return pairs[pairs >= 0]
