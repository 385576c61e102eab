"""DualPipe of 2025 (DeepSeek-V3, arXiv 2412.19437; github.com/deepseek-ai/DualPipe): bidirectional, synchronous.

Not `dualpipe_2018`, which is asynchronous and runs forward and backward on lanes of their own.
"""

from __future__ import annotations

from sim.assembly import ScheduleBuilder
from sim.errors import UnsupportedPlan
from sim.planners.chimera import reduce_and_update
from sim.planners.dualpipe_v import Way, passes, steps
from sim.schedule import Schedule, Shape


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """GPU d holds stage d of the copy that runs down and stage N − 1 − d of the one that runs up, N = ``stages``.

    The first half of a mini-batch runs down, the other up; where they meet, the forward of one and the backward of the
    other are fused, so that each hides the communication of the other; then the copies of each stage sum their
    gradients. The GPUs with the most pairs wait for (N/2 − 1)(F&B + B − 3W), where F&B is the time of a pair, B of a
    full backward, W of a weight gradient, F = I = W, and the sum is free; so all of them do where F&B = F + B. GPUs
    keep at most N + 1 micro-batches in flight.

    Raises
    ------
    UnsupportedPlan : an odd number of GPUs or micro-batches, or fewer than 2N micro-batches.
    """
    if stages % 2:
        raise UnsupportedPlan(f"stages = {stages}: two directions need an even number; use {stages + 1} or dualpipe_v")
    if micro_batches % 2 or micro_batches < 2 * stages:
        reason = f"{micro_batches} micro-batches on {stages} GPUs"
        raise UnsupportedPlan(f"{reason}: DualPipe needs an even number of at least {2 * stages}")
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches, copies=(2,) * stages))
    half = micro_batches // 2
    for mini_batch in range(mini_batches):
        for device in range(stages):
            gpu = builder.lane(device, "compute")
            first = mini_batch * micro_batches
            down, up = Way(device, 0, first), Way(stages - 1 - device, 1, first + half)
            ways = (down, up) if down.stage < up.stage else (up, down)
            for op in passes(steps(ways[0].stage, stages // 2, half), ways):
                builder.add(gpu, op)
        reduce_and_update(builder, stages, mini_batch)
    return builder.build()
