"""A model as a chain of vertices: where its layers may be cut, and how finely they are.

A model can be cut where one tensor holds all that goes on: at the articulation points of its graph. What branches in
between is one vertex. A layer that works in place belongs to the vertex whose output it overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import networkx as nx

from sim.architecture import Architecture, Block, Entry, Operation
from sim.errors import ScenarioError
from sim.graph import ProfileGraph, ProfileNode

Granularity = Literal["plain", "standalone_pool", "operation"]
"""From coarse to fine. ``plain``: a convolution with its normalisation, activation function and pool, a linear layer
with the dropout before it and its activation function. ``standalone_pool``: pools are vertices. ``operation``: every
layer that has an output of its own."""

GRANULARITIES: tuple[Granularity, ...] = ("plain", "standalone_pool", "operation")

_POOLS = {"max_pool", "avg_pool", "adaptive_avg_pool"}
_FOLLOWS: dict[Granularity, set[str]] = {
    "plain": {"batch_norm", "relu", "selu", "position_embedding", *_POOLS},
    "standalone_pool": {"batch_norm", "relu", "selu", "position_embedding"},
    "operation": set(),
}
_LEADS: dict[Granularity, set[str]] = {
    "plain": {"flatten", "dropout"},
    "standalone_pool": {"flatten", "dropout"},
    "operation": {"flatten"},
}

Vertices = tuple[tuple[Entry, ...], ...]


def cut(model: Architecture, granularity: Granularity) -> Vertices:
    """The layers of each vertex."""
    found: list[list[Entry]] = []
    for entry in model.entries:
        if found and (_leads(found[-1][-1], granularity) or _follows(entry, granularity)):
            found[-1].append(entry)
        else:
            found.append([entry])
    if len(found) > 1 and all(_leads(entry, granularity) for entry in found[-1]):
        found[-2] += found.pop()
    return tuple(tuple(vertex) for vertex in found)


def _leads(entry: Entry, granularity: Granularity) -> bool:
    return isinstance(entry, Operation) and entry.kind in _LEADS[granularity]


def _follows(entry: Entry, granularity: Granularity) -> bool:
    return isinstance(entry, Operation) and (entry.in_place or entry.kind in _FOLLOWS[granularity])


def names(vertices: Sequence[Sequence[Entry]], granularity: Granularity) -> list[str]:
    """Each vertex by its main layer and its number: ``conv1``, ``bottleneck7``."""
    found = []
    for number, vertex in enumerate(vertices, 1):
        main = next((entry for entry in vertex if not _leads(entry, granularity)), vertex[0])
        found.append(f"{main.name if isinstance(main, Block) else main.kind}{number}")
    return found


def profile_vertices(graph: ProfileGraph) -> list[tuple[ProfileNode, ...]]:
    """The operators of each vertex of a measured profile: between two through which every path to the last node leads.

    Raises
    ------
    ScenarioError : there is nothing but input nodes.
    """
    operators = [node for node in graph.order if node.number in graph.needed - graph.inputs]
    if not operators:
        raise ScenarioError("the profile holds no layer, only input nodes")
    paths = graph.digraph.subgraph(node.number for node in operators).copy()
    paths.add_edges_from((_SOURCE, node) for node in [*paths] if not paths.in_degree(node))
    passed_by = nx.immediate_dominators(paths, _SOURCE)
    cuts, at = set[int](), operators[-1].number
    while at != _SOURCE:
        readers = [node for node in operators if paths.has_edge(at, node.number)]
        if not any(reader.in_place and paths.in_degree(reader.number) == 1 for reader in readers):
            cuts.add(at)  # an addition in place overwrites the end of its other branch
        at = passed_by[at]
    found: list[list[ProfileNode]] = [[]]
    for node in operators:
        found[-1].append(node)
        if node.number in cuts:
            found.append([])
    return [tuple(vertex) for vertex in found if vertex]


_SOURCE = -1
"""What stands for all inputs; nodes count from 0."""
