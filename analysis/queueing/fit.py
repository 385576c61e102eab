"""Demands and discipline of an asynchronous parameter server, from how its throughput grows with the workers.

A reading with W workers is X(W) = c_g(W, D/T)/T·e^ε: T the step time without others, D/T the server's share of it, c_g
the curve of a discipline of g grains (`disciplines`), ε normal with a deviation σ of the series' own. A few readings
leave the discipline open, so none is picked and then believed: each counts with its probability, from even odds
beforehand for octaves of g and for shares, and 1/σ for σ (Jeffreys). T and σ integrate in closed form: of n readings

    p(g, D/T | readings) ∝ RSS^(−(n−1)/2),   RSS = Σ(log T_i − mean)² + n·`REPEATABILITY`²,   T_i = c_g(W_i, D/T)/X_i.

Predictions, demands and the discipline are medians, which minimise the mean absolute error; intervals are quantiles.
This is Bayesian model averaging (Hoeting et al., Statistical Science 14(4), 1999); only the readings given are seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from analysis.queueing import disciplines
from analysis.queueing.disciplines import GRAINS, Discipline
from analysis.queueing.network import Floats

REPEATABILITY = 3e-4
"""Nothing repeats better: it is what 10⁵ steps of a coefficient of variation of .1 leave."""

LEAST_READINGS = 3
"""Step time, share and discipline are three unknowns."""

LEVELS = (0.05, 0.5, 0.95)
"""Low end, median and high end of a 90 % interval."""

_WILDEST = 10.0
"""A reading that may be off by e¹⁰ says nothing; more would only overflow."""

_CONFIDENCE = 0.9
_DRAWS = 20_000


@dataclass(frozen=True)
class Series:
    """Cluster throughput (steps/s) with different numbers of workers, rising."""

    workers: tuple[int, ...]
    steps_per_s: tuple[float, ...]

    def upto(self, workers: int) -> Series:
        """The readings of at most so many workers."""
        return self._only([count <= workers for count in self.workers])

    def beyond(self, workers: int) -> Series:
        """The readings of more workers."""
        return self._only([count > workers for count in self.workers])

    def _only(self, wanted: list[bool]) -> Series:
        return Series(tuple(compress(self.workers, wanted)), tuple(compress(self.steps_per_s, wanted)))


@dataclass(frozen=True, eq=False)
class Posterior:
    """Equally probable explanations of a series; arrays have shape [draws].

    ``grain`` counts into `GRAINS`, ``share`` into `disciplines.SHARES`; ``deviation`` is that of a reading.
    """

    grain: NDArray[np.intp]
    share: NDArray[np.intp]
    step_s: Floats
    deviation: Floats

    @property
    def demand_s(self) -> Floats:
        """D."""
        return self.step_s * disciplines.SHARES[self.share]

    @property
    def think_s(self) -> Floats:
        """Z = T − D."""
        return self.step_s - self.demand_s

    @property
    def variation(self) -> Floats:
        """The coefficient of variation that the discipline stands for."""
        return np.array([disciplines.variation(grains) for grains in GRAINS])[self.grain]

    @property
    def discipline(self) -> Discipline:
        """The median."""
        return disciplines.name(GRAINS[int(np.quantile(self.grain, 0.5, method="lower"))])

    def predict(self, workers: tuple[int, ...]) -> Floats:
        """Steps/s, shape [3, workers]: low end, median, high end; the ends are those of a reading, noise included."""
        curves = disciplines.family(workers).swapaxes(0, 1)
        readings = np.exp(self.deviation * np.random.default_rng(1).standard_normal(len(self.deviation)))
        found = []
        for curve in curves:
            throughputs = curve[self.grain, self.share] / self.step_s
            low, high = np.quantile(throughputs * readings, LEVELS[::2])
            found.append((low, np.median(throughputs), high))
        return np.array(found).T


def fit(series: Series) -> Posterior:
    """What at least `LEAST_READINGS` readings say of a server; the same readings always give the same draws."""
    readings = len(series.workers)
    log_step, squares = _explanations(series)
    weights = (squares / squares.min()) ** (-(readings - 1) / 2)
    random = np.random.default_rng(0)
    places = (np.arange(_DRAWS) + 0.5) / _DRAWS * weights.sum()
    drawn = np.minimum(np.searchsorted(np.cumsum(weights), places), weights.size - 1)
    deviation = np.sqrt(squares.flat[drawn] / random.chisquare(readings - 1, _DRAWS)).clip(max=_WILDEST)
    step_s = np.exp(log_step.flat[drawn] + deviation / math.sqrt(readings) * random.standard_normal(_DRAWS))
    grain, share = np.unravel_index(drawn, weights.shape)
    return Posterior(grain, share, step_s, deviation)


def _explanations(series: Series) -> tuple[Floats, Floats]:
    """Mean log T and RSS of every discipline and share, shape [grains, shares]."""
    distances = np.log(disciplines.family(series.workers)) - np.log(series.steps_per_s)[:, None]
    log_step = distances.mean(axis=1)
    squares = ((distances - log_step[:, None]) ** 2).sum(axis=1)
    return log_step, squares + len(series.workers) * REPEATABILITY**2


@dataclass(frozen=True)
class Explanation:
    """One discipline with its demands, and the throughput that it predicts."""

    discipline: Discipline
    cv: float
    think_time_s: float
    demand_s: float
    steps_per_s: float


def extremes(series: Series, workers: int) -> tuple[Explanation, Explanation] | None:
    """Of the explanations that fit about as well as the best, those that predict least and most with W ``workers``.

    About as well: in the 90 % region of the profile likelihood of one prediction, σ unknown, n readings,
    RSS ≤ RSS_min·(1 + F(1, n−3)/(n−3)). The readings do not tell the two apart. ``None`` where all fit: n = 3.
    """
    left = len(series.workers) - LEAST_READINGS
    if not left:
        return None
    log_step, squares = _explanations(series)
    alike = squares <= squares.min() * (1 + fdtri(1, left, _CONFIDENCE) / left)
    predicted = disciplines.family((workers,))[:, 0] / np.exp(log_step)
    least = int(np.where(alike, predicted, np.inf).argmin())
    most = int(np.where(alike, predicted, 0).argmax())
    return _explanation(least, log_step, predicted), _explanation(most, log_step, predicted)


def _explanation(index: int, log_step: Floats, predicted: Floats) -> Explanation:
    grain, share = divmod(index, log_step.shape[1])
    step_s, used = math.exp(log_step.flat[index]), float(disciplines.SHARES[share])
    grains = GRAINS[grain]
    return Explanation(
        disciplines.name(grains),
        disciplines.variation(grains),
        step_s * (1 - used),
        step_s * used,
        float(predicted.flat[index]),
    )
