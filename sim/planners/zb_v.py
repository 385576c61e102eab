"""ZB-V (zero bubble, arXiv 2401.10241, section 6): two chunks a GPU in a V, no bubble in the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from sim.assembly import ScheduleBuilder
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape
from sim.zero_bubble import KINDS


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """``stages`` GPUs; GPU d holds chunk d on the way down and chunk 2N − 1 − d on the way up, N = ``stages``.

    Where forward, input gradient and weight gradient take as long and transfers are free, no GPU waits between its
    first and its last pass, from 2N − 1 micro-batches on. No GPU holds more than N micro-batches of its two chunks.
    """
    builder = ScheduleBuilder(Shape(2 * stages, micro_batches, mini_batches))
    for device in range(stages):
        gpu = builder.lane(device, "compute")
        held = device, 2 * stages - 1 - device
        for mini_batch in range(mini_batches):
            numbers = {kind + chunk: count() for kind in KINDS for chunk in "01"}
            for step in _steps(device, stages, max(micro_batches, 2 * stages - 1)):
                if (number := next(numbers[step])) < micro_batches:  # the phases are those of 2N − 1 or more
                    stage = held[int(step[1])]
                    builder.add(gpu, OpId(KINDS[step[0]], stage, mini_batch * micro_batches + number))
            for stage in held[::-1]:
                builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()


def _steps(device: int, stages: int, micro_batches: int) -> Iterator[str]:
    """The passes of a GPU by kind and chunk, 0 on the way down and 1 on the way up."""
    left = stages - device
    yield from ("F0",) * (2 * left - 1)
    yield from ("F1", "F0") * device
    yield from ("F1", "I1", "W1") * left
    for further in range(micro_batches - stages):
        if further < micro_batches - (stages + left - 1):
            yield "F0"
        yield from ("I0", "W0", "F1", "I1", "W1")
    yield from ("I0", "I1") * device
    yield from ("I0", "W0") * left
    yield from ("W1",) * device
    yield from ("W0",) * device
