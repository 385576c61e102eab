"""ZB-H1 (zero bubble, arXiv 2401.10241): 1F1B with backward split, weight gradients late, in the memory of 1F1B."""

from __future__ import annotations

from sim.schedule import Schedule, Shape
from sim.zero_bubble import by_hand, schedule


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """Stage k runs the weight gradient of micro-batch j − k right after the input gradient of j.

    With N equal stages and free transfers, every stage waits for (N − 1)(F + I − W), where W is at most F and at most
    I. Stage k keeps N − k micro-batches in flight, and the weight state of k more.
    """
    shape = Shape(stages, micro_batches, mini_batches)
    return schedule(shape, by_hand(shape, 1))
