"""What a worker of a sweep does: make points of what they change, run them, and give back a row for each.

Points that share a schedule in which nothing contends are played together, a column each, whether their backend is
``longest_path`` or ``simulated``: the two are equal to the last bit there (``tests/property/test_backends_agree.py``).
So a row is the same however its point was run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import sim
from analysis import result
from backends import longest_path
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.planned import Planned
from scenarios.points import Changes, Point, made
from scenarios.run_folder import Outcome, outcome_of, point_name, run_point
from scenarios.sweep_row import Scalar, parameters, scalars
from sim.costs import seconds_column
from sim.errors import TwinrailError, UnsupportedPlan
from sim.longest_path import times_columns
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.trace import Trace

MOST_TIMES = 4_000_000
"""Ops times points that are played at once."""

_PLANNED = Planned()


class Task(NamedTuple):
    """Some points of a sweep, by number. ``keep``: whether whole results and traces are wanted."""

    base: Document
    scenario: str
    points: tuple[tuple[int, Changes], ...]
    keep: bool
    served: Mapping[str, Any]
    version: str


class Done(NamedTuple):
    """One point that was run, or failed with ``error``. ``result`` and ``trace`` where they are wanted."""

    number: int
    name: str
    parameters: dict[str, Scalar]
    figures: dict[str, Scalar]
    error: str | None
    result: dict[str, Any] | None = None
    trace: Trace | None = None


def run_task(task: Task) -> tuple[list[Done], float]:
    """Every point of a task in its order, and the seconds that took.

    Raises
    ------
    TwinrailError : this worker is of another version than the sweep.
    """
    if task.version != sim.VERSION:
        raise TwinrailError(f"a worker has twinrail {sim.VERSION}, the sweep is of {task.version}")
    start = time.monotonic()
    points = [made(task.base, changes, PLANNERS) for _, changes in task.points]
    outcomes = _together(points, task.scenario, _PLANNED)
    done = []
    for (number, _), point, outcome in zip(task.points, points, outcomes, strict=True):
        if outcome is None:
            outcome = _caught(partial(run_point, point, task.scenario, task.served, _PLANNED))
        done.append(_done(number, point, outcome, task.keep))
    return done, time.monotonic() - start


def _done(number: int, point: Point, outcome: Outcome | str, keep: bool) -> Done:
    name, swept = point_name(point), parameters(point.overrides)
    if isinstance(outcome, str):
        return Done(number, name, swept, {"name": name}, outcome)
    kept = (outcome.result, outcome.trace) if keep else (None, None)
    return Done(number, name, swept, scalars(outcome.result), None, *kept)


def _caught(work: Callable[[], Outcome]) -> Outcome | str:
    """What came of a point, or the words of its error: one that fails must not end the others."""
    try:
        return work()
    except TwinrailError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _together(points: Sequence[Point], scenario: str, planned: Planned) -> list[Outcome | str | None]:
    """What came of the points that can be played in columns; ``None`` for those that must be run by themselves."""
    found: list[Outcome | str | None] = [None] * len(points)
    groups: dict[Schedule, list[tuple[int, Composed]]] = {}
    for index, point in enumerate(points if len(points) > 1 else ()):
        if (composed := _in_columns(point, planned)) is not None:
            assert isinstance(composed.plan.work, Schedule)
            groups.setdefault(composed.plan.work, []).append((index, composed))
    for schedule, members in groups.items():
        size = max(MOST_TIMES // len(schedule), 1)
        for begin in range(0, len(members), size):
            for index, trace in _played(schedule, members[begin : begin + size], points):
                found[index] = _caught(partial(_analysed, points[index], scenario, trace))
    return found


def _in_columns(point: Point, planned: Planned) -> Composed | None:
    """A point whose times follow from its schedule alone."""
    wanted = point.scenario
    if wanted.backend not in ("simulated", "longest_path") or wanted.steady_state or wanted.samples:
        return None
    try:
        composed = compose(wanted, point.document, planned=planned)
        longest_path.uncontended(*composed)
    except Exception:
        return None  # running it says what is wrong
    return composed


def _played(
    schedule: Schedule, members: Sequence[tuple[int, Composed]], points: Sequence[Point]
) -> Iterator[tuple[int, Trace]]:
    """The traces of points that share a schedule, but of those that it takes an allocator to tell."""
    seconds = np.array([seconds_column(schedule, composed.binding) for _, composed in members]).T
    start, end = times_columns(schedule, np.ascontiguousarray(seconds))
    for column, (index, composed) in enumerate(members):
        wanted = points[index].scenario
        header = {"backend": wanted.backend, "seed": wanted.seed, "hardware": "simulated"}
        start_s, end_s = (np.ascontiguousarray(each[:, column]) for each in (start, end))
        try:
            yield index, longest_path.traced(composed.plan, composed.binding, schedule, start_s, end_s, header)
        except UnsupportedPlan:
            continue


def _analysed(point: Point, scenario: str, trace: Trace) -> Outcome:
    return outcome_of(point, trace, result.compute(trace, scenario, point_name(point)))
