"""Methods compared by what they learn: loss against steps and cluster time, and how much of a gap each closes.

Every method has the same grid of learning rates and the same seeds; it is judged at the rate with the least mean loss
at the end. A loss is smoothed over the last steps; a run that diverged counts as infinite. Bands are those of
Student's t over the seeds, that of a share is Fieller's (1954), which takes the seeds in pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Column = NDArray[np.float64]

SMOOTHED = 20
"""Steps that a smoothed loss is the mean of."""
CONFIDENCE = 0.95


class Run(NamedTuple):
    """One training: the loss of each update's samples and when it was computed; what tests found on the way, and when.

    The last test is of the weights at the end.
    """

    seconds: Column
    losses: Column
    test_seconds: Column
    test_losses: Column
    test_accuracies: Column


class Band(NamedTuple):
    """A mean over seeds, and where it lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float


class Method(NamedTuple):
    """What one method came to at its best learning rate.

    ``seconds_to_target`` is the median over seeds, infinite where it was not reached; ``recovered`` the share of the
    gap that it closes, ``None`` where there is none to close or the method diverged.
    """

    name: str
    learning_rate: float
    runs: tuple[Run, ...]
    loss: Band
    accuracy: Band
    seconds_to_target: float
    recovered: Band | None


class Compared(NamedTuple):
    """All methods, and by how much the final loss of the vanilla asynchronous one is above that of the synchronous one.

    ``gap`` is ``None`` where one of these has no name.
    """

    methods: list[Method]
    synchronous: str | None
    vanilla: str | None
    gap: Band | None

    @property
    def has_gap(self) -> bool:
        """Whether the band of the gap lies above 0."""
        return self.gap is not None and self.gap.low > 0 and self.gap.mean < float("inf")


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
) -> Compared:
    """Every method at its best learning rate; ``runs`` by method, rate and seed, seeds in the same order everywhere."""
    rates = {name: best_rate(by_rate) for name, by_rate in runs.items()}
    best = {name: tuple(runs[name][rate]) for name, rate in rates.items()}
    ends = {name: np.array([final(run) for run in mine]) for name, mine in best.items()}
    gaps = None if synchronous is None or vanilla is None else _less(ends[vanilla], ends[synchronous])
    compared = Compared([], synchronous, vanilla, None if gaps is None else band(gaps))
    for name, mine in best.items():
        recovered = None
        if gaps is not None and compared.has_gap and name not in (synchronous, vanilla):
            recovered = share(_less(ends[str(vanilla)], ends[name]), gaps)
        reached = float(np.median([seconds_to(run, target) for run in mine]))
        accuracy = band(np.array([run.test_accuracies[-1] for run in mine]))
        compared.methods.append(Method(name, rates[name], mine, band(ends[name]), accuracy, reached, recovered))
    return compared


def _less(losses: Column, others: Column) -> Column:
    """How much the one loss is above the other, seed by seed; of two that diverged nobody can say."""
    with np.errstate(invalid="ignore"):
        return losses - others


def band(values: Column) -> Band:
    """The mean over seeds and its band by Student's t; without bounds where there is one seed or one diverged."""
    mean, count = float(values.mean()), len(values)
    if count < 2 or not np.isfinite(mean):
        return Band(mean, -float("inf"), float("inf"))
    half = _quantile(count) * float(values.std(ddof=1)) / count**0.5
    return Band(mean, mean - half, mean + half)


def share(closed: Column, gaps: Column) -> Band | None:
    """The mean of ``closed`` as a share of the mean of ``gaps``, whose band is above 0, with Fieller's band.

    These are the shares r for which a t test of ``closed`` − r·``gaps``, seed by seed, against 0 does not reject.
    ``None`` where a run diverged.
    """
    if not np.isfinite(closed).all():
        return None
    mine, gap, count = float(closed.mean()), float(gaps.mean()), len(gaps)
    (of_mine, of_both), (_, of_gap) = np.cov(closed, gaps) * _quantile(count) ** 2 / count
    lead, middle = gap**2 - of_gap, mine * gap - of_both
    half = max(middle**2 - lead * (mine**2 - of_mine), 0.0) ** 0.5
    return Band(mine / gap, float((middle - half) / lead), float((middle + half) / lead))


def _quantile(count: int) -> float:
    """Of Student's t, for the mean of so many values."""
    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
