"""1F1B with flush (DAPPLE, PipeDream-Flush): one forward, one backward, and a flush before every update."""

from __future__ import annotations

from sim.assembly import ScheduleBuilder
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """Stage k holds at most min(micro_batches, stages − k) micro-batches in flight."""
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches))
    for stage in range(stages):
        gpu = builder.lane(stage, "compute")
        for mini_batch in range(mini_batches):
            first = mini_batch * micro_batches
            warm_up = min(stages - 1 - stage, micro_batches)
            for micro_batch in range(warm_up):
                builder.add(gpu, OpId(OpKind.FORWARD, stage, first + micro_batch))
            for micro_batch in range(micro_batches - warm_up):
                builder.add(gpu, OpId(OpKind.FORWARD, stage, first + warm_up + micro_batch))
                builder.add(gpu, OpId(OpKind.BACKWARD, stage, first + micro_batch))
            for micro_batch in range(micro_batches - warm_up, micro_batches):
                builder.add(gpu, OpId(OpKind.BACKWARD, stage, first + micro_batch))
            builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()
