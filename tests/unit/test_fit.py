"""The fit on series whose server is known: exact networks, a simulated server in order of arrival, and noise."""

from __future__ import annotations

import heapq
import math
from functools import cache

import numpy as np
import pytest

from analysis.queueing import disciplines, exact
from analysis.queueing.disciplines import GRAINS, SHARES
from analysis.queueing.fit import LEVELS, Posterior, Series, extremes, fit
from analysis.queueing.holdout import holdout_error, mean_error
from analysis.queueing.network import Floats, Network, Station

WORKERS = tuple(range(1, 9))
FEW = tuple(range(1, 5))


def mva(think_s: float, demand_s: float, workers: int = 8) -> Series:
    found = exact.throughputs_per_s(Network((Station("server", demand_s),), think_s), workers)
    return Series(tuple(range(1, workers + 1)), tuple(found.tolist()))


def bound(think_s: float, demand_s: float) -> Series:
    return Series(WORKERS, tuple(min(count / (think_s + demand_s), 1 / demand_s) for count in WORKERS))


@cache
def in_order_of_arrival(share: float, variation: float, steps: int = 20_000) -> Series:
    """A server that serves one worker after another, lognormal times; a step alone takes 1 s."""
    found = []
    for workers in WORKERS:
        random = np.random.default_rng(workers)
        variance = math.log1p(variation**2)
        times = np.exp(random.standard_normal((2, steps)) * math.sqrt(variance) - variance / 2)
        served, thought = (times * [[share], [1 - share]]).tolist()
        asks = random.random(workers).tolist()
        heapq.heapify(asks)
        free = begin = 0.0
        for step in range(steps):
            free = max(asks[0], free) + served[step]
            heapq.heapreplace(asks, free + thought[step])
            begin = free if step == steps // 10 else begin
        found.append((steps - 1 - steps // 10) / (free - begin))
    return Series(WORKERS, tuple(found))


def noisy(series: Series, deviation: float, random: np.random.Generator) -> Series:
    factors = np.exp(deviation * random.standard_normal(len(series.workers)))
    return Series(series.workers, tuple((np.array(series.steps_per_s) * factors).tolist()))


def median(draws: Floats) -> float:
    return float(np.median(draws))


@pytest.mark.parametrize(("think_s", "demand_s"), [(0.75, 0.25), (6.0, 4.0), (0.9, 0.1)])
def test_exact_mva_is_recognised_and_its_demands_found(think_s: float, demand_s: float) -> None:
    series = mva(think_s, demand_s)
    found = fit(series.upto(4))
    assert found.discipline == "mva"
    assert median(found.demand_s) == pytest.approx(demand_s, rel=0.01)
    assert median(found.think_s) == pytest.approx(think_s, rel=0.01)
    low, predicted, high = found.predict(WORKERS)
    assert predicted == pytest.approx(np.array(series.steps_per_s), rel=0.005)
    assert ((low < series.steps_per_s) & (series.steps_per_s < high)).all()


def test_the_bound_is_recognised_where_it_bends() -> None:
    series = bound(0.6, 0.4)
    found = fit(series.upto(4))
    assert found.discipline == "bound"
    assert median(found.demand_s) == pytest.approx(0.4, rel=0.005)
    assert found.predict(WORKERS)[1] == pytest.approx(np.array(series.steps_per_s), rel=0.005)


def test_where_no_reading_bends_the_interval_says_so() -> None:
    """A straight line to 4 workers fits a server that is full there, and one that is hardly used."""
    found = fit(bound(0.75, 0.25).upto(4))
    low, _, high = found.predict((8,))[:, 0]
    assert low < 5
    assert high == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
@pytest.mark.parametrize("variation", [0.1, 0.3])
def test_a_server_in_order_of_arrival_lies_between(share: float, variation: float) -> None:
    series = in_order_of_arrival(share, variation)
    found = fit(series.upto(6))
    assert found.discipline == "fcfs"
    assert median(found.demand_s) == pytest.approx(share, rel=0.07)
    assert mean_error(found.predict((7, 8))[1], series.beyond(6)) < 0.05  # as far off as the family itself may be


def test_draws_follow_the_posterior() -> None:
    """Against the integral over step time and deviation, made numerically, for every discipline."""
    series = noisy(mva(0.6, 0.4, 5), 0.03, np.random.default_rng(4))
    log_step = np.linspace(-0.6, 0.6, 121)[:, None, None]
    deviation = np.geomspace(1e-3, 10, 241)[:, None]  # even steps of its logarithm: prior 1/σ
    readings = np.log(series.steps_per_s)
    chances = []
    for curves in disciplines.family(series.workers):
        total = 0.0
        for curve in np.log(curves.T[::8]):
            squares = ((readings - curve + log_step) ** 2).sum(axis=-1, keepdims=True)
            total += float((deviation**-5 * np.exp(-squares / (2 * deviation**2))).sum())
        chances.append(total)
    drawn = np.bincount(fit(series).grain, minlength=len(GRAINS))
    assert drawn / drawn.sum() == pytest.approx(np.array(chances) / sum(chances), abs=0.01)


def cases(deviation: float) -> list[tuple[Series, float]]:
    """Series of servers of every kind, each with its demand."""
    random = np.random.default_rng(0)
    return [
        (noisy(series, deviation, random), share)
        for share in (0.1, 0.2, 0.3, 0.4, 0.5)
        for series in (
            mva(1 - share, share),
            bound(1 - share, share),
            in_order_of_arrival(share, 0.1),
            in_order_of_arrival(share, 0.3),
        )
        for _ in range(8)
    ]


@pytest.mark.parametrize("deviation", [0.0, 0.005, 0.02, 0.05])
def test_intervals_cover_what_they_promise(deviation: float) -> None:
    """90 % intervals of later readings and of the demand, over servers of every kind and 160 noisy series of them."""
    readings, demands = [], []
    for series, demand_s in cases(deviation):
        found, later = fit(series.upto(4)), series.beyond(4)
        low, _, high = found.predict(later.workers)
        readings.append(((low <= later.steps_per_s) & (later.steps_per_s <= high)).mean())
        low_s, _, high_s = np.quantile(found.demand_s, LEVELS)
        demands.append(low_s <= demand_s <= high_s)
    assert 0.85 <= np.mean(readings) <= 0.97
    assert np.mean(demands) >= 0.85


def test_the_unit_of_time_does_not_matter() -> None:
    series = noisy(mva(0.6, 0.4), 0.03, np.random.default_rng(2))
    faster = Series(series.workers, tuple(1000 * each for each in series.steps_per_s))
    assert fit(faster).predict(WORKERS) == pytest.approx(1000 * fit(series).predict(WORKERS), rel=1e-9)
    assert median(fit(faster).demand_s) == pytest.approx(median(fit(series).demand_s) / 1000, rel=1e-9)


def test_the_same_readings_give_the_same_draws() -> None:
    one, other = fit(mva(0.6, 0.4)), fit(mva(0.6, 0.4))
    assert (one.predict((3, 30)) == other.predict((3, 30))).all()
    assert (one.step_s == other.step_s).all()


def test_readings_need_not_be_of_every_number_of_workers() -> None:
    whole = mva(0.6, 0.4, 16)
    few = Series((1, 4, 16), tuple(whole.steps_per_s[count - 1] for count in (1, 4, 16)))
    assert fit(few).predict((8,))[1, 0] == pytest.approx(whole.steps_per_s[7], rel=0.02)


def test_draws_are_explanations() -> None:
    """Every draw is a discipline and a share of the grid, and its parts add up."""
    found = fit(noisy(mva(0.6, 0.4), 0.03, np.random.default_rng(2)))
    assert found.think_s + found.demand_s == pytest.approx(found.step_s)
    assert found.demand_s / found.step_s == pytest.approx(SHARES[found.share])
    assert {*found.variation} <= {disciplines.variation(grains) for grains in GRAINS}


def test_the_median_ignores_which_side_is_far() -> None:
    ends = np.array([0, 10, 10])
    found = Posterior(ends, np.array([400, 400, 400]), np.ones(3), np.zeros(3))
    assert found.discipline == "bound"
    assert found.predict((2,))[1, 0] == pytest.approx(1 / SHARES[400])


def test_the_error_held_out_is_that_of_shorter_series() -> None:
    series = noisy(mva(0.6, 0.4, 5), 0.03, np.random.default_rng(3))
    splits = [
        mean_error(fit(series.upto(last)).predict(tuple(range(last + 1, 6)))[1], series.beyond(last)) for last in (3, 4)
    ]
    assert holdout_error(series) == pytest.approx(np.mean(splits))
    assert holdout_error(series.upto(3)) is None


def test_a_long_series_is_held_out_in_a_few_splits() -> None:
    asked = []

    def rule(series: Series, workers: tuple[int, ...]) -> Floats:
        asked.append(series.workers[-1])
        return np.ones(len(workers))

    holdout_error(mva(0.9, 0.1, 64), rule)
    assert sorted(asked) == list(range(7, 64, 8))


def test_two_explanations_that_nothing_tells_apart() -> None:
    """Both fit: their worst misfit is within what a 90 % region allows; they differ, and span the truth."""
    random = np.random.default_rng(5)
    series = noisy(mva(0.75, 0.25), 0.02, random)
    found = extremes(series.upto(4), 8)
    assert found is not None
    least, most = found
    assert least.steps_per_s < mva(0.75, 0.25).steps_per_s[7] < most.steps_per_s
    for one in found:
        grains = next(grains for grains in GRAINS if disciplines.variation(grains) == one.cv)
        step_s = one.think_time_s + one.demand_s
        curve = disciplines.curve(grains, (*FEW, 8), np.array([one.demand_s / step_s]))[:, 0] / step_s
        assert curve[-1] == pytest.approx(one.steps_per_s, rel=1e-9)
        assert np.abs(np.log(curve[:-1] / series.steps_per_s[:4])).max() < 0.1
    assert extremes(series.upto(3), 8) is None


@pytest.mark.parametrize("steps_per_s", [(1e-12, 1e12, 1e-12), (9.0, 1.0, 0.1), (5.0, 5.0, 5.0)])
def test_readings_that_no_server_makes_still_give_numbers(steps_per_s: tuple[float, ...]) -> None:
    found = fit(Series((1, 2, 512), steps_per_s)).predict((1, 1024))
    assert np.isfinite(found).all()
    assert (found > 0).all()
