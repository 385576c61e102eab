"""What each process did: ops, written as they end to a file that outlives it, and made the columns of a trace."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.torch.servers.host import rehearse
from sim.op_table import OPS
from sim.ops import Lane, OpId, OpKind
from sim.program import Program
from sim.rows import Rows

ROW = np.dtype(
    [
        ("kind", "i4"),
        ("replica", "i4"),
        ("part", "i4"),
        ("micro_batch", "i4"),
        ("reads", "i4"),
        ("writes", "i4"),
        ("start_s", "f8"),
        ("end_s", "f8"),
    ]
)
"""An op that has ended; times are of the monotonic clock."""

_PACKED = struct.Struct("=6i2d")
_NAME = ("part", "replica", "kind", "micro_batch")
_ALIKE = ("kind", "replica", "part")


class Record:
    """The file of one process."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, op: OpId, start_s: float, end_s: float, reads: int = -1, writes: int = -1) -> None:
        """Add an op."""
        name = op.kind, op.replica, op.part, op.micro_batch
        os.write(self._handle, _PACKED.pack(*name, reads, writes, start_s, end_s))


def read(file: IO[bytes]) -> NDArray[np.void]:
    """The ops (dtype `ROW`) of a process that is writing still or has died; half a row at the end is left out."""
    size = os.fstat(file.fileno()).st_size
    return np.frombuffer(os.pread(file.fileno(), size - size % ROW.itemsize, 0), ROW)


def last(file: IO[bytes]) -> str:
    """Where a process has come to."""
    rows = read(file)
    if not len(rows):
        return "before its first op"
    row = rows[-1]
    return f"after {OpId(OpKind(row['kind']), 0, int(row['micro_batch']), int(row['replica']), int(row['part']))}"


class Columns(NamedTuple):
    """What ran, sorted by name as a schedule is, and when."""

    ops: NDArray[np.void]
    lanes: tuple[Lane, ...]
    order: Rows
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def columns(program: Program, records: Sequence[NDArray[np.void]], zero_s: float) -> Columns:
    """What all processes did, in seconds since ``zero_s``."""
    rows = np.concatenate(records)
    rows = rows[np.lexsort([rows[name] for name in _NAME])]
    start_s, end_s = rows["start_s"] - zero_s, rows["end_s"] - zero_s
    known = rehearse(program)
    alike, which = np.unique(rows[[*_ALIKE]], return_inverse=True)
    templates = [known[OpKind(int(kind)), int(replica), int(part)] for kind, replica, part in alike.tolist()]
    ops = np.empty(len(rows), OPS)
    for name in ("kind", "micro_batch", "replica", "part", "reads", "writes"):
        ops[name] = rows[name]
    ops["stage"], ops["other_stage"], ops["other_micro_batch"] = 0, -1, -1
    for name in ("source", "target"):
        ops[name] = np.array([getattr(template, name) for template in templates], np.int64)[which]
    lanes = tuple(sorted({lane for template in templates for lane in template.lanes}))
    by_end = np.lexsort([start_s, end_s])
    holders = [[number for number, each in enumerate(templates) if lane in each.lanes] for lane in lanes]
    order = Rows.of([by_end[np.isin(which[by_end], each)] for each in holders])
    for ops_of_lane in order:  # a pull is asked for while others of its connection are under way: it starts after them
        start_s[ops_of_lane[1:]] = np.maximum(start_s[ops_of_lane[1:]], end_s[ops_of_lane[:-1]])
    return Columns(ops, lanes, order, start_s, end_s)
