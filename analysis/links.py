"""What each link carried, and how busy it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import usage
from analysis.intervals import Spans
from analysis.usage import Usage
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


def compute(trace: Trace, used: Usage | None = None) -> tuple[LinkUse, ...]:
    """The links that carried something, in the order of the cluster. ``used`` saves sorting the flows again."""
    carrying = (used or usage.compute(trace)).carrying
    return tuple(_use(trace, link, flows, busy) for link, (flows, busy) in carrying.items())


def _use(trace: Trace, link: int, flows: NDArray[np.void], busy: Spans) -> LinkUse:
    figures = trace.header["links"][link]
    carried, bytes_per_s = float(flows["bytes"].sum()), float(figures["bytes_per_s"])
    limited = math.isfinite(bytes_per_s) and trace.makespan_s > 0
    return LinkUse(
        name=figures["name"],
        bytes=carried,
        busy_s=busy.length_s,
        utilization=carried / (bytes_per_s * trace.makespan_s) if limited else None,
    )
