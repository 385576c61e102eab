"""How much longer or shorter than its mean each op of a program takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.conditions import Conditions, Straggler
from sim.distributions import Distribution
from sim.ops import OpId, OpKind

_PASSES = frozenset({OpKind.FORWARD, OpKind.BACKWARD})
_START, _SLOW = 100, 101  # streams beside those of the kinds of op


def _random(seed: int, *stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *stream]))


class Draws:
    """Factors of an op's duration, from a stream for each kind and worker.

    So a worker meets with the same luck whatever the others do, and whichever way its parameters are kept.
    """

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self._conditions, self._seed = conditions, seed
        jitter = conditions.jitter
        moving = jitter.communication, (OpKind.PULL, OpKind.PUSH)
        serving = jitter.apply, (OpKind.UPDATE, OpKind.ACCUMULATE)
        self._of_step = bool(jitter.compute or conditions.stragglers)
        self._varying = {kind: by for by, kinds in (moving, serving) if by for kind in kinds}
        self._streams: dict[tuple[int, int], Iterator[float]] = {}
        self._steps: dict[int, tuple[int, float]] = {}  # of each worker the newest step and its factor

    @property
    def any(self) -> bool:
        """Whether anything varies."""
        return self._of_step or bool(self._varying)

    def factor(self, op: OpId) -> float:
        """Of this op's duration."""
        if op.kind in _PASSES:
            return self._factor_of_step(op) if self._of_step else 1.0
        by = self._varying.get(op.kind)
        return 1.0 if by is None else next(self._stream(op.kind, op.replica, by))

    def start_s(self, latest_s: float, actor: int) -> float:
        """When an actor starts, from 0 to ``latest_s``."""
        return latest_s * float(_random(self._seed, _START, actor).random())

    def _factor_of_step(self, op: OpId) -> float:
        step, factor = self._steps.get(op.replica, (-1, 1.0))
        if step == op.micro_batch:
            return factor
        by = self._conditions.jitter.compute
        factor = next(self._stream(OpKind.FORWARD, op.replica, by)) if by else 1.0
        for number, straggler in enumerate(self._conditions.stragglers):
            if straggler.device in (-1, op.replica) and self._is_slow(straggler, number, op.replica):
                factor *= straggler.factor
        self._steps[op.replica] = op.micro_batch, factor
        return factor

    def _is_slow(self, straggler: Straggler, number: int, replica: int) -> bool:
        if straggler.probability == 1.0:
            return True
        stream = self._streams.get((_SLOW + number, replica))
        if stream is None:
            stream = self._streams[_SLOW + number, replica] = _evenly(_random(self._seed, _SLOW + number, replica))
        return next(stream) < straggler.probability

    def _stream(self, kind: int, replica: int, by: Distribution) -> Iterator[float]:
        stream = self._streams.get((kind, replica))
        if stream is None:
            stream = self._streams[kind, replica] = by.stream(_random(self._seed, kind, replica))
        return stream


def _evenly(random: np.random.Generator) -> Iterator[float]:
    while True:
        yield from random.random(256).tolist()
