"""Numbers as text, the same way in every report."""

from __future__ import annotations


def significant(value: float) -> str:
    """Three significant digits, and never an exponent: ``0.0123``, ``1.23``, ``12.3``, ``1234``."""
    if not value:
        return "0"
    decimals = next((digits for digits in range(12) if abs(value) * 10**digits >= 99.95), 12)
    return f"{value:.{decimals}f}"


def percent(share: float) -> str:
    """A share as ``12 %``."""
    return f"{100 * share:.0f} %"


def duration(length_s: float) -> str:
    """A time in the unit in which it reads well: ``1.23 s``, ``12.3 ms``."""
    per_s, unit = unit_of(length_s)
    return f"{significant(length_s * per_s)} {unit}"


def unit_of(length_s: float) -> tuple[float, str]:
    """The unit in which a time reads well: how many make a second, and its symbol."""
    return next(
        ((per_s, unit) for per_s, unit in ((1.0, "s"), (1e3, "ms")) if not 0 < length_s * per_s < 1), (1e6, "µs")
    )
