"""Plain model parallelism: the layers over the GPUs, one mini-batch at a time, so one GPU computes at a time."""

from __future__ import annotations

from sim.planners import gpipe
from sim.schedule import Schedule


def plan(stages: int, mini_batches: int = 1) -> Schedule:
    """A pipeline of one micro-batch."""
    return gpipe.plan(stages, 1, mini_batches)
