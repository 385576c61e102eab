"""What limits a run, in one phrase: the busiest compute lane or link of its steady state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from analysis import steady, usage
from analysis.links import carried_bytes
from analysis.steady import Steady
from analysis.text import percent
from analysis.usage import Usage
from sim.trace import Trace

LIMITING = 0.8
"""A lane or link that is busy for at least this share of the time limits the run by itself."""
ROUNDING = 1e-9
"""Shares that differ by no more are equal."""
LONGEST = 59
"""Characters of a phrase; a longer name is cut."""


class Busy(NamedTuple):
    """Something that can be the bottleneck, how long it is busy in the window, and the words for that."""

    busy_s: float
    name: str
    phrase: str


class Evidence(NamedTuple):
    """What `phrase` judges by, all in seconds of one window.

    ``computing_s``, ``active_s``: what the accelerators compute, or compute or communicate, on average.
    """

    window_s: float
    lanes: tuple[Busy, ...]
    links: tuple[Busy, ...]
    computing_s: float
    active_s: float


def compute(trace: Trace, used: Usage | None = None, over: Steady | None = None) -> str:
    """One phrase of less than 60 characters, from evidence alone. ``used`` and ``over`` save computing these again."""
    used, over = used or usage.compute(trace), over or steady.compute(trace)
    return phrase(evidence(used, over.start_s, over.end_s))


def evidence(used: Usage, start_s: float, end_s: float) -> Evidence:
    """How busy the compute lanes and the links that can limit are between two times."""
    computing = [used.computing[device].within(start_s, end_s).length_s for device in used.accelerators]
    active = [used.active[device].within(start_s, end_s).length_s for device in used.accelerators]
    count = max(len(computing), 1)
    return Evidence(
        window_s=end_s - start_s,
        lanes=tuple(_lanes(used, start_s, end_s)),
        links=tuple(_links(used, start_s, end_s)),
        computing_s=sum(computing) / count,
        active_s=sum(active) / count,
    )


def phrase(seen: Evidence) -> str:
    """A compute lane or link that is busy at least `LIMITING` of the time; else the communication that accelerators
    wait for, where they spend more time on that than idle; else the latencies and dependencies that leave them idle.
    """
    if seen.window_s <= 0:
        return "nothing takes time"
    busiest = _busiest([*seen.lanes, *seen.links])
    if busiest.busy_s >= LIMITING * seen.window_s:
        return _say(busiest.phrase, busiest.name, busiest.busy_s / seen.window_s)
    exposed_s, idle_s = seen.active_s - seen.computing_s, seen.window_s - seen.active_s
    if seen.links and exposed_s > idle_s + ROUNDING * seen.window_s:
        return _say("transfers exposed {} of the time ({})", _busiest(seen.links).name, exposed_s / seen.window_s)
    return _say("latency and dependencies: {1} busiest, {0}", busiest.name, busiest.busy_s / seen.window_s)


def _busiest(each: Sequence[Busy]) -> Busy:
    """The busiest; of those that differ by no more than rounding the first."""
    most_s = max(busy.busy_s for busy in each)
    return next(busy for busy in each if busy.busy_s >= most_s * (1 - ROUNDING))


def _say(phrase: str, name: str, share: float) -> str:
    room = LONGEST - len(phrase.format(percent(share), ""))
    return phrase.format(percent(share), name if len(name) <= room else name[: room - 1] + "…")


def _lanes(used: Usage, start_s: float, end_s: float) -> list[Busy]:
    """The compute lanes of the accelerators, then of the hosts."""
    trace, found = used.trace, []
    for device in (*used.accelerators, *used.hosts):
        lanes = [number for number, lane in enumerate(trace.lanes) if lane.device == device and lane.computes]
        for lane in lanes:
            name = used.name(device) + (f" {trace.lanes[lane].stream}" if len(lanes) > 1 else "")
            busy = used.spans(trace.order[lane]) if len(lanes) > 1 else used.computing[device]
            found.append(Busy(busy.within(start_s, end_s).length_s, name, "{1} computes {0} of the time"))
    return found


def _links(used: Usage, start_s: float, end_s: float) -> list[Busy]:
    """The links that can limit: a pure delay or infinite bandwidth cannot."""
    found = []
    for link, (flows, busy) in used.carrying.items():
        figures = used.trace.header["links"][link]
        if figures["kind"] == "latency" or not math.isfinite(figures["bytes_per_s"]):
            continue
        if figures["kind"] == "fair_share":  # another link may slow its flows: their bytes tell what they take of it
            busy_s = carried_bytes(flows, start_s, end_s) / figures["bytes_per_s"]
        else:
            busy_s = busy.within(start_s, end_s).length_s
        found.append(Busy(busy_s, f"link {figures['name']}", "{1} is {0} busy"))
    return found
