"""A plan: what a backend executes, apart from how long anything takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.architecture import Architecture
from sim.partition import Partition
from sim.program import Program
from sim.schedule import Schedule
from sim.training import Training


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule or program, the layers of each stage, and the buffers its ops use.

    ``events`` (dtype `sim.memory.buffers.EVENTS`) belongs to a schedule; the ops of a program carry their own.
    ``training``, ``architecture`` and ``checkpoints`` are for a real backend: the optimizer, what the stages are cut
    from (``None``: a model of which only times are known), and the vertices that each stage keeps (empty: all).
    """

    method: str
    work: Schedule | Program
    partition: Partition
    model: str
    training: Training
    events: NDArray[np.void] | None = None
    architecture: Architecture | None = None
    checkpoints: tuple[tuple[int, ...], ...] = ()
