"""One GPU, the whole model: the baseline of every speed-up."""

from __future__ import annotations

from sim.planners import gpipe
from sim.schedule import Schedule


def plan(mini_batches: int = 1) -> Schedule:
    """A pipeline of one stage and one micro-batch."""
    return gpipe.plan(1, 1, mini_batches)
