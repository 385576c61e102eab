"""The figures of a program of parameter servers: what each part takes to move and to apply, what each worker computes.

A core of a server takes, for a gradient, the memory traffic of adding it (``bsp``) or of an update (``asp``, ``ssp``)
at an equal share of its host's memory bandwidth, unless an `Apply` says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sim.binding import Binding, Cost, Resident, effective_bytes_per_s
from sim.cluster import Cluster
from sim.conditions import Conditions
from sim.memory.buffers import BufferKind
from sim.model import ModelProfile, total
from sim.ops import OpId, OpKind
from sim.program import Layout
from sim.training import Training


class Apply(NamedTuple):
    """What a core takes to apply a gradient: its bytes at a rate, and a time for each tensor."""

    bytes_per_s: float = float("inf")
    per_tensor_s: float = 0.0


class SecondJob(NamedTuple):
    """What each worker of a second job on the same servers moves and computes in a step."""

    parameters: float
    compute_s: float


class ServerFigures(NamedTuple):
    """What `bind_servers` needs to know.

    ``profiles`` are the model on each worker's device at its batch; ``update_s`` replaces the update time of the whole
    model that follows from memory bandwidth. ``capacity_bytes`` limits workers.
    """

    profiles: Sequence[ModelProfile]
    training: Training
    cluster: Cluster
    devices: tuple[str, ...]
    conditions: Conditions
    apply: Apply | None = None
    update_s: float | None = None
    other: SecondJob | None = None
    capacity_bytes: int | None = None
    provenance: Mapping[str, Any] = {}


def bind_servers(layout: Layout, figures: ServerFigures) -> Binding:
    """Figures for every op of the program."""
    seconds: dict[Cost, float] = {}
    payload: dict[Cost, float] = {}
    for worker, profile in enumerate(figures.profiles):
        seconds |= _passes(layout, worker, profile)
    _bind_parts(layout, figures, seconds, payload)
    if figures.other is not None:
        _bind_other(layout, figures, figures.other, seconds, payload)
    profile, dtype = figures.profiles[0], figures.training.dtype
    specs = [figures.cluster.node(name).spec for name in figures.devices]
    return Binding(
        cluster=figures.cluster,
        devices=figures.devices,
        seconds=seconds,
        payload_bytes=payload,
        buffer_bytes={},
        resident=tuple(_resident(layout, figures)),
        capacity_bytes=tuple(_capacity_bytes(figures, name) for name in figures.devices),
        samples=profile.batch,
        flops=3 * total(profile.layers, "flops"),
        peak_flops_per_s=tuple(spec.peak_flops_per_s.get(dtype, 0.0) if spec else 0.0 for spec in specs),
        provenance=figures.provenance,
        conditions=figures.conditions,
    )


def _passes(layout: Layout, worker: int, profile: ModelProfile) -> dict[Cost, float]:
    seconds = {}
    for block, (first, last) in enumerate(layout.blocks):
        part = block if len(layout.blocks) > 1 else -1
        layers = profile.layers[first : last + 1]
        seconds[Cost(OpKind.FORWARD, 0, part, worker)] = total(layers, "forward_s")
        seconds[Cost(OpKind.BACKWARD, 0, part, worker)] = total(layers, "backward_s")
    return seconds


def _bind_parts(layout: Layout, figures: ServerFigures, seconds: dict[Cost, float], payload: dict[Cost, float]) -> None:
    training, whole = figures.training, sum(part.elements for part in layout.parts)
    for number, part in enumerate(layout.parts):
        device, elements, tensors = layout.servers[part.server], part.elements, len(part.slices)
        add_s = _served_s(figures, device, elements, tensors, training.accumulate_bytes)
        update_s = _served_s(figures, device, elements, tensors, training.update_bytes)
        if figures.update_s is not None and figures.apply is None:
            update_s = figures.update_s * elements / whole
        seconds[Cost(OpKind.ACCUMULATE, 0, number)], seconds[Cost(OpKind.UPDATE, 0, number)] = add_s, update_s
        size_bytes = training.weight_bytes * elements
        payload[Cost(OpKind.PULL, 0, number)] = payload[Cost(OpKind.PUSH, 0, number)] = size_bytes


def _bind_other(
    layout: Layout,
    figures: ServerFigures,
    other: SecondJob,
    seconds: dict[Cost, float],
    payload: dict[Cost, float],
) -> None:
    """The second job, stage 1: an equal share of it on every server."""
    elements = other.parameters / len(layout.servers)
    seconds[Cost(OpKind.FORWARD, 1)] = other.compute_s
    for number, device in enumerate(layout.servers):
        served_s = _served_s(figures, device, elements, 1, figures.training.update_bytes)
        seconds[Cost(OpKind.UPDATE, 1, number)] = served_s
        size_bytes = figures.training.weight_bytes * elements
        payload[Cost(OpKind.PULL, 1, number)] = payload[Cost(OpKind.PUSH, 1, number)] = size_bytes


def _served_s(figures: ServerFigures, device: int, elements: float, tensors: int, traffic_bytes: int) -> float:
    """What a core of a server takes for so many parameters, of which each moves ``traffic_bytes`` of memory."""
    if figures.apply is not None:
        size_bytes = figures.training.weight_bytes * elements
        return size_bytes / figures.apply.bytes_per_s + tensors * figures.apply.per_tensor_s
    spec, cores = figures.cluster.node(figures.devices[device]).spec, figures.conditions.services[device].cores
    return elements * traffic_bytes * cores / effective_bytes_per_s(spec) if spec else 0.0


def _capacity_bytes(figures: ServerFigures, name: str) -> int | None:
    node = figures.cluster.node(name)
    own = node.spec.memory_bytes if node.spec else None
    return own if node.kind == "host" else figures.capacity_bytes or own


def _resident(layout: Layout, figures: ServerFigures) -> list[Resident]:
    """Weights, gradients and activations on workers; weights, optimizer state and a sum of gradients on servers."""
    training, whole = figures.training, sum(part.elements for part in layout.parts)
    held: list[tuple[int, BufferKind, float]] = []
    for worker, profile in enumerate(figures.profiles):
        held.append((worker, BufferKind.WEIGHTS, training.weight_bytes * whole))
        held.append((worker, BufferKind.GRADIENTS, training.weight_bytes * whole))
        held.append((worker, BufferKind.ACTIVATION, total(profile.layers, "saved_bytes")))
    for number, device in enumerate(layout.servers):
        shard = sum(part.elements for part in layout.parts if part.server == number)
        held.append((device, BufferKind.WEIGHTS, training.weight_bytes * shard))
        held.append((device, BufferKind.OPTIMIZER, training.optimizer_bytes * shard))
        if layout.sums:
            held.append((device, BufferKind.GRADIENTS, training.weight_bytes * shard))
    return [Resident(device, kind, 0, round(size)) for device, kind, size in held if round(size)]


def step_s(layout: Layout, binding: Binding, worker: int) -> float:
    """A step of a worker where nothing contends and nothing overlaps: slowest pull, both passes, slowest push."""
    down, up = defaultdict[int, float](float), defaultdict[int, float](float)
    for number, part in enumerate(layout.parts):
        server = layout.servers[part.server]
        down[server] += binding.op_seconds(OpId(OpKind.PULL, 0, 0, worker, number), server, worker, ())
        up[server] += binding.op_seconds(OpId(OpKind.PUSH, 0, 0, worker, number), worker, server, ())
        up[server] += binding.seconds[Cost(OpKind.UPDATE, 0, number)]
    passes_s = sum(seconds for cost, seconds in binding.seconds.items() if cost.device == worker)
    return max(down.values()) + passes_s + max(up.values())


def about(layout: Layout, binding: Binding) -> dict[str, Any]:
    """What analysis wants to know of a program of parameter servers; JSON types only."""
    conditions = binding.conditions
    size_bytes = [binding.payload_bytes[Cost(OpKind.PULL, 0, number)] for number in range(len(layout.parts))]
    held = [0.0] * len(layout.servers)
    for part, size in zip(layout.parts, size_bytes, strict=True):
        held[part.server] += size
    return {
        "workers": layout.workers,
        "background": layout.background,
        "servers": list(layout.servers),
        "consistency": layout.consistency,
        "bound": layout.bound,
        "snapshot": layout.snapshot,
        "order": layout.order,
        "parts": [
            {"server": part.server, "bytes": size, "tensors": len(part.slices), "layers": list(part.layers)}
            for part, size in zip(layout.parts, size_bytes, strict=True)
        ],
        "shard_bytes": held,
        "cores": [conditions.services[device].cores for device in layout.servers],
        "discipline": conditions.services[layout.servers[0]].discipline,
        "variation": {
            name: varies.variation if (varies := getattr(conditions.jitter, name)) else 0.0
            for name in ("compute", "communication", "apply")
        },
        "outages": [[outage.at_s, outage.down_s, outage.device] for outage in conditions.outages],
        "degradations": [
            [each.at_s, each.for_s, list(each.links), each.bytes_per_s] for each in conditions.degradations
        ],
    }
