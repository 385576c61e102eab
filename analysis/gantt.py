"""Runs drawn as Gantt charts: every lane of every variant on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis import steady, usage
from analysis.steady import Steady
from analysis.usage import Usage
from sim.ops import OpKind
from sim.recording import MOVING_KINDS
from sim.schedule import IntColumn
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """How one kind of op is drawn: its name in the legend, its colour, the colour of its number."""

    label: str
    colour: str
    ink: str = "white"


TRANSFER = Style("transfer", "#6B6B6B")
STYLES = {  # colours of Okabe and Ito, which colour-blind readers tell apart
    OpKind.FORWARD: Style("forward", "#0072B2"),
    OpKind.BACKWARD: Style("backward", "#D55E00"),
    OpKind.BACKWARD_INPUT: Style("input gradient", "#D55E00"),
    OpKind.BACKWARD_WEIGHT: Style("weight gradient", "#F0E442", "black"),
    OpKind.FORWARD_BACKWARD: Style("forward and backward", "#785EF0"),
    OpKind.RECOMPUTE: Style("recompute", "#CC79A7", "black"),
    OpKind.ACCUMULATE: Style("add gradients", "#E69F00", "black"),
    OpKind.UPDATE: Style("update", "#009E73"),
    OpKind.ALL_REDUCE: Style("all-reduce", "#56B4E9", "black"),
    **dict.fromkeys((kind for kind in MOVING_KINDS if kind is not OpKind.ALL_REDUCE), TRANSFER),
}

NUMBERED = frozenset(kind for kind in STYLES if kind not in (*MOVING_KINDS, OpKind.UPDATE, OpKind.ACCUMULATE))
LEGIBLE = 80
"""A run with more ops than this on a lane is shown as an excerpt."""
STEPS = 2.5
"""Length of an excerpt, in steps of the slowest variant."""
LANE, STRIP, GAP, CAPTION = 1.0, 0.34, 0.22, 1.9
"""Heights: a compute lane, the strip of a device's transfers, the space between devices, the caption of a variant."""
WIDTH_IN, UNIT_IN, DPI = 15.0, 0.17, 140


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the chart: ops in one lane, or the transfers of one device."""

    label: str
    ops: IntColumn
    height: float
    bottom: float


@dataclass(frozen=True, eq=False)
class Panel:
    """One variant: its rows from top to bottom, and the time at which its excerpt begins."""

    name: str
    used: Usage
    over: Steady
    rows: tuple[Row, ...]
    height: float
    begin_s: float = 0.0


def plot(traces: Mapping[str, Trace], path: Path) -> None:
    """Write the chart of some runs, variants by name, as the image that the suffix of ``path`` asks for (PNG, SVG, PDF)."""
    draw(traces).savefig(path)


def draw(traces: Mapping[str, Trace]) -> Figure:
    """The chart: one panel per variant, all on one scale of time that begins at 0.

    Runs of many ops are shown as excerpts of equal length from their steady state, and the title says so.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [_panel(name, trace) for name, trace in traces.items()]
    longest_s = max(panel.used.trace.makespan_s for panel in panels) or 1.0
    window_s = min(STEPS * max(panel.over.step_time_s for panel in panels), longest_s)
    excerpt = window_s < longest_s and any(len(row.ops) > LEGIBLE for panel in panels for row in panel.rows)
    window_s = window_s if excerpt else longest_s
    heights = [panel.height + CAPTION for panel in panels]
    figure = Figure(figsize=(WIDTH_IN, UNIT_IN * sum(heights) + 1.5), dpi=DPI)
    FigureCanvasAgg(figure)
    scale, unit = _unit(window_s)
    top = 1 - 0.85 / figure.get_figheight()
    left, width, bottom = 1.35 / WIDTH_IN, 1 - 1.65 / WIDTH_IN, 0.55 / figure.get_figheight()
    ...
