"""Factors of mean 1: moments against their closed forms, streams against blocks."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from sim.distributions import Distribution

MEASURED = (1.0, 1.0, 4.0, 10.0)
KINDS = {
    "lognormal": (Distribution("lognormal", 0.3), 0.3),
    "uniform": (Distribution("uniform", 0.5), 0.5 / 3**0.5),
    "exponential": (Distribution("exponential"), 1.0),
    "empirical": (Distribution("empirical", values=MEASURED), float(np.std(MEASURED) / np.mean(MEASURED))),
}


def random(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("name", KINDS)
def test_mean_and_variation(name: str) -> None:
    distribution, variation = KINDS[name]
    assert distribution.variation == pytest.approx(variation, rel=1e-12)
    factors = distribution.factors(random(), 4, 100_000).ravel()
    error = 5 * variation / len(factors) ** 0.5  # five standard errors of the mean
    assert factors.mean() == pytest.approx(1, abs=error)
    assert factors.std() == pytest.approx(variation, rel=0.02)
    assert factors.min() > 0


def test_measured_times_keep_their_shape() -> None:
    factors = KINDS["empirical"][0].factors(random(), 1, 10_000)
    values, counts = np.unique(factors, return_counts=True)
    assert values.tolist() == [0.25, 1.0, 2.5]
    assert counts / 10_000 == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_is_what_blocks_are(name: str) -> None:
    distribution = KINDS[name][0]
    one_by_one = [*islice(distribution.stream(random()), 600)]
    generator = random()
    blocks = np.concatenate([distribution.factors(generator, 1, 256)[0] for _ in range(3)])
    assert one_by_one == blocks[:600].tolist()
