"""A schedule as a text grid, and the fault that shows one with a cell marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvalidSchedule
from sim.op_table import op_id
from sim.ops import Lane
from sim.rows import IntColumn


def render(lanes: Sequence[Lane], rows: Sequence[Sequence[str]], most: int = 64) -> str:
    """A grid as text: a line a lane, a column a slot, at most ``most`` columns."""
    names = [f"d{lane.device}.{lane.stream}" for lane in lanes]
    width = max((len(cell) for row in rows for cell in row[:most]), default=1)
    label = max((len(name) for name in names), default=0)
    lines = [
        f"{name:<{label}} │ "
        + " ".join(cell.center(width) for cell in row[:most]).rstrip()
        + (" …" * (len(row) > most))
        for name, row in zip(names, rows, strict=True)
    ]
    return "\n".join(lines)


def invalid(
    ops: NDArray[np.void], lanes: Sequence[Lane], order: Iterable[IntColumn], op: int, message: str, most: int = 64
) -> InvalidSchedule:
    """An `InvalidSchedule` with the order of every compute lane and every lane of ``op``, whose cell is marked."""
    shown: list[Lane] = []
    rows: list[list[str]] = []
    for lane, on_lane in zip(lanes, order, strict=True):
        marked = np.flatnonzero(on_lane == op)
        if lane.computes or len(marked):
            first = max(int(marked[0]) - most // 2, 0) if len(marked) else 0
            cells = [_cell(ops[index], index == op) for index in on_lane[first : first + most + 1].tolist()]
            shown.append(lane)
            rows.append(["…", *cells] if first else cells)
    grid = render(shown, rows, most)
    error = InvalidSchedule(f"{message}\n{grid}")
    error.op, error.grid = str(op_id(ops[op])), grid
    return error


def _cell(row: Any, marked: bool) -> str:
    return f">{op_id(row)}<" if marked else str(op_id(row))
