"""Methods compared by what they learn: loss against steps and cluster time, and how much of a gap each closes.

Every method has the same grid of learning rates and the same seeds; it is judged at the rate with the least mean loss
at the end. A loss is smoothed over the last steps; a run that diverged counts as infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

SMOOTHED = 20
"""Steps that a smoothed loss is the mean of."""
RESAMPLES, CONFIDENCE = 4000, 0.95


class Run(NamedTuple):
    """One training: when each mini-batch was done, its loss, and the score on test samples at the end."""

    seconds: Column
    losses: Column
    test_loss: float
    test_accuracy: float


class Band(NamedTuple):
    """A mean over seeds, and where it lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float


class Method(NamedTuple):
    """What one method came to at its best learning rate.

    ``seconds_to_target`` is the median over seeds, infinite where it was not reached; ``recovered`` the share of the
    gap between the synchronous method and the vanilla asynchronous one that it closes (of final loss).
    """

    name: str
    learning_rate: float
    runs: tuple[Run, ...]
    loss: Band
    accuracy: Band
    seconds_to_target: float
    recovered: Band | None


def smoothed(losses: Column, window: int = SMOOTHED) -> Column:
    """Each entry the mean of the last ``window`` up to it, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    upper = np.arange(1, len(losses) + 1)
    lower = np.maximum(upper - window, 0)
    return np.asarray((sums[upper] - sums[lower]) / (upper - lower))


def final(run: Run) -> float:
    """The smoothed loss at the end, infinite where it is no number."""
    loss = float(smoothed(run.losses)[-1])
    return loss if np.isfinite(loss) else float("inf")


def seconds_to(run: Run, target: float) -> float:
    """When the smoothed loss first is at most ``target``; infinite if it never is."""
    reached = np.flatnonzero(smoothed(run.losses) <= target)
    reached = reached[reached >= min(SMOOTHED, len(run.losses)) - 1]
    return float(run.seconds[reached[0]]) if len(reached) else float("inf")


def best_rate(runs: Mapping[float, Sequence[Run]]) -> float:
    """The learning rate with the least mean final loss; of equals the smaller."""
    return min(sorted(runs), key=lambda rate: float(np.mean([final(run) for run in runs[rate]])))


def compute(
    runs: Mapping[str, Mapping[float, Sequence[Run]]],
    target: float,
    synchronous: str | None = None,
    vanilla: str | None = None,
) -> list[Method]:
    """Every method at its best learning rate; ``runs`` by method, rate and seed, seeds in the same order everywhere."""
    rates = {name: best_rate(by_rate) for name, by_rate in runs.items()}
    best = {name: list(runs[name][rate]) for name, rate in rates.items()}
    ends = {name: np.array([final(run) for run in mine]) for name, mine in best.items()}
    methods: list[Method] = []
    for name, mine in best.items():
        between = synchronous is not None and vanilla is not None and name not in (synchronous, vanilla)
        recovered = _recovered(ends[name], ends[synchronous], ends[vanilla]) if between else None  # type: ignore[index]
        reached = float(np.median([seconds_to(run, target) for run in mine]))
        accuracy = band(np.array([run.test_accuracy for run in mine]))
        methods.append(Method(name, rates[name], tuple(mine), band(ends[name]), accuracy, reached, recovered))
    return methods


def band(values: Column) -> Band:
    """The mean over seeds and its band by resampling them (percentile bootstrap)."""
    means = values[_resampled(len(values))].mean(axis=1)
    return Band(float(values.mean()), *_quantiles(means))


def _recovered(mine: Column, synchronous: Column, vanilla: Column) -> Band | None:
    """(vanilla − mine) / (vanilla − synchronous), seeds paired; ``None`` where there is no gap to close."""
    chosen = _resampled(len(mine))
    gaps = (vanilla[chosen] - synchronous[chosen]).mean(axis=1)
    gap = float((vanilla - synchronous).mean())
    if not np.isfinite(gap) or gap <= 0 or not np.isfinite(mine).all():
        return None
    closed = (vanilla[chosen] - mine[chosen]).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(gaps > 0, closed / gaps, np.nan)
    if np.isnan(shares).mean() > (1 - CONFIDENCE) / 2:  # the gap itself may be none: the share has no bounds
        return Band(float((vanilla - mine).mean() / gap), -float("inf"), float("inf"))
    return Band(float((vanilla - mine).mean() / gap), *_quantiles(shares[~np.isnan(shares)]))


def _resampled(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def _quantiles(values: Column) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)).tolist()
    return low, high
