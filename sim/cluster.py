"""Where it is trained: devices, directed links, and the routes between devices.

A full-duplex cable is two `Link`s. A transfer travels every link of its route at once (cut-through): uncontended it
takes the sum of the latencies plus its bytes over the least bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import networkx as nx

from sim.errors import UnsupportedPlan
from sim.model import DeviceSpec

LinkKind = Literal["latency", "in_order", "fifo", "fair_share"]
NodeKind = Literal["gpu", "host", "switch"]

CONTENDED: tuple[LinkKind, ...] = ("fifo", "fair_share")
"""Links that have to be shared by all that cross them at a time."""


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link.

    ``latency``: a pure delay, no occupancy, any number at once. ``in_order``: transfers of one channel follow one
    another, channels do not disturb each other. ``fifo``: one transfer at a time, in the order of asking.
    ``fair_share``: max-min fair shares of the bandwidth. ``bytes_per_s`` is infinite where only latency counts.
    """

    name: str
    source: str
    target: str
    kind: LinkKind
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU, a host or a switch. ``gain`` is how two concurrent compute lanes share a device.

    ``None``: exclusive, one lane computes at a time. A number in [1, 2]: processor sharing whose combined speed is
    ``gain`` while two or more lanes are busy.
    """

    name: str
    kind: NodeKind
    spec: DeviceSpec | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Cluster:
    """Nodes and directed links. Routes have the fewest links; ties go to the first by link order.

    ``between_all`` is how every two nodes are joined where there is no topology: a link of their own for each pair and
    direction, added to ``links`` when a route first asks for it (a mesh of N devices has N² links and plans use N).
    ``cores``: of the one host on which all nodes are processes; ``None``: each computes by itself. ``tensor_parallel``:
    how many GPUs, one after another, are one device of a plan.
    """

    name: str
    nodes: tuple[Node, ...]
    links: list[Link]
    source: str = ""
    between_all: Link | None = None
    cores: int | None = None
    tensor_parallel: int = 1
    _routes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def gpus(self) -> tuple[Node, ...]:
        """The nodes that compute, in order; of each group of ``tensor_parallel`` the first, which stands for it."""
        return tuple(group[0] for group in self.groups)

    @cached_property
    def groups(self) -> tuple[tuple[Node, ...], ...]:
        """The GPUs, ``tensor_parallel`` in each group."""
        found, size = [node for node in self.nodes if node.kind == "gpu"], self.tensor_parallel
        return tuple(tuple(found[first : first + size]) for first in range(0, len(found), size))

    @cached_property
    def hosts(self) -> tuple[Node, ...]:
        """The hosts, in order: where parameter servers live."""
        return tuple(node for node in self.nodes if node.kind == "host")

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        """The node of that name."""
        return self._by_name[name]

    @cached_property
    def _graph(self) -> nx.DiGraph[str]:
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(node.name for node in self.nodes)
        for index, link in enumerate(self.links):
            if not graph.has_edge(link.source, link.target):
                graph.add_edge(link.source, link.target, link=index)
        return graph

    def route(self, source: str, target: str) -> tuple[int, ...]:
        """Indices of the links from one node to another.

        Raises
        ------
        UnsupportedPlan : there is no route, or it mixes ``fifo`` and ``fair_share`` links.
        """
        if source == target:
            return ()
        if (source, target) not in self._routes:
            find = self._add_link if self.between_all else self._find_route
            self._routes[source, target] = find(source, target)
        return self._routes[source, target]

    def _add_link(self, source: str, target: str) -> tuple[int, ...]:
        assert self.between_all is not None
        self.links.append(replace(self.between_all, name=f"{source}>{target}", source=source, target=target))
        return (len(self.links) - 1,)

    def _find_route(self, source: str, target: str) -> tuple[int, ...]:
        left = nx.single_source_shortest_path_length(self._graph.reverse(copy=False), target)
        if source not in left:
            raise UnsupportedPlan(f"cluster '{self.name}' has no route from '{source}' to '{target}'")
        route: tuple[int, ...] = ()
        at = source
        while at != target:
            edges: Any = self._graph.out_edges(at, data="link")
            link, at = min((link, to) for _, to, link in edges if left.get(to) == left[at] - 1)
            route = (*route, link)
        kinds = {self.links[link].kind for link in route}
        if {"fifo", "fair_share"} <= kinds:
            raise UnsupportedPlan(
                f"the route from '{source}' to '{target}' mixes fifo and fair_share links: use one kind"
            )
        return route

    def latency_s(self, route: tuple[int, ...]) -> float:
        """Sum of the latencies along a route."""
        return sum(self.links[link].latency_s for link in route)

    def bytes_per_s(self, route: tuple[int, ...]) -> float:
        """Least bandwidth along a route."""
        return min((self.links[link].bytes_per_s for link in route), default=float("inf"))

    def occupies(self, route: tuple[int, ...]) -> bool:
        """Whether a transfer over this route holds its lanes: not where every link is a pure delay."""
        return any(self.links[link].kind != "latency" for link in route)
