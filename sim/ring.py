"""Collectives over a ring of devices (Patarasuk & Yuan 2009): seconds where nothing else is on their links.

In one *round* of a ring of R devices every device passes a 1/R share on R − 1 times. A reduce-scatter takes one, so
does an all-gather, and an all-reduce is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim.cluster import CONTENDED, Cluster

ALL_REDUCE = 2
"""Rounds of an all-reduce: a reduce-scatter and an all-gather."""

Hops = tuple[tuple[int, ...], ...]
"""The route from each device of a ring to the next."""


def hops(cluster: Cluster, nodes: Sequence[str]) -> Hops:
    """The route of each hop of a ring over ``nodes``, in their order."""
    return tuple(cluster.route(a, b) for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True))


def share(size_bytes: float, devices: int, rounds: int = ALL_REDUCE) -> float:
    """Bytes that each hop carries: (R − 1)/R of the tensor in each round."""
    return rounds * (devices - 1) / devices * size_bytes


def latency_s(cluster: Cluster, ring: Hops, rounds: int = ALL_REDUCE) -> float:
    """R − 1 steps in each round, each as slow as the slowest hop."""
    return rounds * (len(ring) - 1) * max(cluster.latency_s(route) for route in ring)


def seconds(cluster: Cluster, ring: Hops, size_bytes: float, rounds: int = ALL_REDUCE) -> float:
    """Duration for a tensor of ``size_bytes``.

    Hops that cross one ``fifo`` or ``fair_share`` link in the same direction share it: the ring is as slow as its most
    crowded link.
    """
    slowest = float("inf")
    for number, crossing in Counter(link for route in ring for link in route).items():
        link = cluster.links[number]
        slowest = min(slowest, link.bytes_per_s / (crossing if link.kind in CONTENDED else 1))
    return latency_s(cluster, ring, rounds) + share(size_bytes, len(ring), rounds) / slowest
