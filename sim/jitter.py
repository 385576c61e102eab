"""Durations that vary from run to run about a mean that stays the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """Factors of mean 1, independent of each other.

    ``lognormal``: ``spread`` is the coefficient of variation (standard deviation over mean). ``uniform``: the
    half-width, from 1 − spread to 1 + spread.
    """

    kind: Literal["lognormal", "uniform"]
    spread: float

    def factors(self, random: np.random.Generator, ops: int, samples: int) -> NDArray[np.float64]:
        """Factors [ops, samples]."""
        if self.kind == "uniform":
            factors = random.random((ops, samples))
            factors -= 0.5
            factors *= 2 * self.spread
            factors += 1.0
            return factors
        variance = math.log1p(self.spread**2)  # of the logarithm, whose mean makes up for what exp adds
        factors = random.standard_normal((ops, samples))
        factors *= math.sqrt(variance)
        factors -= variance / 2
        return np.exp(factors, out=factors)


@dataclass(frozen=True, slots=True)
class Jitter:
    """How ops that compute and ops that move bytes vary; ``None``: not at all."""

    compute: Distribution | None = None
    communication: Distribution | None = None

    def seconds(
        self, random: np.random.Generator, mean_s: NDArray[np.float64], moves: NDArray[np.bool_], samples: int
    ) -> NDArray[np.float64]:
        """Durations [ops, samples] of ops of given means, which compute or move bytes."""
        if self.compute and self.compute == self.communication:
            return _scaled(self.compute.factors(random, len(mean_s), samples), mean_s)
        seconds = np.repeat(mean_s[:, None], samples, axis=1)
        for distribution, chosen in ((self.compute, ~moves), (self.communication, moves)):
            if distribution and chosen.any():
                factors = distribution.factors(random, int(chosen.sum()), samples)
                seconds[chosen] = _scaled(factors, mean_s[chosen])
        return seconds


def _scaled(factors: NDArray[np.float64], mean_s: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.multiply(factors, mean_s[:, None], out=factors)
