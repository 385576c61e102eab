"""What a run waited for: its critical path, and the share of the time of each cause on it.

The path is walked back from the last end. Before an op lies what it waited for last: the op it depends on or that its
lane ran before, or, where it started later than these allow, the transfer or pass that held its link or device until
then. So its pieces tile the whole run without gap or overlap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvalidSchedule
from sim.ops import OpKind
from sim.recording import MOVING_KINDS
from sim.rows import Rows
from sim.trace import Trace

SHARE = 2**-40
"""Shares are whole multiples of it, so that they add up to 1 in floats."""

ROUNDING = 1e-9
"""Of a transfer a smaller share is no latency."""

_COMPUTING = {
    OpKind.FORWARD: "forward",
    OpKind.RECOMPUTE: "recomputation",
    OpKind.BACKWARD: "backward",
    OpKind.BACKWARD_INPUT: "input gradient",
    OpKind.BACKWARD_WEIGHT: "weight gradient",
    OpKind.FORWARD_BACKWARD: "forward and backward",
    OpKind.ACCUMULATE: "accumulation",
}


class Cause(NamedTuple):
    """Why time passes: ``compute`` (of a stage, by pass), ``update``, ``transfer`` (bytes over the slowest link of a
    route), ``latency`` (of that route; part of ``transfer`` where nobody says what an op takes alone), ``sharing`` (an
    op takes longer since others use its link or device), ``allocator``, or ``waiting`` for none of these, as for a
    worker that begins late.
    """

    kind: str
    what: str


class Piece(NamedTuple):
    """A part of the critical path; ``op`` is a number in the trace, −1 where no op was at work."""

    start_s: float
    end_s: float
    op: int
    cause: Cause


class Part(NamedTuple):
    """The time of a cause, and its share. Those of all causes add up exactly, to the whole and to 1."""

    cause: Cause
    seconds: float
    share: float


def compute(trace: Trace, seconds: Sequence[float] | None = None) -> list[Piece]:
    """The critical path of a run, from time 0 to its last end.

    ``seconds``: of every op where nothing contends; what an op takes beyond them is ``sharing``.
    """
    return back(trace, int(trace.end_s.argmax()), seconds)


def back(trace: Trace, op: int, seconds: Sequence[float] | None = None) -> list[Piece]:
    """The critical path from time 0 to the end of an op."""
    return [*_Walk(trace, seconds).back(op)][::-1]


def parts(pieces: Iterable[Piece], start_s: float, end_s: float) -> list[Part]:
    """What each cause takes of the time between two instants that a critical path covers, the most first."""
    spent: dict[Cause, Fraction] = {}
    for piece in pieces:
        low, high = max(piece.start_s, start_s), min(piece.end_s, end_s)
        if high > low:
            spent[piece.cause] = spent.get(piece.cause, Fraction(0)) + Fraction(high) - Fraction(low)
    if not spent:
        return []
    by_size = sorted(spent, key=lambda cause: (-spent[cause], cause))
    whole_s = end_s - start_s
    weights = [spent[cause] for cause in by_size]
    seconds = apportion(weights, whole_s, math.ulp(whole_s))
    shares = apportion(weights, 1.0, SHARE)
    return [Part(*each) for each in zip(by_size, seconds, shares, strict=True)]


def apportion(weights: Sequence[Fraction], whole: float, grid: float) -> list[float]:
    """``whole`` in proportion to weights, in multiples of ``grid`` (a power of two) that add up to it exactly.

    What rounding down leaves goes to the largest remainders (Hamilton's method).
    """
    units, total = round(Fraction(whole) / Fraction(grid)), sum(weights)
    exact = [weight * units / total for weight in weights]
    counts = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: (counts[place] - exact[place], place))
    for place in by_remainder[: units - sum(counts)]:
        counts[place] += 1
    return [count * grid for count in counts]


def _carried_s(trace: Trace) -> NDArray[np.float64]:
    """For each op the bytes it moves over a link's bandwidth, the most of all its links."""
    flows = trace.flows
    links = [link["bytes_per_s"] for link in trace.header["links"]]
    pair = flows["op"].astype(np.int64) * len(links) + flows["link"]
    each, member = np.unique(pair, return_inverse=True)
    size_bytes, carried_s = np.bincount(member, flows["bytes"], len(each)), np.zeros(len(trace.ops))
    if len(each):
        np.maximum.at(carried_s, each // len(links), size_bytes / np.array(links)[each % len(links)])
    return carried_s


class _Walk:
    """From an op to what it waited for last."""

    def __init__(self, trace: Trace, seconds: Sequence[float] | None) -> None:
        self.trace, self.seconds = trace, seconds
        self.work_start_s, self.work_end_s = trace.working_s
        self.by_end = np.argsort(trace.end_s, kind="stable")
        self.ends_s = trace.end_s[self.by_end]
        self.links = Rows.from_pairs(
            trace.flows["op"].astype(np.int64), trace.flows["link"].astype(np.int64), len(trace.ops)
        )
        self.moves = np.isin(trace.ops["kind"], MOVING_KINDS)
        self.carried_s = _carried_s(trace)
        try:
            self.waits: Rows | None = trace.as_schedule().waits_for
        except InvalidSchedule:
            self.waits = None  # a program, whose order obeyed more than the data of training

    def back(self, op: int) -> Iterator[Piece]:
        """The pieces of the path to the end of ``op``, the last one first."""
        seen = set[int]()
        while op >= 0:
            seen.add(op)
            yield from self._own(op)
            op, gap = self._before(op, seen)
            yield from gap

    def _own(self, op: int) -> Iterator[Piece]:
        """What the op itself did, the last first; time in the driver, before its work and after it, apart."""
        trace = self.trace
        start_s, end_s = float(trace.start_s[op]), float(trace.end_s[op])
        begin_s, until_s = float(self.work_start_s[op]), float(self.work_end_s[op])
        cause = self._cause(op)
        alone_s = end_s if self.seconds is None else begin_s + self.seconds[op]
        shared_s = until_s if alone_s >= until_s - 8 * math.ulp(until_s) else alone_s
        moving_s = min(begin_s + self._latency_s(op), shared_s)
        pieces = (
            (until_s, end_s, Cause("allocator", self._device(op))),
            (shared_s, until_s, Cause("sharing", cause.what if self.moves[op] else self._device(op))),
            (moving_s, shared_s, cause),
            (begin_s, moving_s, Cause("latency", cause.what)),
            (start_s, begin_s, Cause("allocator", self._device(op))),
        )
        return (Piece(low, high, op, why) for low, high, why in pieces if high > low)

    def _latency_s(self, op: int) -> float:
        """What a transfer takes beyond its bytes over the bandwidth, where it is known how long it takes alone."""
        if self.seconds is None or not self.moves[op]:
            return 0.0
        latency_s = self.seconds[op] - float(self.carried_s[op])
        return latency_s if latency_s > ROUNDING * self.seconds[op] else 0.0

    def _cause(self, op: int) -> Cause:
        row, header = self.trace.ops[op], self.trace.header
        kind = OpKind(int(row["kind"]))
        if self.moves[op]:
            links = sorted(self.links[op].tolist(), key=lambda link: (header["links"][link]["bytes_per_s"], link))
            return Cause("transfer", f"link {header['links'][links[0]]['name']}" if links else "on one device")
        if kind is OpKind.UPDATE:
            return Cause("update", f"stage {row['stage']}")
        return Cause("compute", f"stage {row['stage']} {_COMPUTING[kind]}")

    def _device(self, op: int) -> str:
        return str(self.trace.header["devices"][int(self.trace.ops["source"][op])])

    def _before(self, op: int, seen: set[int]) -> tuple[int, list[Piece]]:
        """What the op waited for last (−1: nothing), and the time between, where no op explains it."""
        start_s = float(self.trace.start_s[op])
        last, ready_s = self._last_needed(op, seen)
        if ready_s == start_s or not start_s:
            return last, []
        if (holder := self._holder(op, start_s, seen)) >= 0:
            return holder, []
        return last, [Piece(ready_s, start_s, -1, self._gap(op, ready_s, start_s))]

    def _last_needed(self, op: int, seen: set[int]) -> tuple[int, float]:
        """Of what an op needs the last to end, and when; of a program, of what shares a device with it."""
        end_s = self.trace.end_s
        if self.waits is None:
            ended = self._ended_by(float(self.trace.start_s[op]))
            last = next((each for each in ended if each not in seen and self._meet(op, each)), -1)
        else:
            needed = self.waits[op]
            last = int(needed[int(end_s[needed].argmax())]) if len(needed) else -1
        return last, float(end_s[last]) if last >= 0 else 0.0

    def _holder(self, op: int, start_s: float, seen: set[int]) -> int:
        """An op that ended when this one could start: one that used its link, else one on its devices; or −1."""
        at_once = itertools.takewhile(lambda other: self.trace.end_s[other] == start_s, self._ended_by(start_s))
        ended = [other for other in at_once if other not in seen]
        links = set(self.links[op].tolist())
        sharing = (other for other in ended if not links.isdisjoint(self.links[other].tolist()))
        meeting = (other for other in ended if self._meet(op, other))
        return next(sharing, next(meeting, -1))

    def _ended_by(self, time_s: float) -> Iterator[int]:
        """Every op that had ended, the last first."""
        return (int(each) for each in self.by_end[: int(np.searchsorted(self.ends_s, time_s, "right"))][::-1])

    def _meet(self, op: int, other: int) -> bool:
        """Whether two ops use one device."""
        ends = [{int(self.trace.ops[name][each]) for name in ("source", "target")} - {-1} for each in (op, other)]
        return not ends[0].isdisjoint(ends[1])

    def _gap(self, op: int, ready_s: float, start_s: float) -> Cause:
        """Why an op that was ready had to wait where no other op held it up: its device was in the driver, or else."""
        driver = self.trace.driver
        mine = driver["device"] == self.trace.ops["source"][op]
        if bool((mine & (driver["done_s"] > ready_s) & (driver["time_s"] < start_s)).any()):
            return Cause("allocator", self._device(op))
        return Cause("waiting", self._device(op))
