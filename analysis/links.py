"""What each link carried, and how busy it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def carried_bytes(flows: NDArray[np.void], start_s: float, end_s: float) -> float:
    """Bytes carried between two times, those of a flow that crosses one of them in proportion to time."""
    inside_s = np.minimum(flows["end_s"], end_s) - np.maximum(flows["start_s"], start_s)
    whole_s = flows["end_s"] - flows["start_s"]
    lasting = (whole_s > 0) & (inside_s > 0)
    return float((flows["bytes"][lasting] * inside_s[lasting] / whole_s[lasting]).sum())


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
