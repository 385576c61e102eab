"""Layers to stages: contiguous runs of a chain.

Costs are compared as exact integers, so that equal stages are equal and a choice among ties never hangs on rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from sim.errors import Fault, ScenarioError

Partition = tuple[tuple[int, int], ...]
"""First and last layer of each stage, both included."""


def balanced(costs: Sequence[float], stages: int) -> Partition:
    """The contiguous partition whose dearest stage is cheapest, exactly.

    Ties go to the least sum of squared stage costs, then to the smallest cuts. ``costs`` are per layer, in any unit.

    Raises
    ------
    ScenarioError : more stages than layers, no stage at all, or a cost that is negative or not finite.
    """
    _check(costs, stages)
    prefix = list(accumulate(_as_integers(costs), initial=0))
    return at_cuts(len(costs), _evenest_cuts(prefix, stages, _least_bottleneck(prefix, stages)))


def at_cuts(layers: int, cuts: Sequence[int]) -> Partition:
    """The partition of ``layers`` layers at explicit cuts; a cut is the first layer of the next stage.

    Raises
    ------
    ScenarioError : a cut that is no layer's number, leaves a stage empty or is out of order; every one is named.
    """
    expected = f"expected a layer from 1 to {layers - 1}" if layers > 1 else "a single layer cannot be cut"
    faults = []
    previous = 0
    for index, cut in enumerate(cuts):
        path = f"partition.cuts.{index}"
        if isinstance(cut, bool) or not isinstance(cut, int) or not 0 < cut < layers:
            faults.append(Fault(expected, path))
        elif cut <= previous:
            faults.append(Fault(f"cut at {cut} after {previous}: cuts must increase", path))
        else:
            previous = cut
    if faults:
        raise ScenarioError.of(faults)
    return tuple((first, following - 1) for first, following in pairwise((0, *cuts, layers)))


def _check(costs: Sequence[float], stages: int) -> None:
    faults = [
        Fault(f"layer {index} costs {cost}: expected a finite number, at least 0", "partition")
        for index, cost in enumerate(costs)
        if not (math.isfinite(cost) and cost >= 0)
    ]
    if not 1 <= stages <= len(costs):
        reason = f"{stages} stages for {len(costs)} layers: every stage needs at least one layer"
        faults.append(Fault(reason, "schedule.stages", suggestion=f"use 1 to {len(costs)} stages" if costs else None))
    if faults:
        raise ScenarioError.of(faults)


def _as_integers(costs: Sequence[float]) -> list[int]:
    """The costs in the largest unit that makes each of them whole; a float is an integer times a power of two."""
    fractions = [Fraction(float(cost)) for cost in costs]
    per_unit = max(fraction.denominator for fraction in fractions)
    return [fraction.numerator * (per_unit // fraction.denominator) for fraction in fractions]


def _least_bottleneck(prefix: Sequence[int], stages: int) -> int:
    """The least cost that no stage need exceed, by bisection on it."""
    low = max(after - before for before, after in pairwise(prefix))
    if _furthest_starts(prefix, stages, low)[-1] == len(prefix) - 1:
        return low  # a single layer is the dearest stage, as where every stage is a layer
    high = prefix[-1]
    while low < high:
        middle = (low + high) // 2
        if _furthest_starts(prefix, stages, middle)[-1] == len(prefix) - 1:
            high = middle
        else:
            low = middle + 1
    return low


def _furthest_starts(prefix: Sequence[int], stages: int, bottleneck: int) -> list[int]:
    """How many layers 0, 1, … ``stages`` stages hold at most, none dearer than ``bottleneck``."""
    starts = [0]
    for _ in range(stages):
        starts.append(bisect_right(prefix, prefix[starts[-1]] + bottleneck) - 1)
    return starts


def _nearest_starts(prefix: Sequence[int], stages: int, bottleneck: int) -> list[int]:
    """The first layer from which ``stages``, … 1, 0 stages hold all the rest, none dearer than ``bottleneck``."""
    starts = [len(prefix) - 1]
    for _ in range(stages):
        starts.append(bisect_left(prefix, prefix[starts[-1]] - bottleneck))
    return starts[::-1]


def _evenest_cuts(prefix: Sequence[int], stages: int, bottleneck: int) -> list[int]:
    """Cuts of least Σ cost² among the partitions within ``bottleneck``; of equals the smallest."""
    layers = len(prefix) - 1
    nearest = _nearest_starts(prefix, stages, bottleneck)
    furthest = _furthest_starts(prefix, stages, bottleneck)
    starts = [
        range(max(stage, nearest[stage]), min(furthest[stage], layers - stages + stage) + 1)
        for stage in range(stages + 1)
    ]
    rest: dict[int, int] = {layers: 0}
    ends: list[dict[int, int]] = []
    for stage in reversed(range(stages)):
        rest, best_end = _best_ends(prefix, starts[stage], starts[stage + 1], rest, bottleneck)
        ends.append(best_end)
    cuts = [0]
    for best_end in reversed(ends):
        cuts.append(best_end[cuts[-1]])
    return cuts[1:-1]


def _best_ends(
    prefix: Sequence[int], starts: range, ends: range, rest: Mapping[int, int], bottleneck: int
) -> tuple[dict[int, int], dict[int, int]]:
    """For one stage and every start of it: the least Σ cost² from there on, and the smallest end that attains it.

    ``rest[end]`` is that sum for the stages behind. Squares of contiguous sums obey the quadrangle inequality, so the
    best end never moves left as the start moves right, and halving the starts leaves few ends to try for each.
    """
    least: dict[int, int] = {}
    best_end: dict[int, int] = {}
    pending = [(starts.start, starts.stop, ends.start, ends.stop - 1)]
    while pending:
        low, high, first, last = pending.pop()
        if low == high:
            continue
        start = (low + high) // 2
        before = prefix[start]
        affordable = bisect_right(prefix, before + bottleneck) - 1
        least[start], best_end[start] = min(
            ((prefix[end] - before) ** 2 + rest[end], end)
            for end in range(max(first, start + 1), min(last, affordable) + 1)
        )
        pending += [(low, start, first, best_end[start]), (start + 1, high, best_end[start], last)]
    return least, best_end
