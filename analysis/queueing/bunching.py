"""Bunching: how strongly steps that wait for the slowest of several branches close up to those ahead of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from analysis.queueing.network import Floats


class Fitted(NamedTuple):
    """Constants of ln κ, fitted to simulations (docs/parameter-servers.md); each stands beside what it multiplies.

    ``least`` is a coefficient of variation that is left where service times are constant.
    """

    least: float = 0.0768
    constant: float = -3.328
    few: float = 0.6136
    few_varied: float = -0.3411
    varied: float = -1.902
    shared: float = -0.667
    apart: float = -0.5392
    apart_many: float = 0.2756
    apart_loaded: float = 0.1217
    grown: float = 0.2695
    loaded: float = 0.4051
    overloaded: float = -0.1338
    uneven: float = 0.2748
    uneven_loaded: float = -1.003


FITTED = Fitted()
UNSURE = 0.5
"""How far ln κ is off in 1 of 20 networks that bunch."""


@dataclass(frozen=True, eq=False)
class Attraction:
    """κ = drift · range / diffusion, times what was fitted.

    Waiting for the slowest of branches adds an excess of k = E[max]/max − 1 to a section, more to those ahead than to
    those behind: a drift of Σk·R. Against it stands what is random, Σ(c² + c0²)R² + (c_z² + c0²)Z². Steps that are far
    apart do not meet: the range is the harmonic mean of the sections' R.

    ``variations`` c of service times, and of each section where no other step is met the mean ``longest_s`` and
    ``gathered_s``, that of the slowest, have shape [sections].
    """

    think_s: float
    think_variation: float
    variations: Floats
    longest_s: Floats
    gathered_s: Floats
    fitted: Fitted = FITTED

    @cached_property
    def _excess(self) -> Floats:
        return self.gathered_s / self.longest_s - 1

    @cached_property
    def _variances(self) -> Floats:
        return self.variations**2 + self.fitted.least**2

    @cached_property
    def _apart(self) -> float:
        """How many standard deviations the slowest branch lies above the mean; 0.56 for two equal ones."""
        return float((self._excess / self.variations).mean()) if len(self._excess) else 0.0

    def bunching(self, customers: int, throughput_per_s: float, longest_s: Floats, gathered_s: Floats) -> float:
        """b = tanh κ for one step more than ``customers``, of which each section takes so long, shape [sections]."""
        if len(longest_s) < 2 or self._apart < 1e-6:
            return 0.0
        drift_s = float((self._excess * longest_s).sum())
        thinking_s2 = (self.think_variation**2 + self.fitted.least**2) * self.think_s**2
        diffusion_s2 = float((self._variances * longest_s**2).sum()) + thinking_s2
        range_s = len(longest_s) / float((1 / longest_s).sum())
        sharing = max(1 - throughput_per_s * self.think_s / customers, 1e-6)
        beyond = self._beyond(customers, sharing, longest_s, gathered_s)
        return math.tanh(drift_s * range_s / diffusion_s2 * math.exp(min(beyond, 50.0)))

    def _beyond(self, customers: int, sharing: float, longest_s: Floats, gathered_s: Floats) -> float:
        """What was fitted: few customers, varied service, share of a step in sections, servers, load, unevenness."""
        fitted, few, apart = self.fitted, 1 / customers**2, math.log(self._apart)
        variance = float(((self.variations * longest_s) ** 2).sum() / (longest_s**2).sum())
        load = math.log(customers * self.longest_s.max() / (self.think_s + self.longest_s.sum()))
        grown = max(float(((gathered_s / longest_s - 1) / self.variations).mean()), 1e-6) / self._apart
        uneven = math.log(self.longest_s.max() / self.longest_s.min()) ** 2
        pull = float(self._excess.sum() / self._variances.sum())
        return (
            fitted.constant
            + (fitted.few + fitted.few_varied * math.log(variance) / 2) * few
            + fitted.varied * variance
            + fitted.shared * math.log(sharing)
            + (fitted.apart + fitted.apart_many * math.log(customers) + fitted.apart_loaded * load) * apart
            + fitted.grown * math.log(grown)
            + (fitted.loaded + fitted.overloaded * load) * load
            + (fitted.uneven + fitted.uneven_loaded * math.exp(load) / pull) * uneven
        )
