"""ZB-H2 (zero bubble, arXiv 2401.10241): twice the forwards in flight of 1F1B fill the wait for the first gradient."""

from __future__ import annotations

from sim.schedule import Schedule, Shape
from sim.zero_bubble import by_hand, schedule


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """Stage k runs the weight gradient of micro-batch j − 2k right after the input gradient of j.

    With N equal stages and free transfers, every stage waits for (N − 1)(F + I − 2W), where W is at most F and at most
    I: not at all where all take as long. Stage k keeps 2(N − k) − 1 micro-batches in flight, and the weight state of 2k
    more.
    """
    shape = Shape(stages, micro_batches, mini_batches)
    return schedule(shape, by_hand(shape, 2))
