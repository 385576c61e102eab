"""Quantities with units: how they are written in YAML (``18.5 ms``, ``24 GiB``, ``16 GB/s``) and printed in tables.

A bare number is refused: a reader must never have to guess the unit. Decimal (kB = 1000 B) and binary (KiB = 1024 B)
prefixes are kept apart, and so are bits and bytes (1 Gbit/s = 0.125 GB/s).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from sim.errors import nearest

_TEXT = re.compile(r"([-+]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,3})?)\s*([A-Za-z].{0,20})", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)\b.*", re.IGNORECASE)
_LEAST, _MOST = 1e-18, 1e18
"""Beyond these a quantity is a slip, and sums or ratios of quantities would not stay finite."""


class WrongValue(ValueError):
    """A value that a user must correct: the message, and what to write instead."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of quantity: its name with article, the SI value of each unit, and an example.

    ``zero`` says whether 0 is a value. ``confusions`` maps what people write to what they may have meant.
    """

    noun: str
    units: Mapping[str, Decimal]
    example: str
    zero: bool = True
    confusions: Mapping[str, str] | None = None

    def read(self, value: object) -> float:
        """The value in SI units, correctly rounded.

        Raises
        ------
        WrongValue : no unit, a wrong unit, negative, not finite, or zero where that is no value.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            units = ", ".join(self.units)
            raise WrongValue(f"{self.noun} needs a unit ({units}), got {shown(value)}", f"write it like {self.example}")
        text = _plain(value) if isinstance(value, str) else ""
        if _NOT_FINITE.fullmatch(text):
            raise WrongValue(f"{self.noun} must be finite, got {shown(value)}")
        match = _TEXT.fullmatch(text)
        if match is None:
            raise WrongValue(f"expected {self.noun} such as {self.example}, got {shown(value)}")
        if match[2] not in self.units:
            units = ", ".join(self.units)
            raise WrongValue(f"'{match[2]}' is no unit of {self.noun}: expected {units}", self._meant(match[2]))
        return self._checked(float(Decimal(match[1]) * self.units[match[2]]), value)

    def _checked(self, number: float, value: object) -> float:
        if number < 0 or (number == 0 and not self.zero):
            raise WrongValue(f"{self.noun} must {'not be negative' if self.zero else 'be above 0'}, got {shown(value)}")
        if number > _MOST or (number < _LEAST and not self.zero):
            bounds = f"at most {_MOST:g}" if self.zero else f"from {_LEAST:g} to {_MOST:g}"
            unit = next(unit for unit, factor in self.units.items() if factor == 1)
            raise WrongValue(f"{self.noun} must be {bounds} {unit}, got {shown(value)}")
        return abs(number)  # -0 is 0

    def _meant(self, unit: str) -> str | None:
        if self.confusions and unit in self.confusions:
            return self.confusions[unit]
        same_letters = [known for known in self.units if known.lower() == unit.lower()]
        return f"did you mean '{same_letters[0]}'?" if same_letters else nearest(unit, self.units)

    def json_schema(self) -> dict[str, Any]:
        """A string with a pattern, for editors."""
        units = "|".join(unit.replace("us", "[uµμ]s") for unit in self.units)
        pattern = rf"^\s*\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*({units})\s*$"
        return {"type": "string", "pattern": pattern, "examples": [self.example]}


def shown(value: object) -> str:
    """A value as a message quotes it: short, text in quotes, YAML's words for nothing and truth values."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = printable(str(value))
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"'{text}'" if isinstance(value, str) else text


def printable(text: str) -> str:
    """The text, with escapes where it would disturb or break a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


def _plain(text: str) -> str:
    return text.strip().replace("\N{MICRO SIGN}s", "us").replace("\N{GREEK SMALL LETTER MU}s", "us")


def _units(unit: str, *prefixes: Mapping[str, int], one: str = "1") -> dict[str, Decimal]:
    """``unit``, worth ``one``, with each of the prefixes."""
    return {f"{prefix}{unit}": Decimal(one) * factor for part in prefixes for prefix, factor in part.items()}


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PETA = {"P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SECONDS = {
    unit: Decimal(value)
    for unit, value in {"ns": "1e-9", "us": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600"}.items()
}
_BYTES = _units("B", _DECIMAL, _BINARY)
_BYTES_PER_S = {**_units("B/s", _DECIMAL, _BINARY), **_units("bit/s", _DECIMAL, one="0.125")}

_TIME_CONFUSIONS = {
    written: f"did you mean '{unit}'?"
    for unit, words in {
        "ms": "msec",
        "us": "usec",
        "s": "sec secs second seconds",
        "min": "m mins minutes",
        "h": "hours",
    }.items()
    for written in words.split()
}
_RATE_CONFUSIONS = {
    written: f"write {prefix}bit/s for bits or {prefix}B/s for bytes"
    for prefix in _DECIMAL
    for written in (f"{prefix}b/s", f"{prefix}bps", f"{prefix}B", f"{prefix}b", f"{prefix}bit")
}
_FLOP_CONFUSIONS = {
    written: f"write {prefix}FLOP/s"
    for prefix in (*_DECIMAL, *_PETA)
    for written in (f"{prefix}FLOPS", f"{prefix}FLOPs", f"{prefix}FLOP")
}

TIME = Quantity("a time", _SECONDS, "18.5 ms", confusions=_TIME_CONFUSIONS)
SIZE = Quantity("a size", _BYTES, "24 GiB")
CAPACITY = Quantity("a capacity", _BYTES, "24 GiB", zero=False)
BANDWIDTH = Quantity("a bandwidth", _BYTES_PER_S, "16 GB/s", zero=False, confusions=_RATE_CONFUSIONS)
ARITHMETIC_RATE = Quantity(
    "a computing rate", _units("FLOP/s", _DECIMAL, _PETA), "11.76 TFLOP/s", False, _FLOP_CONFUSIONS
)
PRICE = Quantity(
    "a price",
    {"USD/s": Decimal(3600), "USD/min": Decimal(60), "USD/hour": Decimal(1), "USD/day": Decimal(1) / 24},
    "3.20 USD/hour",
    False,
    dict.fromkeys(("USD", "USD/h", "$/hour", "$/h", "dollars/hour"), "write USD/hour"),
)
"""In USD per hour, as clouds ask it."""
WORK = Quantity("an amount of work", _units("FLOP", _DECIMAL, _PETA), "30 GFLOP")

Seconds = Annotated[float, BeforeValidator(TIME.read), WithJsonSchema(TIME.json_schema())]
"""Seconds, 0 or more."""
Bytes = Annotated[float, BeforeValidator(SIZE.read), WithJsonSchema(SIZE.json_schema())]
"""Bytes, 0 or more."""
Capacity = Annotated[float, BeforeValidator(CAPACITY.read), WithJsonSchema(CAPACITY.json_schema())]
"""Bytes, above 0."""
BytesPerSecond = Annotated[float, BeforeValidator(BANDWIDTH.read), WithJsonSchema(BANDWIDTH.json_schema())]
"""Bytes per second, above 0."""
FlopsPerSecond = Annotated[float, BeforeValidator(ARITHMETIC_RATE.read), WithJsonSchema(ARITHMETIC_RATE.json_schema())]
"""Floating-point operations per second, above 0."""
UsdPerHour = Annotated[float, BeforeValidator(PRICE.read), WithJsonSchema(PRICE.json_schema())]
"""US dollars per hour, above 0."""
Flops = Annotated[float, BeforeValidator(WORK.read), WithJsonSchema(WORK.json_schema())]
"""Floating-point operations, 0 or more."""


def format_seconds(seconds: float) -> str:
    """A time in its natural unit with 3 significant digits: ``18.5 ms``."""
    return _format(seconds, _SECONDS, "s")


def format_bytes(size_bytes: float, binary: bool = False) -> str:
    """A size with 3 significant digits: ``8.00 MB``, or ``7.63 MiB`` if ``binary``."""
    return _format(size_bytes, _units("B", {"": 1, **_BINARY} if binary else _DECIMAL), "B")


def format_rate(bytes_per_s: float) -> str:
    """A bandwidth with 3 significant digits: ``16.0 GB/s``."""
    return _format(bytes_per_s, _units("B/s", _DECIMAL), "B/s")


def _format(value: float, units: Mapping[str, Decimal], plain: str) -> str:
    """The largest unit that leaves at least 1 after rounding; ``plain`` where the value is 0 or not finite."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f} {plain}"
    smallest = next(iter(units))
    for unit, factor in reversed([*units.items()]):
        number = float(f"{value / float(factor):.3g}")
        if abs(number) >= 1 or unit == smallest:
            break
    if unit == smallest:
        return f"{number:g} {unit}"
    return f"{number:.0f} {unit}" if abs(number) >= 100 else f"{number:#.3g} {unit}"
