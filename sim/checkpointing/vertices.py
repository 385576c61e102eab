"""A model as a chain of vertices: where its layers may be cut, and how finely they are.

A model can be cut where one tensor holds all that goes on: at the articulation points of its graph. What branches in
between is one vertex. A layer that works in place belongs to the vertex whose output it overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sim.architecture import Architecture, Block, Entry, Operation

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
