"""The dynamic programs that all objectives share whose peak is that of one segment at a time.

Backward works from the right, so what is kept to the right of a segment is gone when it runs, and what is kept to its
left adds to its peak. With M(i) the peak of all that lies to the right of y_i, and d_i the bytes of y_i:

    M(i) = d_i + min over j > i of max(M(j), U(i, j))

where U(i, j) is the peak of recomputing y_{i+1} … y_j from y_i. Vertex i + 1 may also run as it is: then what it saves
is kept beside y_i, and y_i itself only if anything saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.checkpointing.plan import Plan, Run, vertices

Array = NDArray[np.float64]

MOST_UNITS = 1000
"""Into how many units the time of a forward pass is divided, where it is not whole seconds already."""


@dataclass(frozen=True)
class Program:
    """Peaks of the parts of a plan, in bytes, above what is kept to their left.

    ``sizes`` d_0 … d_n. ``runs(i)``: U(i, j) for every j > i. Of vertex k as it is: ``kept[k]`` beside its input and
    output; ``plain[held, k]`` its peak, where its input is held or not; ``held[left, i]``: whether y_i is, vertex i + 1
    being run as it is and vertex i recomputed (0) or not (1). ``end[left]``: the peak of what follows y_n, with it.
    ``again``: whether a run recomputes its last output too. Every peak adds ``base``, and none is below ``floor``.
    """

    sizes: Array
    runs: Callable[[int], Array]
    kept: Array
    plain: Array
    held: NDArray[np.bool_]
    end: tuple[float, float]
    again: bool
    base: float = 0.0
    floor: float = 0.0

    @property
    def vertices(self) -> int:
        """How many there are."""
        return len(self.sizes) - 1

    def total(self, peak: float) -> float:
        """The peak with what is always there."""
        return max(self.base + peak, self.floor)


def least_peak(program: Program) -> Plan:
    """The plan of least peak in O(n²); of equals, what need not be recomputed is not."""
    n, d = program.vertices, program.sizes
    best = np.empty((2, n + 1))
    best[:, n] = program.end
    end, plain = np.zeros(n + 1, np.int64), np.zeros((2, n + 1), np.bool_)
    for i in range(n - 1, -1, -1):
        costs = np.maximum(best[0, i + 1 :], program.runs(i))
        end[i] = i + 1 + int(costs.argmin())
        for left in (0, 1):
            held = int(program.held[left, i])
            as_it_is = held * d[i] + max(program.plain[held, i + 1], program.kept[i + 1] + best[1, i + 1])
            again = d[i] + costs[end[i] - i - 1]
            plain[left, i] = as_it_is <= again
            best[left, i] = min(as_it_is, again)
    plan: list[int | Run] = []
    i = left = 0
    while i < n:
        if plain[left, i]:
            i, left = i + 1, 1
            plan.append(i)
        else:
            plan.append(Run(tuple(range(i + 1, end[i] + 1))))
            i, left = int(end[i]), 0
    return tuple(plan)


class Choice(NamedTuple):
    """A plan, its peak in bytes, and the seconds that it recomputes."""

    peak_bytes: float
    recompute_s: float
    plan: Plan


def front(program: Program, seconds: Sequence[float]) -> list[Choice]:
    """The plans that no other beats in both peak and recomputed time, from the least peak to the least time.

    ``seconds`` of the forward pass of each vertex. Times are rounded to a thousandth of their sum, unless they are
    whole and no more than that; peaks are exact. O(n² · units).
    """
    units = _in_units(seconds)
    best = _tabulate(program, units)
    found: list[Choice] = []
    peaks = best[0, 0]
    for limit in range(len(peaks)):
        if peaks[limit] < inf and (limit == 0 or peaks[limit] < peaks[limit - 1]):
            plan = _follow(program, units, best, limit)
            found.append(Choice(program.total(float(peaks[limit])), recompute_s(plan, seconds, program.again), plan))
    return undominated(found)


def undominated(choices: Iterable[Choice]) -> list[Choice]:
    """Those that no other beats in both, by peak; of equals the first."""
    found, least_s = list[Choice](), inf
    for choice in sorted(choices, key=lambda choice: choice[:2]):
        if choice.recompute_s < least_s:
            found.append(choice)
            least_s = choice.recompute_s
    return found


def recompute_s(plan: Plan, seconds: Sequence[float], again: bool = True) -> float:
    """Seconds of the forward passes that a plan repeats; ``again``: the last vertex of a run is repeated too."""
    total = 0.0
    for item in plan:
        if isinstance(item, Run):
            inside = [*vertices(item.items)]
            total += sum(seconds[k - 1] for k in (inside if again else inside[:-1]))
            total += recompute_s(item.items, seconds, again)
    return total


def _in_units(seconds: Sequence[float]) -> list[int]:
    total = sum(seconds)
    whole = total <= MOST_UNITS and all(float(s).is_integer() for s in seconds)
    unit = 1.0 if whole or not total else total / MOST_UNITS
    return [0, *(round(s / unit) for s in seconds)]


def _tabulate(program: Program, units: Sequence[int]) -> Array:
    """M(i) by what lies left of y_i, for every limit to the units that may be recomputed to the right of y_i."""
    n, d = program.vertices, program.sizes
    before = np.cumsum(units)
    best = np.full((2, n + 1, int(before[n]) + 1), inf)
    best[0, n], best[1, n] = program.end
    for i in range(n - 1, -1, -1):
        again = np.full(best.shape[2], inf)
        for offset, peak in enumerate(program.runs(i)):
            cost = int(before[i + 1 + offset - (not program.again)] - before[i])
            np.minimum(again[cost:], np.maximum(best[0, i + 1 + offset, : len(again) - cost], peak), out=again[cost:])
        for left in (0, 1):
            held = int(program.held[left, i])
            as_it_is = np.maximum(program.plain[held, i + 1], program.kept[i + 1] + best[1, i + 1]) + held * d[i]
            best[left, i] = np.minimum(again + d[i], as_it_is)
    return best


def _follow(program: Program, units: Sequence[int], best: Array, limit: int) -> Plan:
    """The plan behind an entry of the table, found by trying what may have led to it."""
    before, plan = np.cumsum(units), list[int | Run]()
    i = left = 0
    while i < program.vertices:
        value, d = best[left, i, limit], program.sizes[i]
        held = int(program.held[left, i])
        if held * d + max(program.plain[held, i + 1], program.kept[i + 1] + best[1, i + 1, limit]) == value:
            i, left = i + 1, 1
            plan.append(i)
            continue
        for offset, peak in enumerate(program.runs(i)):
            j = i + 1 + offset
            cost = int(before[j - (not program.again)] - before[i])
            if cost <= limit and d + max(best[0, j, limit - cost], peak) == value:
                plan.append(Run(tuple(range(i + 1, j + 1))))
                i, left, limit = j, 0, limit - cost
                break
        else:
            raise AssertionError("an entry of the table that nothing led to")
    return tuple(plan)
