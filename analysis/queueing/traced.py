"""Trace-driven simulation: W workers replay the steps of one (Lin et al., MASCOTS 2018).

A step downloads, computes, uploads and is applied, each for as long as one worker alone took. Workers compute side by
side; at a shared phase the server serves all at once, each at an equal part of its speed (processor sharing).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from analysis.queueing.network import Floats

STEPS = 10_000
"""Steps simulated for each number of workers, after a tenth as many to forget the start."""


def predict(steps_s: Floats, shared: Sequence[bool], workers: Sequence[int]) -> Floats:
    """Steps/s of ``workers``, shape [workers].

    Parameters
    ----------
    steps_s : seconds of each phase in each recorded step, shape [steps, phases]; a worker draws a step after another.
    shared : which phases the workers share.
    """
    return np.array([_throughput_per_s(steps_s, shared, count) for count in workers])


def _throughput_per_s(steps_s: Floats, shared: Sequence[bool], workers: int) -> float:
    random = np.random.default_rng(0)
    drawn = iter(steps_s[random.integers(len(steps_s), size=workers + STEPS + STEPS // 10 + 1)].tolist())
    stations = [_Station(one) for one in shared]
    step = [next(drawn) for _ in range(workers)]
    phase = []
    for worker, seconds in enumerate(step):  # somewhere in a first step
        left_s = random.random() * sum(seconds)
        first = max(index for index in range(len(seconds)) if sum(seconds[index:]) >= left_s)
        phase.append(first)
        stations[first].enter(worker, 0.0, left_s - sum(seconds[first + 1 :]))
    begin_s = now_s = 0.0
    done = -(STEPS // 10)
    while done < STEPS:
        station = min(stations, key=_Station.next_end_s)
        now_s = station.next_end_s()
        worker = station.leave(now_s)
        phase[worker] += 1
        if phase[worker] == len(shared):
            phase[worker], step[worker] = 0, next(drawn)
            done += 1
            begin_s = now_s if done == 0 else begin_s
        stations[phase[worker]].enter(worker, now_s, step[worker][phase[worker]])
    return STEPS / (now_s - begin_s)


class _Station:
    """Serves all at once, in time that runs slower by as many as share it (virtual time)."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._virtual_s = self._since_s = 0.0
        self._ends: list[tuple[float, int]] = []

    def enter(self, worker: int, now_s: float, seconds: float) -> None:
        self._advance(now_s)
        heapq.heappush(self._ends, (self._virtual_s + seconds, worker))

    def leave(self, now_s: float) -> int:
        """The worker whose time was up."""
        self._advance(now_s)
        return heapq.heappop(self._ends)[1]

    def next_end_s(self) -> float:
        """When the next one leaves if nobody enters."""
        if not self._ends:
            return float("inf")
        return self._since_s + max(self._ends[0][0] - self._virtual_s, 0.0) * self._slowness

    def _advance(self, now_s: float) -> None:
        if self._ends:
            self._virtual_s += (now_s - self._since_s) / self._slowness
        self._since_s = now_s

    @property
    def _slowness(self) -> int:
        return len(self._ends) if self._shared else 1
