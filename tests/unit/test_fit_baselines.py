"""The baselines against other ways to fit them, and the trace-driven simulation against exact MVA."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import least_squares

from analysis.queueing import baselines, exact, traced
from analysis.queueing.fit import Series
from analysis.queueing.network import Floats, Network, Station

WORKERS = tuple(range(1, 9))


def noisy(steps_per_s: Floats, seed: int) -> Series:
    random = np.random.default_rng(seed)
    readings = steps_per_s * np.exp(0.03 * random.standard_normal(len(steps_per_s)))
    return Series(tuple(range(1, len(readings) + 1)), tuple(readings.tolist()))


def mva(think_s: float, demand_s: float, workers: int) -> Floats:
    return exact.throughputs_per_s(Network((Station("server", demand_s),), think_s), workers)


def bound(think_s: float, demand_s: float, workers: int) -> Floats:
    found: Floats = np.minimum(np.arange(1, workers + 1) / (think_s + demand_s), 1 / demand_s)
    return found


@pytest.mark.parametrize(("grains", "model"), [(1, mva), (math.inf, bound)])
@pytest.mark.parametrize("seed", range(4))
def test_demands_are_the_least_squares(grains: float, model: Callable[[float, float, int], Floats], seed: int) -> None:
    """No start of a general optimizer finds a smaller sum of squared relative errors."""
    series = noisy(model(0.7, 0.3, 5), seed)

    def residuals(parameters: Floats) -> Floats:
        think_s, demand_s = np.exp(parameters).tolist()
        ratios: Floats = model(think_s, demand_s, 5) / np.array(series.steps_per_s)
        return ratios - 1

    starts = [(math.log(1 - share), math.log(share)) for share in np.linspace(0.05, 0.95, 19)]
    costs = [2 * least_squares(residuals, start, bounds=(-20, 5)).cost for start in starts]
    step_s, demand_s = baselines.demands(grains, series)
    assert (residuals(np.log([step_s - demand_s, demand_s])) ** 2).sum() <= min(costs) * (1 + 1e-6)


def test_exact_readings_are_continued() -> None:
    few = WORKERS[:4]
    for model, predict in ((mva, baselines.mva), (bound, baselines.bound)):
        readings = model(0.6, 0.4, 8)
        assert predict(Series(few, tuple(readings[:4].tolist())), WORKERS) == pytest.approx(readings, rel=1e-6)


def test_a_bound_that_never_bends_goes_on() -> None:
    assert baselines.bound(Series((1, 2, 3), (2.0, 4.0, 6.0)), (100,)) == pytest.approx(200)


def test_optimus_recovers_its_own_function() -> None:
    readings = np.array(WORKERS) / (1.5 + 0.2 * np.array(WORKERS) / 2 + 0.1 * np.array(WORKERS) + 0.3 * 2)
    few = Series(WORKERS[:4], tuple(readings[:4].tolist()))
    assert baselines.optimus(few, WORKERS, 2) == pytest.approx(readings, rel=1e-9)


def test_optimus_never_speeds_up_a_step() -> None:
    """Readings that grow faster than the workers would need a coefficient below 0."""
    predicted = baselines.optimus(Series((1, 2, 3), (1.0, 2.5, 4.5)), WORKERS)
    assert (np.diff(np.array(WORKERS) / predicted) >= -1e-12).all()


def lognormal(means_s: tuple[float, ...], variation: float, steps: int = 4000) -> Floats:
    random = np.random.default_rng(7)
    variance = math.log1p(variation**2)
    factors = np.exp(math.sqrt(variance) * random.standard_normal((steps, len(means_s))) - variance / 2)
    scaled: Floats = factors / factors.mean(axis=0) * means_s
    return scaled


@pytest.mark.parametrize("variation", [0.1, 0.3, 1.0])
def test_processor_sharing_replays_as_exact_mva(variation: float) -> None:
    found = traced.predict(lognormal((0.25, 0.75), variation), (True, False), (1, 2, 4, 8))
    assert found == pytest.approx(mva(0.75, 0.25, 8)[[0, 1, 3, 7]], rel=0.02)


def test_download_and_upload_share_one_direction_each() -> None:
    """The table of the facts: D 0.2 each way, Z 0.6."""
    found = traced.predict(lognormal((0.2, 0.6, 0.2), 0.3), (True, False, True), (4, 8))
    assert found == pytest.approx([3.090, 4.170], rel=0.01)


def test_one_worker_replays_its_own_steps() -> None:
    steps = np.array([[0.1, 0.5, 0.2, 0.0]])
    assert traced.predict(steps, (True, False, True, True), (1,)) == pytest.approx([1 / 0.8], rel=1e-6)


def test_a_server_that_does_everything_gains_nothing() -> None:
    assert traced.predict(np.array([[1.0], [3.0]]), (True,), (1, 6)) == pytest.approx([0.5, 0.5], rel=0.02)


def test_replays_repeat() -> None:
    steps = lognormal((0.25, 0.75), 0.3, 50)
    assert (traced.predict(steps, (True, False), (5,)) == traced.predict(steps, (True, False), (5,))).all()
