"""Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): several chunks of the model on every GPU, so a shorter fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sim.assembly import ScheduleBuilder
from sim.errors import UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape


def plan(stages: int, micro_batches: int, mini_batches: int = 1, chunks: int = 2) -> Schedule:
    """``stages`` GPUs hold ``chunks`` chunks each: chunk s of all ``stages * chunks`` is on GPU s mod ``stages``.

    Micro-batches go in rounds of N = ``stages``: each chunk of a GPU runs a whole round before the next one starts it.
    With equal chunks of F + B each and v = ``chunks``, T = ``micro_batches`` at least N, the makespan is
    (vT + N − 1)(F + B), so the bubble of total (N − 1)/(vT + N − 1); with fewer it is (vN + T − 1)(F + B). GPU 0 keeps
    vN + N − 1 chunks in flight, (1 + (N − 1)/(Nv))·N micro-batches of all it holds. Megatron needs N to divide T; here
    rounds are longer where it does not, so up to (v − 1)(N − 1) more chunks are in flight.

    Raises
    ------
    UnsupportedPlan : a single chunk a GPU, which is 1F1B with needlessly many micro-batches in flight.
    """
    if chunks < 2:
        raise UnsupportedPlan(f"chunks = {chunks}: nothing to interleave; use one_f_one_b")
    builder = ScheduleBuilder(Shape(stages * chunks, micro_batches, mini_batches))
    rounds = _rounds(stages, micro_batches)
    total = chunks * micro_batches
    for device in range(stages):
        gpu = builder.lane(device, "compute")
        held = range(device, stages * chunks, stages)
        warm_up = min((chunks - 1) * rounds[0] + 2 * (stages - 1 - device), total)
        for mini_batch in range(mini_batches):
            forward = _passes(OpKind.FORWARD, held, rounds, mini_batch * micro_batches)
            backward = _passes(OpKind.BACKWARD, held[::-1], rounds, mini_batch * micro_batches)
            for _ in range(warm_up):
                builder.add(gpu, next(forward))
            for _ in range(total - warm_up):
                builder.add(gpu, next(forward))
                builder.add(gpu, next(backward))
            for op in backward:
                builder.add(gpu, op)
            for stage in held[::-1]:
                builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()


def _rounds(stages: int, micro_batches: int) -> list[int]:
    """Micro-batches of each round: as many rounds of at least ``stages`` as there are, of about equal size, long first.

    A round shorter than the pipeline is deep leaves gaps, and a longer one behind a shorter deadlocks: the last GPU
    would wait for a forward that its own next backward holds up.
    """
    rounds = max(micro_batches // stages, 1)
    return [micro_batches // rounds + (index < micro_batches % rounds) for index in range(rounds)]


def _passes(kind: OpKind, held: Sequence[int], rounds: Sequence[int], first: int) -> Iterator[OpId]:
    """The passes of one GPU: round by round, and in a round chunk by chunk."""
    for size in rounds:
        for stage in held:
            for micro_batch in range(first, first + size):
                yield OpId(kind, stage, micro_batch)
        first += size
