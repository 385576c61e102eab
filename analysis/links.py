"""What each link carried, and how busy it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.intervals import union
from sim.trace import Trace


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One link that carried something.

    ``busy_s``: some transfer over it was under way. ``utilization``: bytes over what its bandwidth allows in the
    makespan; ``None`` where only its latency counts.
    """

    name: str
    bytes: float
    busy_s: float
    utilization: float | None


def compute(trace: Trace) -> tuple[LinkUse, ...]:
    """The links that carried something, in the order of the cluster."""
    return tuple(_use(trace, int(link)) for link in np.unique(trace.flows["link"]))


def _use(trace: Trace, link: int) -> LinkUse:
    figures, flows = trace.header["links"][link], trace.flows[trace.flows["link"] == link]
    carried, bytes_per_s = float(flows["bytes"].sum()), float(figures["bytes_per_s"])
    limited = math.isfinite(bytes_per_s) and trace.makespan_s > 0
    return LinkUse(
        name=figures["name"],
        bytes=carried,
        busy_s=union(flows["start_s"], flows["end_s"]).length_s,
        utilization=carried / (bytes_per_s * trace.makespan_s) if limited else None,
    )
