"""Which points of a sweep to leave out: by what stands in them, without expressions to evaluate."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.document import KeyPath, split
from scenarios.quantities import WrongValue, shown
from scenarios.sweep_values import in_si
from sim.errors import nearest

BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
"""What a value may be compared with: a number, a quantity, or what stands at another path of the same point."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds for a point where every path does: its value is one of a list, or within bounds.

    A path that a point does not have does not hold.
    """

    tests: tuple[tuple[KeyPath, tuple[Any, ...] | Mapping[str, Any]], ...]

    def holds(self, data: Mapping[str, Any]) -> bool:
        """Whether it holds for the contents of a point."""
        return all(_holds(data, path, wanted) for path, wanted in self.tests)


def read_condition(value: object) -> Condition:
    """A condition as it is written: ``{schedule.name: [gpipe, pipedream], schedule.micro_batches: {below: 4}}``.

    Raises
    ------
    WrongValue : it is none.
    """
    if isinstance(value, Condition):
        return value
    if not isinstance(value, dict) or not value:
        raise WrongValue(f"expected paths and values, such as {{schedule.stages: [2, 4]}}, got {shown(value)}")
    return Condition(tuple((_path(path), _wanted(path, wanted)) for path, wanted in value.items()))


def _path(text: str) -> KeyPath:
    if not all(text.split(".")):
        raise WrongValue(f"expected a path such as cluster.link.bandwidth, got {shown(text)}")
    return split(text)


def _wanted(path: str, wanted: object) -> tuple[Any, ...] | Mapping[str, Any]:
    if not isinstance(wanted, dict):
        values = tuple(wanted) if isinstance(wanted, list) else (wanted,)
        if not values or None in values:
            raise WrongValue(f"{path}: has no value")
        return values
    for bound, limit in wanted.items():
        if bound not in BOUNDS:
            raise WrongValue(f"{path}: expected {', '.join(BOUNDS)}, got {shown(bound)}", nearest(bound, BOUNDS))
        if isinstance(limit, bool) or not isinstance(limit, int | float | str):
            raise WrongValue(f"{path}: expected a number, a quantity or another path, got {shown(limit)}")
    if not wanted:
        raise WrongValue(f"{path}: expected {', '.join(BOUNDS)}")
    return wanted


def _holds(data: Mapping[str, Any], path: KeyPath, wanted: tuple[Any, ...] | Mapping[str, Any]) -> bool:
    value = _at(data, path)
    if value is None:
        return False
    if isinstance(wanted, tuple):
        return any(_comparable(value) == _comparable(each) and _like(value, each) for each in wanted)
    return all(_within(data, value, bound, limit) for bound, limit in wanted.items())


def _within(data: Mapping[str, Any], value: object, bound: str, limit: object) -> bool:
    other = _at(data, split(limit)) if isinstance(limit, str) else None
    first, second = _comparable(value), _comparable(limit if other is None else other)
    if isinstance(first, str) or isinstance(second, str) or not _like(first, second):
        return False
    return BOUNDS[bound](first, second)


def _comparable(value: object) -> Any:
    """A quantity as its number and unit, so that 1 GB/s equals 8 Gbit/s; anything else as it is."""
    found = in_si(value)
    return value if found is None else found


def _like(first: object, second: object) -> bool:
    """Whether two values are of one kind: true is not 1, a size is no time."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return bool(first[1:] == second[1:])
    numbers = [isinstance(each, int | float) and not isinstance(each, bool) for each in (first, second)]
    return all(numbers) or type(first) is type(second)


def _at(data: Any, path: KeyPath) -> Any:
    """What stands at a path; ``None`` where nothing does."""
    for key in path:
        if isinstance(data, Mapping):
            data = data.get(str(key))
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data
