"""What others would predict from the same readings: exact MVA, the asymptotic bound, Optimus' speed function.

Each is fitted by relative least squares: Σ(prediction/reading − 1)² is least.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from analysis.queueing.disciplines import curve
from analysis.queueing.fit import Series
from analysis.queueing.network import Floats

_SHARES = 401


def mva(series: Series, workers: tuple[int, ...]) -> Floats:
    """Steps/s of exact MVA with think time and demand fitted."""
    return predict(1, series, workers)


def bound(series: Series, workers: tuple[int, ...]) -> Floats:
    """Steps/s of min(W/(Z+D), 1/D); readings that never bend give the least D that fits them as well as any."""
    return predict(math.inf, series, workers)


def optimus(series: Series, workers: tuple[int, ...], servers: float = 1) -> Floats:
    """Steps/s = w/(a + b·w/p + c·w + d·p), p servers, coefficients not negative (Peng et al., EuroSys 2018)."""
    measured = np.array(series.workers) / np.array(series.steps_per_s)
    coefficients, _ = nnls(_optimus_terms(series.workers, servers) / measured[:, None], np.ones(len(measured)))
    step_s: Floats = _optimus_terms(workers, servers) @ coefficients
    return np.array(workers) / step_s


def _optimus_terms(workers: tuple[int, ...], servers: float) -> Floats:
    count = np.array(workers, float)
    return np.stack([np.ones_like(count), count / servers, count, np.full_like(count, servers)], axis=1)


def predict(grains: float, series: Series, workers: tuple[int, ...]) -> Floats:
    """Steps/s of one discipline, its demands fitted."""
    step_s, demand_s = demands(grains, series)
    return curve(grains, workers, np.array([demand_s / step_s]))[:, 0] / step_s


def demands(grains: float, series: Series) -> tuple[float, float]:
    """Step time T without others and demand D of one discipline.

    For every share D/T the best 1/T is known in closed form, so one unknown is searched, over a grid and then around
    its best point; of equally good shares the least.
    """

    def loss(shares: Floats) -> tuple[Floats, Floats]:
        """Sum of squares, and 1/T."""
        ratios = curve(grains, series.workers, shares) / np.array(series.steps_per_s)[:, None]
        speed = ratios.sum(axis=0) / (ratios**2).sum(axis=0)
        return ((speed * ratios - 1) ** 2).sum(axis=0), speed

    shares = np.linspace(0, 1, _SHARES)[1:]
    losses = loss(shares)[0]
    best = int(np.argmax(losses <= losses.min() + 1e-12))
    width = 1 / (_SHARES - 1)
    limits = max(shares[best] - width, width / 10), min(shares[best] + width, 1.0)
    polished = minimize_scalar(lambda share: loss(np.array([share]))[0][0], bounds=limits, method="bounded")
    share = float(polished.x) if polished.fun < losses[best] - 1e-12 else float(shares[best])
    step_s = 1 / float(loss(np.array([share]))[1][0])
    return step_s, share * step_s
