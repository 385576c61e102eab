"""How old the weights are that each op reads, measured from the times of a run.

Staleness is the number of updates applied to a stage's weights between the moment an op read them and the moment its
own gradient is applied. The versions that a schedule promises are checked against those that the run shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import served_steps
from analysis.intervals import Times
from sim.errors import BrokenInvariant
from sim.op_table import Halves, of_kinds
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.passes.weight_versions import distances_at, in_steady_state, same_mini_batches
from sim.rows import IntColumn, Rows
from sim.trace import Trace
from sim.weights import reader_of

READERS = (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Summary:
    """One pass. ``mean``, ``max`` and ``histogram`` (ops of each staleness) are over the whole run, ``by_stage`` is the
    steady value of each stage: the most frequent one (of equals the largest) in the middle third of the mini-batches.
    ``None`` where nothing is updated.
    """

    mean: float | None
    max: int | None
    by_stage: tuple[int | None, ...]
    histogram: dict[int, int]


@dataclass(frozen=True, eq=False)
class Staleness:
    """Staleness of a run.

    Parameters
    ----------
    forward, backward : a fused pair counts as forward.
    version : per op the weight version it read (updates seen), −1 where it reads none.
    applied : per op the version that its gradient was applied to, −1 where it reads none or no update of it follows.
    staleness : per op ``applied − version``, −1 where there is no ``applied``.
    realised : under weight prediction, for each stage how many updates ahead (forward, backward) would have been exact.
    """

    forward: Summary
    backward: Summary
    version: IntColumn
    applied: IntColumn
    staleness: IntColumn
    realised: tuple[tuple[int, int], ...] | None


def compute(trace: Trace) -> Staleness:
    """Staleness from times: a version is there once its update has ended.

    An op reads when it starts, or when the op started whose reading decides (`sim.weights.reader_of`), or when the pull
    started that brought its weights. Where an update ends at that very instant, the order of the schedule decides.

    Raises
    ------
    BrokenInvariant : an op ran on other weights than its schedule says.
    """
    if served_steps.has_servers(trace):
        return _of_servers(trace)
    ops, halves = trace.ops, trace.halves
    readers = np.flatnonzero(of_kinds(ops, READERS) & (ops["reads"] >= 0))
    weights = _Weights(trace)
    version, applied = np.full(len(ops), -1, np.int64), np.full(len(ops), -1, np.int64)
    version[readers] = _versions(trace, halves, weights, readers)
    op = ops[readers]
    applied_by = trace.shape.update_of(op["stage"], op["micro_batch"])
    own = halves.find(OpKind.UPDATE, op["stage"], applied_by, weights.replica_of(readers))
    applied[readers] = np.where(own >= 0, weights.rank[own], -1)
    staleness = np.where(applied >= 0, applied - version, -1)
    return Staleness(
        forward=_summary(trace, staleness, FORWARD_KINDS),
        backward=_summary(trace, staleness, BACKWARD_KINDS),
        version=version,
        applied=applied,
        staleness=staleness,
        realised=_realised(trace),
    )


def _of_servers(trace: Trace) -> Staleness:
    """With parameter servers a pass reads what its worker pulled, and is as stale as the stalest part of that."""
    ops, steps = trace.ops, served_steps.compute(trace)
    version, applied = np.full(len(ops), -1, np.int64), np.full(len(ops), -1, np.int64)
    passes = np.flatnonzero((ops["stage"] == 0) & of_kinds(ops, READERS))
    worst = steps.staleness.argmax(axis=1) if len(steps.worker) else np.empty(0, np.int64)
    read, stale = (np.take_along_axis(each, worst[:, None], 1)[:, 0] for each in (steps.reads, steps.staleness))
    count = int(ops["micro_batch"].max(initial=0)) + 1
    step = np.searchsorted(steps.worker * count + steps.number, _code(ops[passes], count))
    step = np.minimum(step, max(len(steps.worker) - 1, 0))
    done = (steps.worker * count + steps.number)[step] == _code(ops[passes], count)
    version[passes[done]], applied[passes[done]] = read[step[done]], (read + stale)[step[done]]
    staleness = np.where(applied >= 0, applied - version, -1)
    forward, backward = (_summary(trace, staleness, kinds) for kinds in (FORWARD_KINDS, BACKWARD_KINDS))
    return Staleness(forward, backward, version, applied, staleness, None)


def _code(ops: NDArray[np.void], count: int) -> IntColumn:
    return np.asarray(ops["replica"].astype(np.int64) * count + ops["micro_batch"], np.int64)


class _Weights:
    """The updates of every copy of weights, in order of time. A replica without updates uses those of replica 0."""

    def __init__(self, trace: Trace) -> None:
        self._ops, ops = trace.ops, trace.ops
        self._replicas = int(ops["replica"].max(initial=0)) + 1
        updates = np.flatnonzero(ops["kind"] == OpKind.UPDATE)
        updates = updates[np.lexsort([ops["micro_batch"][updates], trace.end_s[updates]])]
        self.rows = Rows.from_pairs(self._code(updates, ops["replica"][updates]), updates, self._count)
        self.rank = np.zeros(len(ops), np.int64)
        self.rank[self.rows.values] = np.arange(len(updates)) - self.rows.starts[self.rows.owners]

    @property
    def _count(self) -> int:
        return (int(self._ops["stage"].max(initial=0)) + 1) * self._replicas

    def _code(self, rows: IntColumn, replica: IntColumn) -> IntColumn:
        return self._ops["stage"][rows].astype(np.int64) * self._replicas + replica

    def replica_of(self, rows: IntColumn) -> IntColumn:
        """The replica whose weights each op uses."""
        replica = self._ops["replica"][rows].astype(np.int64)
        updated = np.diff(self.rows.starts) > 0
        return np.where(updated[self._code(rows, replica)], replica, 0)

    def elsewhere(self, rows: IntColumn) -> NDArray[np.bool_]:
        """Whether each op runs on another device than the updates of its weights."""
        owner = self.owner_of(rows)
        first = np.append(self.rows.values, 0)[self.rows.starts[owner]]
        away = np.not_equal(self._ops["source"][first], self._ops["source"][rows])
        return np.asarray(away & (np.diff(self.rows.starts)[owner] > 0), np.bool_)

    def owner_of(self, rows: IntColumn) -> IntColumn:
        """The row of updates of the weights that each op uses."""
        return self._code(rows, self.replica_of(rows))


def _read_s(trace: Trace, halves: Halves, weights: _Weights, reader: IntColumn) -> Times:
    """When ops read their weights, or when the pull started that brought them; before the run, if nothing did.

    A pipeline's pull is named by its version, a worker's by its step; one that starts later brings something else.
    """
    ops, op = trace.ops, trace.ops[reader]
    read_s = np.where(weights.elsewhere(reader), -1.0, trace.start_s[reader])
    for number in ("reads", "micro_batch"):
        pull = halves.find(OpKind.PULL, op["stage"], op[number], op["replica"])
        brought = (pull >= 0) & (ops["target"][pull] == op["source"]) & (trace.start_s[pull] <= trace.start_s[reader])
        brought &= (number == "micro_batch") | (ops["reads"][pull] == op["reads"])
        read_s = np.where(brought, trace.start_s[pull], read_s)
    return read_s


def _versions(trace: Trace, halves: Halves, weights: _Weights, readers: IntColumn) -> IntColumn:
    """The updates that each op saw, checked against its schedule."""
    shape, ops, stage = trace.shape, trace.ops, trace.ops["stage"][readers]
    reader = reader_of(shape, ops, halves, trace.header["weights"], trace.header["predict"])[readers]
    decides = np.where(reader < 0, readers, reader)
    counted = np.maximum(shape.update_of(stage, ops["micro_batch"][readers]) - 1, 0)
    least, most = (
        np.where(reader < 0, counted, same_mini_batches(shape, ops["stage"][decides], seen, stage))
        for seen in _seen(trace, weights, decides, _read_s(trace, halves, weights, decides))
    )
    _, there = _seen(trace, weights, readers, trace.start_s[readers])
    promised = ops["reads"][readers].astype(np.int64)
    for wrong in np.flatnonzero((promised < least) | (promised > np.minimum(most, there)))[:1]:
        raise BrokenInvariant(
            f"{trace.id(int(readers[wrong]))} should read weight version {promised[wrong]}, "
            f"but {most[wrong]} updates of its stage had ended when it read"
        )
    return promised


def _seen(trace: Trace, weights: _Weights, readers: IntColumn, read_s: Times) -> tuple[IntColumn, IntColumn]:
    """How many updates of an op's weights had ended before a time, and not after it."""
    least, most = np.zeros(len(readers), np.int64), np.zeros(len(readers), np.int64)
    mine = Rows.from_pairs(weights.owner_of(readers), np.arange(len(readers)), len(weights.rows))
    for updates, chosen in zip(weights.rows, mine, strict=True):
        ended_s = trace.end_s[updates]
        least[chosen] = np.searchsorted(ended_s, read_s[chosen], "left")
        most[chosen] = np.searchsorted(ended_s, read_s[chosen], "right")
    return least, most


def _summary(trace: Trace, staleness: IntColumn, kinds: tuple[OpKind, ...]) -> Summary:
    rows = np.flatnonzero(of_kinds(trace.ops, kinds) & (staleness >= 0))
    values, stage = staleness[rows], trace.ops["stage"][rows]
    middle = in_steady_state(trace.shape, trace.ops["micro_batch"][rows])
    counts = np.bincount(values)
    steady = np.zeros((trace.shape.stages, len(counts)), np.int64)
    np.add.at(steady, (stage[middle], values[middle]), 1)
    return Summary(
        mean=float(values.mean()) if len(values) else None,
        max=int(values.max()) if len(values) else None,
        by_stage=tuple(_most_frequent(each) for each in steady),
        histogram={value: count for value, count in enumerate(counts.tolist()) if count},
    )


def _most_frequent(counts: IntColumn) -> int | None:
    """The value that is counted most often, of equals the largest; ``None`` where none is."""
    return len(counts) - 1 - int(counts[::-1].argmax()) if counts.any() else None


def _realised(trace: Trace) -> tuple[tuple[int, int], ...] | None:
    if trace.header["weights"] != "predict":
        return None
    return distances_at(trace.shape, trace.ops, trace.start_s, trace.end_s, trace.header["predict"])
