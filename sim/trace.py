"""What happened: ops, flows and memory events as columns, the same from every backend.

On disk a trace is an ``.npz`` file of plain arrays and one JSON header; loading executes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.assembly import assemble
from sim.errors import BadTraceFile
from sim.memory.buffers import BufferKind
from sim.op_table import OPS, Halves, op_id
from sim.ops import Lane, OpId, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule import Schedule, Shape

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

DRIVER = np.dtype(
    [
        ("time_s", "f8"),
        ("called_s", "f8"),
        ("done_s", "f8"),
        ("op", "i4"),
        ("device", "i4"),
        ("bytes", "i8"),
        ("mallocs", "i4"),
        ("frees", "i4"),
        ("retries", "i4"),
    ]
)
"""What ``op`` asked of the driver at ``time_s`` (−1: what is resident, before the run): a change of reserved memory by
``bytes``, the calls that took memory and those that gave some back, and how often all that was cached was given back to
try again. The calls ran from ``called_s``, when the device was idle if they wait for that, to ``done_s``."""

REQUESTS = np.dtype(
    [
        ("time_s", "f8"),
        ("device", "i4"),
        ("verb", "i1"),
        ("stream", "i4"),
        ("address", "i8"),
        ("bytes", "i8"),
        ("tag", "i4"),
    ]
)
"""What allocators that place blocks were told, in order: ``verb`` indexes `VERBS`, ``tag`` the header's ``tags``
(category and layer). A free has no bytes and no tag (−1), the end of a stream's work no address either."""

VERBS = ("malloc", "free", "record_stream", "finish")
MALLOC, FREE, RECORD_STREAM, FINISH = range(len(VERBS))

FORMAT = 2


@dataclass(frozen=True, eq=False)
class Trace:
    """One run.

    Parameters
    ----------
    header : what analysis needs beside the columns (devices, links, samples, …) and where the run comes from (backend,
        seed, versions, hardware); JSON types only.
    shape, ops, lanes, order, extra : as in a `Schedule`; of a program the order is the one that was run.
    start_s, end_s : a time per op.
    flows, memory : tables of dtype `FLOWS` and `MEMORY`, in order of time.
    driver, requests : tables of dtype `DRIVER` and `REQUESTS`, where the allocator places blocks.
    """

    header: dict[str, Any]
    shape: Shape
    ops: NDArray[np.void]
    lanes: tuple[Lane, ...]
    order: Rows
    extra: IntColumn
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    flows: NDArray[np.void]
    memory: NDArray[np.void]
    driver: NDArray[np.void] = field(default_factory=lambda: np.empty(0, DRIVER))
    requests: NDArray[np.void] = field(default_factory=lambda: np.empty(0, REQUESTS))

    def id(self, op: int) -> OpId:
        """The name of op number ``op``."""
        return op_id(self.ops[op])

    @cached_property
    def makespan_s(self) -> float:
        """The end of the last op, from time 0."""
        return float(self.end_s.max(initial=0.0))

    @cached_property
    def working_s(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and end of every op's work, without what its allocations took before and after."""
        start, end = self.start_s, self.end_s
        held_up = self.driver[(self.driver["op"] >= 0) & (self.driver["done_s"] > self.driver["time_s"])]
        if len(held_up):
            start, end = start.copy(), end.copy()
            op, asked_s = held_up["op"], held_up["time_s"]
            first = asked_s == self.start_s[op]
            np.maximum.at(start, op[first], held_up["done_s"][first])
            np.minimum.at(end, op[~first], asked_s[~first])
        return start, end

    @cached_property
    def halves(self) -> Halves:
        """Its ops by name."""
        return Halves(self.ops)

    @cached_property
    def lanes_of(self) -> Rows:
        """The lanes each op held."""
        return Rows.from_pairs(self.order.values, self.order.owners, len(self.ops))

    def as_schedule(self) -> Schedule:
        """The order that was run, as a schedule: for regression and for driving hardware, never for what-if.

        Raises
        ------
        InvalidSchedule : the trace is of a program whose order obeyed more than the data of training.
        """
        distances = tuple((int(forward), int(backward)) for forward, backward in self.header["distances"])
        order, weights, predict = list(self.order), self.header["weights"], self.header["predict"]
        return assemble(self.shape, self.lanes, self.ops.copy(), order, self.extra, weights, distances, predict)

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
                order_starts=self.order.starts,
                order_values=self.order.values,
                extra=self.extra,
                start_s=self.start_s,
                end_s=self.end_s,
                flows=self.flows,
                memory=self.memory,
                driver=self.driver,
                requests=self.requests,
            )

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace.

        Raises
        ------
        BadTraceFile : the file is missing, damaged, or no trace of this format.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                columns = {name: archive[name] for name in archive.files}
            header = json.loads(columns["header"].tobytes())
            if header.pop("format") != FORMAT:
                raise BadTraceFile(f"{path}: a trace of another format; this version reads format {FORMAT}")
            stages, micro_batches, mini_batches, replicas, *divided = header.pop("shape")
            copies, rounds = (tuple(int(count) for count in each) for each in divided)
            shape = Shape(int(stages), int(micro_batches), int(mini_batches), int(replicas), copies, rounds)
            lanes = tuple(Lane(int(device), str(stream)) for device, stream in header.pop("lanes"))
            order = Rows(columns["order_starts"], columns["order_values"])
            trace = cls(header, shape, columns["ops"], lanes, order, *(columns[name] for name in _COLUMNS))
            trace._check()
        except BadTraceFile:
            raise
        except FileNotFoundError:
            raise BadTraceFile(f"{path}: no such file") from None
        except Exception as error:  # zip, zlib, numpy and json refuse damage each in its own way
            raise BadTraceFile(f"{path}: no trace of twinrail, or a damaged one ({error})") from None
        return trace

    def _check(self) -> None:
        """Raise an error that says which of the columns do not belong together."""
        shape, order, header = self.shape, self.order, self.header
        shape.check()
        numbers = (
            ("kind", len(OpKind)),
            ("stage", shape.stages),
            ("replica", shape.weight_sets),
            ("micro_batch", shape.total),
        )
        devices, ops = len(header["devices"]), len(self.ops)
        fits = {
            "header": all(isinstance(header[key], kind) for key, kind in _HEADER.items())
            and all({"name", "kind", "bytes_per_s"} <= link.keys() for link in header["links"])
            and {"name", "settings"} <= header["allocator"].keys()
            and all(0 <= lane.device < devices for lane in self.lanes),
            "ops": self.ops.dtype == OPS
            and all(_within(self.ops[name], 0, limit) for name, limit in numbers)
            and _within(self.ops["source"], 0, devices)
            and _within(self.ops["target"], -1, devices),
            "lanes": order.starts.dtype == order.values.dtype == self.extra.dtype == np.int64
            and order.starts.shape == (len(self.lanes) + 1,)
            and order.starts[0] == 0
            and order.starts[-1] == len(order.values)
            and bool((np.diff(order.starts) >= 0).all())
            and _within(order.values, 0, ops)
            and self.extra.shape == (len(self.extra), 2)
            and _within(self.extra.ravel(), 0, ops),
            "times": self.start_s.dtype == self.end_s.dtype == np.float64
            and self.start_s.shape == self.end_s.shape == (ops,)
            and _within(self.start_s, 0, float("inf"))
            and bool((self.end_s >= self.start_s).all() and np.isfinite(self.end_s).all()),
            "flows": self.flows.dtype == FLOWS
            and _within(self.flows["op"], 0, ops)
            and _within(self.flows["link"], 0, len(header["links"])),
            "memory": self.memory.dtype == MEMORY
            and _within(self.memory["op"], -1, ops)
            and _within(self.memory["device"], 0, devices)
            and _within(self.memory["kind"], 0, len(BufferKind)),
            "driver": self.driver.dtype == DRIVER
            and _within(self.driver["op"], -1, ops)
            and _within(self.driver["device"], 0, devices)
            and bool((self.driver["time_s"] <= self.driver["called_s"]).all())
            and bool((self.driver["called_s"] <= self.driver["done_s"]).all()),
            "requests": self.requests.dtype == REQUESTS
            and _within(self.requests["device"], 0, devices)
            and _within(self.requests["verb"], 0, len(VERBS))
            and _within(self.requests["bytes"], 0, float("inf"))
            and _within(self.requests["tag"], -1, len(header["tags"]))
            and bool((self.requests["tag"][self.requests["verb"] == MALLOC] >= 0).all()),
        }
        if wrong := [column for column, right in fits.items() if not right]:
            raise ValueError(f"its {' and '.join(wrong)} do not fit the rest")


def _within(column: NDArray[Any], least: float, limit: float) -> bool:
    """Whether every value of a flat column is at least ``least`` and below ``limit``."""
    return column.ndim == 1 and bool(((column >= least) & (column < limit)).all())


_COLUMNS = ("extra", "start_s", "end_s", "flows", "memory", "driver", "requests")

_HEADER: dict[str, type | tuple[type, ...]] = {
    "method": str,
    "model": str,
    "weights": str,
    "predict": str,
    "distances": list,
    "partition": list,
    "devices": list,
    "hosts": list,
    "links": list,
    "samples": (int, float),
    "flops": (int, float),
    "peak_flops_per_s": list,
    "allocator": dict,
    "tags": list,
    "provenance": dict,
    "backend": str,
    "seed": int,
}
