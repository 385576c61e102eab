"""Plans of least peak: brute force (the oracle), dynamic programs, and the rules of thumb they are compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf

import numpy as np

from sim.checkpointing.objectives import Objective, Sizes, peak, program
from sim.checkpointing.plan import Plan, Run, checkpoints
from sim.checkpointing.program import least_peak

Checkpoints = list[int]


def brute_force(objective: Objective, sizes: Sizes) -> Checkpoints:
    """The best of all 2^(n−1) sets; of equals the first in the order of size and then of position."""
    n = len(sizes) - 1
    inner = (chosen for count in range(max(n, 1)) for chosen in combinations(range(1, n), count))
    return min((_with_ends(chosen, n) for chosen in inner), key=lambda plan: peak(objective, sizes, plan))


def _with_ends(inner: Sequence[int], n: int) -> Checkpoints:
    return [0, *inner, n] if n else [0]


def all_plans(n: int, start: int = 0) -> Iterator[Plan]:
    """Every plan of n vertices without runs in runs: about 2.618^n of them."""
    if start == n:
        yield ()
    for last in range(start + 1, n + 1):
        items: list[int | Run] = [Run(tuple(range(start + 1, last + 1)))]
        items += [last] if last == start + 1 else []
        for rest in all_plans(n, last):
            yield from ((item, *rest) for item in items)


def cubic(sizes: Sizes) -> Checkpoints:
    """The optimum of ``basic``: for each of the O(n²) sums s that a segment may have, the lightest checkpoints whose
    segments all stay within s.

    There is no binary search over s: the total is not monotone in it. But the checkpoints get lighter as s grows, so
    between two sums that were tried no total is below the smaller sum and the lighter checkpoints. O(n³) at worst.
    This is what Feng and Huang (arXiv 1808.00079) find on a chain: a shortest path for every largest segment.
    """
    n = len(sizes) - 1
    prefix = np.append(0.0, np.cumsum(sizes))
    first, last = np.triu_indices(n + 1, 1)
    limits = np.unique(prefix[last] - prefix[np.minimum(first + 1, last)]).tolist()
    if not limits:
        return [0]
    lightest = {at: _lightest(sizes, prefix.tolist(), limits[at]) for at in (0, len(limits) - 1)}
    best, chosen = min((weight + limits[at], at) for at, (weight, _) in lightest.items())
    pending = [(0, len(limits) - 1)]
    while pending:
        low, high = pending.pop()
        if high - low < 2 or (limits[low + 1] + lightest[high][0], low + 1) >= (best, chosen):
            continue
        middle = (low + high) // 2
        lightest[middle] = _lightest(sizes, prefix.tolist(), limits[middle])
        best, chosen = min((best, chosen), (lightest[middle][0] + limits[middle], middle))
        pending += [(middle, high), (low, middle)]
    return lightest[chosen][1]


def _lightest(sizes: Sizes, prefix: Sequence[float], limit: float) -> tuple[float, Checkpoints]:
    """Least bytes of checkpoints whose segments hold at most ``limit``: M(i) = d_i + min M(j), by a monotone deque."""
    n = len(sizes) - 1
    weight, previous = [0.0] * (n + 1), [-1] * (n + 1)
    weight[0] = sizes[0]
    window: deque[int] = deque([0])
    for i in range(1, n + 1):
        while window and prefix[i] - prefix[window[0] + 1] > limit:
            window.popleft()
        if not window:
            return inf, [0, n]
        previous[i] = window[0]
        weight[i] = sizes[i] + weight[window[0]]
        while window and weight[window[-1]] >= weight[i]:
            window.pop()
        window.append(i)
    plan = [n]
    while previous[plan[-1]] >= 0:
        plan.append(previous[plan[-1]])
    return weight[n], plan[::-1]


def quadratic(objective: Objective, sizes: Sizes) -> Checkpoints:
    """The optimum of every objective but ``basic`` in O(n²)."""
    return checkpoints(least_peak(program(objective, sizes)))


def linear(sizes: Sizes) -> Checkpoints:
    """The optimum of ``corrected`` in O(n).

    U(i, j) grows with j and does not fall as i falls. So a candidate j′ > j with M(j) ≤ M(j′) is dominated, the
    candidates left have M falling with j, and the best lies where M and U cross, which moves only to the left.
    """
    d = [float(size) for size in sizes]
    n = len(d) - 1
    prefix = [0.0]
    for size in d:
        prefix.append(prefix[-1] + size)
    best, following = [0.0] * n + [d[n]], [-1] * (n + 1)
    candidates: deque[int] = deque()  # positions rise to the right, M falls
    records = _Records(d)
    for i in range(n - 1, -1, -1):
        while candidates and best[candidates[0]] >= best[i + 1]:
            candidates.popleft()
        candidates.appendleft(i + 1)
        records.push(i)
        right = candidates[-1]
        while len(candidates) > 1:
            second = candidates[-2]
            used = prefix[second] - prefix[i + 1] + records.most(1, second - 1) + d[second]
            if used < best[second]:
                break
            candidates.pop()
            right = second
        used = prefix[right] - prefix[i + 1] + records.most(0, right - 1) + d[right]
        choice, cost = right, max(best[right], used)
        if len(candidates) > 1 and best[candidates[-2]] <= cost:  # left of the crossing M decides
            choice, cost = candidates[-2], best[candidates[-2]]
        following[i], best[i] = choice, d[i] + cost
    plan = [0]
    while following[plan[-1]] >= 0:
        plan.append(following[plan[-1]])
    return plan


class _Records:
    """The largest of d[i..r] as i and r both fall, in O(1) amortised: the records met when walking right from i."""

    def __init__(self, d: Sequence[float]) -> None:
        self._d = d
        self._positions: list[int] = []  # leftmost last; values fall towards the end of the list
        self._at = [0, 0]  # for each of two windows, where in the list its right end has come to

    def push(self, i: int) -> None:
        """The windows now start at ``i``."""
        while self._positions and self._d[self._positions[-1]] <= self._d[i]:
            self._positions.pop()
        self._positions.append(i)
        self._at = [min(at, len(self._positions) - 1) for at in self._at]

    def most(self, window: int, r: int) -> float:
        """The largest up to ``r``; for each of the two windows ``r`` must not rise from call to call."""
        at = self._at[window]
        while self._positions[at] > r:
            at += 1
        self._at[window] = at
        return self._d[self._positions[at]]


def sqrt_segments(sizes: Sizes) -> Checkpoints:
    """Chen et al. (arXiv 1604.06174): round(√n) segments of about equal length, cut at round(t·n/k)."""
    n = len(sizes) - 1
    count = max(1, round(n**0.5))
    return sorted({round(t * n / count) for t in range(count + 1)})
