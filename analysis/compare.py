"""A prediction beside what was measured: step time, ops, busy shares, memory and staleness, each with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis import result, steady
from analysis.text import percent
from sim.ops import OpKind
from sim.trace import Trace

BACKWARD_WITH_RECOMPUTATION = "B with R"
"""A real stage recomputes a segment at a time within its backward, so the two are compared together."""


STEP_ERROR, MEMORY_ERROR = 0.08, 0.01
"""What a prediction may miss by: of the step time, and of the peak of live memory."""

PEAK = "peak memory"


class Comparison(NamedTuple):
    """One figure. ``measured`` is the median over repeats, ``low`` and ``high`` their extremes.

    The step time of a run is the median over its steps: a machine that does something else for a second makes one step
    long, not all.

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


class Peaks(NamedTuple):
    """Most live bytes of a device: ``played`` in the simulated order on tensors without data, ``counted`` in a run."""

    played: int
    counted: int


def compute(
    predicted: Trace,
    measured: Sequence[Trace],
    peaks: Mapping[str, Peaks] | None = None,
    buffers: bool = False,
) -> list[Comparison]:
    """Every figure that both have; ``peaks`` by device.

    ``buffers``: the peaks of both traces too. Of a real run these are the binding's, and would agree by construction.
    """
    mine, theirs = _figures(predicted), [_figures(trace) for trace in measured]
    rows = [
        _compared(*name, value, [other[name] for other in theirs])
        for name, value in mine.items()
        if (name[1] != "B" or buffers) and all(name in other for other in theirs)
    ]
    for device, peak in (peaks or {}).items():
        rows.append(_compared(f"{PEAK} {device}", "B", peak.played, [peak.counted]))
        if (simulated := mine.get((f"{PEAK} {device}", "B"))) is not None:
            rows.append(_compared(f"simulated buffers {device}", "B", simulated, [peak.counted]))
    return rows


def _compared(metric: str, unit: str, predicted: float, measured: Sequence[float]) -> Comparison:
    middle = float(np.median(measured))
    difference = predicted - middle
    error = difference if unit in ABSOLUTE else difference / middle if middle else None
    return Comparison(metric, unit, predicted, middle, min(measured), max(measured), error)


def _figures(trace: Trace) -> dict[tuple[str, str], float]:
    """Metric and unit to value."""
    found = result.compute(trace, "", "")
    figures = {("step time", "s"): float(np.median(steady.each_step_s(trace)))}
    figures |= {(f"mean {kind}", "s"): seconds for kind, seconds in _mean_seconds(trace).items()}
    for device in found["devices"]:
        figures["busy " + device["name"], "share"] = device["compute_s"] / trace.makespan_s
    figures["bubble of total", "share"] = found["bubble"]["of_total"]
    for device in found["devices"]:
        figures[f"{PEAK} {device['name']}", "B"] = float(device["peak_memory_bytes"])
    for side in ("forward", "backward"):
        figures[f"staleness {side}", "updates"] = found["staleness"][side]["mean"]
    return {name: float(value) for name, value in figures.items() if value is not None}


def _mean_seconds(trace: Trace) -> dict[str, float]:
    """Mean duration of each kind of op, within the steps that the step time counts where it has ops there."""
    over, kinds, seconds = steady.compute(trace), trace.ops["kind"], trace.end_s - trace.start_s
    inside = (trace.start_s >= over.start_s) & (trace.end_s <= over.end_s)
    means = {}
    for kind in map(OpKind, np.unique(kinds).tolist()):
        counted = (kinds == kind) & inside
        means[kind] = float(seconds[counted if counted.any() else kinds == kind].mean())
    if OpKind.RECOMPUTE in means and OpKind.BACKWARD in means:
        together = means.pop(OpKind.RECOMPUTE) + means.pop(OpKind.BACKWARD)
        return {BACKWARD_WITH_RECOMPUTATION: together} | {kind.text: mean for kind, mean in means.items()}
    return {kind.text: mean for kind, mean in means.items()}


def headline(rows: Sequence[Comparison], metric: str = "step time") -> Comparison:
    """The row of one metric."""
    return next(row for row in rows if row.metric == metric)


def verdict(rows: Sequence[Comparison]) -> str:
    """In one line: whether the prediction keeps to its limits."""
    return "; ".join(
        _verdict(what, [row for row in rows if row.metric.startswith(what)], limit)
        for what, limit in (("step time", STEP_ERROR), (PEAK, MEMORY_ERROR))
        if any(row.metric.startswith(what) for row in rows)
    )


def _verdict(what: str, rows: Sequence[Comparison], limit: float) -> str:
    worst = max(rows, key=lambda row: abs(row.error or 0.0))
    if worst.error is None:
        return f"{what} takes nothing"
    place = "within" if abs(worst.error) <= limit else "outside"
    return f"{what} predicted {worst.error:+.1%} {place} {percent(limit)}".replace("%", " %").replace("  ", " ")


def as_json(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [row._asdict() for row in rows]
