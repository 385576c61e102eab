"""Whose reading decides with which version of the weights an op computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.op_table import Halves
    from sim.rows import IntColumn
    from sim.schedule import Shape


def reader_of(shape: Shape, ops: NDArray[np.void], halves: Halves, weights: str, predict: str) -> IntColumn:
    """For every op the op whose reading decides its version: itself, where its policy keeps nothing for it.

    −1: no reading decides; under ``double_buffer`` a pass of mini-batch b computes with version b − 1.
    """
    itself = np.arange(len(ops))
    if weights == "latest" or (weights == "predict" and predict not in ("pipeoptim", "xpipe")):
        return itself
    forward, backward = (np.isin(ops["kind"], kinds) for kinds in (FORWARD_KINDS, (*BACKWARD_KINDS, OpKind.RECOMPUTE)))
    stage, micro_batch, replica = (ops[name].astype(np.int64) for name in ("stage", "micro_batch", "replica"))
    if weights == "double_buffer":
        return np.where(forward | backward, -1, itself)
    if weights == "vertical_sync":
        chosen, found = forward | backward, halves.find(OpKind.FORWARD, 0, micro_batch, 0, anywhere=True)
    elif weights == "stash" or predict == "pipeoptim":
        chosen, found = backward, halves.find(OpKind.FORWARD, stage, micro_batch, replica)
    else:
        first = micro_batch - micro_batch % shape.micro_batches
        chosen, found = forward | backward, halves.find(ops["kind"], stage, first, replica)
    return np.where(chosen & (found >= 0), found, itself)
