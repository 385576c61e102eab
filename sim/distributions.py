"""How durations vary: factors of mean 1, by which a mean is multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Distribution:
    """Factors of mean 1, independent of each other.

    ``lognormal``: ``spread`` is the coefficient of variation (standard deviation over mean). ``uniform``: the
    half-width, from 1 − spread to 1 + spread. ``exponential``: a spread of 1. ``empirical``: ``values`` with equal
    probability, divided by their mean.
    """

    kind: Literal["lognormal", "uniform", "exponential", "empirical"]
    spread: float = 1.0
    values: tuple[float, ...] = ()

    def factors(self, random: np.random.Generator, ops: int, samples: int) -> NDArray[np.float64]:
        """Factors [ops, samples]."""
        if self.kind == "uniform":
            factors = random.random((ops, samples))
            factors -= 0.5
            factors *= 2 * self.spread
            factors += 1.0
            return factors
        if self.kind == "exponential":
            return random.standard_exponential((ops, samples))
        if self.kind == "empirical":
            values = np.array(self.values)
            return np.asarray((values / values.mean())[random.integers(len(values), size=(ops, samples))], np.float64)
        variance = math.log1p(self.spread**2)  # of the logarithm, whose mean makes up for what exp adds
        factors = random.standard_normal((ops, samples))
        factors *= math.sqrt(variance)
        factors -= variance / 2
        return np.exp(factors, out=factors)

    def stream(self, random: np.random.Generator) -> Iterator[float]:
        """Factors one by one, without end."""
        while True:
            yield from self.factors(random, 1, _AT_ONCE)[0].tolist()

    @property
    def variation(self) -> float:
        """The coefficient of variation."""
        if self.kind == "uniform":
            return self.spread / math.sqrt(3)
        if self.kind == "empirical":
            return float(np.std(self.values) / np.mean(self.values))
        return self.spread
