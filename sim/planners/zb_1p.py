"""ZB-1p (zero bubble, arXiv 2401.10241): an order searched within the memory of 1F1B."""

from __future__ import annotations

from sim.schedule import Schedule, Shape
from sim.stage_costs import StageCosts
from sim.zero_bubble import searched


def plan(
    stages: int,
    micro_batches: int,
    mini_batches: int = 1,
    memory_limit: float | None = None,
    costs: StageCosts | None = None,
) -> Schedule:
    """``memory_limit`` of every stage, in activations of one micro-batch on it: the number of stages unless given.

    See `sim.zero_bubble.searched`.
    """
    limit = stages if memory_limit is None else memory_limit
    return searched(Shape(stages, micro_batches, mini_batches), limit, costs)
