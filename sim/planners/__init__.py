"""The schedules there are: one file each, found by its name.

A planner is a function ``plan(...)`` whose keyword parameters are its keys in a scenario; ``DEFAULTS`` may name what a
scenario need not say, such as the weight policy of the method.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping

from sim.program import Program
from sim.schedule import Schedule

Planner = Callable[..., Schedule | Program]


class Planners(Mapping[str, Planner]):
    """The ``plan`` function of each schedule by name; a module is imported when it is asked for."""

    def __init__(self) -> None:
        self._names = sorted(module.name for module in pkgutil.iter_modules(__path__))

    def __getitem__(self, name: str) -> Planner:
        if name not in self:
            raise KeyError(name)
        planner: Planner = importlib.import_module(f"sim.planners.{name}").plan
        return planner

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def defaults(self, name: str) -> Mapping[str, str]:
        """What a scenario need not say of this schedule."""
        return getattr(importlib.import_module(f"sim.planners.{name}"), "DEFAULTS", {})


PLANNERS = Planners()
