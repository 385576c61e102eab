"""How much of a link's bandwidth is in use, over time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.intervals import Times, union
from sim.trace import Trace


def compute(trace: Trace, link: int) -> tuple[Times, Times]:
    """Times, and the share of the link's bandwidth in use from each of them on.

    The bytes of a flow are spread evenly over its time. On a ``fair_share`` link flows slow one another, so there they
    are spread over the time in which the link is busy without a break: what is known exactly. A share is above 1 only
    where the model of the link (``latency``, ``in_order``) lets transfers overlap.
    """
    figures, flows = trace.header["links"][link], trace.flows[trace.flows["link"] == link]
    flows = flows[flows["end_s"] > flows["start_s"]]
    if figures["kind"] == "fair_share":
        start_s, end_s, size = together(flows)
    else:
        start_s, end_s, size = flows["start_s"], flows["end_s"], flows["bytes"]
    rate = size / (end_s - start_s) / float(figures["bytes_per_s"])
    times, place = np.unique(np.concatenate([start_s, end_s]), return_inverse=True)
    open_now = np.bincount(place, np.repeat([1, -1], len(rate)), len(times)).cumsum()
    share = np.bincount(place, np.concatenate([rate, -rate]), len(times)).cumsum()
    return times, np.where(open_now > 0, share, 0.0)


def limited(trace: Trace) -> list[int]:
    """The links that carried something and have a bandwidth: a pure delay has none to use."""
    links = trace.header["links"]
    return [link for link in np.unique(trace.flows["link"]).tolist() if math.isfinite(links[link]["bytes_per_s"])]


def together(flows: NDArray[np.void]) -> tuple[Times, Times, Times]:
    """Start, end and bytes of each time in which at least one flow is under way; ``flows`` take time."""
    busy = union(flows["start_s"], flows["end_s"])
    period = np.searchsorted(busy.start_s, flows["start_s"], "right") - 1
    return busy.start_s, busy.end_s, np.bincount(period, flows["bytes"], len(busy.start_s)).astype(np.float64)
