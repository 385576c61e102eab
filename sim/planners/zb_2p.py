"""ZB-2p (zero bubble, arXiv 2401.10241): an order searched within twice the memory of 1F1B."""

from __future__ import annotations

from sim.planners import zb_1p
from sim.schedule import Schedule
from sim.stage_costs import StageCosts


def plan(
    stages: int,
    micro_batches: int,
    mini_batches: int = 1,
    memory_limit: float | None = None,
    costs: StageCosts | None = None,
) -> Schedule:
    """``memory_limit`` of every stage, in activations of one micro-batch on it: twice the stages unless given.

    See `sim.zero_bubble.searched`.
    """
    return zb_1p.plan(stages, micro_batches, mini_batches, 2 * stages if memory_limit is None else memory_limit, costs)
