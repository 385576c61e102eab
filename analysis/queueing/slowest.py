"""The mean of the slowest of several independent lognormal times."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from analysis.queueing.network import Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_BELOW, _ABOVE = 6.0, 8.0
"""How many standard deviations of the logarithm the integral covers."""


def mean_of_slowest(means: Floats, variations: Floats) -> float:
    """E[max] of times with these means and coefficients of variation, both above 0: ∫ 1 − ∏F over all times."""
    if len(means) == 1:
        return float(means[0])
    spreads = np.sqrt(np.log1p(variations**2))
    middles = np.log(means) - spreads**2 / 2
    least, most = (middles - _BELOW * spreads).max(), (middles + _ABOVE * spreads).max()
    logs = (least + most) / 2 + (most - least) / 2 * _NODES
    slower = 1 - ndtr((logs[:, None] - middles) / spreads).prod(1)
    return float(np.exp(least) + (most - least) / 2 * (_WEIGHTS * slower).dot(np.exp(logs)))
