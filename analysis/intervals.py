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
        start_s, end_s = np.clip(self.start_s, low_s, high_s), np.clip(self.end_s, low_s, high_s)
        return Spans(start_s[end_s > start_s], end_s[end_s > start_s])


def union(start_s: Times, end_s: Times) -> Spans:
    """The times at which at least one of some intervals is open; intervals that touch become one."""
    by_start = np.argsort(start_s, kind="stable")
    start_s, reach_s = start_s[by_start], np.maximum.accumulate(end_s[by_start])
    opens = np.append(True, start_s[1:] > reach_s[:-1])[: len(start_s)]
    start_s, end_s = start_s[opens], reach_s[np.append(opens[1:], True)[: len(opens)]]
    return Spans(start_s[end_s > start_s], end_s[end_s > start_s])


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
