"""Runs drawn as Gantt charts: every lane of every variant on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis import steady, usage
from analysis.intervals import Times
from analysis.steady import Steady
from analysis.text import duration, unit_of
from analysis.usage import Usage
from sim.ops import OpKind
from sim.recording import MOVING_KINDS
from sim.rows import IntColumn
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """How a kind of op is drawn: its name in the legend, its colour, the colour of its number."""

    label: str
    colour: str
    ink: str = "white"


TRANSFER = Style("transfer", "#7A7A7A")
STYLES = {  # the colours of Okabe and Ito, which colour-blind readers tell apart
    OpKind.FORWARD: Style("forward", "#0072B2"),
    OpKind.BACKWARD: Style("backward", "#E69F00", "black"),
    OpKind.BACKWARD_INPUT: Style("input gradient", "#E69F00", "black"),
    OpKind.BACKWARD_WEIGHT: Style("weight gradient", "#F0E442", "black"),
    OpKind.FORWARD_BACKWARD: Style("forward and backward", "#785EF0"),
    OpKind.RECOMPUTE: Style("recompute", "#CC79A7", "black"),
    OpKind.ACCUMULATE: Style("add gradients", "#D55E00"),
    OpKind.UPDATE: Style("update", "#009E73"),
    **dict.fromkeys(MOVING_KINDS, TRANSFER),
    OpKind.ALL_REDUCE: Style("all-reduce", "#56B4E9", "black"),
}
UNNUMBERED = (*MOVING_KINDS, OpKind.UPDATE, OpKind.ACCUMULATE)
ODD_TINT = 0.28
"""Ops of every other mini-batch are mixed with this much white."""

LEGIBLE = 80
"""Where a lane has more ops than this, excerpts are shown."""
STEPS = 1.5
"""The length of an excerpt, in steps of the slowest variant."""
MOST_NUMBERS, LONGEST_NAME, MOST_PIXELS = 3000, 90, 30_000

LANE, STRIP, GAP, CAPTION = 1.0, 0.35, 0.25, 1.7
"""Heights: a compute lane, the strip of a device's transfers, the space below a device, the caption of a variant."""
WIDTH_IN, UNIT_IN, LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN, DPI = 15.0, 0.17, 1.3, 0.25, 0.85, 0.55, 140
NUMBER_PT = 6.0


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the chart: the ops of a lane, or all transfers of a device. ``y`` is its lower edge."""

    label: str
    ops: IntColumn
    y: float
    height: float


@dataclass(frozen=True, eq=False)
class Panel:
    """One variant. It is drawn from ``begin_s`` on; ``y`` is its upper edge."""

    name: str
    trace: Trace
    over: Steady
    rows: tuple[Row, ...]
    y: float
    begin_s: float = 0.0


class Axis(NamedTuple):
    """The time axis: the seconds it spans, whether that is an excerpt, and its unit."""

    window_s: float
    excerpt: bool
    per_s: float
    unit: str

    @property
    def points_per_s(self) -> float:
        """Points on paper that a second takes."""
        return 72 * (WIDTH_IN - LEFT_IN - RIGHT_IN) / self.window_s


class Bars(NamedTuple):
    """Visible ops as columns: row in the trace's op table, edges in time (seconds on the axis), lower edge, height."""

    op: IntColumn
    left_s: Times
    right_s: Times
    y: Times
    height: Times


def plot(traces: Mapping[str, Trace], path: Path) -> None:
    """Write the chart of some runs, by name, as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(traces).savefig(path)


def draw(traces: Mapping[str, Trace]) -> Figure:
    """The chart of some runs: every variant below the one before it, on one scale of time that begins at 0.

    Runs of many ops are drawn as excerpts of one length, without their warm-up, and the title says so.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(traces)
    axis = _axis(panels)
    if axis.excerpt:
        panels = [_excerpt(panel, axis.window_s) for panel in panels]
    depth = -min(row.y for panel in panels for row in panel.rows) + GAP
    height_in = UNIT_IN * depth + TOP_IN + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=min(DPI, MOST_PIXELS / height_in))
    FigureCanvasAgg(figure)
    inner = (1 - (LEFT_IN + RIGHT_IN) / WIDTH_IN, 1 - (TOP_IN + BOTTOM_IN) / height_in)
    axes = figure.add_axes((LEFT_IN / WIDTH_IN, BOTTOM_IN / height_in, *inner))
    _frame(axes, panels, axis, depth)
    styles: set[Style] = set()
    numbers: list[Number] = []
    for panel in panels:
        bars = _bars(panel, axis.window_s)
        styles |= _draw_bars(axes, panel.trace, bars, axis)
        numbers += _numbers(panel.trace, bars, axis)
        _caption(axes, panel, axis)
    for number in sorted(numbers)[:MOST_NUMBERS]:
        _, x, y, text, ink = number
        axes.text(x, y, text, color=ink, fontsize=NUMBER_PT, ha="center", va="center_baseline", zorder=3)
    _title(figure, len(panels), axis)
    _legend(figure, [style for style in dict.fromkeys(STYLES.values()) if style in styles])
    return figure


def _panels(traces: Mapping[str, Trace]) -> list[Panel]:
    """The rows of every variant, from the top down."""
    panels, y = [], 0.0
    for name, trace in traces.items():
        rows, top = _rows(usage.compute(trace), y - CAPTION), y
        panels.append(Panel(name, trace, steady.compute(trace), tuple(rows), top))
        y = rows[-1].y - GAP
    return panels


def _rows(used: Usage, y: float) -> list[Row]:
    trace, rows = used.trace, []
    for device in (*used.accelerators, *used.hosts):
        for number, lane in enumerate(trace.lanes):
            if lane.device == device and lane.computes:
                y -= LANE
                rows.append(Row(f"{used.name(device)} {lane.stream}", trace.order[number], y, LANE))
        if len(moving := np.unique(used.moving[device])):
            y -= STRIP
            rows.append(Row("", moving, y, STRIP))
        y -= GAP
    return rows


def _axis(panels: Sequence[Panel]) -> Axis:
    longest_s = max(panel.trace.makespan_s for panel in panels) or 1.0
    steps_s = STEPS * max(panel.over.step_time_s for panel in panels)
    crowded = any(len(row.ops) > LEGIBLE for panel in panels for row in panel.rows if row.label)
    excerpt = crowded and 0 < steps_s < longest_s
    window_s = steps_s if excerpt else longest_s
    return Axis(window_s, excerpt, *unit_of(window_s))


def _excerpt(panel: Panel, window_s: float) -> Panel:
    """The panel without its warm-up, if it has one; from earlier where the steady state is shorter than the window."""
    over = panel.over
    return replace(panel, begin_s=max(min(over.start_s, over.end_s - window_s), 0.0) if over.first else 0.0)


def _bars(panel: Panel, window_s: float) -> Bars:
    trace = panel.trace
    op = np.concatenate([row.ops for row in panel.rows])
    sizes = [len(row.ops) for row in panel.rows]
    y, height = (np.repeat([getattr(row, name) for row in panel.rows], sizes) for name in ("y", "height"))
    left_s, right_s = ((times[op] - panel.begin_s).clip(0, window_s) for times in (trace.start_s, trace.end_s))
    seen = right_s > left_s
    return Bars(op[seen], left_s[seen], right_s[seen], y[seen], height[seen])


def _draw_bars(axes: Axes, trace: Trace, bars: Bars, axis: Axis) -> set[Style]:
    """One collection for all ops that look alike; returns the styles in use."""
    from matplotlib.collections import PolyCollection

    left, right, low, high = bars.left_s * axis.per_s, bars.right_s * axis.per_s, bars.y, bars.y + bars.height
    corners = np.stack([np.stack([left, right, right, left], 1), np.stack([low, low, high, high], 1)], axis=2)
    kinds, odd = trace.ops["kind"][bars.op], _mini_batch(trace, bars.op) % 2 == 1
    moves = np.isin(kinds, MOVING_KINDS)
    # an edge sets ops apart, and would hide those that are hardly wider than itself
    edge = np.where(~moves & ((bars.right_s - bars.left_s) * axis.points_per_s > 3), 0.35, 0.0)
    for kind in np.unique(kinds).tolist():
        for tint, shade in ((0.0, ~odd | moves), (ODD_TINT, odd & ~moves)):
            chosen = np.flatnonzero((kinds == kind) & shade)
            colour = _mixed(STYLES[OpKind(kind)].colour, tint)
            alike = PolyCollection(
                corners[chosen],  # type: ignore[arg-type]  # an array is drawn faster than the list that is declared
                facecolor=colour,
                edgecolor="white",
                linewidths=edge[chosen],
                zorder=2,
            )
            axes.add_collection(alike)
    return {STYLES[OpKind(kind)] for kind in np.unique(kinds).tolist()}


def _mini_batch(trace: Trace, op: IntColumn) -> IntColumn:
    number = trace.ops["micro_batch"][op]
    whole = np.isin(trace.ops["kind"][op], UNNUMBERED)
    return np.where(whole, number, number // trace.shape.micro_batches)


def _mixed(colour: str, white: float) -> tuple[float, ...]:
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    return tuple(channel + (1 - channel) * white for channel in channels)


class Number(NamedTuple):
    """The micro-batch of an op, where there is room for it; the widest sort first."""

    minus_room: float
    x: float
    y: float
    text: str
    ink: str


def _numbers(trace: Trace, bars: Bars, axis: Axis) -> list[Number]:
    """Numbers of the kinds of op whose widest number fits: all ops of a kind and width, or none."""
    kinds, found = trace.ops["kind"][bars.op], []
    for kind in np.unique(kinds[np.isin(kinds, UNNUMBERED, invert=True)]).tolist():
        rows = np.flatnonzero(kinds == kind)
        micro_batch = trace.ops["micro_batch"][bars.op[rows]]
        digits = len(str(micro_batch.max()))
        room = (bars.right_s - bars.left_s)[rows] * axis.points_per_s - 0.62 * NUMBER_PT * digits
        x = (bars.left_s + bars.right_s)[rows] / 2 * axis.per_s
        y = (bars.y + bars.height / 2)[rows]
        ink = STYLES[OpKind(kind)].ink
        columns = zip((-room).tolist(), x.tolist(), y.tolist(), map(str, micro_batch.tolist()), strict=True)
        found += [Number(*place, ink) for place in columns if place[0] < -1]
    return found


def _frame(axes: Axes, panels: Sequence[Panel], axis: Axis, depth: float) -> None:
    """Limits, labels of lanes, grid."""
    axes.set_xlim(0, axis.window_s * axis.per_s)
    axes.set_ylim(-depth, 0)
    axes.set_xlabel(f"{'time since the start of the excerpt' if axis.excerpt else 'time'} ({axis.unit})")
    named = [row for panel in panels for row in panel.rows if row.label]
    axes.set_yticks([row.y + row.height / 2 for row in named], [row.label for row in named], fontsize=7)
    axes.tick_params(axis="y", length=0, pad=4)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for panel in panels:
        for row in panel.rows:
            colour = "#F4F4F4" if row.label else "#FAFAFA"
            axes.axhspan(row.y, row.y + row.height, color=colour, linewidth=0, zorder=0)


def _caption(axes: Axes, panel: Panel, axis: Axis) -> None:
    """The name of a variant and what is shown of it; a mark where the run ends within the axis."""
    y, whole_s = panel.y - CAPTION + 0.3, panel.trace.makespan_s
    name = panel.name if len(panel.name) <= LONGEST_NAME else f"{panel.name[: LONGEST_NAME - 1]}…"
    axes.text(0, y, name, fontsize=9.5, fontweight="bold", ha="left", va="baseline")
    shown_s = min(panel.begin_s + axis.window_s, whole_s)
    facts = f"step {duration(panel.over.step_time_s)} · makespan {duration(whole_s)}"
    if shown_s - panel.begin_s < whole_s:
        facts += f", shown from {duration(panel.begin_s)} to {duration(shown_s)}"
    axes.text(axis.window_s * axis.per_s, y, facts, fontsize=8, color="#444444", ha="right", va="baseline")
    if (rest_s := whole_s - panel.begin_s) < axis.window_s:
        bottom = min(row.y for row in panel.rows)
        axes.vlines(rest_s * axis.per_s, bottom, panel.y - CAPTION, color="black", linewidth=1.0, zorder=4)


def _title(figure: Figure, variants: int, axis: Axis) -> None:
    title = "What every lane does" + (f": {variants} variants on one time axis" if variants > 1 else "")
    if axis.excerpt:
        title += f" (excerpts of {duration(axis.window_s)}, warm-up left out)"
    figure.text(0.012, 1 - 0.22 / figure.get_figheight(), title, fontsize=12, va="top")


def _legend(figure: Figure, styles: Sequence[Style]) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(facecolor=style.colour, label=style.label) for style in styles],
        loc="upper left",
        bbox_to_anchor=(0.006, 1 - 0.42 / figure.get_figheight()),
        ncols=max(len(styles), 1),
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
        columnspacing=1.4,
    )
