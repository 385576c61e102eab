"""DualPipeV (DeepSeek 2025, github.com/deepseek-ai/DualPipe): DualPipe folded to a V of two chunks a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from sim.assembly import ScheduleBuilder
from sim.errors import UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape


class Way(NamedTuple):
    """One of the two ways of micro-batches through a GPU: its stage there, copy of weights, and first micro-batch."""

    stage: int
    copy: int
    first: int


def plan(stages: int, micro_batches: int, mini_batches: int = 1) -> Schedule:
    """``stages`` GPUs; GPU d holds chunk d on the way down and chunk 2N − 1 − d on the way up, N = ``stages``.

    The forward of one micro-batch and the backward of another are fused where both are there, so that each hides the
    communication of the other. The GPUs with the most pairs wait for (N − 1)(F&B + B − 3W), where F&B is the time of a
    pair, B of a full backward, W of a weight gradient, and F = I = W; so all of them do where F&B = F + B.

    Raises
    ------
    UnsupportedPlan : fewer than 2N micro-batches.
    """
    if micro_batches < 2 * stages:
        raise UnsupportedPlan(f"{micro_batches} micro-batches on {stages} GPUs: DualPipeV needs at least {2 * stages}")
    builder = ScheduleBuilder(Shape(2 * stages, micro_batches, mini_batches))
    for device in range(stages):
        gpu = builder.lane(device, "compute")
        for mini_batch in range(mini_batches):
            first = mini_batch * micro_batches
            down, up = Way(device, 0, first), Way(2 * stages - 1 - device, 0, first)
            for op in passes(steps(device, stages, micro_batches), (down, up)):
                builder.add(gpu, op)
            for stage in (up.stage, down.stage):
                builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()


def steps(rank: int, ranks: int, micro_batches: int) -> Iterator[str]:
    """The eight phases of a GPU, ``micro_batches`` on each of its ways; 0 enters at this end of the pipeline, 1 leaves.

    F forward, B full backward, I input gradient alone; W the oldest weight gradient that is due; F0B1 a fused pair.
    """
    left = ranks - rank - 1
    meeting = ("F0B1", "F1B0") * (micro_batches - 2 * ranks + rank + 1)
    ending = ("B1", "B0") * (rank + 1)
    yield from ("F0",) * (2 * left)
    yield from ("F0", "F1") * (rank + 1)
    yield from ("I1", "W", "F1") * left
    yield from meeting if left else ("F0", "B1", *meeting[1:])  # apart in the middle: neither waits for both
    yield from ("B1", "F1B0") * left
    yield from ending[: rank + 1]
    yield from (step.replace("B", "I") for step in ending[rank + 1 :])
    yield from ("W", "I0") * left
    yield from ("W",) * (rank + 1)


def passes(todo: Iterator[str], ways: Sequence[Way]) -> Iterator[OpId]:
    """The ops of `steps`: every kind takes the micro-batches of a way in their order."""
    forward, backward = ([count(way.first) for way in ways] for _ in "FB")
    due: deque[OpId] = deque()
    for step in todo:
        if step == "W":
            yield due.popleft()
            continue
        way = int(step[1])
        stage, copy, _ = ways[way]
        if step[0] == "F":
            number = next(forward[way])
            if step[2:]:
                other = int(step[3])
                pair = ways[other].stage, next(backward[other])
                yield OpId(OpKind.FORWARD_BACKWARD, stage, number, copy, -1, *pair)
            else:
                yield OpId(OpKind.FORWARD, stage, number, copy)
        elif step[0] == "B":
            yield OpId(OpKind.BACKWARD, stage, next(backward[way]), copy)
        else:
            number = next(backward[way])
            due.append(OpId(OpKind.BACKWARD_WEIGHT, stage, number, copy))
            yield OpId(OpKind.BACKWARD_INPUT, stage, number, copy)
