"""Plan × profile × cluster → seconds per op, bytes per buffer: all that tells "what if" from "as measured"."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from sim import ring, zero
from sim.cluster import Cluster
from sim.conditions import Conditions
from sim.memory.allocators import COUNTING, Allocation
from sim.memory.buffers import BufferKind
from sim.model import DeviceSpec, ModelProfile, total
from sim.ops import TRANSFER_KINDS, OpId, OpKind
from sim.partition import Partition, balanced
from sim.pieces import Shares, shares
from sim.program import Program
from sim.schedule import Schedule
from sim.training import Training


class Cost(NamedTuple):
    """What costs depend on: not the micro-batch, since micro-batches are alike. ``device`` where devices differ."""

    kind: OpKind
    stage: int
    part: int = -1
    device: int = -1


class Resident(NamedTuple):
    """Memory a device holds for the whole run."""

    device: int
    kind: BufferKind
    stage: int
    size_bytes: int


@dataclass(frozen=True)
class Binding:
    """Figures for every op and buffer of a plan on a cluster.

    Parameters
    ----------
    devices : cluster node of each device of the plan; hosts stand after the GPUs.
    seconds : of ops that compute. ``payload_bytes``: of ops that move bytes (a collective: of the summed tensor).
    buffer_bytes : of every kind of buffer of every stage. ``resident``: what each device holds throughout.
    capacity_bytes : per device, ``None`` where nothing limits it. ``allocator``: of the GPUs.
    shares : by kind and stage, the layers that a buffer is of, where an allocator places these by themselves.
    samples : per mini-batch, all replicas together. ``flops``: of one mini-batch, forward and backward; 0: unknown.
    peak_flops_per_s : of each device at the training's dtype; 0: unknown.
    provenance : which inputs are measured, published or assumed.
    conditions : of a program of parameter servers.
    ring_rounds : of an op that sums over a ring: 1 where ZeRO only scatters the sum (`sim.zero`).
    """

    cluster: Cluster
    devices: tuple[str, ...]
    seconds: Mapping[Cost, float]
    payload_bytes: Mapping[Cost, float]
    buffer_bytes: Mapping[tuple[BufferKind, int], int]
    resident: tuple[Resident, ...]
    capacity_bytes: tuple[int | None, ...]
    samples: float
    flops: float = 0.0
    peak_flops_per_s: tuple[float, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    allocator: Allocation = COUNTING
    shares: Mapping[tuple[BufferKind, int], Shares] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    ring_rounds: int = ring.ALL_REDUCE

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Links from one device of the plan to another."""
        return self.cluster.route(self.devices[source], self.devices[target])

    def holds_lanes(self, source: int, target: int) -> bool:
        """Whether a transfer occupies its lanes; a route of pure delays does not."""
        return self.cluster.occupies(self.route(source, target))

    def op_seconds(self, op: OpId, source: int, target: int, members: Sequence[int]) -> float:
        """Duration of one op where nothing contends with it; ``members`` are the devices of a collective."""
        cost = Cost(op.kind, op.stage, op.part)
        if op.kind is OpKind.ALL_REDUCE:
            return self.ring_seconds(self.payload_bytes[cost], members)
        if op.kind in TRANSFER_KINDS:
            return self._transfer_s(self.payload_bytes[cost], source, target)
        if op.kind is OpKind.FORWARD_BACKWARD:
            return self.seconds.get(
                cost, self.seconds[Cost(OpKind.FORWARD, op.stage)] + self.seconds[Cost(OpKind.BACKWARD, op.other_stage)]
            )
        own = Cost(op.kind, op.stage, op.part, source)
        return self.seconds[own if own in self.seconds else cost]

    def _transfer_s(self, size_bytes: float, source: int, target: int) -> float:
        route = self.route(source, target)
        return self.cluster.latency_s(route) + size_bytes / self.cluster.bytes_per_s(route)

    def ring_hops(self, devices: Sequence[int]) -> ring.Hops:
        """The route of each hop of a ring over ``devices``, in their order."""
        return ring.hops(self.cluster, [self.devices[device] for device in devices])

    def ring_latency_s(self, devices: Sequence[int]) -> float:
        """Latency of an op that sums over a ring."""
        return ring.latency_s(self.cluster, self.ring_hops(devices), self.ring_rounds)

    def ring_bytes(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Bytes that each hop of an op carries that sums a tensor over a ring."""
        return ring.share(size_bytes, len(devices), self.ring_rounds)

    def ring_seconds(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Duration of an uncontended op that sums a tensor over a ring."""
        return ring.seconds(self.cluster, self.ring_hops(devices), size_bytes, self.ring_rounds)


class Figures(NamedTuple):
    """What `bind` needs to know.

    ``checkpoints`` are the vertices that each stage keeps, 0 its input and v its v-th layer; empty: all is kept.
    ``profile`` is the model at the micro-batch of one replica; ``samples`` the whole mini-batch; ``update_s`` replaces
    the update time that follows from memory bandwidth; ``pair_s`` is the time of a fused forward and backward where it
    was measured (else: one after the other); ``server`` is the device of the parameter server, if any.
    """

    profile: ModelProfile
    partition: Partition
    training: Training
    cluster: Cluster
    devices: tuple[str, ...]
    samples: float
    capacity_bytes: int | None = None
    update_s: float | None = None
    pair_s: float | None = None
    buckets: int = 1
    server: int | None = None
    checkpoints: Sequence[Sequence[int]] = ()
    provenance: Mapping[str, Any] = {}
    allocator: Allocation = COUNTING


def bind(work: Schedule | Program, figures: Figures) -> Binding:
    """Figures for every op and buffer of a plan. Copies of a stage have equal devices, and so equal costs."""
    seconds: dict[Cost, float] = {}
    payload: dict[Cost, float] = {}
    buffers: dict[tuple[BufferKind, int], int] = {}
    resident: list[Resident] = []
    replicas = work.shape.replicas
    shares_state = replicas > 1 and figures.training.zero > 0
    if shares_state and figures.training.zero == 3:
        figures = figures._replace(profile=zero.gathering(figures.profile, partial(_gather_s, figures)))
    for (stage, replica), device in work.placement.items():
        if not replica:
            _bind_stage(stage, device, figures, seconds, payload, buffers)
        resident += _resident(stage, device, figures, {BufferKind.WEIGHTS, BufferKind.GRADIENTS}, replicas)
        if not isinstance(work, Program) or work.update == "worker":
            resident += _resident(stage, device, figures, {BufferKind.OPTIMIZER}, replicas)
    if shares_state:
        _share_updates(figures, replicas, seconds)
    for (stage, _), device in work.forward_only.items() if isinstance(work, Schedule) else ():
        resident += _resident(stage, device, figures, {BufferKind.WEIGHTS})
    if isinstance(work, Program) and figures.server is not None:
        _bind_server(work, figures, seconds, payload, buffers, resident)
    profile, specs = figures.profile, [_spec(figures.cluster, name) for name in figures.devices]
    return Binding(
        cluster=figures.cluster,
        devices=figures.devices,
        seconds=seconds,
        payload_bytes=payload,
        buffer_bytes=buffers,
        resident=tuple(resident),
        capacity_bytes=tuple(_capacity_bytes(figures, name) for name in figures.devices),
        samples=figures.samples,
        flops=3 * total(profile.layers, "flops") / profile.batch * figures.samples,
        peak_flops_per_s=tuple(
            figures.cluster.tensor_parallel * spec.peak_flops_per_s.get(figures.training.dtype, 0.0) if spec else 0.0
            for spec in specs
        ),
        provenance=figures.provenance,
        allocator=figures.allocator,
        shares=shares(profile, figures.partition, figures.checkpoints) if figures.allocator != COUNTING else {},
        ring_rounds=1 if shares_state else ring.ALL_REDUCE,
    )


def _gather_s(figures: Figures, parameters: float) -> float:
    """Duration of gathering so many parameters, of which each replica has its share: one round of their ring."""
    size_bytes = figures.training.weight_bytes * parameters
    return ring.seconds(figures.cluster, ring.hops(figures.cluster, figures.devices), size_bytes, rounds=1)


def _share_updates(figures: Figures, replicas: int, seconds: dict[Cost, float]) -> None:
    """Under ZeRO each replica updates its share; before stage 3 all gather what the others have updated."""
    for stage, (first, last) in enumerate(figures.partition):
        update, gathered = Cost(OpKind.UPDATE, stage), figures.training.zero < 3
        after_s = _gather_s(figures, parameter_count(figures.profile, first, last)) if gathered else 0.0
        seconds[update] = seconds[update] / replicas + after_s


def _spec(cluster: Cluster, name: str) -> DeviceSpec | None:
    return cluster.node(name).spec


def _capacity_bytes(figures: Figures, name: str) -> int | None:
    """Memory of a device: what the scenario says of GPUs, else its own."""
    node = figures.cluster.node(name)
    own = node.spec.memory_bytes if node.spec else None
    return own if node.kind == "host" else figures.capacity_bytes or own


def _bind_stage(
    stage: int,
    device: int,
    figures: Figures,
    seconds: dict[Cost, float],
    payload: dict[Cost, float],
    buffers: dict[tuple[BufferKind, int], int],
) -> None:
    """Seconds, payloads and buffers of one stage."""
    first, last = figures.partition[stage]
    layers = figures.profile.layers[first : last + 1]
    parameters = parameter_count(figures.profile, first, last)
    weight_bytes = figures.training.weight_bytes * parameters
    arriving = figures.profile.layers[first - 1].output_bytes if first else figures.profile.input_bytes
    leaving = layers[-1].output_bytes
    seconds[Cost(OpKind.FORWARD, stage)] = total(layers, "forward_s")
    seconds[Cost(OpKind.BACKWARD, stage)] = total(layers, "backward_s")
    seconds[Cost(OpKind.BACKWARD_INPUT, stage)] = total(layers, "backward_input_s")
    seconds[Cost(OpKind.BACKWARD_WEIGHT, stage)] = total(layers, "backward_weight_s")
    if figures.pair_s is not None:
        seconds[Cost(OpKind.FORWARD_BACKWARD, stage)] = figures.pair_s
    seconds[Cost(OpKind.UPDATE, stage)] = _update_s(figures, device, parameters)
    payload[Cost(OpKind.SEND_ACTIVATION, stage)] = leaving
    payload[Cost(OpKind.SEND_GRADIENT, stage)] = arriving
    payload[Cost(OpKind.SEND_SAVED, stage)] = total(layers, "saved_bytes") + arriving
    payload[Cost(OpKind.ALL_REDUCE, stage)] = payload[Cost(OpKind.PULL, stage)] = weight_bytes
    if figures.buckets > 1:
        for part, (low, high) in enumerate(balanced([layer.parameter_bytes for layer in layers], figures.buckets)):
            bucket = layers[low : high + 1]
            seconds[Cost(OpKind.BACKWARD, stage, part)] = total(bucket, "backward_s")
            count = parameter_count(figures.profile, first + low, first + high)
            payload[Cost(OpKind.ALL_REDUCE, stage, part)] = figures.training.weight_bytes * count
    sizes = {
        BufferKind.ACTIVATION: total(layers, "saved_bytes"),
        BufferKind.CHECKPOINT: 0.0,
        BufferKind.WEIGHT_STATE: total(layers, "weight_state_bytes"),
        BufferKind.STASHED_WEIGHTS: weight_bytes,
        BufferKind.PREDICTED_WEIGHTS: weight_bytes,
        BufferKind.RECEIVED_ACTIVATION: arriving,
        BufferKind.INPUT_GRADIENT: arriving,
        BufferKind.OUTPUT_GRADIENT: leaving,
    }
    if figures.checkpoints:
        sizes |= _recomputing(stage, figures, seconds)
    buffers.update({(kind, stage): round(size) for kind, size in sizes.items()})


def _recomputing(stage: int, figures: Figures, seconds: dict[Cost, float]) -> dict[BufferKind, float]:
    """Seconds and buffers of a stage that keeps checkpoints: a segment at a time is recomputed and then released.

    A segment runs again whole, its last layer too, since autograd needs that layer's node; one of a single layer
    keeps what the layer saves (`sim.checkpointing.plan.of_checkpoints`).
    """
    first, last = figures.partition[stage]
    layers, kept = figures.profile.layers[first : last + 1], figures.checkpoints[stage]
    segments = [layers[start : end - 1] for start, end in pairwise(kept)]
    again = [layers[start:end] for start, end in pairwise(kept) if end - start > 1]
    seconds[Cost(OpKind.RECOMPUTE, stage)] = sum(total(segment, "forward_s") for segment in again)
    return {
        BufferKind.ACTIVATION: max((total(segment, "saved_bytes") for segment in segments), default=0.0),
        BufferKind.CHECKPOINT: sum(layers[vertex - 1].saved_bytes for vertex in kept[1:]),
    }


def parameter_count(profile: ModelProfile, first: int, last: int) -> float:
    """Parameters of the layers ``first`` to ``last``."""
    return total(profile.layers[first : last + 1], "parameter_bytes") / profile.parameter_bytes_each


def _update_s(figures: Figures, device: int, parameters: float) -> float:
    """Time of an update: the memory traffic of the optimizer at the device's bandwidth; 0 on an unknown device."""
    if figures.update_s is not None:
        return figures.update_s
    if figures.profile.update_s is not None:
        return figures.profile.update_s * parameters / parameter_count(figures.profile, 0, len(figures.profile.layers))
    spec = _spec(figures.cluster, figures.devices[device])
    return parameters * figures.training.update_bytes / effective_bytes_per_s(spec) if spec else 0.0


def effective_bytes_per_s(spec: DeviceSpec) -> float:
    """Memory bandwidth that a streaming kernel reaches."""
    return spec.memory_bytes_per_s * spec.memory_efficiency


def _resident(
    stage: int, device: int, figures: Figures, kinds: Container[BufferKind], replicas: int = 1
) -> list[Resident]:
    """Some of the weights, gradients and optimizer state of one stage on one device."""
    training, count = figures.training, parameter_count(figures.profile, *figures.partition[stage])
    layer, bucket = _at_work(stage, figures) if training.zero and replicas > 1 else (0.0, 0.0)
    sizes = {
        BufferKind.WEIGHTS: (training.weight_bytes, layer),
        BufferKind.GRADIENTS: (training.weight_bytes, bucket),
        BufferKind.OPTIMIZER: (training.optimizer_bytes, 0.0),
    }
    return [
        Resident(device, kind, stage, round(zero.held(kind, training.zero, replicas, count * size, at_work * size)))
        for kind, (size, at_work) in sizes.items()
        if kind in kinds and count * size
    ]


def _at_work(stage: int, figures: Figures) -> tuple[float, float]:
    """Parameters of the largest layer of a stage, and of its largest bucket: a layer unless there are several."""
    first, last = figures.partition[stage]
    counts = [parameter_count(figures.profile, layer, layer) for layer in range(first, last + 1)]
    if figures.buckets == 1:
        return max(counts), max(counts)
    return max(counts), max(sum(counts[low : high + 1]) for low, high in balanced(counts, figures.buckets))


def _bind_server(
    program: Program,
    figures: Figures,
    seconds: dict[Cost, float],
    payload: dict[Cost, float],
    buffers: dict[tuple[BufferKind, int], int],
    resident: list[Resident],
) -> None:
    """The parameter server of the whole model (stage 0): it keeps a sum, and where it updates, weights and state.

    On a GPU it shares the weights of the worker there.
    """
    assert figures.server is not None
    parameters = parameter_count(figures.profile, *figures.partition[0])
    weight_bytes = figures.training.weight_bytes * parameters
    spec = _spec(figures.cluster, figures.devices[figures.server])
    added = parameters * figures.training.accumulate_bytes
    seconds[Cost(OpKind.ACCUMULATE, 0)] = added / effective_bytes_per_s(spec) if spec else 0.0
    payload[Cost(OpKind.PULL, 0)] = payload[Cost(OpKind.PUSH, 0)] = weight_bytes
    buffers[BufferKind.PUSHED_GRADIENT, 0] = round(weight_bytes)
    kept = {BufferKind.GRADIENTS}
    if program.update == "server":
        seconds[Cost(OpKind.UPDATE, 0)] = _update_s(figures, figures.server, parameters)
        kept |= {BufferKind.OPTIMIZER}
        if figures.server not in program.placement.values():
            kept |= {BufferKind.WEIGHTS}
    resident += _resident(0, figures.server, figures, kept)
