"""Factors over a sweep: by hand, and the place of a figure against a search."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.factors import Axes, Factor, Range, compute, effect, places, ranges, spread

AXES = Axes("model.name", "link", "batch")


def result(model: str, link: str, batch: int, schedule: dict[str, Any], speed: float, peak: int = 1) -> dict[str, Any]:
    overrides = {"model.name": model, "link": link, "batch": batch, "schedule": schedule}
    devices = [{"peak_memory_bytes": 1}, {"peak_memory_bytes": peak}]
    return {"overrides": overrides, "samples_per_s": speed, "devices": devices}


def test_the_fastest_that_fits_counts() -> None:
    slow, fast = {"name": "dualpipe_2018", "timeline": "alternating"}, {"name": "dualpipe_2018"}
    ring, server = {"name": "data_parallel", "sync": "ring"}, {"name": "data_parallel", "sync": "parameter_server"}
    results = [
        result("vgg16", "3 GB/s", 16, slow, 6.0),
        result("vgg16", "3 GB/s", 16, fast, 9.0, peak=3),
        result("vgg16", "3 GB/s", 16, ring, 2.0),
        result("vgg16", "3 GB/s", 16, server, 1.0, peak=3),
        result("vgg16", "3 GB/s", 32, ring, 2.0),
    ]
    baselines = {"ring": {"sync": "ring"}, "server": {"sync": "parameter_server"}, "any": {"name": "data_parallel"}}
    method = {"name": "dualpipe_2018"}
    assert compute(results, AXES, method, baselines, fits_bytes=3) == [
        Factor("vgg16", "ring", "3 GB/s", 16, 4.5),
        Factor("vgg16", "server", "3 GB/s", 16, 9.0),
        Factor("vgg16", "any", "3 GB/s", 16, 4.5),
    ]
    assert compute(results, AXES, method, baselines, fits_bytes=2) == [
        Factor("vgg16", "ring", "3 GB/s", 16, 3.0),
        Factor("vgg16", "any", "3 GB/s", 16, 3.0),
    ]
    assert compute(results, AXES, {"name": "gpipe"}, baselines, fits_bytes=3) == []


FACTORS = [
    Factor("m", "server", "3 GB/s", 16, 40.0),
    Factor("m", "server", "3 GB/s", 32, 20.0),
    Factor("m", "server", "3 GB/s", 64, 10.0),
    Factor("m", "server", "12 GB/s", 64, 2.5),
    Factor("m", "server", "12 GB/s", 16, 10.0),
    Factor("m", "ring", "3 GB/s", 16, 4.0),
]


def test_ranges_are_over_lines_and_places() -> None:
    assert ranges(FACTORS) == {("m", "server"): Range(2.5, 10.0, 40.0, 5), ("m", "ring"): Range(4.0, 4.0, 4.0, 1)}
    with pytest.raises(ValueError, match="empty"):
        spread([])


@pytest.mark.parametrize(
    ("figure", "slow", "fast", "ring"),
    [
        (15.0, ((32, 64),), "below", "below"),
        (20.0, ((32, 64),), "below", "below"),  # a factor that is the figure counts as reached
        (5.0, "above", ((16, 64),), "below"),
        (1.0, "above", "above", "above"),
    ],
)
def test_where_a_figure_lies(figure: float, slow: object, fast: object, ring: object) -> None:
    assert places(FACTORS, figure) == {
        ("m", "server"): {"3 GB/s": slow, "12 GB/s": fast},
        ("m", "ring"): {"3 GB/s": ring},
    }


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.floats(0.1, 10.0))
def test_a_figure_lies_where_a_line_through_the_factors_passes_it(values: list[float], figure: float) -> None:
    """Every span has one end that reaches the figure and one that does not, and no other pair of neighbours does."""
    line = [Factor("m", "b", "l", float(at), value) for at, value in enumerate(values)]
    found = places(reversed(line), figure)["m", "b"]["l"]
    reached = [value >= figure for value in values]
    if all(reached) or not any(reached):
        assert found == ("above" if reached[0] else "below")
    else:
        assert found == tuple((k - 1.0, float(k)) for k in range(1, len(reached)) if reached[k] != reached[k - 1])


def test_what_an_axis_does_to_a_factor() -> None:
    """Of 2^-line · 3^-at · 5^-group each axis gives back its own base; a place without a partner is left out."""
    factors = [
        Factor(str(group), "server", str(line), at, 2.0**-line * 3.0**-at * 5.0**-group)
        for group, line, at in product(range(2), range(2), range(3))
    ]
    assert effect(factors, "line", [("0", "1")]) == pytest.approx((2.0, 2.0, 2.0, 6))
    assert effect(factors, "at", [(0, 2)]) == pytest.approx((9.0, 9.0, 9.0, 4))
    assert effect(factors[:-1], "group", [("0", "1")]) == pytest.approx((5.0, 5.0, 5.0, 5))
    assert effect(factors, "at", [(0, 1), (2, 0)]) == pytest.approx((1 / 9, (3 + 1 / 9) / 2, 3.0, 8))
