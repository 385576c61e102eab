"""Units by the end of a figure's name, as results and their columns have it: ``makespan_s``, ``link_bytes_per_s``."""

from __future__ import annotations

from collections.abc import Mapping

_DECIMAL = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}
UNITS: Mapping[str, Mapping[str, float]] = {
    "_samples_per_s": {"samples/s": 1.0},
    "_steps_per_s": {"steps/s": 1.0},
    "_bytes_per_s": {f"{prefix}B/s": factor for prefix, factor in _DECIMAL.items()},
    "_flops_per_s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "_per_s": {"1/s": 1.0},
    "_flops": {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()},
    "_bytes": {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0},
    "_s": {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9},
    "_share": {"%": 0.01},
}
"""What each unit is in SI, the largest first; an ending that is part of another stands after it."""


def parted(name: str) -> tuple[str, Mapping[str, float]]:
    """A name without the end that tells its unit, and the units it may be shown in: none where no end does."""
    for ending, units in UNITS.items():
        if f"_{name}".endswith(ending):
            return f"_{name}"[1 : -len(ending)], units
    return name, {}
