"""Convergence figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import convergence
from analysis.convergence import Run, best_rate, compute, final, seconds_to, smoothed


def run(level: float, steps: int = 40, seconds: float = 1.0, accuracy: float = 0.5) -> Run:
    """A loss that falls by 1/steps a step, down to ``level``."""
    losses = level + np.arange(steps)[::-1] / steps
    return Run(np.arange(1, steps + 1) * seconds, losses, level, accuracy)


def test_smoothing_is_a_mean_of_the_last_entries() -> None:
    assert smoothed(np.array([4.0, 2.0, 0.0, 6.0]), 2).tolist() == [4.0, 3.0, 1.0, 3.0]


def test_the_time_to_a_target_is_that_of_the_first_whole_window_below_it() -> None:
    losses = np.array([0.0] * 5 + [1.0] * 35)  # low only while the window is not full
    seconds = np.arange(1.0, 41.0)
    assert seconds_to(Run(seconds, losses, 0, 0), 0.75) == 20.0
    assert seconds_to(Run(seconds, losses, 0, 0), 0.5) == float("inf")


def test_a_run_that_diverged_is_infinitely_bad() -> None:
    diverged = Run(np.ones(3), np.array([1.0, np.nan, np.nan]), 0, 0)
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
    found = {method.name: method for method in compute(runs, 0.0, "sync", "vanilla")}
    assert found["sync"].recovered is None
    assert found["half"].recovered is not None
    assert found["half"].recovered == pytest.approx((0.5, 0.5, 0.5))  # seeds are paired: the share never varies
    assert found["none"].recovered == pytest.approx((0.0, 0.0, 0.0))


def test_without_a_gap_there_is_no_share() -> None:
    runs = {"sync": {0.1: [run(2.0)]}, "vanilla": {0.1: [run(1.0)]}, "other": {0.1: [run(1.5)]}}
    assert all(method.recovered is None for method in compute(runs, 0.0, "sync", "vanilla"))


def test_a_gap_that_may_be_none_leaves_the_share_unbounded() -> None:
    runs = {
        "sync": {0.1: [run(1.0), run(1.6)]},
        "vanilla": {0.1: [run(1.4), run(1.4)]},
        "other": {0.1: [run(1.2), run(1.2)]},
    }
    (share,) = (method.recovered for method in compute(runs, 0.0, "sync", "vanilla") if method.name == "other")
    assert share is not None
    assert (share.low, share.high) == (-float("inf"), float("inf"))


def test_a_band_covers_the_mean_of_a_normal_sample_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(5), 0
    for _ in range(200):
        low, high = convergence.band(rng.normal(3.0, 1.0, 30))[1:]
        covered += low <= 3.0 <= high
    assert 0.87 <= covered / 200 <= 0.99
