"""The family of disciplines against exact MVA, its limit, and a simulated server in order of arrival."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.queueing import disciplines, exact
from analysis.queueing.disciplines import GRAINS, SHARES, curve, family
from analysis.queueing.network import Floats, Network, Station

WORKERS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize("share", [0.0003, 0.02, 0.25, 0.6, 0.999])
@pytest.mark.parametrize("grains", [1, 2, 8])
def test_grains_are_customers_of_exact_mva(grains: int, share: float) -> None:
    """Their think time, found by bisection, is that of a lone worker who uses the share of the server."""

    def network(think_s: float) -> Network:
        return Network((Station("server", share / grains),), think_s)

    low, high = 0.0, float(grains)
    for _ in range(60):
        middle = (low + high) / 2
        alone = exact.throughputs_per_s(network(middle), grains)[-1] / grains
        low, high = (low, middle) if alone < 1 else (middle, high)
    whole = (
        exact.throughputs_per_s(network(low), grains * WORKERS[-1])[[grains * count - 1 for count in WORKERS]] / grains
    )
    assert curve(grains, WORKERS, np.array([share]))[:, 0] == pytest.approx(whole, rel=1e-9)


def test_the_figures_of_the_facts() -> None:
    assert curve(1, (4,), np.array([0.25]))[0, 0] == pytest.approx(3.176, abs=5e-4)
    assert curve(math.inf, (4,), np.array([0.25]))[0, 0] == 4


def test_a_step_that_is_all_server_never_gains_from_workers() -> None:
    for grains in GRAINS:
        assert curve(grains, (1, 7), np.array([1.0])) == pytest.approx(1, rel=1e-8)


def test_more_grains_come_closer_to_the_bound_and_reach_it() -> None:
    curves = family((1, 2, 4, 8, 16, 64))
    assert curves[:, 0] == pytest.approx(1)  # a worker alone waits for nobody
    assert (np.diff(curves, axis=0) > -1e-9).all()
    assert (np.diff(curves, axis=1) > -1e-9).all()
    assert (curves[-1] / curves[-2] < 1.04).all()


def test_the_family_is_its_curves_at_the_shares() -> None:
    assert (family((3, 6))[4] == curve(GRAINS[4], (3, 6), SHARES)).all()


def test_names() -> None:
    assert [disciplines.name(grains) for grains in (1, 4, math.inf)] == ["mva", "fcfs", "bound"]
    assert [disciplines.variation(grains) for grains in (1, 4, math.inf)] == [1, 0.5, 0]


def in_order_of_arrival(workers: int, shares: Floats, variation: float, steps: int, seed: int = 0) -> Floats:
    """X·T of a server that serves one worker after another, gamma times; every share simulated with the same draws."""
    random = np.random.default_rng(seed)
    shape = variation**-2
    think, served = random.gamma(shape, 1 / shape, (2, steps))
    asks = random.random((workers, len(shares)))
    free, begin, every = np.zeros(len(shares)), np.zeros(len(shares)), np.arange(len(shares))
    for step in range(steps):
        first = asks.argmin(axis=0)
        free = np.maximum(asks[first, every], free) + shares * served[step]
        asks[first, every] = free + (1 - shares) * think[step]
        if step == steps // 10:
            begin = free
    return (steps - 1 - steps // 10) / (free - begin)


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("grains", [1, 4, 16, 64])
def test_a_server_in_order_of_arrival_stays_within_five_percent(grains: int, workers: int) -> None:
    shares = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 0.9])
    simulated = in_order_of_arrival(workers, shares, disciplines.variation(grains), 30_000)
    assert curve(grains, (workers,), shares)[0] == pytest.approx(simulated, rel=0.015 if grains == 1 else 0.05)
    if grains > 1:  # closer than either end of the family
        ends = [np.abs(curve(end, (workers,), shares)[0] / simulated - 1).max() for end in (1, math.inf)]
        assert np.abs(curve(grains, (workers,), shares)[0] / simulated - 1).max() < min(ends)
