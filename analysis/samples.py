"""Step time and makespan over many samples of a run whose durations vary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.intervals import Times
from analysis.steady import Steady
from sim.ops import BACKWARD_KINDS, OpKind
from sim.rows import IntColumn
from sim.trace import Trace

PERCENTILES = (5, 50, 95, 99)
NORMAL_95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution: 90 % lie between it and its negative."""


def watched(trace: Trace, over: Steady) -> list[IntColumn]:
    """The groups of ops whose latest ends `compute` needs beside the makespan.

    Where there is a steady state, those that complete the two mini-batches between which steps are counted.
    """
    return [_completing(trace, mini_batch) for mini_batch in (over.first, over.last) if over.steady]


def _completing(trace: Trace, mini_batch: int) -> IntColumn:
    """The ops that complete a mini-batch: the updates it goes into, its backwards where nothing updates."""
    ops, shape = trace.ops, trace.shape
    updates = np.flatnonzero(ops["kind"] == OpKind.UPDATE)
    if len(updates):
        wanted = shape.update_of(ops["stage"][updates], mini_batch * shape.micro_batches)
        chosen: NDArray[np.bool_] = ops["micro_batch"][updates] == wanted
        return updates[chosen]
    backward = np.isin(ops["kind"], (*BACKWARD_KINDS, OpKind.FORWARD_BACKWARD))
    return np.flatnonzero(backward & (ops["micro_batch"] // shape.micro_batches == mini_batch))


def compute(trace: Trace, over: Steady, latest_s: NDArray[np.float64]) -> dict[str, Any]:
    """Statistics of samples, from their makespans and the latest end of each `watched` group, [1 + groups, samples].

    ``over`` tells between which mini-batches steps are counted: those of the run without jitter.
    """
    makespan_s, *done_s = latest_s
    step_s = makespan_s / trace.shape.mini_batches
    if over.steady:
        step_s = (done_s[1] - done_s[0]) / (over.last - over.first)
    return {"count": len(makespan_s), "step_time_s": _summary(step_s), "makespan_s": _summary(makespan_s)}


def _summary(values: Times) -> dict[str, Any]:
    """Mean, percentiles, and the band that holds the mean of ever more samples with 90 % confidence (Student's t)."""
    mean, count = float(values.mean()), len(values)
    half = _student_95(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
    percentiles = np.percentile(values, PERCENTILES).tolist()
    named = {f"p{percent}": value for percent, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": mean, **named, "band": [mean - half, mean + half]}


def _student_95(freedom: int) -> float:
    """The 95th percentile of Student's t, to 1e-3 from 9 degrees of freedom on (Abramowitz & Stegun 26.7.5)."""
    z, v = NORMAL_95, 1 / freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first * v + second * v**2 + third * v**3
