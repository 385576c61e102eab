"""How old the weights are that each op reads, measured from the times of a run.

Staleness is the number of updates applied to a stage's weights between the moment an op read them and the moment its
own gradient is applied. The versions that a schedule promises are checked against those that the run shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.intervals import Times
from sim.errors import BrokenInvariant
from sim.ops import OpKind
from sim.passes.weight_versions import distances_at
from sim.schedule import BACKWARD_KINDS, FORWARD_KINDS, Halves, IntColumn, Rows, Schedule
from sim.trace import Trace

READERS = (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Summary:
    """One pass. ``mean`` and ``max`` are over the whole run, ``by_stage`` is the steady value of each stage: the most
    frequent one (of equals the largest) in the middle third of the mini-batches. ``None`` where nothing is updated.
    """

    mean: float | None
    max: int | None
    by_stage: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Staleness:
    """Staleness of a run.

    Parameters
    ----------
    forward, backward : a fused pair counts as forward.
    version : per op the weight version it read (updates seen), −1 where it reads none.
    staleness : per op, −1 where it reads no weights or no update of its mini-batch follows.
    realised : under weight prediction, for each stage how many updates ahead (forward, backward) would have been exact.
    """

    forward: Summary
    backward: Summary
    version: IntColumn
    staleness: IntColumn
    realised: tuple[tuple[int, int], ...] | None


def compute(trace: Trace) -> Staleness:
    """Staleness from times: a version is there once its update has ended.

    An op reads when it starts; under ``stash`` a backward has read when its forward did; a worker of a parameter server
    when its pull started. Where an update ends at that very instant, the order of the schedule decides.

    Raises
    ------
    BrokenInvariant : an op ran on other weights than its schedule says.
    """
    ops, halves = trace.ops, Halves(trace.ops)
    readers = np.flatnonzero(np.isin(ops["kind"], READERS) & (ops["reads"] >= 0))
    weights = _Weights(trace)
    version = np.full(len(ops), -1, np.int64)
    version[readers] = _versions(trace, weights, readers, _read_s(trace, halves, readers))
    op = ops[readers]
    applied_by = trace.shape.update_of(op["stage"], op["micro_batch"])
    own = halves.find(OpKind.UPDATE, op["stage"], applied_by, weights.replica_of(readers))
    staleness = np.full(len(ops), -1, np.int64)
    staleness[readers] = np.where(own >= 0, weights.rank[own] - version[readers], -1)
    return Staleness(
        forward=_summary(trace, staleness, FORWARD_KINDS),
        backward=_summary(trace, staleness, BACKWARD_KINDS),
        version=version,
        staleness=staleness,
        realised=_realised(trace),
    )


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

    def owner_of(self, rows: IntColumn) -> IntColumn:
        """The row of updates of the weights that each op uses."""
        return self._code(rows, self.replica_of(rows))


def _read_s(trace: Trace, halves: Halves, readers: IntColumn) -> Times:
    """When each op read its weights."""
    op, read_s = trace.ops[readers], trace.start_s[readers].copy()
    name = op["stage"], op["micro_batch"], op["replica"]
    if trace.header["weights"] == "stash":
        forward = halves.find(OpKind.FORWARD, *name)
        read_s = np.where(forward >= 0, trace.start_s[forward], read_s)
    pull = halves.find(OpKind.PULL, *name)
    return np.where(pull >= 0, trace.start_s[pull], read_s)


def _versions(trace: Trace, weights: _Weights, readers: IntColumn, read_s: Times) -> IntColumn:
    """The updates that each op saw, checked against its schedule."""
    least, most = np.zeros(len(readers), np.int64), np.zeros(len(readers), np.int64)
    mine = Rows.from_pairs(weights.owner_of(readers), np.arange(len(readers)), len(weights.rows))
    for updates, chosen in zip(weights.rows, mine, strict=True):
        ended_s = trace.end_s[updates]
        least[chosen] = np.searchsorted(ended_s, read_s[chosen], "left")
        most[chosen] = np.searchsorted(ended_s, read_s[chosen], "right")
    promised = trace.ops["reads"][readers].astype(np.int64)
    for wrong in np.flatnonzero((promised < least) | (promised > most))[:1]:
        raise BrokenInvariant(
            f"{trace.id(int(readers[wrong]))} should read weight version {promised[wrong]}, "
            f"but {most[wrong]} updates of its stage had ended when it read"
        )
    return promised


def _summary(trace: Trace, staleness: IntColumn, kinds: tuple[OpKind, ...]) -> Summary:
    rows = np.flatnonzero(np.isin(trace.ops["kind"], kinds) & (staleness >= 0))
    values, stage = staleness[rows], trace.ops["stage"][rows]
    mini_batch, count = trace.ops["micro_batch"][rows] // trace.shape.micro_batches, trace.shape.mini_batches
    middle = (mini_batch >= count // 3) & (mini_batch < count - count // 3)
    return Summary(
        mean=float(values.mean()) if len(values) else None,
        max=int(values.max()) if len(values) else None,
        by_stage=tuple(_mode(values[middle & (stage == number)]) for number in range(trace.shape.stages)),
    )


def _mode(values: IntColumn) -> int | None:
    """The most frequent value, of equals the largest."""
    counts = np.bincount(values)
    return len(counts) - 1 - int(counts[::-1].argmax()) if len(counts) else None


def _realised(trace: Trace) -> tuple[tuple[int, int], ...] | None:
    if trace.header["weights"] != "predict":
        return None
    nothing = np.empty(0, np.int64)
    as_run = Schedule(trace.shape, trace.ops, trace.lanes, trace.order, Rows.of([]), nothing)
    return distances_at(as_run, trace.start_s, trace.end_s)  # type: ignore[arg-type]  # seconds compare as slots do
