"""Plans of least peak: brute force (the oracle), dynamic programs, and the rules of thumb they are compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from math import inf

import numpy as np

from sim.checkpointing.objectives import Objective, Sizes, peak

Plan = list[int]


def brute_force(objective: Objective, sizes: Sizes) -> Plan:
    """The best of all 2^(n−1) plans; of equals the first in the order of size and then of position."""
    n = len(sizes) - 1
    inner = (chosen for count in range(n) for chosen in combinations(range(1, n), count))
    return min((_with_ends(chosen, n) for chosen in inner), key=lambda plan: peak(objective, sizes, plan))


def _with_ends(inner: Sequence[int], n: int) -> Plan:
    return [0, *inner, n] if n else [0]


def cubic(sizes: Sizes) -> Plan:
    """The optimum of ``basic`` in O(n³): for each of the O(n²) sums s that a segment may have, the lightest
    checkpoints whose segments all stay within s. There is no binary search over s: the total is not monotone in it."""
    n = len(sizes) - 1
    prefix = np.concatenate([[0.0], np.cumsum(sizes)])
    first, last = np.triu_indices(n + 1, 1)
    limits = np.unique(prefix[last] - prefix[np.minimum(first + 1, last)]).tolist()
    best, chosen = inf, [0, n]
    for limit in limits:
        total, plan = _lightest(sizes, prefix.tolist(), limit)
        if total + limit < best:
            best, chosen = total + limit, plan
    return chosen if n else [0]


def _lightest(sizes: Sizes, prefix: Sequence[float], limit: float) -> tuple[float, Plan]:
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


def quadratic(objective: Objective, sizes: Sizes) -> Plan:
    """The optimum of every objective but ``basic`` in O(n²).

    M(n) = d_n; M(i) = d_i + min over j > i of max(M(j), U(i, j)), where U is the peak of the running segment.
    """
    n = len(sizes) - 1
    d = np.asarray(sizes, np.float64)
    best, following = np.empty(n + 1), np.full(n + 1, -1)
    best[n] = d[n]
    for i in range(n - 1, -1, -1):
        costs = np.maximum(best[i + 1 :], _segments(objective, d, i))
        following[i] = i + 1 + int(costs.argmin())
        best[i] = d[i] + costs.min()
    return _follow(following.tolist())


def _segments(
    objective: Objective, d: np.ndarray[tuple[int, ...], np.dtype[np.float64]], i: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """U(i, j) for every j > i."""
    live = np.concatenate([[0.0], np.cumsum(d[i + 1 : -1])])
    if objective == "corrected":
        return live + np.maximum.accumulate(d[i:-1]) + d[i + 1 :]
    at_layer = np.concatenate([[0.0], live[1:] + 2 * d[i + 1 : -1]])
    running = np.maximum.accumulate(at_layer)
    return running + 2 * d[i + 1 :] if objective == "reentrant" else running


def _follow(following: Sequence[int]) -> Plan:
    plan = [0]
    while following[plan[-1]] >= 0:
        plan.append(following[plan[-1]])
    return plan


def linear(sizes: Sizes) -> Plan:
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
    return _follow(following)


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


def sqrt_segments(sizes: Sizes) -> Plan:
    """Chen et al. (arXiv 1604.06174): round(√n) segments of about equal length, cut at round(t·n/k)."""
    n = len(sizes) - 1
    count = max(1, round(n**0.5))
    return sorted({round(t * n / count) for t in range(count + 1)})
