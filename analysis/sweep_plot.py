"""Pictures of a sweep: a metric as a heat map over two axes, or as lines over one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.palette import OKABE_ITO
from analysis.units import parted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

Value = float | str
DPI = 150
COLOURS = (*OKABE_ITO, "#000000", "#999933")
MOST_CELLS_WITH_TEXT, MOST_TICKS, LONGEST_TICK = 144, 12, 6
LOGARITHMIC = 30
"""An axis whose largest value is that many times its least is drawn on a logarithmic scale."""


class Column(NamedTuple):
    """A column of the results: its name, whose end tells its SI unit, and a value for each point."""

    name: str
    values: Sequence[Value]


class Scaled(NamedTuple):
    """A column as it is drawn: what it is called, with its unit, and numbers; or ``words`` where it is text."""

    label: str
    values: NDArray[np.float64]
    words: Sequence[str] | None

    def ticks(self) -> list[float]:
        """Its distinct values, in order."""
        return [float(value) for value in np.unique(self.values)]

    def text(self, value: float) -> str:
        """A value as a tick or a line is named."""
        return f"{value:.4g}" if self.words is None else self.words[int(value)]


def scaled(column: Column) -> Scaled:
    """A column in the largest unit in which its middle is at least 1; words as their rank in order of appearance."""
    if any(isinstance(value, str) for value in column.values):
        words = list(dict.fromkeys(map(str, column.values)))
        rank = {word: float(number) for number, word in enumerate(words)}
        return Scaled(_spoken(column.name), np.array([rank[str(value)] for value in column.values]), words)
    values = np.array(column.values, np.float64)
    name, units = parted(column.name)
    if not units:
        return Scaled(_spoken(name), values, None)
    middle = float(np.median(np.abs(values[values != 0]))) if values.any() else 1.0
    unit = next((unit for unit, factor in units.items() if middle >= factor), [*units][-1])
    return Scaled(f"{_spoken(name or 'throughput')} ({unit})", values / units[unit], None)


def _spoken(name: str) -> str:
    """A column's name in words: the last two parts of a path."""
    return " ".join(name.split(".")[-2:]).replace("_", " ")


class Picture(NamedTuple):
    """What to draw: a heat map over two axes, or lines over the first, which a second tells apart.

    Where several points share a place, since ``others`` were swept too, the best of them is drawn. Samples share none:
    each is a dot.
    """

    title: str
    axes: Sequence[Column]
    metric: Column
    more_is_better: bool
    others: Sequence[str] = ()
    heat_map: bool = False

    @property
    def best(self) -> np.ufunc:
        """The better of two values."""
        return np.fmax if self.more_is_better else np.fmin

    @property
    def scattered(self) -> bool:
        """Whether no two points share a place though more was swept than is drawn."""
        places = set(zip(*(axis.values for axis in self.axes), strict=True))
        return bool(self.others) and len(places) == len(self.metric.values)

    @property
    def caption(self) -> str:
        """The title, and what became of the other axes."""
        names = ", ".join(map(_spoken, self.others))
        other = f"{names} differ too: one dot a point" if self.scattered else f"the best over {names}"
        return f"{self.title}\n{other}" if names else self.title


def plot(picture: Picture, path: Path) -> None:
    """Write a picture as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(picture).savefig(path)


def draw(picture: Picture) -> Figure:
    """See `Picture`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panel, (*places, shown) = figure.subplots(), (scaled(column) for column in (*picture.axes, picture.metric))
    if picture.heat_map:
        drawn = (_dots if picture.scattered else _cells)(panel, picture, places, shown)
        figure.colorbar(drawn, ax=panel, label=shown.label)
        panel.set_ylabel(places[1].label)
    else:
        _lines(panel, picture, places, shown)
        panel.set_ylabel(shown.label)
    panel.set_xlabel(places[0].label)
    panel.set_title(picture.caption, fontsize=10)
    for edge in ("top", "right"):
        panel.spines[edge].set_visible(picture.heat_map)
    return figure


def _colours(picture: Picture) -> str:
    """Bright is better."""
    return "viridis" if picture.more_is_better else "viridis_r"


def _dots(panel: Axes, picture: Picture, places: Sequence[Scaled], shown: Scaled) -> ScalarMappable:
    across, up = places
    _scale(panel, "x", across)
    _scale(panel, "y", up)
    return panel.scatter(across.values, up.values, c=shown.values, cmap=_colours(picture), s=20, linewidths=0)


def _cells(panel: Axes, picture: Picture, places: Sequence[Scaled], shown: Scaled) -> ScalarMappable:
    across, up = places
    columns, rows = across.ticks(), up.ticks()
    cells = np.full((len(rows), len(columns)), np.nan)
    picture.best.at(cells, (np.searchsorted(rows, up.values), np.searchsorted(columns, across.values)), shown.values)
    drawn = panel.imshow(np.ma.masked_invalid(cells), origin="lower", aspect="auto", cmap=_colours(picture))
    for column, axis in ((across, panel.xaxis), (up, panel.yaxis)):
        ticks = column.ticks()
        chosen = range(0, len(ticks), -(-len(ticks) // MOST_TICKS))
        axis.set_ticks([*chosen], [column.text(ticks[index]) for index in chosen])
    if max(len(across.text(tick)) for tick in columns) > LONGEST_TICK:
        panel.tick_params(axis="x", rotation=30)
    if cells.size <= MOST_CELLS_WITH_TEXT:
        _write_cells(panel, cells, picture.more_is_better)
    return drawn


def _write_cells(panel: Axes, cells: NDArray[np.float64], bright_is_more: bool) -> None:
    middle, size = (np.nanmin(cells) + np.nanmax(cells)) / 2, 8 if cells.size <= 64 else 6
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
            colour = "w" if (value < middle) == bright_is_more else "k"
            panel.text(column, row, text, ha="center", va="center", size=size, color=colour)


def _lines(panel: Axes, picture: Picture, places: Sequence[Scaled], shown: Scaled) -> None:
    across, *more = places
    style = "o" if picture.scattered or across.words is not None else "o-"
    for number, group in enumerate(more[0].ticks() if more else [None]):
        mine = np.ones(len(shown.values), bool) if group is None else more[0].values == group
        at = np.unique(across.values[mine])
        values = np.full(len(at), np.nan)
        picture.best.at(values, np.searchsorted(at, across.values[mine]), shown.values[mine])
        label = None if group is None else more[0].text(group)
        panel.plot(at, values, style, color=COLOURS[number % len(COLOURS)], label=label, linewidth=1.4, markersize=4)
    _scale(panel, "x", across)
    panel.set_ylim(bottom=min(0.0, float(np.nanmin(shown.values))))
    panel.grid(alpha=0.25)
    if more:
        panel.legend(title=more[0].label, frameon=False, fontsize=8, title_fontsize=8)


def _scale(panel: Axes, side: Literal["x", "y"], column: Scaled) -> None:
    """Words at their ranks; numbers on a logarithmic scale where they span decades."""
    from matplotlib.ticker import StrMethodFormatter

    axis = panel.xaxis if side == "x" else panel.yaxis
    if column.words is not None:
        axis.set_ticks(range(len(column.words)), column.words)
        panel.set(**{f"{side}margin": 0.1})
    elif column.values.min() > 0 and column.values.max() > LOGARITHMIC * column.values.min():
        panel.set(**{f"{side}scale": "log"})
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
