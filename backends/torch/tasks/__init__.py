"""What nets are trained on: a file of this folder for each task, with a function ``load``.

The data come with installed packages, so nothing is fetched and every machine with these versions has the same.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import UnsupportedPlan, nearest


class Task(NamedTuple):
    """Samples to train on and others to test on; inputs are float32 values or numbers of words."""

    inputs: NDArray[np.generic]
    targets: NDArray[np.int64]
    test_inputs: NDArray[np.generic]
    test_targets: NDArray[np.int64]

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.targets.max()) + 1


def names() -> list[str]:
    """The tasks there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@cache
def load(name: str) -> Task:
    """The task of that name, read once.

    Raises
    ------
    UnsupportedPlan : there is none, or its package is not installed.
    """
    if name not in names():
        hint = nearest(name, names())
        raise UnsupportedPlan(f"no task '{name}': there are {', '.join(names())}" + (f" ({hint})" if hint else ""))
    try:
        task: Task = importlib.import_module(f"{__name__}.{name}").load()
    except ModuleNotFoundError as error:
        raise UnsupportedPlan(f"task '{name}' needs {error.name}: pip install twinrail[tasks]") from None
    return task


def split(inputs: NDArray[np.generic], targets: NDArray[np.int64], test: int) -> Task:
    """A task from samples in an order that is the same everywhere; the last ``test`` of them are for testing."""
    order = np.random.default_rng(0).permutation(len(targets))
    inputs, targets = inputs[order], targets[order]
    return Task(inputs[:-test], targets[:-test], inputs[-test:], targets[-test:])
