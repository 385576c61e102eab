"""Costs of a whole schedule at once: ops that are alike are looked up once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding
from sim.ops import OpId
from sim.rows import IntColumn
from sim.schedule import Schedule

T = TypeVar("T")

ALIKE = ("kind", "stage", "part", "other_stage", "source", "target")
"""Columns that decide what an op costs and where it contends."""


def per_op(schedule: Schedule, look_up: Callable[[OpId, int, int, list[int]], T]) -> list[T]:
    """``look_up(id, source, target, member devices)`` for every op, called once for ops that are alike."""
    first, member = alike(*(schedule.ops[name] for name in ALIKE))
    found: list[T] = []
    for op in first.tolist():
        row = schedule.ops[op]
        found.append(look_up(schedule.id(op), int(row["source"]), int(row["target"]), schedule.devices_of(op)))
    return [found[group] for group in member.tolist()]


def seconds_column(schedule: Schedule, binding: Binding) -> list[float]:
    """Duration of every op where nothing contends with it."""
    return per_op(schedule, binding.op_seconds)


def alike(*columns: NDArray[np.integer]) -> tuple[IntColumn, IntColumn]:
    """Group rows with equal values in every column: the first row of each group, and the group of each row."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        code = code * (high - low + 1) + (column - low)
    _, first, member = np.unique(code, return_index=True, return_inverse=True)
    return first, member
