"""Durations that vary from run to run about a mean that stays the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.distributions import Distribution as Distribution

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Jitter:
    """How ops that compute and ops that move bytes vary, and those of parameter servers; ``None``: not at all."""

    compute: Distribution | None = None
    communication: Distribution | None = None
    apply: Distribution | None = None

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
