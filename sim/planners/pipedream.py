"""PipeDream (arXiv 1806.03377): asynchronous 1F1B, an update after every mini-batch and no flush."""

from __future__ import annotations

from sim.ops import OpId, OpKind
from sim.schedule import Schedule, ScheduleBuilder, Shape

DEFAULTS = {"weights": "stash"}


def plan(stages: int, micro_batches: int = 1, mini_batches: int = 0) -> Schedule:
    """Stage k keeps N − k micro-batches in flight, and updates when the last backward of a mini-batch is done.

    ``mini_batches`` defaults to eight pipeline depths, enough for a steady state.
    """
    mini_batches = mini_batches or 8 * stages
    total = micro_batches * mini_batches
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches))
    for stage in range(stages):
        gpu = builder.lane(stage, "compute")
        warm_up = min(stages - 1 - stage, total)
        for micro_batch in range(warm_up):
            builder.add(gpu, OpId(OpKind.FORWARD, stage, micro_batch))
        for micro_batch in range(total):
            if micro_batch + warm_up < total:
                builder.add(gpu, OpId(OpKind.FORWARD, stage, micro_batch + warm_up))
            builder.add(gpu, OpId(OpKind.BACKWARD, stage, micro_batch))
            if (micro_batch + 1) % micro_batches == 0:
                builder.add(gpu, OpId(OpKind.UPDATE, stage, micro_batch // micro_batches))
    return builder.build()
