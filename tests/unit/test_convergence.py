"""Convergence figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.convergence import Column, Run, band, best_rate, compute, final, seconds_to, share, smoothed


def run(level: float, steps: int = 40) -> Run:
    """A loss that falls by 1/steps a step, down to ``level``."""
    return of(np.arange(1.0, steps + 1), level + np.arange(steps)[::-1] / steps)


def of(seconds: Column, losses: Column) -> Run:
    return Run(seconds, losses, seconds[-1:], losses[-1:], np.array([0.5]))


def test_smoothing_is_a_mean_of_the_last_entries() -> None:
    assert smoothed(np.array([4.0, 2.0, 0.0, 6.0]), 2).tolist() == [4.0, 3.0, 1.0, 3.0]


def test_the_time_to_a_target_is_that_of_the_first_whole_window_below_it() -> None:
    losses = np.array([0.0] * 5 + [1.0] * 35)  # low only while the window is not full
    assert seconds_to(of(np.arange(1.0, 41.0), losses), 0.75) == 20.0
    assert seconds_to(of(np.arange(1.0, 41.0), losses), 0.5) == float("inf")


def test_a_run_that_diverged_is_infinitely_bad() -> None:
    diverged = of(np.ones(3), np.array([1.0, np.nan, np.nan]))
    assert final(diverged) == float("inf")
    assert best_rate({0.1: [run(1.0), diverged], 0.01: [run(3.0), run(3.0)]}) == 0.01


def test_the_best_rate_has_the_least_mean_loss_and_of_equals_is_the_smaller() -> None:
    assert best_rate({0.3: [run(1.0), run(2.0)], 0.1: [run(1.4), run(1.7)]}) == 0.3
    assert best_rate({0.3: [run(1.0)], 0.1: [run(1.0)]}) == 0.1


def test_the_share_of_the_gap_that_is_closed() -> None:
    runs = {
        "sync": {0.1: [run(1.0), run(1.2), run(1.1)]},
        "vanilla": {0.1: [run(2.0), run(2.2), run(2.1)]},
        "half": {0.1: [run(1.5), run(1.7), run(1.6)]},
        "none": {0.1: [run(2.0), run(2.2), run(2.1)]},
    }
    compared = compute(runs, 0.0, "sync", "vanilla")
    found = {method.name: method for method in compared.methods}
    assert compared.gap == pytest.approx((1.0, 1.0, 1.0))  # seeds are paired: the gap never varies
    assert found["sync"].recovered is None
    assert found["half"].recovered == pytest.approx((0.5, 0.5, 0.5))
    assert found["none"].recovered == pytest.approx((0.0, 0.0, 0.0))


def test_a_gap_that_may_be_none_has_no_shares() -> None:
    runs = {
        "sync": {0.1: [run(1.0), run(1.6)]},
        "vanilla": {0.1: [run(1.4), run(1.4)]},
        "other": {0.1: [run(1.2), run(1.2)]},
    }
    compared = compute(runs, 0.0, "sync", "vanilla")
    assert compared.gap is not None
    assert compared.gap.low < 0 < compared.gap.mean
    assert all(method.recovered is None for method in compared.methods)


def test_one_seed_shows_no_gap() -> None:
    runs = {"sync": {0.1: [run(1.0)]}, "vanilla": {0.1: [run(2.0)]}, "other": {0.1: [run(1.5)]}}
    assert not compute(runs, 0.0, "sync", "vanilla").has_gap


def test_of_what_diverged_there_is_no_share() -> None:
    diverged = of(np.ones(40), np.full(40, np.nan))
    runs = {
        "sync": {0.1: [run(1.0), run(1.1)]},
        "vanilla": {0.1: [run(2.0), run(2.1)]},
        "other": {0.1: [run(1.5), diverged]},
    }
    compared = compute(runs, 0.0, "sync", "vanilla")
    assert compared.has_gap
    assert compared.methods[-1].recovered is None
    assert not compute({**runs, "vanilla": runs["other"]}, 0.0, "sync", "vanilla").has_gap


@given(st.integers(0, 10**6))
def test_the_ends_of_a_share_are_where_a_paired_t_test_turns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gaps = rng.normal(2.0, 0.5, 6)
    closed = rng.uniform(-1, 1.5) * gaps + rng.normal(0, 0.4, 6)
    if band(gaps).low <= 0:
        return
    found = share(closed, gaps)
    assert found is not None
    assert found.low <= found.mean <= found.high
    for end in (found.low, found.high):
        assert stats.ttest_1samp(closed - end * gaps, 0.0).pvalue == pytest.approx(0.05, rel=1e-6)


def test_bands_cover_as_often_as_they_say() -> None:
    rng, means, shares = np.random.default_rng(5), 0, 0
    for _ in range(400):
        gaps = rng.normal(3.0, 1.0, 5)
        closed = 0.7 * gaps + rng.normal(0.0, 1.0, 5)
        mean, part = band(gaps), share(closed, gaps) if band(gaps).low > 0 else None
        means += mean.low <= 3.0 <= mean.high
        shares += part is None or part.low <= 0.7 <= part.high
    assert 0.92 <= means / 400 <= 0.98
    assert shares / 400 >= 0.92
