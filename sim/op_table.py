"""Ops as columns: what the table holds, and how its rows are found by name."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpId, OpKind
from sim.rows import IntColumn

OPS = np.dtype(
    [
        ("kind", "i1"),
        ("stage", "i4"),
        ("micro_batch", "i4"),
        ("replica", "i4"),
        ("part", "i4"),
        ("other_stage", "i4"),
        ("other_micro_batch", "i4"),
        ("source", "i4"),
        ("target", "i4"),
        ("reads", "i4"),
        ("writes", "i4"),
    ]
)
"""Columns of an op table: the seven fields of `OpId`; the device it runs on (a transfer: leaves from) and the device
a transfer arrives at (−1: none); the weight version it reads and writes (−1: none)."""


UNSET = -2
"""A version not stated by the planner: derived from the order of the lane that updates the stage."""


SEND_KINDS = (OpKind.SEND_ACTIVATION, OpKind.SEND_GRADIENT, OpKind.SEND_SAVED)
PASS_KINDS = (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE, *SEND_KINDS)
"""Kinds that are named by micro-batch; the others by mini-batch."""


def op_id(row: Any) -> OpId:
    """The name of one row of an op table."""
    kind, *rest = (int(row[name]) for name in OPS.names[:7])  # type: ignore[index]
    return OpId(OpKind(kind), *rest)


def alike(ops: NDArray[np.void]) -> tuple[IntColumn, IntColumn]:
    """Ops that cost the same and contend at the same place: the first row of each group, and the group of each row."""
    code = np.zeros(len(ops), np.int64)
    for name in ("kind", "stage", "part", "other_stage", "source", "target"):
        column = ops[name]
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        code = code * (high - low + 1) + (column - low)
    _, first, member = np.unique(code, return_index=True, return_inverse=True)
    return first, member


def of_kinds(ops: NDArray[np.void], kinds: Collection[OpKind]) -> NDArray[np.bool_]:
    """Whether each row of an op table is of one of some kinds."""
    among: NDArray[np.bool_] = _among(frozenset(kinds))[ops["kind"]]
    return among


@lru_cache
def _among(kinds: frozenset[OpKind]) -> NDArray[np.bool_]:
    return np.isin(np.arange(len(OpKind)), [*kinds])


class Halves:
    """Find ops by name in an op table; a fused pair is found by either half.

    The halves of a pair may use two copies of weights: its ``replica`` is that of its forward, and its backward uses
    the copy of its own micro-batch's forward.
    """

    def __init__(self, ops: NDArray[np.void]) -> None:
        self.span = 1 + np.array(
            [max(int(ops[name].max(initial=0)), 0) + 1 for name in ("stage", "micro_batch", "replica", "part")]
        )
        whole = np.flatnonzero(ops["kind"] != OpKind.FORWARD_BACKWARD)
        fused = np.flatnonzero(ops["kind"] == OpKind.FORWARD_BACKWARD)
        self._kinds = {*np.flatnonzero(np.bincount(ops["kind"][whole])).tolist()}
        if len(fused):
            self._kinds |= {OpKind.FORWARD, OpKind.BACKWARD}
            self.span[0] = max(self.span[0], int(ops["other_stage"].max()) + 2)
            self.span[1] = max(self.span[1], int(ops["other_micro_batch"].max()) + 2)
        self.codes, self.index = np.empty(0, np.int64), np.empty(0, np.int64)
        self._add(whole, *(ops[name][whole] for name in ("kind", "stage", "micro_batch", "replica", "part")))
        self._backward: list[IntColumn] = [ops[name] for name in ("stage", "micro_batch", "replica")]
        if len(fused):
            self._add_pairs(ops, fused)

    def _add_pairs(self, ops: NDArray[np.void], fused: IntColumn) -> None:
        pair, (stage, micro_batch, replica) = ops[fused], (column.copy() for column in self._backward)
        self._add(fused, OpKind.FORWARD, pair["stage"], pair["micro_batch"], pair["replica"], -1)
        stage[fused], micro_batch[fused] = pair["other_stage"], pair["other_micro_batch"]
        own = self.find(OpKind.FORWARD, stage[fused], micro_batch[fused], pair["replica"], anywhere=True)
        replica[fused] = np.where(own >= 0, ops["replica"][own], pair["replica"])
        self._add(fused, OpKind.BACKWARD, stage[fused], micro_batch[fused], replica[fused], -1)
        self._backward = [stage, micro_batch, replica]

    def _add(self, rows: IntColumn, *name: Any) -> None:
        code = np.append(self.codes, self._code(*name))
        by_code = np.argsort(code, kind="stable")
        self.codes, self.index = code[by_code], np.append(self.index, rows)[by_code]

    def _code(self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any) -> IntColumn:
        code = np.asarray(kind, np.int64)
        for value, span in zip((stage, micro_batch, replica, np.add(part, 1)), self.span, strict=True):
            code = code * span + np.asarray(value, np.int64)
        return code

    def backward_of(self, rows: IntColumn) -> tuple[IntColumn, IntColumn, IntColumn]:
        """Stage, micro-batch and replica of each op, of a fused pair those of its backward."""
        stage, micro_batch, replica = (column[rows] for column in self._backward)
        return stage, micro_batch, replica

    def doubled(self) -> int:
        """An op that stands in the table twice, or −1."""
        twice = np.flatnonzero(self.codes[1:] == self.codes[:-1])
        return int(self.index[twice[0] + 1]) if len(twice) else -1

    def find(
        self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any = -1, anywhere: bool = False
    ) -> IntColumn:
        """Rows of the ops asked for (broadcast), −1 where there is none.

        ``anywhere``: where there is none of that replica, the first of any.
        """
        if isinstance(kind, OpKind) and kind not in self._kinds:
            return np.full(np.broadcast_shapes(*map(np.shape, (stage, micro_batch, replica, part))), -1, np.int64)
        found = self._find(kind, stage, micro_batch, replica, part)
        for other in range(int(self.span[2]) - 1) if anywhere else ():
            if not (found < 0).any():
                break
            found = np.where(found >= 0, found, self._find(kind, stage, micro_batch, other, part))
        return found

    def _find(self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any) -> IntColumn:
        values = np.broadcast_arrays(kind, stage, micro_batch, replica, part)
        inside = np.ones(values[0].shape, bool)
        for value, span in zip(values[1:], self.span, strict=True):
            inside &= (value >= -1) & (value < span - 1)
        inside &= (values[1] >= 0) & (values[2] >= 0) & (values[3] >= 0)
        code = self._code(*values)
        place = np.minimum(np.searchsorted(self.codes, code), max(len(self.codes) - 1, 0))
        found = inside & (self.codes[place] == code) if len(self.codes) else np.zeros(code.shape, bool)
        return np.where(found, self.index[place] if len(self.index) else -1, -1).astype(np.int64)
