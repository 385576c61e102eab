"""Chimera (arXiv 2107.06925): pipelines in both directions over the same GPUs, each in the gaps of the other."""

from __future__ import annotations

from collections.abc import Iterator

from sim.assembly import ScheduleBuilder
from sim.errors import UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """GPU d holds stage d of the copy that runs down and stage N − 1 − d of the one that runs up, N = ``stages``.

    The first half of a mini-batch runs down, the rest up; then the copies of each stage sum their gradients. For T
    micro-batches, T a multiple of N, F = B and free transfers, the bubble of total is (N − 2)/(2T + N − 2); for B = 2F
    and T = N it is (N − 2)/(1.5N + N − 2). GPUs keep N/2 + 1 to N micro-batches in flight.

    Raises
    ------
    UnsupportedPlan : an odd number of GPUs, on the middle one of which the directions would meet; a single micro-batch.
    """
    if stages % 2:
        raise UnsupportedPlan(f"stages = {stages}: two directions need an even number; use {stages + 1} or one_f_one_b")
    if micro_batches < 2:
        raise UnsupportedPlan(f"micro_batches = {micro_batches}: two directions need at least 2; use model_parallel")
    builder = ScheduleBuilder(Shape(stages, micro_batches, mini_batches, copies=(2,) * stages))
    for mini_batch in range(mini_batches):
        for device in range(stages):
            gpu = builder.lane(device, "compute")
            for _, op in sorted(_slots(device, stages, micro_batches, mini_batch)):
                builder.add(gpu, op)
        reduce_and_update(builder, stages, mini_batch)
    return builder.build()


def _slots(device: int, stages: int, micro_batches: int, mini_batch: int) -> Iterator[tuple[int, OpId]]:
    """When each pass of a GPU starts if all take one slot: no two at once.

    N/2 micro-batches of each direction make a unit, in which one starts every other slot, goes to its last stage and
    straight back. Units follow each other every 2N slots: the forwards of one fill the gaps at the end of the last.
    """
    first, half = mini_batch * micro_batches, -(-micro_batches // 2)
    directions = ((device, range(half)), (stages - 1 - device, range(half, micro_batches)))
    for copy, (stage, numbers) in enumerate(directions):
        for place, number in enumerate(numbers):
            unit, within = divmod(place, stages // 2)
            starts = 2 * stages * unit + 2 * within
            yield starts + stage, OpId(OpKind.FORWARD, stage, first + number, copy)
            yield starts + 2 * stages - 1 - stage, OpId(OpKind.BACKWARD, stage, first + number, copy)


def reduce_and_update(builder: ScheduleBuilder, stages: int, mini_batch: int) -> None:
    """Sum the gradients of the two copies of each stage, which GPUs d and N − 1 − d hold, and update both.

    Of the two stages on a GPU the later one is done first.
    """
    for stage in reversed(range(stages)):
        pair = stage, stages - 1 - stage
        builder.add([builder.lane(device, "collective") for device in pair], OpId(OpKind.ALL_REDUCE, stage, mini_batch))
        for copy, device in enumerate(pair):
            builder.add(builder.lane(device, "compute"), OpId(OpKind.UPDATE, stage, mini_batch, copy))
