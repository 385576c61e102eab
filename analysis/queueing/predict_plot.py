"""Throughput and staleness over workers: simulation, theory and bounds, a colour for each number of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.palette import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

"""Of Okabe and Ito, in turn."""
SIZE_IN, DPI = (9.6, 4.4), 130


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a prediction as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(result).savefig(path)


def draw(result: Mapping[str, Any]) -> Figure:
    """Points and bars are simulated, lines are theory, dashes the upper bounds; dots a single worker's linear speed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    throughput, stale = figure.subplots(1, 2)
    for number, network in enumerate(result["networks"]):
        servers, colour = network["servers"], OKABE_ITO[number % len(OKABE_ITO)]
        found = [each for each in result["predictions"] if each["servers"] == servers]
        label = f"{servers} server{'s' * (servers > 1)}"
        _throughput(throughput, found, colour, label)
        _staleness(stale, found, colour, label)
    title = "".join(letter if letter.isprintable() else "?" for letter in result["scenario"])[:80]
    figure.suptitle(title, fontsize=11, weight="bold", parse_math=False)
    _finish(throughput, "steps/s of all workers", "points: simulated, lines: theory, dashes: upper bound")
    _finish(stale, "mean staleness (updates by others)", "points: simulated, lines: theory")
    return figure


def _throughput(axes: Axes, found: Sequence[Mapping[str, Any]], colour: str, label: str) -> None:
    workers = [each["workers"] for each in found]
    rates = [each["simulated"]["steps_per_s"] for each in found]
    intervals = [each["simulated"]["interval"] or [rate, rate] for each, rate in zip(found, rates, strict=True)]
    below = [max(rate - low, 0.0) for rate, (low, _) in zip(rates, intervals, strict=True)]
    above = [max(high - rate, 0.0) for rate, (_, high) in zip(rates, intervals, strict=True)]
    axes.errorbar(workers, rates, (below, above), fmt="o", markersize=4, capsize=2, color=colour)
    axes.plot(workers, [each["theory"]["steps_per_s"] for each in found], color=colour, label=label)
    axes.plot(workers, [each["bounds"]["upper"] for each in found], "--", color=colour, linewidth=0.8)


def _staleness(axes: Axes, found: Sequence[Mapping[str, Any]], colour: str, label: str) -> None:
    workers = [each["workers"] for each in found]
    axes.plot(workers, [each["simulated"]["staleness"] for each in found], "o", markersize=4, color=colour)
    axes.plot(workers, [each["theory"]["staleness"] for each in found], color=colour, label=label)


def _finish(axes: Axes, what: str, key: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("workers")
    axes.set_ylabel(what)
    axes.set_title(key, fontsize=8, color="#444444")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
