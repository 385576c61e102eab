"""Sets of time intervals: how long at least one is open, and how many are open at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.rows import IntColumn

Times = NDArray[np.float64]


class Spans(NamedTuple):
    """Disjoint intervals in order of time."""

    start_s: Times
    end_s: Times

    @property
    def length_s(self) -> float:
        """Their total length."""
        return float((self.end_s - self.start_s).sum())

    def within(self, low_s: float, high_s: float) -> Spans:
        """The part of them between two times."""
        start_s, end_s = (np.minimum(np.maximum(each, low_s), high_s) for each in self)
        lasting = end_s > start_s
        return Spans(start_s[lasting], end_s[lasting])


def union(start_s: Times, end_s: Times) -> Spans:
    """The times at which at least one of some intervals is open; intervals that touch become one."""
    if not len(start_s):
        return Spans(start_s, end_s)
    by_start = np.argsort(start_s, kind="stable")
    start_s, reach_s = start_s[by_start], np.maximum.accumulate(end_s[by_start])
    edges = np.ones(len(start_s) + 1, bool)  # where a span may open, and the one before it closes
    np.greater(start_s[1:], reach_s[:-1], out=edges[1:-1])
    start_s, end_s = start_s[edges[:-1]], reach_s[edges[1:]]
    lasting = end_s > start_s
    return Spans(start_s[lasting], end_s[lasting])


def most_at_once(group: IntColumn, start_s: Times, end_s: Times, groups: int) -> IntColumn:
    """Per group the highest number of its intervals open at once; at equal times those that end come first.

    An interval of no length counts by itself, so that whatever exists is at least one.
    """
    time_s, step = np.concatenate([start_s, end_s]), np.repeat([1, -1], len(group))
    owner = np.concatenate([group, group])
    in_order = np.lexsort([step, time_s, owner])
    open_now = np.cumsum(step[in_order])  # every group adds up to nothing, so each begins at 0
    most = np.zeros(groups, np.int64)
    np.maximum.at(most, owner[in_order], np.maximum(open_now, 1))
    return most
