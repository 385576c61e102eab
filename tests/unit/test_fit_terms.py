"""Terms of demands over models and batches."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.queueing.network import Floats
from analysis.queueing.terms import linear

BYTES, TENSORS = np.array([1e6, 5e6, 2e7, 1e8]), np.array([10.0, 200.0, 30.0, 90.0])


def draws(means_s: Floats, spread: float) -> list[Floats]:
    random = np.random.default_rng(0)
    return [mean * np.exp(spread * random.standard_normal(4000)) for mean in means_s]


def test_exact_demands_give_their_terms() -> None:
    columns = {"fixed": [1.0] * 4, "byte": BYTES.tolist(), "tensor": TENSORS.tolist()}
    found = linear(draws(0.01 + 2e-9 * BYTES + 1e-4 * TENSORS, 1e-9), columns)
    assert found is not None
    assert [found.coefficients[name][1] for name in columns] == pytest.approx([0.01, 2e-9, 1e-4], rel=1e-6)
    assert found.left_out_error == pytest.approx(0, abs=1e-6)


def test_intervals_hold_the_terms_and_shrink_with_the_spread() -> None:
    columns = {"fixed": [1.0] * 4, "byte": BYTES.tolist()}
    widths = []
    for spread in (0.1, 0.01):
        found = linear(draws(0.01 + 2e-9 * BYTES, spread), columns)
        assert found is not None
        for name, true in (("fixed", 0.01), ("byte", 2e-9)):
            low, _, high = found.coefficients[name]
            assert low <= true <= high
        low, middle, high = found.coefficients["byte"]
        widths.append((high - low) / middle)
    assert widths[1] < widths[0] / 5


def test_no_term_is_negative() -> None:
    found = linear(draws(np.array([0.3, 0.2, 0.1]), 0.01), {"fixed": [1.0] * 3, "byte": [1.0, 2.0, 3.0]})
    assert found is not None
    assert found.coefficients["byte"] == pytest.approx((0, 0, 0))


def test_two_series_fit_a_line_and_leave_nothing_to_check_it() -> None:
    found = linear(draws(np.array([0.3, 0.5]), 0.01), {"fixed": [1.0] * 2, "byte": [1.0, 2.0]})
    assert found is not None
    assert [middle for _, middle, _ in found.coefficients.values()] == pytest.approx([0.1, 0.2], rel=0.02)
    assert found.left_out_error is None


def test_what_the_series_do_not_tell_apart_is_not_told() -> None:
    assert linear(draws(np.array([0.3, 0.5]), 0.01), {"fixed": [1.0] * 2, "byte": [2.0, 2.0]}) is None
