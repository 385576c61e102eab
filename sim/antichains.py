"""Where a model may be cut: the antichain states of a profile graph, or the gaps between the layers of a chain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sim.errors import Fault, ScenarioError
from sim.graph import ProfileGraph, ProfileNode
from sim.model import ModelProfile

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

MOST_STATES = 4096


@dataclass(frozen=True, eq=False)
class States:
    """Where a model may be cut: points, from nothing (the first) to everything (the last), smaller sets first.

    A point is a set of layers that holds whatever its members read; PipeDream names it by its last layers, an
    antichain. ``members`` [points, layers] tells who is in; the columns [points] are of a whole point: seconds forward
    and backward, bytes of parameters and of what backward needs, bytes that cross a cut there.
    """

    layers: tuple[str, ...]
    members: Bools
    compute_s: Floats
    parameter_bytes: Floats
    saved_bytes: Floats
    output_bytes: Floats

    def __len__(self) -> int:
        """How many antichain states there are; the point of nothing is none."""
        return len(self.members) - 1

    @cached_property
    def precedes(self) -> Bools:
        """[points, points]: whether a stage may reach from one point to the other."""
        member = self.members.astype(np.float32)
        within: Bools = member @ member.T == member.sum(axis=1)[:, None]
        np.fill_diagonal(within, False)
        return within


def operators_of(graph: ProfileGraph) -> tuple[ProfileNode, ...]:
    """The nodes that are layers, in the order of `sim.graph.chain`: no input nodes, nor any the last does not need.

    Raises
    ------
    ScenarioError : there are none, or too many.
    """
    found = tuple(node for node in graph.order if node.number in graph.needed and node.number not in graph.inputs)
    if not found:
        raise ScenarioError("the profile holds no layer, only input nodes")
    _check_count(len(found))
    return found


def graph_states(graph: ProfileGraph) -> States:
    """The antichain states of a profile graph, over the layers of `operators_of`.

    Sources other than the one that most layers depend on come along with the first layer that reads them. Of what
    crosses a cut every producer counts once, and only if it is read beyond (the released code counts some that are
    not, where branches run side by side); operators that work in place save nothing.

    Raises
    ------
    ScenarioError : no layers, or so many branches side by side that the states cannot be listed.
    """
    operators = operators_of(graph)
    position = {node.number: index for index, node in enumerate(operators)}
    reads = [
        [position[producer] for producer in graph.digraph.pred[node.number] if producer in position]
        for node in operators
    ]
    points = [0, *sorted(_antichain_states(reads), key=lambda point: (point.bit_count(), [*_bits(point)]))]
    members = np.zeros((len(points), len(operators)), np.bool_)
    for row, point in zip(members, points, strict=True):
        row[[*_bits(point)]] = True
    activation_bytes = [node.activation_bytes for node in operators]
    return States(
        layers=tuple(f"{node.name} {node.kind}" for node in operators),
        members=members,
        compute_s=_totals(members, [node.forward_s + node.backward_s for node in operators]),
        parameter_bytes=_totals(members, [node.parameter_bytes for node in operators]),
        saved_bytes=_totals(members, [0.0 if node.in_place else node.activation_bytes for node in operators]),
        output_bytes=_totals(_crossing(members, reads), activation_bytes),
    )


def chain_states(profile: ModelProfile) -> States:
    """The cuts of a chain of layers: point i lies behind the first i of them. Seconds and bytes are of its batch.

    Raises
    ------
    ScenarioError : too many layers.
    """
    layers = profile.layers
    _check_count(len(layers))
    members = np.tri(len(layers) + 1, len(layers), -1, dtype=np.bool_)
    return States(
        layers=tuple(layer.name for layer in layers),
        members=members,
        compute_s=_totals(members, [layer.forward_s + layer.backward_s for layer in layers]),
        parameter_bytes=_totals(members, [layer.parameter_bytes for layer in layers]),
        saved_bytes=_totals(members, [layer.saved_bytes for layer in layers]),
        output_bytes=np.array([0.0, *(layer.output_bytes for layer in layers[:-1]), 0.0]),
    )


def _check_count(layers: int) -> None:
    if layers > MOST_STATES:
        raise ScenarioError(f"{layers} layers are too many to partition: expected at most {MOST_STATES}")


def _totals(members: Bools, values: Sequence[float]) -> Floats:
    """Sums over the members of each point, correctly rounded: the same on every machine."""
    column = np.array(values)
    return np.array([math.fsum(column[row].tolist()) for row in members])


def _antichain_states(reads: Sequence[Sequence[int]]) -> set[int]:
    """Every set of layers, as bits, that is reached by adding one reader at a time, with all that it depends on."""
    readers = [0] * len(reads)
    needs: list[int] = []
    for layer, producers in enumerate(reads):
        needs.append(1 << layer)
        for producer in producers:
            needs[layer] |= needs[producer]
            readers[producer] |= 1 << layer
    start = _widest_source(reads)
    found = {needs[start]}
    waiting = [(needs[start], readers[start])]
    while waiting:
        point, beyond = waiting.pop()
        for layer in _bits(beyond):
            grown = point | needs[layer]
            if grown in found:
                continue
            if len(found) == MOST_STATES:
                hint = "merge the operators of each branch into one node"
                message = f"more than {MOST_STATES} antichain states: too many branches side by side"
                raise ScenarioError.of([Fault(message, suggestion=hint)])
            found.add(grown)
            reached = beyond
            for new in _bits(grown & ~point):
                reached |= readers[new]
            waiting.append((grown, reached & ~grown))
    return found


def _widest_source(reads: Sequence[Sequence[int]]) -> int:
    """The source that most layers depend on; of equals the first."""
    serves = [1 << layer for layer in range(len(reads))]
    for layer in reversed(range(len(reads))):
        for producer in reads[layer]:
            serves[producer] |= serves[layer]
    sources = [layer for layer, producers in enumerate(reads) if not producers]
    return max(sources, key=lambda source: serves[source].bit_count())


def _bits(mask: int) -> Iterator[int]:
    """The positions of the ones, ascending."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _crossing(members: Bools, reads: Sequence[Sequence[int]]) -> Bools:
    """[points, layers]: whether a layer of the point is read by one outside."""
    read_by = np.zeros((members.shape[1],) * 2, np.float32)
    for layer, producers in enumerate(reads):
        read_by[layer, producers] = 1
    read_outside: Bools = members.astype(np.float32) @ read_by < read_by.sum(axis=0)
    return members & read_outside
