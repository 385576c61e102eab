"""Values of a sweep: quantities as numbers with a unit, and the axes that samples are drawn from."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.quantities import ARITHMETIC_RATE, BANDWIDTH, SIZE, TIME, WORK, Quantity, WrongValue, shown

QUANTITIES: dict[str, Quantity] = {
    "s": TIME,
    "bytes": SIZE,
    "bytes_per_s": BANDWIDTH,
    "flops_per_s": ARITHMETIC_RATE,
    "flops": WORK,
}
"""By the suffix that names the SI unit."""

_EXPECTED = "expected a list of values, {uniform: [LOW, HIGH]} or {log_uniform: [LOW, HIGH]}"
_SUFFIX_OF = {unit: suffix for suffix, quantity in QUANTITIES.items() for unit in quantity.units}
_UNIT = re.compile(r"[-+.\deE]*\d\.?\s*([A-Za-z].*)")


def in_si(value: object) -> tuple[float, str] | None:
    """The number and the suffix of the unit of a quantity as it is written; ``None`` where it is none."""
    suffix = _SUFFIX_OF.get(_unit_of(value))
    if suffix is None:
        return None
    try:
        return QUANTITIES[suffix].read(value), suffix
    except WrongValue:
        return None


def _unit_of(value: object) -> str:
    """What stands behind the number of a quantity; nothing where there is none."""
    if not isinstance(value, str):
        return ""
    match = _UNIT.fullmatch(value.strip().replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u"))
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class Choices:
    """A list to choose from, each as likely."""

    values: Sequence[Any]

    def index(self, share: float) -> int:
        """Which of them stands at a share in [0, 1] of the axis."""
        return min(int(share * len(self.values)), len(self.values) - 1)


@dataclass(frozen=True, slots=True)
class Span:
    """From ``low`` to ``high``, both in ``unit`` (empty: none); ``whole``: whole numbers, both ends among them."""

    low: float
    high: float
    unit: str
    whole: bool
    log: bool

    def at(self, share: float) -> int | float | str:
        """The value at a share in [0, 1] of the axis, rounded to 9 significant digits; as text where it has a unit."""
        high = self.high + 1 if self.whole else self.high
        value = self.low * (high / self.low) ** share if self.log else self.low + (high - self.low) * share
        if self.whole:
            return min(int(value), int(self.high))
        rounded = min(max(float(f"{value:.9g}"), self.low), self.high)
        return f"{rounded:.9g} {self.unit}" if self.unit else rounded


def read_axis(value: object) -> Choices | Span:
    """An axis as it is written.

    Raises
    ------
    WrongValue : it is none.
    """
    if isinstance(value, Choices | Span):
        return value
    if isinstance(value, list):
        if not value:
            raise WrongValue("is empty")
        return Choices(tuple(value))
    kind, ends = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (None, None)
    if kind not in ("uniform", "log_uniform"):
        raise WrongValue(f"{_EXPECTED}, got {shown(value)}")
    if not isinstance(ends, list) or len(ends) != 2:
        raise WrongValue(f"{kind}: expected [LOW, HIGH], got {shown(ends)}")
    return _span(ends, kind == "log_uniform")


def _span(ends: Sequence[object], log: bool) -> Span:
    unit, (low, high) = _unit_of(ends[0]), ends
    if unit:
        low, high = _in_unit(ends, unit)
    whole = isinstance(low, int) and isinstance(high, int)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise WrongValue(f"expected two numbers, or two quantities of one kind, got {shown(end)}")
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if low >= high:
        raise WrongValue(f"the first must be below the second, got {shown(ends[0])} and {shown(ends[1])}")
    if log and low <= 0:
        raise WrongValue(f"log_uniform must be above 0, got {shown(ends[0])}")
    return Span(low, high, unit, whole, log)


def _in_unit(ends: Sequence[object], unit: str) -> tuple[float, float]:
    """Two quantities in the unit of the first."""
    (low, kind), (high, other) = (in_si(end) or (0.0, "") for end in ends)
    if not kind or kind != other:
        raise WrongValue(f"expected two quantities of one kind, got {shown(ends[0])} and {shown(ends[1])}")
    factor = float(QUANTITIES[kind].units[unit])
    return low / factor, high / factor
