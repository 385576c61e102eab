"""Quantities: the values against exact fractions, the refusals by their words."""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.quantities import (
    ARITHMETIC_RATE,
    BANDWIDTH,
    CAPACITY,
    SIZE,
    TIME,
    WORK,
    Quantity,
    WrongValue,
    format_bytes,
    format_rate,
    format_seconds,
    shown,
)

ALL = [TIME, SIZE, CAPACITY, BANDWIDTH, ARITHMETIC_RATE, WORK]

SI = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # micro sign
    "μs": Fraction(1, 10**6),  # Greek mu
    "ms": Fraction(1, 1000),
    "min": Fraction(60),
    "GiB": Fraction(2**30),
    "kB": Fraction(1000),
    "KiB": Fraction(1024),
    "MiB/s": Fraction(2**20),
    "Gbit/s": Fraction(10**9, 8),
    "Mbit/s": Fraction(10**6, 8),
    "TFLOP/s": Fraction(10**12),
    "GFLOP": Fraction(10**9),
}


@given(
    st.decimals(min_value=0, max_value=10**6, places=6, allow_nan=False),
    st.sampled_from(sorted(SI)),
    st.sampled_from(["", " ", "  "]),
)
def test_the_value_is_the_nearest_float_to_the_exact_product(number: object, unit: str, gap: str) -> None:
    kind = next(kind for kind in ALL if unit.replace("µ", "u").replace("μ", "u") in kind.units)
    exact = Fraction(str(number)) * SI[unit]
    if exact == 0 and not kind.zero:
        return
    assert kind.read(f"{number:f}{gap}{unit}") == float(exact)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TIME, "18.5 ms", 0.0185),
        (TIME, "0 s", 0.0),
        (TIME, "-0 s", 0.0),
        (TIME, "2 h", 7200.0),
        (TIME, "1e-3 s", 0.001),
        (TIME, ".5 s", 0.5),
        (SIZE, "8 MB", 8e6),
        (SIZE, "24 GiB", 25769803776.0),
        (SIZE, "512 B", 512.0),
        (BANDWIDTH, "16 GB/s", 16e9),
        (BANDWIDTH, "10 Gbit/s", 1.25e9),
        (ARITHMETIC_RATE, "11.76 TFLOP/s", 11.76e12),
        (WORK, "30 GFLOP", 30e9),
    ],
)
def test_known_values(kind: Quantity, text: str, value: float) -> None:
    assert str(kind.read(text)) == str(value)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("number", [5, 0, 18.5, float("nan"), 10**300])
def test_a_bare_number_is_refused_with_units_and_an_example(kind: Quantity, number: float) -> None:
    with pytest.raises(WrongValue, match="needs a unit") as caught:
        kind.read(number)
    assert all(unit in str(caught.value) for unit in kind.units)
    assert caught.value.suggestion == f"write it like {kind.example}"


@pytest.mark.parametrize(
    ("kind", "value", "message", "suggestion"),
    [
        (TIME, "-3 ms", "a time must not be negative, got '-3 ms'", None),
        (TIME, "nan ms", "must be finite", None),
        (TIME, "inf", "must be finite", None),
        (TIME, "1e999 s", "at most 1e+18 s", None),
        (TIME, "5 GB", "'GB' is no unit of a time: expected ns, us, ms, s, min, h", None),
        (TIME, "5 sec", "no unit", "did you mean 's'?"),
        (TIME, "5 MS", "no unit", "did you mean 'ms'?"),
        (TIME, "fast", "expected a time such as 18.5 ms, got 'fast'", None),
        (TIME, "", "expected a time", None),
        (TIME, "5", "expected a time", None),
        (TIME, "5 ms ms", "no unit", None),
        (TIME, "1_000 s", "expected a time", None),
        (TIME, "٣ s", "expected a time", None),
        (TIME, True, "expected a time such as 18.5 ms, got true", None),
        (TIME, None, "got nothing", None),
        (TIME, ["5 ms"], "got a list", None),
        (SIZE, "8 KB", "no unit", "did you mean 'kB'?"),
        (SIZE, "8 GB/s", "no unit", None),
        (CAPACITY, "0 GiB", "must be above 0", None),
        (BANDWIDTH, "0 GB/s", "a bandwidth must be above 0", None),
        (BANDWIDTH, "1e-30 GB/s", "from 1e-18 to 1e+18 B/s", None),
        (BANDWIDTH, "10 Gb/s", "no unit", "write Gbit/s for bits or GB/s for bytes"),
        (BANDWIDTH, "10 Gbps", "no unit", "write Gbit/s for bits or GB/s for bytes"),
        (BANDWIDTH, "16 GB", "no unit", "write Gbit/s for bits or GB/s for bytes"),
        (ARITHMETIC_RATE, "5 TFLOPS", "no unit", "write TFLOP/s"),
    ],
)
def test_refusals(kind: Quantity, value: object, message: str, suggestion: str | None) -> None:
    with pytest.raises(WrongValue, match=re.escape(message)) as caught:
        kind.read(value)
    if suggestion:
        assert caught.value.suggestion == suggestion


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.integers())))
def test_nothing_but_a_wrong_value_is_raised(value: object) -> None:
    for kind in ALL:
        with contextlib.suppress(WrongValue):
            assert 0 <= kind.read(value) <= 1e18


@given(st.decimals(min_value="0.001", max_value=1000, places=3), st.sampled_from(ALL))
def test_the_editor_pattern_accepts_what_is_read(number: object, kind: Quantity) -> None:
    pattern = kind.json_schema()["pattern"]
    for unit in kind.units:
        assert re.search(pattern, f"{number} {unit}")
    assert not re.search(pattern, f"{number}")
    assert not re.search(pattern, f"-{number} {next(iter(kind.units))}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-9, "5 ns"),
        (1.234e-6, "1.23 us"),
        (0.0185, "18.5 ms"),
        (0.9996, "1.00 s"),
        (59.94, "59.9 s"),
        (90, "1.50 min"),
        (12345, "3.43 h"),
        (-0.002, "-2.00 ms"),
        (float("inf"), "inf s"),
        (float("nan"), "nan s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_format_bytes_keeps_decimal_and_binary_apart() -> None:
    assert [format_bytes(8e6), format_bytes(8e6, binary=True)] == ["8.00 MB", "7.63 MiB"]
    assert [format_bytes(24 * 2**30), format_bytes(24 * 2**30, binary=True)] == ["25.8 GB", "24.0 GiB"]
    assert [format_bytes(0), format_bytes(512), format_bytes(999.6)] == ["0 B", "512 B", "1.00 kB"]
    assert format_rate(1.25e9) == "1.25 GB/s"


@given(st.floats(min_value=1e-8, max_value=1e12))
def test_what_is_printed_reads_back_within_half_a_unit_of_the_third_digit(value: float) -> None:
    assert TIME.read(format_seconds(value)) == pytest.approx(value, rel=0.0051)
    if value >= 1:
        assert SIZE.read(format_bytes(value)) == pytest.approx(value, rel=0.0051)
        assert SIZE.read(format_bytes(value, binary=True)) == pytest.approx(value, rel=0.0051)
        assert BANDWIDTH.read(format_rate(value)) == pytest.approx(value, rel=0.0051)


def test_values_are_shown_short_and_printable() -> None:
    assert shown("a" * 100) == f"'{'a' * 37}...'"
    assert shown("\x1b[31m\ud800") == r"'\x1b[31m\ud800'"
    assert [shown(None), shown(True), shown({}), shown(3)] == ["nothing", "true", "a mapping", "3"]
