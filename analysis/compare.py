"""A prediction beside what was measured: step time, ops, busy shares, memory and staleness, each with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis import result
from sim.ops import OpKind
from sim.trace import Trace

BACKWARD_WITH_RECOMPUTATION = "B with R"
"""A real stage recomputes a segment at a time within its backward, so the two are compared together."""


class Comparison(NamedTuple):
    """One figure. ``measured`` is the median over repeats, ``low`` and ``high`` their extremes.

    ``error`` is relative to what was measured; of shares, which are in [0, 1], and of staleness it is the difference.
    """

    metric: str
    unit: str
    predicted: float
    measured: float
    low: float
    high: float
    error: float | None

    @property
    def spread(self) -> float | None:
        """Half of what lies between the extremes, over the median."""
        return (self.high - self.low) / 2 / self.measured if self.measured else None


ABSOLUTE = ("share", "updates")
"""Units whose errors are differences."""


def compute(
    predicted: Trace, measured: Sequence[Trace], peaks_bytes: Mapping[str, int] | None = None
) -> list[Comparison]:
    """Every figure that both have. ``peaks_bytes`` are counted peaks of live memory by device.

    Without them memory is left out where both take it from one binding, since it would agree by construction.
    """
    mine, theirs = _figures(predicted), [_figures(trace) for trace in measured]
    peaks = {(f"peak memory {device}", "B"): float(peak) for device, peak in (peaks_bytes or {}).items()}
    rows = [
        _compared(*name, value, [other[name] for other in theirs])
        for name, value in mine.items()
        if name not in peaks and name[1] != "B" and all(name in other for other in theirs)
    ]
    return [*rows, *(_compared(*name, mine[name], [peak]) for name, peak in peaks.items() if name in mine)]


def _compared(metric: str, unit: str, predicted: float, measured: Sequence[float]) -> Comparison:
    middle = float(np.median(measured))
    difference = predicted - middle
    error = difference if unit in ABSOLUTE else difference / middle if middle else None
    return Comparison(metric, unit, predicted, middle, min(measured), max(measured), error)


def _figures(trace: Trace) -> dict[tuple[str, str], float]:
    """Metric and unit to value."""
    found = result.compute(trace, "", "")
    figures = {("step time", "s"): found["step_time_s"]}
    figures |= {(f"mean {kind}", "s"): seconds for kind, seconds in _mean_seconds(trace).items()}
    for device in found["devices"]:
        figures["busy " + device["name"], "share"] = device["compute_s"] / trace.makespan_s
    figures["bubble of total", "share"] = found["bubble"]["of_total"]
    for device in found["devices"]:
        figures["peak memory " + device["name"], "B"] = float(device["peak_memory_bytes"])
    for side in ("forward", "backward"):
        figures[f"staleness {side}", "updates"] = found["staleness"][side]["mean"]
    return {name: float(value) for name, value in figures.items() if value is not None}


def _mean_seconds(trace: Trace) -> dict[str, float]:
    """Mean duration of each kind of op."""
    kinds, seconds = trace.ops["kind"], trace.end_s - trace.start_s
    means = {kind: float(seconds[kinds == kind].mean()) for kind in map(OpKind, np.unique(kinds).tolist())}
    if OpKind.RECOMPUTE in means and OpKind.BACKWARD in means:
        together = means.pop(OpKind.RECOMPUTE) + means.pop(OpKind.BACKWARD)
        return {BACKWARD_WITH_RECOMPUTATION: together} | {kind.text: mean for kind, mean in means.items()}
    return {kind.text: mean for kind, mean in means.items()}


def headline(rows: Sequence[Comparison], metric: str = "step time") -> Comparison:
    """The row of one metric."""
    return next(row for row in rows if row.metric == metric)


def as_json(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [row._asdict() for row in rows]
