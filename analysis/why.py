"""What limits a run, in one phrase: the busiest compute lane or link of its steady state."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis import steady, usage
from analysis.intervals import Spans, union
from analysis.steady import Steady
from analysis.text import percent
from analysis.usage import Usage
from sim.trace import Trace

LIMITING = 0.8
"""A lane or link that is busy for at least this share of the time limits the run by itself."""
LONGEST = 59
"""Characters of a phrase; a longer name is cut."""


class Busy(NamedTuple):
    """Something that can be the bottleneck, the share of the time it is busy, and the words for that."""

    share: float
    name: str
    phrase: str


def compute(trace: Trace, used: Usage | None = None, over: Steady | None = None) -> str:
    """One phrase of less than 60 characters, from evidence alone. ``used`` and ``over`` save computing these again.

    A compute lane or link that is busy at least `LIMITING` of the time; else the communication that accelerators wait
    for, where they spend more time on that than idle; else the latencies and dependencies that leave them idle.
    """
    used, over = used or usage.compute(trace), over or steady.compute(trace)
    if over.end_s <= over.start_s:
        return "nothing takes time"
    links = _links(trace, over)
    busiest = max([*_lanes(used, over), *links], key=lambda busy: busy.share)  # of equals the first
    if busiest.share >= LIMITING:
        return _say(busiest.phrase, busiest.name, busiest.share)
    computing, exposed = _shares(used, over)
    if links and exposed > 1 - computing - exposed:
        return _say("transfers exposed {} of the time ({})", max(links, key=lambda busy: busy.share).name, exposed)
    return _say("latency and dependencies: {1} busiest, {0}", busiest.name, busiest.share)


def _say(phrase: str, name: str, share: float) -> str:
    room = LONGEST - len(phrase.format(percent(share), ""))
    return phrase.format(percent(share), name if len(name) <= room else name[: room - 1] + "…")


def _lanes(used: Usage, over: Steady) -> list[Busy]:
    """The compute lanes of the accelerators, then of the hosts."""
    trace, found = used.trace, []
    for device in (*used.accelerators, *used.hosts):
        lanes = [number for number, lane in enumerate(trace.lanes) if lane.device == device and lane.computes]
        for lane in lanes:
            name = used.name(device) + (f" {trace.lanes[lane].stream}" if len(lanes) > 1 else "")
            found.append(Busy(_share(used.spans(trace.order[lane]), over), name, "{1} computes {0} of the time"))
    return found


def _links(trace: Trace, over: Steady) -> list[Busy]:
    """The links that can limit: a pure delay or infinite bandwidth cannot."""
    found = []
    for link in np.unique(trace.flows["link"]):
        figures, flows = trace.header["links"][link], trace.flows[trace.flows["link"] == link]
        if figures["kind"] == "latency" or not math.isfinite(figures["bytes_per_s"]):
            continue
        if figures["kind"] == "fair_share":  # another link may slow its flows: their bytes tell what they take of it
            share = _bytes(flows, over) / (figures["bytes_per_s"] * (over.end_s - over.start_s))
        else:
            share = _share(union(flows["start_s"], flows["end_s"]), over)
        found.append(Busy(share, f"link {figures['name']}", "{1} is {0} busy"))
    return found


def _share(spans: Spans, over: Steady) -> float:
    return spans.within(over.start_s, over.end_s).length_s / (over.end_s - over.start_s)


def _bytes(flows: NDArray[np.void], over: Steady) -> float:
    """Bytes carried in the window, those of a flow that crosses its edge in proportion to time."""
    inside_s = np.minimum(flows["end_s"], over.end_s) - np.maximum(flows["start_s"], over.start_s)
    whole_s = flows["end_s"] - flows["start_s"]
    lasting = (whole_s > 0) & (inside_s > 0)
    return float((flows["bytes"][lasting] * inside_s[lasting] / whole_s[lasting]).sum())


def _shares(used: Usage, over: Steady) -> tuple[float, float]:
    """Mean shares of the window that the accelerators spend computing, and on nothing but communication."""
    computing = [_share(used.computing(device), over) for device in used.accelerators]
    active = [_share(used.active(device), over) for device in used.accelerators]
    count = max(len(computing), 1)
    return sum(computing) / count, (sum(active) - sum(computing)) / count
