"""What a backend is: one method that turns a plan and its figures into a trace."""

from __future__ import annotations

import importlib
import pkgutil
from typing import ClassVar, Protocol

import backends
from sim.binding import Binding
from sim.errors import UnsupportedPlan, nearest
from sim.plan import Plan
from sim.trace import Trace


class Backend(Protocol):
    """Executes plans.

    A backend is a module or package of this folder with an attribute ``BACKEND``; its file name is its name in
    scenarios. It refuses with `UnsupportedPlan` what it cannot honour; it never approximates in silence.
    """

    name: ClassVar[str]

    def execute(self, plan: Plan, binding: Binding, seed: int = 0) -> Trace:
        """Run the plan.

        Raises
        ------
        UnsupportedPlan : this backend cannot honour the plan.
        RunFailed : out of memory, deadlock, a worker that died.
        """
        ...


def names() -> list[str]:
    """The backends there are."""
    return sorted(module.name for module in pkgutil.iter_modules(backends.__path__) if module.name != "base")


def load(name: str) -> Backend:
    """The backend of that name, imported now.

    Raises
    ------
    UnsupportedPlan : there is none.
    """
    if name not in names():
        hint = nearest(name, names())
        raise UnsupportedPlan(f"no backend '{name}': there are {', '.join(names())}" + (f" ({hint})" if hint else ""))
    backend: Backend = importlib.import_module(f"backends.{name}").BACKEND
    return backend
