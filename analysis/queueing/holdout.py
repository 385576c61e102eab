"""How well a rule extrapolates, told by readings that it does not see."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from analysis.queueing.fit import LEAST_READINGS, Series, fit
from analysis.queueing.network import Floats

Rule = Callable[[Series, tuple[int, ...]], Floats]
"""Readings and numbers of workers to steps/s."""

_SPLITS = 8


def posterior_median(series: Series, workers: tuple[int, ...]) -> Floats:
    """The rule of `twinrail queue fit`."""
    median: Floats = fit(series).predict(workers)[1]
    return median


def holdout_error(series: Series, rule: Rule = posterior_median) -> float | None:
    """Mean absolute error where readings are predicted from those of fewer workers; ``None`` where too few are left.

    The split moves through the series, in at most `_SPLITS` steps that end before its last reading.
    """
    lasts = series.workers[LEAST_READINGS - 1 : -1][::-1]
    errors = []
    for last in lasts[:: max(1, math.ceil(len(lasts) / _SPLITS))]:
        rest = series.beyond(last)
        errors.append(mean_error(rule(series.upto(last), rest.workers), rest))
    return float(np.mean(errors)) if errors else None


def mean_error(predicted: Floats, readings: Series) -> float:
    """Mean of |prediction/reading − 1|."""
    return float(np.abs(predicted / np.array(readings.steps_per_s) - 1).mean())
