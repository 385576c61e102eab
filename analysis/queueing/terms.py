"""What a demand is made of: D = d0 + d1·bytes + d2·tensors over several models, Z = z0 + z1·batch over batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from analysis.queueing.fit import LEVELS
from analysis.queueing.network import Floats

_DRAWS = 500
_LEAST_SPREAD = 1e-3
"""A demand counts as no more certain than this, or one series of many readings would decide alone."""


@dataclass(frozen=True)
class Terms:
    """Coefficients by name, each low end, median and high end.

    ``left_out_error``: mean of |predicted/fitted − 1| of each demand, predicted from all others; ``None`` where the
    others are too few.
    """

    coefficients: Mapping[str, tuple[float, float, float]]
    left_out_error: float | None


def linear(demands_s: Sequence[Floats], columns: Mapping[str, Sequence[float]]) -> Terms | None:
    """Coefficients, none negative, by least squares in units of each demand's spread.

    Parameters
    ----------
    demands_s : of each series, equally probable values.
    columns : of each coefficient, what it multiplies in each series.

    Returns ``None`` where the series do not tell the coefficients apart.
    """
    table = np.array(list(columns.values()), float).T
    scale = table.max(axis=0)
    table = table / scale
    if np.linalg.matrix_rank(table) < len(columns):
        return None
    medians = np.array([np.median(draws) for draws in demands_s])
    spreads = np.array([np.log(draws).std() for draws in demands_s]).clip(min=_LEAST_SPREAD) * medians
    random = np.random.default_rng(0)
    drawn = np.stack([random.choice(draws, _DRAWS) for draws in demands_s], axis=1)
    found = np.array([_solve(table, values, spreads) for values in drawn]) / scale
    middle = _solve(table, medians, spreads) / scale
    low, _, high = np.quantile(found, LEVELS, axis=0).tolist()
    coefficients = {
        name: (min(low[index], value), value, max(high[index], value))
        for index, (name, value) in enumerate(zip(columns, middle.tolist(), strict=True))
    }
    return Terms(coefficients, _left_out_error(table, medians, spreads))


def _solve(table: Floats, values: Floats, spreads: Floats) -> Floats:
    solution, _ = nnls(table / spreads[:, None], values / spreads)
    return np.asarray(solution, float)


def _left_out_error(table: Floats, medians: Floats, spreads: Floats) -> float | None:
    errors = []
    for left_out in range(len(table)):
        others = np.arange(len(table)) != left_out
        if np.linalg.matrix_rank(table[others]) < table.shape[1]:
            return None
        predicted = table[left_out] @ _solve(table[others], medians[others], spreads[others])
        errors.append(abs(predicted / medians[left_out] - 1))
    return float(np.mean(errors))
