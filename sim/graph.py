"""Measured profiles as graphs, and the rule that makes a chain of layers of one.

A profile graph is what PipeDream's profiler writes: operators with seconds and bytes of one mini-batch, and who reads
whose output. Pipelines here are chains, so `chain` lays the graph out in one order and prices each cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from sim.errors import ScenarioError
from sim.model import Layer, ModelProfile

_IN_PLACE = re.compile(r"\binplace\b(?!\s*=\s*False)")
_BACKWARD_NOTE = (
    "the profile measured whole backward passes: half counts as input gradient and half as weight gradient "
    "where a layer has parameters, all of it as input gradient elsewhere"
)


@dataclass(frozen=True, slots=True)
class ProfileNode:
    """One operator: seconds and activation bytes per mini-batch, parameter bytes per model copy.

    ``stage`` is where the profile's author had placed it, ``None`` if nowhere.
    """

    number: int
    description: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float
    stage: int | None = None

    @property
    def name(self) -> str:
        """``node12``, as in PipeDream's files."""
        return f"node{self.number}"

    @property
    def kind(self) -> str:
        """The description without its arguments: ``Conv2d``."""
        return self.description.partition("(")[0].strip()

    @property
    def in_place(self) -> bool:
        """Whether the output overwrites the input, so that its bytes are listed a second time."""
        return _IN_PLACE.search(self.description) is not None


@dataclass(frozen=True)
class ProfileGraph:
    """Operators and data dependencies ``(producer, consumer)`` between node numbers; acyclic."""

    nodes: tuple[ProfileNode, ...]
    edges: tuple[tuple[int, int], ...]
    source: str = ""

    @cached_property
    def digraph(self) -> nx.DiGraph[int]:
        """The numbers and edges, for graph algorithms."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(node.number for node in self.nodes)
        graph.add_edges_from(self.edges)
        return graph

    @cached_property
    def order(self) -> tuple[ProfileNode, ...]:
        """The nodes in topological order, of those ready the smallest number first."""
        by_number = {node.number: node for node in self.nodes}
        return tuple(by_number[number] for number in nx.lexicographical_topological_sort(self.digraph))

    @cached_property
    def inputs(self) -> frozenset[int]:
        """Nodes that only hold the data of the mini-batch; the time in them is data loading, no work of the model."""
        return frozenset(
            node.number
            for node in self.nodes
            if node.description.startswith("Input") and not self.digraph.in_degree(node.number)
        )

    @cached_property
    def needed(self) -> frozenset[int]:
        """The last node in topological order and all that it depends on; other sinks lead nowhere."""
        if not self.nodes:
            return frozenset()
        last = self.order[-1].number
        return frozenset(nx.ancestors(self.digraph, last) | {last})

    def cut_bytes(self, chain: Sequence[ProfileNode]) -> tuple[float, ...]:
        """Bytes that cross the cut behind each node of ``chain``: producers before it that are read after it."""
        position = {node.number: index for index, node in enumerate(chain)}
        crossing: dict[int, float] = {}
        last_read = [
            max((position.get(reader, -1) for reader in self.digraph[node.number]), default=-1) for node in chain
        ]
        closing: dict[int, list[int]] = {}
        cuts: list[float] = []
        for index, node in enumerate(chain):
            for producer in closing.pop(index, ()):
                del crossing[producer]
            if last_read[index] > index:
                crossing[index] = node.activation_bytes
                closing.setdefault(last_read[index], []).append(index)
            cuts.append(float(sum(crossing.values())))
        return tuple(cuts)


def chain(graph: ProfileGraph, name: str, batch: float) -> ModelProfile:
    """Lay a profile graph out as a chain of layers.

    Topological order, smallest node number first. The bytes behind a layer are the activations of distinct producers
    up to it with a reader beyond it. Input nodes cost nothing and belong to the first stage (their bytes become
    ``input_bytes``); nodes that the last one does not need are dropped. An operator that works in place saves nothing
    of its own. ``batch`` is the mini-batch the profile was measured at, in samples.

    Raises
    ------
    ScenarioError : there is nothing but input nodes.
    """
    kept = [node for node in graph.order if node.number in graph.needed]
    operators = [node for node in kept if node.number not in graph.inputs]
    if not operators:
        raise ScenarioError(f"the profile '{name}' holds no layer, only input nodes")
    layers = tuple(
        _layer(node, cut_bytes) for node, cut_bytes in zip(operators, graph.cut_bytes(operators), strict=True)
    )
    return ModelProfile(
        name=name,
        batch=batch,
        layers=layers,
        input_bytes=sum(node.activation_bytes for node in kept if node.number in graph.inputs),
        origin="measured",
        source=graph.source,
        notes=(_BACKWARD_NOTE, *_omissions(graph)),
    )


def _layer(node: ProfileNode, cut_bytes: float) -> Layer:
    weight_share = 0.5 if node.parameter_bytes else 0.0
    backward_weight_s = node.backward_s * weight_share
    return Layer(
        name=f"{node.name} {node.kind}",
        forward_s=node.forward_s,
        backward_input_s=node.backward_s - backward_weight_s,
        backward_weight_s=backward_weight_s,
        output_bytes=cut_bytes,
        saved_bytes=0.0 if node.in_place else node.activation_bytes,
        parameter_bytes=node.parameter_bytes,
    )


def _omissions(graph: ProfileGraph) -> list[str]:
    """What the chain leaves out of the graph, in words: nothing is dropped in silence."""
    notes = []
    loading_s = sum(node.forward_s + node.backward_s for node in graph.nodes if node.number in graph.inputs)
    if loading_s:
        notes.append(f"input nodes cost nothing: {loading_s * 1e3:.3f} ms of data loading left out")
    if dropped := [node for node in graph.order if node.number not in graph.needed]:
        work_s = sum(node.forward_s + node.backward_s for node in dropped if node.number not in graph.inputs)
        names = ", ".join(node.name for node in dropped)
        notes.append(f"dropped, since the last node does not need them ({work_s * 1e3:.3f} ms): {names}")
    return notes
