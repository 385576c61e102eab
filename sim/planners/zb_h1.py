"""ZB-H1 (zero bubble, arXiv 2401.10241): 1F1B with backward split, weight gradients late, in the memory of 1F1B."""

from __future__ import annotations

from sim.schedule import Schedule, Shape
from sim.zero_bubble import schedule


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """Stage k runs the weight gradient of micro-batch j − k right after the input gradient of j.

    With N stages, equal stages and free transfers, the bubble is (N − 1)(F + I − W) of every stage, where W is at most F
    and at most I. Stage k keeps N − k micro-batches in flight, and the weight state of k more.
    """
    words = [_word(stage, stages, micro_batches) for stage in range(stages)]
    return schedule(Shape(stages, micro_batches, mini_batches), words)


def _word(stage: int, stages: int, micro_batches: int) -> str:
    warm_up = min(stages - 1 - stage, micro_batches)
    steady = ("F" * (warm_up + j < micro_batches) + "I" + "W" * (j >= stage) for j in range(micro_batches))
    return "F" * warm_up + "".join(steady) + "W" * min(stage, micro_batches)
