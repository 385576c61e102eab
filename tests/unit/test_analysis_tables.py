"""Tables and differences of results, and numbers as text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import diff, table
from analysis.text import duration, percent, significant


def outcome(name: str, method: str, samples_per_s: float | None, **changes: Any) -> dict[str, Any]:
    """A result with the keys that tables read."""
    device = {
        "name": "gpu0",
        "compute_s": 6.0,
        "communication_s": 1.0,
        "idle_s": 3.0,
        "peak_memory_bytes": 2**30,
        "weight_copies": 1,
        "predicted_copies": 0,
        "in_flight": 2,
    }
    side = {"mean": 0.5, "max": 1, "by_stage": [1, 0]}
    return {
        "name": name,
        "method": method,
        "allocator": {"name": "counting", "settings": ""},
        "samples_per_s": samples_per_s,
        "mfu": None,
        "why": "gpu0 computes 60 % of the time",
        "bubble": {"of_total": 0.4},
        "devices": [device],
        "staleness": {"forward": side, "backward": side | {"by_stage": [0, 0]}},
        **changes,
    }


def cells(*results: dict[str, Any]) -> list[dict[str, str]]:
    columns, rows = table.rows(results)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_a_row_by_hand() -> None:
    (row,) = cells(outcome("a", "gpipe", 123.456, mfu=0.314))
    assert row == {
        "variant": "a",
        "samples/s": "123",
        "× single": "–",
        "× data par.": "–",
        "bubble": "40 %",
        "compute/comm/idle %": "60/10/30",
        "staleness F/B": "1/0",
        "copies": "1",
        "in-flight": "2",
        "peak GiB": "1.00",
        "MFU": "31 %",
        "why": "gpu0 computes 60 % of the time",
    }


def test_speed_ups_are_over_the_single_gpu_and_the_first_data_parallel_result() -> None:
    rows = cells(
        outcome("pipe", "gpipe", 300.0),
        outcome("server", "data_parallel", 50.0),
        outcome("ring", "data_parallel", 200.0),
        outcome("one", "single", 100.0),
        outcome("broken", "gpipe", None),
    )
    assert [row["× single"] for row in rows] == ["3.00", "0.50", "2.00", "1.00", "–"]
    assert [row["× data par."] for row in rows] == ["6.00", "1.00", "4.00", "2.00", "–"]
    assert rows[-1]["samples/s"] == "–"


def test_what_differs_between_gpus_is_shown_for_each() -> None:
    base = outcome("a", "pipedream", 1.0)
    device = base["devices"][0]
    four = [device | {"weight_copies": copies, "predicted_copies": 1} for copies in (4, 3, 2, 1)]
    eight = [device | {"in_flight": count} for count in range(8, 0, -1)]
    assert cells(base | {"devices": four})[0]["copies"] == "4+1 3+1 2+1 1+1"
    assert cells(base | {"devices": eight})[0]["in-flight"] == "8 … 1"
    assert cells(base | {"devices": eight})[0]["copies"] == "1"


def test_a_run_without_updates_has_no_staleness_to_show() -> None:
    nothing = {"mean": None, "max": None, "by_stage": [None, None]}
    (row,) = cells(outcome("a", "gpipe", 1.0, staleness={"forward": nothing, "backward": nothing}))
    assert row["staleness F/B"] == "–/–"


def test_diff_lists_every_scalar_that_differs_with_its_ratio() -> None:
    a = {
        "x": 2.0,
        "same": 1,
        "flag": True,
        "devices": [{"name": "gpu0", "t": 4}, {"name": "gpu1", "t": 0}],
        "list": [1, 2],
    }
    b = copy.deepcopy(a)
    b |= {"x": 3.0, "flag": False, "list": [1, 5, 6], "why": "new"}
    b["devices"] = [{"name": "gpu1", "t": 7}, {"name": "gpu0", "t": 2}]
    assert diff.compute(a, b) == [
        ("x", 2.0, 3.0, 1.5),
        ("flag", True, False, None),
        ("devices.gpu0.t", 4, 2, 0.5),
        ("devices.gpu1.t", 0, 7, None),
        ("list.1", 2, 5, 2.5),
        ("list.2", None, 6, None),
        ("why", None, "new", None),
    ]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_characters="."), min_size=1), inner),
)


@given(st.dictionaries(st.sampled_from("abc"), json))
@settings(max_examples=25)
def test_a_result_does_not_differ_from_itself(value: dict[str, Any]) -> None:
    assert diff.compute(value, copy.deepcopy(value)) == []


@given(st.floats(1e-9, 1e12))
def test_three_significant_digits_and_no_exponent(value: float) -> None:
    text = significant(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=5.001e-3)


def test_text() -> None:
    assert [significant(value) for value in (0.0, 0.01234, 1.0, 9.996, 99.96, 1234.5, -2.5)] == [
        "0", "0.0123", "1.00", "10.0", "100", "1234", "-2.50",
    ]  # fmt: skip
    assert [duration(value) for value in (0.0, 2.5e-7, 1.5e-3, 0.25, 61.0)] == [
        "0 s",
        "0.250 µs",
        "1.50 ms",
        "250 ms",
        "61.0 s",
    ]
    assert percent(0.996) == "100 %"
