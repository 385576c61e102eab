"""Throughput over workers: what was measured, with what repeats differ by, and what was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, DPI = (3.6, 2.8), 140
LINES = {"simulated": ("#0072B2", "-"), "theory": ("#D55E00", "--")}


class Curve(NamedTuple):
    """One panel, over ``workers``: steps/s of every run of each, whether these are valid, and predictions by name."""

    workers: Sequence[int]
    measured: Sequence[Sequence[float]]
    valid: Sequence[bool]
    predicted: Mapping[str, Sequence[float]]


def curves(cells: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Each group's throughput over its workers; ``cells`` as ``validation.json`` has them."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: int(cell["workers"])):
        groups.setdefault(cell["group"], []).append(cell)
    return {name: _curve(some) for name, some in groups.items()}


def _curve(cells: Sequence[Mapping[str, Any]]) -> Curve:
    return Curve(
        workers=[cell["workers"] for cell in cells],
        measured=[cell["runs_steps_per_s"] for cell in cells],
        valid=[cell["valid"] for cell in cells],
        predicted={
            "simulated": [cell["simulated_steps_per_s"] for cell in cells],
            "theory": [cell["theory_steps_per_s"] or float("nan") for cell in cells],
        },
    )


def plot(curves: Mapping[str, Curve], path: Path) -> None:
    """Write the chart of some curves, by name, as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(curves).savefig(path)


def draw(curves: Mapping[str, Curve]) -> Figure:
    """A panel for each curve."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(curves)))
    rows = math.ceil(len(curves) / columns)
    size = max(columns * PANEL_IN[0], 5.5), rows * PANEL_IN[1] + 0.5
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
        _panel(axes, name, curve)
    figure.supxlabel("workers")
    figure.supylabel("steps/s of all workers")
    handles = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend([*handles.values()], [*handles], loc="outside upper center", ncols=4, frameon=False)
    return figure


def _panel(axes: Axes, name: str, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    for what, rates in curve.predicted.items():
        colour, style = LINES[what]
        axes.plot(curve.workers, rates, style, label=what, color=colour, linewidth=1.4)
    for wanted, label, fill in ((True, "measured", "#222222"), (False, "measured, host too busy", "none")):
        chosen = [
            (workers, runs)
            for workers, runs, valid in zip(curve.workers, curve.measured, curve.valid, strict=True)
            if valid == wanted
        ]
        if chosen:
            middle = np.array([float(np.median(runs)) for _, runs in chosen])
            low, high = (np.array([extreme(runs) for _, runs in chosen]) for extreme in (min, max))
            places, reach = [workers for workers, _ in chosen], [middle - low, high - middle]
            axes.errorbar(places, middle, reach, fmt="o", color="#222222", mfc=fill, ms=4, capsize=2, label=label)
    axes.set_title(name, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
