"""The ways of a step's bytes between a worker and the servers: which links steps queue for, and which are its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np

from analysis.queueing.network import Floats
from sim.binding import Binding
from sim.cluster import CONTENDED
from sim.program import Layout


class Ways(NamedTuple):
    """One direction.

    ``demands_s`` [servers]: what a server's bytes take where no other step is met. ``cores``: how many steps can go on
    at that speed, the bandwidth of the links that all workers share over what one step can use of them; infinite where
    they share none. ``spread``: how much of a server's variation is left where the worker's own link sets the pace.
    ``fifo``: a shared link carries one at a time. ``entangled``: only some workers share a link, or several servers do.
    """

    demands_s: Floats
    cores: float
    spread: float
    latency_s: float
    fifo: bool
    entangled: bool


def find(layout: Layout, binding: Binding, sizes_bytes: Floats, largest_bytes: Floats, pulls: bool) -> Ways:
    """The ways from servers to workers (``pulls``) or back, for a step's bytes and its largest transfer [servers]."""
    links, pairs = binding.cluster.links, product(enumerate(layout.servers), range(layout.workers))
    ends = {(number, worker): (server, worker) if pulls else (worker, server) for (number, server), worker in pairs}
    routes = {pair: binding.route(*both) for pair, both in ends.items()}
    users = defaultdict[int, set[tuple[int, int]]](set)
    for pair, route in routes.items():
        for link in route:
            if links[link].kind in CONTENDED:
                users[link].add(pair)
    shared = {link for link, using in users.items() if len({worker for _, worker in using}) > 1}
    queued = [{link for link in routes[server, 0] if link in shared} for server in range(len(layout.servers))]

    def seconds(server: int, chosen: Iterable[int]) -> float:
        return float(sizes_bytes[server]) / min((links[link].bytes_per_s for link in chosen), default=math.inf)

    own_s = [sum(seconds(server, [link]) for server, _ in users[link]) for link in users if link not in shared]
    alone_s = [seconds(server, (link for link in route if link not in users)) for (server, _), route in routes.items()]
    for pair, both in ends.items():
        if (window := binding.conditions.windows.get(both)) is not None:
            alone_s.append(float(largest_bytes[pair[0]]) / links[window].bytes_per_s)
    queue = all(queued)
    needed_s = [seconds(server, queued[server] if queue else routes[server, 0]) for server in range(len(queued))]
    longest_s = max(needed_s)
    own, slowed = (max([longest_s, *least_s]) / longest_s if longest_s else 1.0 for least_s in (own_s, alone_s))
    return Ways(
        demands_s=np.array(needed_s) * max(own, slowed),
        cores=max(own, slowed) if queue else math.inf,
        spread=1 / own,
        latency_s=max(binding.cluster.latency_s(route) for route in routes.values()),
        fifo=any(links[link].kind == "fifo" for link in shared),
        entangled=any(len(users[link]) != layout.workers for link in shared),
    )
