"""DualPipe of 2018 (C.-C. Chen, NTU; arXiv 1809.02839): forward and backward concurrently on every GPU, asynchronous.

Not DeepSeek's DualPipe of 2025, which is synchronous and bidirectional.
"""

from __future__ import annotations

from typing import Literal

from sim.assembly import ScheduleBuilder
from sim.ops import OpId, OpKind
from sim.planners import pipedream
from sim.schedule import Schedule, Shape

DEFAULTS = {"weights": "predict"}


def plan(
    stages: int,
    micro_batches: int = 1,
    mini_batches: int = 0,
    timeline: Literal["concurrent", "alternating"] = "concurrent",
) -> Schedule:
    """``concurrent``: a forward lane and a backward lane per GPU. ``alternating``: the order of asynchronous 1F1B."""
    if timeline == "alternating":
        return pipedream.plan(stages, micro_batches, mini_batches)
    return side_by_side(stages, micro_batches, mini_batches, backward_on=range(stages))


def side_by_side(stages: int, micro_batches: int, mini_batches: int, backward_on: range) -> Schedule:
    """Forwards of stage k on device k, its backwards and updates beside them on a lane of device ``backward_on[k]``.

    Without an admission rule micro-batches would pile up wherever backward is slower than forward. Rule: F(k, j) also
    waits for B(k, j − 2(N − k)) and reads exactly the updates done by then.
    """
    mini_batches = mini_batches or 16 * stages
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches))
    for stage in range(stages):
        forward, backward = builder.lane(stage, "forward"), builder.lane(backward_on[stage], "backward")
        in_flight = 2 * (stages - stage)
        for micro_batch in range(micro_batches * mini_batches):
            admitted_by = micro_batch - in_flight
            op = OpId(OpKind.FORWARD, stage, micro_batch)
            builder.add(forward, op, reads=max(admitted_by + 1, 0) // micro_batches)
            builder.add(backward, OpId(OpKind.BACKWARD, stage, micro_batch))
            if admitted_by >= 0:
                builder.after(op, OpId(OpKind.BACKWARD, stage, admitted_by))
            if (micro_batch + 1) % micro_batches == 0:
                builder.add(backward, OpId(OpKind.UPDATE, stage, micro_batch // micro_batches))
    return builder.build()
