"""GPipe (arXiv 1811.06965): all forwards of a mini-batch, then all its backwards, then the update."""

from __future__ import annotations

from sim.assembly import ScheduleBuilder
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """Every stage holds all micro-batches of the mini-batch in flight; backwards run in the order of forwards."""
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches))
    for stage in range(stages):
        gpu = builder.lane(stage, "compute")
        for mini_batch in range(mini_batches):
            batch = range(mini_batch * micro_batches, (mini_batch + 1) * micro_batches)
            for kind in (OpKind.FORWARD, OpKind.BACKWARD):
                for micro_batch in batch:
                    builder.add(gpu, OpId(kind, stage, micro_batch))
            builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()
