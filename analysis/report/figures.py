"""The plots of a report as files for papers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import gantt, links_plot, memory_plot, memory_timeline, staleness, staleness_plot, utilization
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
_NO_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix; the same figure gives the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "twinrail"}):
        figure.savefig(path, metadata=_NO_DATES[path.suffix[1:]])


def of_runs(traces: Mapping[str, Trace]) -> Iterator[tuple[str, Figure]]:
    """Every plot that applies to some runs, with the stem of its file name: time line, staleness, memory, links."""
    yield "timeline", gantt.draw(traces)
    if any((staleness.compute(trace).forward.max or 0) > 0 for trace in traces.values()):
        yield "staleness", staleness_plot.draw(traces)
    for number, (name, trace) in enumerate(traces.items(), 1):
        stem = f"{number:02d}-" if len(traces) > 1 else ""
        for device, device_name in enumerate(trace.header["devices"]):
            timeline = memory_timeline.of_trace(trace, device)
            if len(timeline.time_s):
                yield f"{stem}memory-{device_name}", memory_plot.draw(timeline, f"{name}: {device_name}")
        if utilization.limited(trace):
            yield f"{stem}links", links_plot.draw(trace, name)
