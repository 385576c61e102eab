"""Tensor parallelism: each layer split among a group of GPUs, one device of a plan (Megatron, arXiv 1909.08053).

The layer table of a GPU's share says what its group sums: what leaves an attention or an MLP forward, and backward the
gradient of what arrived, b s h elements each. A pass waits for that all-reduce, which crosses the cluster's links as if
nothing else did. Of what a plan moves between devices, each GPU moves its part to its counterpart at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np

from sim import ring
from sim.binding import Binding
from sim.cluster import CONTENDED, Cluster
from sim.errors import UnsupportedPlan
from sim.model import LayerTable, ModelProfile
from sim.ops import TRANSFER_KINDS, OpKind
from sim.schedule import Schedule

KEY = "schedule.tensor_parallel"


def reducing(profile: ModelProfile, table: LayerTable, cluster: Cluster) -> ModelProfile:
    """The profile of a GPU's share with its passes longer by the all-reduces of its group.

    Raises
    ------
    UnsupportedPlan : groups share a link, or differ in how long they take.
    """
    rings = [ring.hops(cluster, [node.name for node in group]) for group in cluster.groups]
    names = [f"the group of '{node.name}'" for node in cluster.gpus]
    _refuse_shared(cluster, names, rings, "their all-reduces")

    @cache
    def all_reduce_s(elements: float) -> float:
        size_bytes = elements * profile.batch * profile.parameter_bytes_each
        times = [ring.seconds(cluster, each, size_bytes) for each in rings]
        slowest = times.index(max(times))
        if not math.isclose(min(times), times[slowest]):
            fastest = times.index(min(times))
            raise UnsupportedPlan(
                f"{KEY}: {names[slowest]} takes {times[slowest]:.3g} s for an all-reduce, {names[fastest]} "
                f"{times[fastest]:.3g} s: groups must be alike"
            )
        return times[slowest]

    layers, inside_s = [], 0.0
    for layer, work in zip(profile.layers, table.layers, strict=True):
        forward_s, backward_s = (all_reduce_s(elements) if elements else 0.0 for elements in work.reduced_elements)
        inside_s += forward_s + backward_s
        longer = layer.forward_s + forward_s, layer.backward_input_s + backward_s
        layers.append(replace(layer, forward_s=longer[0], backward_input_s=longer[1]))
    share = inside_s / sum(layer.forward_s + layer.backward_s for layer in layers)
    note = f"groups of {cluster.tensor_parallel} GPUs, whose all-reduces are {share:.1%} of the passes"
    return replace(profile, layers=tuple(layers), notes=(*profile.notes, note))


def check_messages(work: Schedule, binding: Binding) -> None:
    """Whether the messages of all GPUs of a group are like those of the first, which stands for them.

    Raises
    ------
    UnsupportedPlan : they share a link, or one has a slower route.
    """
    cluster = binding.cluster
    if cluster.between_all is not None:
        return  # every two GPUs have links of their own, all alike
    members = {group[0].name: [node.name for node in group] for group in cluster.groups}
    groups = [members[name] for name in binding.devices]
    routes = [[cluster.route(a, b) for a, b in _pairs(work, groups, each)] for each in range(cluster.tensor_parallel)]
    names = [f"GPU {number} of each group" for number in range(cluster.tensor_parallel)]
    _refuse_shared(cluster, names, routes, "their messages")
    for name, own in zip(names, routes, strict=True):
        for first, other in zip(routes[0], own, strict=True):
            if cluster.bytes_per_s(other) != cluster.bytes_per_s(first) or not math.isclose(
                cluster.latency_s(other), cluster.latency_s(first)
            ):
                raise UnsupportedPlan(f"{KEY}: {name} sends over other links than GPU 0, which stands for it")


def _pairs(work: Schedule, groups: Sequence[Sequence[str]], member: int) -> Iterator[tuple[str, str]]:
    """From which GPU to which the GPUs of that number in their groups send."""
    ops = work.ops
    sends = ops[np.isin(ops["kind"], [int(kind) for kind in TRANSFER_KINDS])]
    for source, target in np.unique(np.stack([sends["source"], sends["target"]], axis=1), axis=0).tolist():
        yield groups[source][member], groups[target][member]
    rings = {tuple(work.devices_of(op)) for op in np.flatnonzero(ops["kind"] == OpKind.ALL_REDUCE).tolist()}
    for devices in sorted(rings):
        for source, target in zip(devices, [*devices[1:], devices[0]], strict=True):
            yield groups[source][member], groups[target][member]


def _refuse_shared(
    cluster: Cluster, names: Sequence[str], routes: Sequence[Iterable[Sequence[int]]], what: str
) -> None:
    """Raise where two of those that send at the same time share a link: what is simulated of one would be too fast."""
    crossed = [{link for route in each for link in route if cluster.links[link].kind in CONTENDED} for each in routes]
    for (one, first), (other, second) in combinations(zip(names, crossed, strict=True), 2):
        if shared := first & second:
            link = cluster.links[min(shared)].name
            raise UnsupportedPlan(f"{KEY}: {one} and {other} share link '{link}' for {what}, which is not simulated")
