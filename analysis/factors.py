"""How many times faster a method is than others over a sweep, and where in the sweep a published factor lies."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Wanted = Mapping[str, Any]
"""Keys of a ``schedule:``; it stands for every schedule that has them all."""


class Axes(NamedTuple):
    """The paths of a sweep that name a row, a column, and the place along the line where they meet."""

    group: str
    line: str
    at: str


class Factor(NamedTuple):
    """How many times faster the method was than a baseline at one point of the sweep."""

    group: str
    baseline: str
    line: str
    at: float
    value: float


class Range(NamedTuple):
    """The least, the median and the largest of some factors, and of how many."""

    least: float
    median: float
    most: float
    points: int


Span = tuple[float, float]
Place = tuple[Span, ...] | Literal["above", "below"]
"""Between which neighbours on a line a figure lies; else all factors of the line are above or below it."""


def compute(
    results: Iterable[Mapping[str, Any]], axes: Axes, method: Wanted, baselines: Mapping[str, Wanted], fits_bytes: float
) -> list[Factor]:
    """The factors of a grid over ``axes`` and ``schedule``, from its results, in the order of the grid.

    Where several schedules answer to a description, the fastest counts. What needs more than ``fits_bytes`` on one
    device does not count.
    """
    speeds: dict[tuple[Any, ...], list[tuple[Wanted, float]]] = {}
    for result in results:
        overrides = result["overrides"]
        found = speeds.setdefault(tuple(overrides[path] for path in axes), [])
        if all(device["peak_memory_bytes"] <= fits_bytes for device in result["devices"]):
            found.append((overrides["schedule"], result["samples_per_s"]))
    factors = []
    for (group, line, at), found in speeds.items():
        for name, baseline in baselines.items():
            ours, theirs = _fastest(found, method), _fastest(found, baseline)
            if ours and theirs:
                factors.append(Factor(group, name, line, at, ours / theirs))
    return factors


def _fastest(found: Iterable[tuple[Wanted, float]], wanted: Wanted) -> float:
    return max((speed for schedule, speed in found if wanted.items() <= schedule.items()), default=0.0)


def spread(values: Sequence[float]) -> Range:
    """The range of some values, at least one."""
    return Range(min(values), statistics.median(values), max(values), len(values))


def ranges(factors: Iterable[Factor]) -> dict[tuple[str, str], Range]:
    """The range over all lines and places, for each group and baseline."""
    values: dict[tuple[str, str], list[float]] = {}
    for factor in factors:
        values.setdefault((factor.group, factor.baseline), []).append(factor.value)
    return {key: spread(found) for key, found in values.items()}


def places(factors: Iterable[Factor], figure: float) -> dict[tuple[str, str], dict[str, Place]]:
    """Where a figure lies on each line, for each group and baseline."""
    lines: dict[tuple[str, str], dict[str, list[Factor]]] = {}
    for factor in factors:
        lines.setdefault((factor.group, factor.baseline), {}).setdefault(factor.line, []).append(factor)
    return {key: {line: _place(found, figure) for line, found in by.items()} for key, by in lines.items()}


def _place(line: Sequence[Factor], figure: float) -> Place:
    along = sorted(line, key=lambda factor: factor.at)
    spans = tuple(
        (before.at, after.at) for before, after in pairwise(along) if (before.value < figure) != (after.value < figure)
    )
    return spans or ("below" if along[0].value < figure else "above")


def effect(factors: Iterable[Factor], field: str, pairs: Iterable[tuple[Any, Any]]) -> Range:
    """What the first instead of the second value of a field multiplies a factor by, all else equal."""
    by_place = {factor._replace(value=0.0): factor.value for factor in factors}
    ratios = [
        value / by_place[other]
        for first, second in pairs
        for place, value in by_place.items()
        if getattr(place, field) == first and (other := place._replace(**{field: second})) in by_place
    ]
    return spread(ratios)
