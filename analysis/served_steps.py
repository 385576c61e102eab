"""The steps of workers with parameter servers: when each began and was applied, its phases, how stale its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.op_table import Halves
from sim.ops import OpKind
from sim.rows import IntColumn
from sim.trace import Trace

Times = NDArray[np.float64]
_BARRIER = ("bsp", "backup")


def has_servers(trace: Trace) -> bool:
    """Whether the trace is of a program of parameter servers."""
    return "parameter_servers" in trace.header


@dataclass(frozen=True, eq=False)
class Steps:
    """Completed steps of the first job, a row each, by worker and number.

    Parameters
    ----------
    worker, number : which. ``attempts``: steps that each worker began, completed or not.
    begin_s, done_s : from the first request to the last update that its gradients are in.
    phases_s : [steps, 4]: from the first to the last moment of its download, computing, upload and applying.
    reads, staleness : [steps, parts]: the version of each part that it read, and how many updates others made between
        that and its own.
    """

    worker: IntColumn
    number: IntColumn
    attempts: IntColumn
    begin_s: Times
    done_s: Times
    phases_s: Times
    reads: IntColumn
    staleness: IntColumn


def compute(trace: Trace) -> Steps:
    """The steps of a run."""
    ops, about = trace.ops, trace.header["parameter_servers"]
    parts, barrier = np.arange(len(about["parts"])), about["consistency"] in _BARRIER
    halves = Halves(ops)
    applies = OpKind.ACCUMULATE if barrier else OpKind.UPDATE
    mine = np.flatnonzero((ops["stage"] == 0) & (ops["kind"] == applies))
    count = int(ops["micro_batch"].max(initial=0)) + 1
    step, found = np.unique(
        ops["replica"][mine].astype(np.int64) * count + ops["micro_batch"][mine], return_counts=True
    )
    worker, number = np.divmod(step[found == len(parts)], count)

    def rows(kind: OpKind) -> IntColumn:
        return halves.find(kind, 0, number[:, None], worker[:, None], parts[None, :])

    pull, push, apply = rows(OpKind.PULL), rows(OpKind.PUSH), rows(applies)
    applied_s = trace.end_s[apply]
    if barrier:
        applied_s = trace.end_s[halves.find(OpKind.UPDATE, 0, ops["writes"][apply] - 1, 0, parts[None, :])]
    reads, done_s = ops["reads"][pull].astype(np.int64), applied_s.max(axis=1)
    passes = _pass_spans(trace, worker, number, count)
    begin_s, pulled_s, pushed_s = trace.start_s[pull].min(axis=1), trace.end_s[pull], trace.end_s[push]
    phases_s = np.stack(
        [
            pulled_s.max(axis=1) - begin_s,
            passes[1] - passes[0],
            pushed_s.max(axis=1) - trace.start_s[push].min(axis=1),
            done_s - pushed_s.min(axis=1),
        ],
        axis=1,
    )
    begun = np.flatnonzero((ops["kind"] == OpKind.PULL) & (ops["stage"] == 0) & (ops["part"] == 0))
    return Steps(
        worker=worker,
        number=number,
        attempts=np.bincount(ops["replica"][begun], minlength=about["workers"]),
        begin_s=begin_s,
        done_s=done_s,
        phases_s=phases_s,
        reads=reads,
        staleness=ops["writes"][apply] - 1 - reads,
    )


def _pass_spans(trace: Trace, worker: IntColumn, number: IntColumn, count: int) -> tuple[Times, Times]:
    """From the first start of a pass to the last end of one, for each step."""
    ops = trace.ops
    passes = np.flatnonzero((ops["stage"] == 0) & np.isin(ops["kind"], (OpKind.FORWARD, OpKind.BACKWARD)))
    step = ops["replica"][passes].astype(np.int64) * count + ops["micro_batch"][passes]
    size = int(step.max(initial=0)) + 1
    first_s, last_s = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(first_s, step, trace.start_s[passes])
    np.maximum.at(last_s, step, trace.end_s[passes])
    code = worker * count + number
    return first_s[code], last_s[code]
