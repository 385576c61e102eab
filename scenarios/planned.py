"""Schedules that were planned before, for the points of a sweep that differ in seconds and bytes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.errors import TwinrailError
from sim.program import Program
from sim.schedule import Schedule

T = TypeVar("T")
MOST_OPS = 2_000_000
"""Ops of all schedules that are kept; beyond, all are forgotten."""

HoldsLanes = Callable[[int, int], bool]


class Ordered(NamedTuple):
    """A schedule with its passes applied, and the events of its buffers."""

    schedule: Schedule
    events: NDArray[np.void]


class _Entry(NamedTuple):
    """What was made, and every answer about the cluster that it was made by, in the order of asking."""

    answers: dict[tuple[int, int], bool]
    made: Ordered


class Planned:
    """What planners and passes made, by their arguments."""

    def __init__(self) -> None:
        self._works: dict[str, Schedule] = {}
        self._refused: dict[str, TwinrailError] = {}
        self._ordered: dict[str, list[_Entry]] = {}
        self._ops = 0

    def work(self, key: str, plan: Callable[[], Schedule | Program]) -> Schedule | Program:
        """What a planner makes of the arguments that ``key`` tells apart, or refuses; programs are made anew."""
        if key in self._works:
            return self._works[key]
        work = self._made(key, plan)
        if isinstance(work, Schedule):
            self._count(work)
            self._works[key] = work
        return work

    def ordered(self, key: str, holds_lanes: HoldsLanes, make: Callable[[HoldsLanes], Ordered]) -> Ordered:
        """What the passes make of it, where ``holds_lanes`` answers as it did then.

        It is asked in the same order as then, since a cluster numbers its links in the order of asking.
        """
        for entry in self._ordered.get(key, ()):
            if all(holds_lanes(*pair) == held for pair, held in entry.answers.items()):
                return entry.made
        answers: dict[tuple[int, int], bool] = {}

        def asked(source: int, target: int) -> bool:
            held = holds_lanes(source, target)
            return answers.setdefault((source, target), held)

        made = self._made(key, lambda: make(asked))
        self._count(made.schedule)
        self._ordered.setdefault(key, []).append(_Entry(answers, made))
        return made

    def _made(self, key: str, make: Callable[[], T]) -> T:
        """What is made, or the refusal of before: passes are refused for what ``key`` holds, wherever it is placed."""
        if key in self._refused:
            raise self._refused[key].with_traceback(None)
        try:
            return make()
        except TwinrailError as error:
            self._refused[key] = error
            raise

    def _count(self, schedule: Schedule) -> None:
        self._ops += len(schedule)
        if self._ops > MOST_OPS:
            self._works.clear()
            self._ordered.clear()
            self._ops = len(schedule)
