"""Staleness over stages, methods beside each other: how old the weights of each pass are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import staleness
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#785EF0", "#7A7A7A")
MARKERS = "osD^vP*X"
SIZE_IN, DPI = (10.0, 4.2), 140
SPREAD = 0.018
"""Methods are shifted by this share of the scale, so that equal ones do not hide each other."""


def plot(traces: Mapping[str, Trace], path: Path) -> None:
    """Write the chart of some runs, by name, as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(traces).savefig(path)


def draw(traces: Mapping[str, Trace]) -> Figure:
    """The chart of some runs: the steady staleness of each stage, forward and backward on one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    measured = {name: staleness.compute(trace) for name, trace in traces.items()}
    for axes, side in zip(panels, ("forward", "backward"), strict=True):
        _panel(axes, side, {name: getattr(found, side).by_stage for name, found in measured.items()})
    panels[0].set_ylabel("staleness in updates; equal lines apart")
    figure.suptitle("Updates between reading the weights and applying the gradient, steady state")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, side: str, methods: Mapping[str, tuple[int | None, ...]]) -> None:
    """One pass: a line a method; nothing where it is never updated."""
    from matplotlib.ticker import MaxNLocator

    most = max((age for stages in methods.values() for age in stages if age is not None), default=0)
    for index, (name, stages) in enumerate(methods.items()):
        shift = (index - (len(methods) - 1) / 2) * SPREAD * max(most, 1)
        heights = [float("nan") if age is None else age + shift for age in stages]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(range(len(stages)), heights, label=name, color=colour, marker=marker, markersize=5, linewidth=1.4)
    axes.set_title(side)
    axes.set_xlabel("stage")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
