"""The time line of a capture: what every worker and every server's links do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis.intervals import union
from analysis.packets.reading import Reading
from analysis.packets.steps import Floats
from analysis.packets.streams import DOWN, UP
from analysis.text import duration, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {  # of Okabe and Ito, which colour-blind readers tell apart
    "download": "#0072B2",
    "upload": "#E69F00",
    "compute": "#DDDDDD",
    "apply": "#009E73",
}
STEPS = 4
"""Steps of the slowest worker that are shown, after the warm-up of all."""
MOST_WORKERS = 32
WIDTH_IN, ROW_IN, MARGIN_IN, DPI = 12.0, 0.34, 1.5, 140


class _Bars(NamedTuple):
    """Bars of one kind in a row, from ``low`` to ``high`` of its height."""

    kind: str
    begin_s: Floats
    end_s: Floats
    low: float = 0.1
    high: float = 0.9


def plot(reading: Reading, title: str, path: Path) -> None:
    """Write the picture as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(reading, title).savefig(path)


def draw(reading: Reading, title: str) -> Figure:
    """The time line of a capture with at least one complete step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = list(_rows(reading))
    begin_s = max(float(each.begin_s[reading.dropped[name]]) for name, each in reading.steps.items())
    length_s = STEPS * max(float(np.mean(each.end_s - each.begin_s)) for each in reading.steps.values())
    per_s, unit = unit_of(length_s)
    figure = Figure(figsize=(WIDTH_IN, MARGIN_IN + ROW_IN * len(rows)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (_, row) in enumerate(rows):
        for bars in row:
            _draw(axes, bars, place, begin_s, begin_s + length_s, per_s)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [name for name, _ in rows], fontsize=8)
    axes.set_xlim(0, length_s * per_s)
    axes.set_ylim(len(rows), 0)
    axes.set_xlabel(f"time, {unit}, from {duration(begin_s)} after the start of the capture")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [Patch(facecolor=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def _rows(reading: Reading) -> Iterator[tuple[str, list[_Bars]]]:
    """Workers, then for each server its links and its cores."""
    for name, each in list(reading.steps.items())[:MOST_WORKERS]:
        bars = [_Bars("compute", each.begin_s, each.end_s, 0.35, 0.65)]
        for (_, way), spans in each.spans.items():
            low, high = (0.1, 0.5) if way == DOWN else (0.5, 0.9)
            bars.append(_Bars("download" if way == DOWN else "upload", spans.begin_s, spans.end_s, low, high))
        yield name, bars
    for server, name in enumerate(reading.servers):
        bars = []
        for way, kind, low, high in ((DOWN, "download", 0.1, 0.37), (UP, "upload", 0.37, 0.63)):
            found = [each.spans[server, way] for each in reading.steps.values() if (server, way) in each.spans]
            if found:
                begin_s = np.concatenate([spans.begin_s for spans in found])
                busy = union(begin_s, np.concatenate([spans.end_s for spans in found]))
                bars.append(_Bars(kind, busy.start_s, busy.end_s, low, high))
        applied = [each.applied[server] for each in reading.steps.values() if server in each.applied]
        bars += [
            _Bars("apply", begin_s, np.where(np.isfinite(end_s), end_s, begin_s), 0.63, 0.9)
            for begin_s, end_s in applied
        ]
        yield name, bars


def _draw(axes: Axes, bars: _Bars, place: int, from_s: float, until_s: float, per_s: float) -> None:
    seen = (bars.end_s > from_s) & (bars.begin_s < until_s)
    begin, end = ((edge[seen] - from_s) * per_s for edge in (bars.begin_s, bars.end_s))
    axes.broken_barh(
        list(zip(begin.tolist(), (end - begin).tolist(), strict=True)),
        (place + bars.low, bars.high - bars.low),
        facecolor=COLOURS[bars.kind],
        linewidth=0,
        zorder=1 if bars.kind == "compute" else 2,
    )
