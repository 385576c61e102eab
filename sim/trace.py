"""What happened: ops, flows and memory events as columns, the same from every backend.

On disk a trace is an ``.npz`` file of plain arrays and one JSON header; loading executes nothing.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import BadTraceFile
from sim.ops import Lane, OpId
from sim.schedule import OPS, Rows, Schedule, Shape, assemble, op_id

FLOWS = np.dtype([("link", "i4"), ("op", "i4"), ("start_s", "f8"), ("end_s", "f8"), ("bytes", "f8")])
"""A payload on one link of its route; ``link`` indexes the header's ``links``."""

MEMORY = np.dtype(
    [
        ("time_s", "f8"),
        ("op", "i4"),
        ("device", "i4"),
        ("kind", "i1"),
        ("stage", "i4"),
        ("number", "i4"),
        ("bytes", "i8"),
    ]
)
"""A change of live memory by ``bytes`` (negative: released), caused by ``op`` (−1: resident from the start)."""

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Trace:
    """One run.

    Parameters
    ----------
    header : what analysis needs beside the columns (devices, links, samples, …) and where the run comes from (backend,
        seed, versions, hardware); JSON types only.
    shape, ops, lanes : as in a `Schedule`; ``lanes_of[op]`` lists the lanes an op held.
    start_s, end_s : a time per op.
    flows, memory : tables of dtype `FLOWS` and `MEMORY`, in order of time.
    """

    header: dict[str, Any]
    shape: Shape
    ops: NDArray[np.void]
    lanes: tuple[Lane, ...]
    lanes_of: Rows
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    flows: NDArray[np.void]
    memory: NDArray[np.void]

    def id(self, op: int) -> OpId:
        """The name of op number ``op``."""
        return op_id(self.ops[op])

    @cached_property
    def makespan_s(self) -> float:
        """The end of the last op, from time 0."""
        return float(self.end_s.max(initial=0.0))

    @cached_property
    def order(self) -> Rows:
        """The ops of each lane in the order in which they ran."""
        lane, op = self.lanes_of.values, self.lanes_of.owners
        by_time = np.lexsort([op, self.end_s[op], self.start_s[op]])
        return Rows.from_pairs(lane[by_time], op[by_time], len(self.lanes))

    def as_schedule(self) -> Schedule:
        """The order that was run, as a schedule: for regression and for driving hardware, never for what-if.

        Raises
        ------
        InvalidSchedule : the trace is of a program whose order obeyed more than the data of training.
        """
        return assemble(
            self.shape, self.lanes, self.ops.copy(), list(self.order), weights=self.header.get("weights", "latest")
        )

    def save(self, path: Path) -> None:
        """Write the trace; the same trace gives the same bytes."""
        header = {
            "format": FORMAT,
            "shape": list(self.shape),
            "lanes": [list(lane) for lane in self.lanes],
            **self.header,
        }
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                header=np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8),
                ops=self.ops,
                lane_starts=self.lanes_of.starts,
                lane_values=self.lanes_of.values,
                start_s=self.start_s,
                end_s=self.end_s,
                flows=self.flows,
                memory=self.memory,
            )

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace.

        Raises
        ------
        BadTraceFile : the file is missing, damaged, or no trace of this format.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                columns = {name: file[name] for name in file.files}
            header = json.loads(columns["header"].tobytes())
            if header.pop("format") != FORMAT:
                raise BadTraceFile(f"{path}: a trace of another format; this version reads format {FORMAT}")
            shape = Shape(*header.pop("shape"))
            lanes = tuple(Lane(int(device), str(stream)) for device, stream in header.pop("lanes"))
            lanes_of = Rows(columns["lane_starts"], columns["lane_values"])
            trace = cls(header, shape, columns["ops"], lanes, lanes_of, *(columns[name] for name in _COLUMNS))
        except FileNotFoundError:
            raise BadTraceFile(f"{path}: no such file") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise BadTraceFile(f"{path}: no trace of twinrail, or a damaged one ({error})") from None
        trace._check(path)
        return trace

    def _check(self, path: Path) -> None:
        """Refuse columns that do not belong together."""
        count = len(self.start_s)
        dtypes = (self.ops.dtype, self.flows.dtype, self.memory.dtype) == (OPS, FLOWS, MEMORY)
        lengths = len(self.ops) == len(self.end_s) == len(self.lanes_of) == count
        values = self.lanes_of.values
        lanes = bool(((values >= 0) & (values < len(self.lanes))).all()) and self.lanes_of.starts[-1] == len(values)
        flows = (
            bool(((self.flows["op"] < count) & (self.flows["link"] < len(self.header.get("links", ())))).all())
            if dtypes
            else False
        )
        if not (dtypes and lengths and lanes and flows and bool((self.end_s >= self.start_s).all())):
            raise BadTraceFile(f"{path}: the columns of this trace do not fit together")


_COLUMNS = ("start_s", "end_s", "flows", "memory")
