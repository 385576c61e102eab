"""Memory drawn: what is in use over time, stacked by category, and how the segments are filled at the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis.memory_timeline import BEFORE, MappedSegment, Timeline
from analysis.text import significant, unit_of
from sim.memory.buffers import Category

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

GIB = 2**30
COLOURS = {  # of Okabe and Ito, which colour-blind readers tell apart; the drawing stacks in this order
    BEFORE: "#BDBDBD",
    Category.WEIGHTS: "#0072B2",
    Category.GRADIENTS: "#E69F00",
    Category.OPTIMIZER: "#009E73",
    Category.STASH: "#785EF0",
    Category.PREDICTION: "#882255",
    Category.COMMUNICATION: "#D55E00",
    "backward": "#E69F00",
    "input": "#A6761D",
    "checkpoints": "#F0E442",
    "output gradients": "#FFB6A3",
    "workspace": "#CC79A7",
    Category.ACTIVATIONS: "#56B4E9",
    "forward": "#56B4E9",
    "unknown": "#7A7A7A",
}
OTHER, FREE, EDGE = "#4D4D4D", "#F6F6F6", "#8A8A8A"

WIDTH_IN, TIMELINE_IN, ROW_IN, MARGIN_IN, DPI = 12.0, 4.2, 0.17, 1.0, 140
ROWS = 22
"""Strips that the segments are laid out in, one below the other."""
GAP, MOST_GAPS = 0.0015, 0.2
"""Space between segments, as a share of a strip; all of it together, at most, as a share of all strips."""


def plot(timeline: Timeline, title: str, path: Path) -> None:
    """Write the picture of a time line as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(timeline, title).savefig(path)


def draw(timeline: Timeline, title: str) -> Figure:
    """The time line, with the map of segments below it where there are any."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    map_in = ROWS * ROW_IN + MARGIN_IN if timeline.segments else 0.0
    figure = Figure(figsize=(WIDTH_IN, TIMELINE_IN + MARGIN_IN + map_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    names = [name for name in ordered(timeline.by_category) if timeline.by_category[name].any()]
    if timeline.segments:
        upper, lower = figure.subplots(2, 1, height_ratios=(TIMELINE_IN, ROWS * ROW_IN))
        _draw_map(lower, timeline)
    else:
        upper = figure.subplots()
    _draw_timeline(upper, timeline, names)
    upper.set_title(title, loc="left", fontsize=12, fontweight="bold")
    handles, labels = _legend(timeline, names)
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return figure


def ordered(names: Iterable[str]) -> list[str]:
    """Categories in the order in which they are stacked."""
    known = list(COLOURS)
    return sorted(names, key=lambda name: (known.index(name) if name in COLOURS else len(known), name))


def colour(name: str) -> str:
    """The colour of a category."""
    return COLOURS.get(name, OTHER)


def _draw_timeline(axes: Axes, timeline: Timeline, names: Sequence[str]) -> None:
    """Steps stacked by category, the reserved bytes as a line above them, and the peak named."""
    per_s, unit = unit_of(float(timeline.time_s[-1]) if len(timeline.time_s) else 0.0)
    time = timeline.time_s * per_s
    below = np.zeros(len(time))
    for name in names:
        above = below + timeline.by_category[name] / GIB
        axes.fill_between(time, below, above, step="post", color=colour(name), linewidth=0)
        below = above
    if timeline.reserved is not None:
        axes.step(time, timeline.reserved / GIB, where="post", color="black", linewidth=1.1, linestyle=(0, (5, 2)))
    top = max(
        float(below.max(initial=0.0)), float(timeline.reserved.max()) / GIB if timeline.reserved is not None else 0.0
    )
    axes.set_ylim(0, top * 1.17 or 1)
    axes.set_xlim(time[0] if len(time) else 0, time[-1] if len(time) > 1 and time[-1] > time[0] else 1)
    axes.set_xlabel(f"time, {unit}")
    axes.set_ylabel("memory, GiB")
    axes.grid(axis="y", color="#E0E0E0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(time):
        _name_peak(axes, timeline, float(time[timeline.at_peak]), float(below[timeline.at_peak]))


def _name_peak(axes: Axes, timeline: Timeline, time: float, height: float) -> None:
    reserved = timeline.reserved
    text = f"peak {significant(height)} GiB in use"
    text += f", {significant(float(reserved[timeline.at_peak]) / GIB)} GiB reserved" if reserved is not None else ""
    left, right = axes.get_xlim()
    late = time > (left + right) / 2
    top = axes.get_ylim()[1] * 0.94
    axes.plot([time, time], [height, top], color="black", linewidth=0.7)
    axes.plot([time], [height], marker="o", markersize=5, color="black", markerfacecolor="white", zorder=5)
    axes.annotate(
        text,
        (time, top),
        xytext=(-5 if late else 5, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="center",
        fontsize=9,
    )


class _Piece(NamedTuple):
    """A part of a segment on one strip, in shares of a strip."""

    row: int
    left: float
    width: float


def _draw_map(axes: Axes, timeline: Timeline) -> None:
    """All segments side by side in strips of equal bytes; what is in use in its category's colour."""
    from matplotlib.collections import PolyCollection

    segments = sorted(timeline.segments, key=lambda segment: (segment.small, -segment.size))
    total = sum(segment.size for segment in segments)
    gap = min(GAP, MOST_GAPS * ROWS / len(segments))
    strip = total / (ROWS - gap * len(segments))
    shapes: dict[str, list[list[tuple[float, float]]]] = {}
    at = 0.0
    for segment in segments:
        for part in segment.parts:
            name = colour(part.category) if part.category else FREE
            for piece in _pieces(at + part.offset / strip, part.size / strip):
                shapes.setdefault(name, []).append(_box(piece))
        axes.add_collection(_outline(at, segment.size / strip))
        at += segment.size / strip + gap
    for name, boxes in shapes.items():
        axes.add_collection(PolyCollection(boxes, facecolors=name, edgecolors="none", zorder=1))
    axes.set_xlim(0, 1)
    axes.set_ylim(-ROWS, 0)
    axes.axis("off")
    axes.set_title(_map_title(timeline, segments, strip), loc="left", fontsize=9)


def _pieces(left: float, width: float) -> list[_Piece]:
    """A range along all strips, cut where a strip ends."""
    pieces = []
    while width > 1e-9:
        row = min(int(left + 1e-9), ROWS - 1)
        pieces.append(_Piece(row, left - row, min(width, row + 1 - left)))
        left, width = row + 1.0, width - (row + 1 - left)
    return pieces


def _box(piece: _Piece) -> list[tuple[float, float]]:
    top, bottom, right = -piece.row - 0.12, -piece.row - 0.88, piece.left + piece.width
    return [(piece.left, top), (right, top), (right, bottom), (piece.left, bottom)]


def _outline(left: float, width: float) -> LineCollection:
    from matplotlib.collections import LineCollection

    lines = []
    for piece in _pieces(left, width):
        box = _box(piece)
        lines += [[box[0], box[1]], [box[3], box[2]]]
    first, last = _pieces(left, width)[0], _pieces(left, width)[-1]
    lines += [[_box(first)[0], _box(first)[3]], [_box(last)[1], _box(last)[2]]]
    return LineCollection(lines, colors=EDGE, linewidths=0.5, zorder=2)


def _map_title(timeline: Timeline, segments: Sequence[MappedSegment], strip: float) -> str:
    free = [part.size for segment in segments for part in segment.parts if not part.category]
    cached = sum(s.size for s in segments if len(s.parts) == 1 and not s.parts[0].category)
    total = sum(segment.size for segment in segments)
    return (
        f"the {len(segments)} segments at the peak, the largest first, small ones last; a strip is "
        f"{significant(strip / 2**20)} MiB; {significant(100 * sum(free) / total)} % is free, "
        f"{significant(100 * (sum(free) - cached) / total)} % in segments that are in use"
    )


def _legend(timeline: Timeline, names: Sequence[str]) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=colour(name)) for name in names]
    labels = list(names)
    if timeline.reserved is not None:
        handles.append(Line2D([], [], color="black", linewidth=1.1, linestyle=(0, (5, 2))))
        labels.append("reserved")
    if timeline.segments:
        handles.append(Patch(facecolor=FREE, edgecolor=EDGE, linewidth=0.5))
        labels.append("free")
    return handles, labels
