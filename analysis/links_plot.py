"""Links drawn: how much of the bandwidth of each is in use over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import utilization
from analysis.text import unit_of
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN, LINK_IN, MARGIN_IN, DPI = 12.0, 0.62, 1.1, 140
COLOUR, FULL = "#56B4E9", "#7A7A7A"


def draw(trace: Trace, title: str) -> Figure:
    """A panel for each link of `analysis.utilization.limited`, on one axis of time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, (per_s, unit) = utilization.limited(trace), unit_of(trace.makespan_s)
    figure = Figure(figsize=(WIDTH_IN, LINK_IN * len(shown) + MARGIN_IN), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False).ravel()
    for axes, link in zip(panels, shown, strict=True):
        time_s, share = utilization.compute(trace, link)
        top = max(100.0, 100 * float(share.max(initial=0.0)))
        axes.fill_between(time_s * per_s, 100 * share, step="post", color=COLOUR, linewidth=0)
        axes.axhline(100, color=FULL, linewidth=0.6)
        axes.set_ylim(0, top * 1.08)
        axes.set_yticks([0, 100])
        axes.tick_params(labelsize=7)
        axes.set_ylabel(trace.header["links"][link]["name"], rotation=0, ha="right", va="center", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlim(0, trace.makespan_s * per_s or 1)
    panels[-1].set_xlabel(f"time ({unit})")
    figure.suptitle(f"{title}: bandwidth in use, %", fontsize=11)
    return figure
