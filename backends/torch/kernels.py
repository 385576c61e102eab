"""What the ops of some devices mean: which tensors they take and leave, and the version of the weights they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backends.torch.data import Batches, Blank, initial
from backends.torch.fingerprint import device_of
from backends.torch.job import Arrays, Done, Job
from backends.torch.live_bytes import LiveBytes
from backends.torch.stage import Stage
from backends.torch.weights import VersionedWeights
from sim.memory.history import INPUT, WEIGHTS
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.partition import balanced

Name = tuple[int, int, int, int]
"""Kind, stage, micro-batch and pipeline of a transfer."""

Weights = Sequence[Tensor]


class Kernels:
    """The stages of some devices (a worker's one, or all of a plan), and the tensors that wait there for an op.

    The mail holds what a transfer carries under the transfer's name, at its source before and at its target after it;
    between two stages on one device tensors are handed over the same way.
    """

    def __init__(self, job: Job, devices: Sequence[int]) -> None:
        self._job, self._ops, self._shape, self._devices = job, job.schedule.ops, job.schedule.shape, devices
        self._dtype = torch.float32 if job.arithmetic == "float32" else torch.float64
        self.where = device_of(job.accelerator, job.devices.index(devices[0]))
        self._batches: Batches | Blank = Blank(job.architecture, job.samples, self._dtype)
        if job.accelerator != "meta":
            self._batches = Batches(job.architecture, job.training.task, job.seed, job.samples, self._dtype)
        self._mail: dict[Name, Tensor] = {}
        self._kept: dict[tuple[int, int, int], Arrays] = {}
        self._losses: dict[tuple[int, int], float] = {}
        self._predicted: dict[tuple[int, int, int], Weights] = {}
        self._predicted_for: dict[tuple[int, int, int], tuple[int, Weights]] = {}
        with torch.device("meta" if job.accelerator == "meta" else "cpu"):
            whole = initial(job.architecture, job.seed, self._dtype)
        mine = {name for name, device in job.schedule.placement.items() if device in devices}
        self._stages = {name: self._make_stage(name, whole) for name in sorted(mine)}
        self._arriving = _rehearse(whole, self._batches.inputs(0)[:2])
        for parameter in whole.parameters():  # stages have their weights; nothing else shall keep a version alive
            parameter.data = parameter.data.new_empty(0)
        whole.to(self.where)
        self._live = LiveBytes() if job.count_memory else None
        if self._live is not None:
            self._live.name([weight for at in self._stages.values() for weight in at.weights.live], WEIGHTS)

    def _make_stage(self, name: tuple[int, int], whole: nn.Sequential) -> Stage:
        job, (stage, replica) = self._job, name
        first, last = job.partition[stage]
        layers = nn.Sequential(*list(whole)[first : last + 1])
        _, back = job.schedule.distances[stage] if job.schedule.distances else (0, 0)
        weights = VersionedWeights(
            [parameter.detach().to(self.where) for parameter in layers.parameters()],
            job.training,
            self._readers(stage, replica),
            -back if job.schedule.predict == "pipemare" else 0,
        )
        return Stage(layers, self._cuts(stage, layers), bool(job.checkpoints), weights)

    def _cuts(self, stage: int, layers: nn.Sequential) -> list[int]:
        """Where the graph is cut: between buckets, at checkpoints, or, where backward is split, between all layers."""
        if self._job.checkpoints:
            return [vertex for vertex in self._job.checkpoints[stage] if 0 < vertex < len(layers)]
        if self._job.buckets > 1:
            sizes = [float(sum(weight.numel() for weight in layer.parameters())) for layer in layers]
            return [first for first, _ in balanced(sizes, self._job.buckets)[1:]]
        split = (self._ops["kind"] == OpKind.BACKWARD_WEIGHT) & (self._ops["stage"] == stage)
        return list(range(1, len(layers))) if split.any() else []

    def _readers(self, stage: int, replica: int) -> Counter[int]:
        """How many passes read each version of a set of weights; a pass with a prediction of its forward's none."""
        ops, halves = self._ops, self._job.schedule.halves
        kinds = np.isin(ops["kind"], (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE))
        rows = np.flatnonzero(kinds & (ops["stage"] == stage) & (ops["replica"] == replica))
        pairs = np.flatnonzero(ops["kind"] == OpKind.FORWARD_BACKWARD)
        other, _, copy = halves.backward_of(pairs)
        rows = np.concatenate([rows, pairs[(other == stage) & (copy == replica)]])
        return Counter(
            int(ops["reads"][op])
            for op in rows.tolist()
            if not (self._follows_forward(stage) and int(ops["kind"][op]) in BACKWARD_KINDS)
        )

    def _follows_forward(self, stage: int) -> bool:
        """Whether the backwards of a stage compute with the very copy that their forward predicted (PipeOptim)."""
        return self._job.schedule.predict == "pipeoptim" and self._job.schedule.distances[stage][0] != 0

    def compute(self, op: int) -> None:
        """Do an op of a compute lane, and count what lives if that is wanted.

        Raises
        ------
        BrokenInvariant : the weights at hand are not of the version that the schedule says.
        """
        with self._live or nullcontext():
            self._compute(op)

    def _compute(self, op: int) -> None:
        row = self._ops[op]
        kind, stage, micro_batch = OpKind(int(row["kind"])), int(row["stage"]), int(row["micro_batch"])
        replica, version = int(row["replica"]), int(row["reads"])
        if kind is OpKind.UPDATE:
            self._update(stage, micro_batch, replica)
            return
        if kind in FORWARD_KINDS:
            self._forward(stage, micro_batch, replica, version)
        if kind is OpKind.FORWARD_BACKWARD:
            index = np.array([op])
            stage, micro_batch, replica = (int(name[0]) for name in self._job.schedule.halves.backward_of(index))
        if kind not in FORWARD_KINDS or kind is OpKind.FORWARD_BACKWARD:
            kind = OpKind.BACKWARD if kind is OpKind.FORWARD_BACKWARD else kind
            self._back(kind, stage, micro_batch, replica, version, int(row["part"]))

    def _weights(self, kind: OpKind, stage: int, micro_batch: int, replica: int, version: int) -> Weights:
        """What a pass computes with: a version, or where updates will have taken it."""
        weights, schedule = self._stages[stage, replica].weights, self._job.schedule
        side = 0 if kind in FORWARD_KINDS else 1
        updates = schedule.distances[stage][side] if schedule.distances else 0
        if not updates:
            return weights.at(version)
        if schedule.predict == "xpipe":
            return self._shared(side, stage, replica, micro_batch // self._shape.micro_batches, version, updates)
        if not self._follows_forward(stage):
            return weights.ahead(version, updates)
        name = stage, replica, micro_batch
        if not side:
            self._predicted[name] = weights.ahead(version, updates)
        return self._predicted[name] if kind is not OpKind.BACKWARD else self._predicted.pop(name)

    def _shared(self, side: int, stage: int, replica: int, mini_batch: int, version: int, updates: int) -> Weights:
        """The prediction of the first micro-batch of a mini-batch, for all of them."""
        known = self._predicted_for.get((side, stage, replica))
        if known is None or known[0] != mini_batch:
            known = mini_batch, self._stages[stage, replica].weights.ahead(version, updates)
            self._predicted_for[side, stage, replica] = known
        return known[1]

    def _forward(self, stage: int, micro_batch: int, replica: int, version: int) -> None:
        job, at = self._job, self._stages[stage, replica]
        number = micro_batch * self._shape.replicas + self._pipeline(replica)
        if stage:
            arrived = self._mail.pop((OpKind.SEND_ACTIVATION, stage - 1, micro_batch, self._pipeline(replica)))
            arrived.requires_grad_()
        else:
            arrived = self._batches.inputs(number).to(self.where)
        weights = self._weights(OpKind.FORWARD, stage, micro_batch, replica, version)
        if stage < self._shape.stages - 1:
            output = at.forward(micro_batch, arrived, weights, None)
            self._mail[OpKind.SEND_ACTIVATION, stage, micro_batch, self._pipeline(replica)] = output
        else:
            target = self._batches.targets(number).to(self.where)
            loss = at.forward(
                micro_batch, arrived, weights, lambda out: cross_entropy(out, target, reduction="sum") / job.batch
            )
            if not loss.is_meta:
                self._losses[micro_batch, self._pipeline(replica)] = float(loss)
        at.weights.release(version)

    def _back(self, kind: OpKind, stage: int, micro_batch: int, replica: int, version: int, part: int) -> None:
        at, update = self._stages[stage, replica], int(self._shape.update_of(stage, micro_batch))
        if kind is OpKind.BACKWARD_WEIGHT:
            at.backward_weight(micro_batch, update, at.weights.at(version))
        else:
            weights = self._weights(kind, stage, micro_batch, replica, version)
            if kind is OpKind.RECOMPUTE:
                at.recompute(micro_batch, weights)
            else:
                self._backward(kind, (stage, micro_batch, replica), update, weights, part)
        if not self._follows_forward(stage):
            at.weights.release(version)

    def _backward(self, kind: OpKind, name: tuple[int, int, int], update: int, weights: Weights, part: int) -> None:
        stage, micro_batch, replica = name
        at, pipeline = self._stages[stage, replica], self._pipeline(replica)
        gradient = None
        if stage < self._shape.stages - 1:
            gradient = self._mail.pop((OpKind.SEND_GRADIENT, stage + 1, micro_batch, pipeline))
        if kind is OpKind.BACKWARD_INPUT:
            passed_on = at.backward_input(micro_batch, gradient, weights)
        else:
            passed_on = at.backward(micro_batch, update, gradient, weights, 1 if part >= 0 else None)
        if passed_on is not None and stage:
            self._mail[OpKind.SEND_GRADIENT, stage, micro_batch, pipeline] = passed_on

    def _update(self, stage: int, update: int, replica: int) -> None:
        gradients = self._stages[stage, replica].update(update)
        if self._job.keep_gradients:
            self._kept[stage, replica, update] = tuple(gradient.cpu().numpy().copy() for gradient in gradients)

    def _pipeline(self, replica: int) -> int:
        """Which of several whole pipelines a set of weights belongs to; copies of a stage share one."""
        return replica if self._shape.replicas > 1 else 0

    def _name(self, op: int) -> Name:
        row = self._ops[op]
        return int(row["kind"]), int(row["stage"]), int(row["micro_batch"]), self._pipeline(int(row["replica"]))

    def outgoing(self, op: int) -> Tensor:
        """The tensor that a transfer takes away."""
        return self._mail.pop(self._name(op)).contiguous()

    def room(self, op: int) -> Tensor:
        """An empty tensor for what a transfer brings."""
        kind, stage, _, _ = self._name(op)
        first, _ = self._job.partition[stage + 1 if kind == OpKind.SEND_ACTIVATION else stage]
        return torch.empty(self._job.samples, *self._arriving[first], dtype=self._dtype, device=self.where)

    def arrived(self, op: int, tensor: Tensor) -> None:
        """Take in what a transfer brought."""
        self._mail[self._name(op)] = tensor
        if self._live is not None:
            self._live.name([tensor], INPUT)

    def addends(self, op: int) -> list[list[Tensor]]:
        """What an all-reduce adds up: for each set of weights that is here, its gradients, to be overwritten."""
        row = self._ops[op]
        stage, update, part = (int(row[name]) for name in ("stage", "micro_batch", "part"))
        return [at.bucket(update, part) for name, at in self._stages.items() if name[0] == stage]

    def results(self) -> Done:
        """What is left at the end."""
        weights = {
            name: tuple(weight.detach().cpu().numpy() for weight in at.weights.live)
            for name, at in self._stages.items()
        }
        copies = {name: at.weights.most_copies for name, at in self._stages.items()}
        peaks = {} if self._live is None else {self._devices[0]: self.peak_bytes}
        return Done(self._kept, weights, copies, self._losses, peaks)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at once, where they were counted."""
        assert self._live is not None
        return self._live.history.peak().bytes


def _rehearse(whole: nn.Sequential, sample: Tensor) -> list[torch.Size]:
    """Pass samples forward and backward, so that no op of the run pays for what PyTorch loads on first use.

    Returns the shape of what enters each layer, without its batch. Meta tensors would tell it too, but load far more.
    """
    shapes: list[torch.Size] = []
    passing = sample
    for layer in whole:
        shapes.append(passing.shape[1:])
        passing = layer(passing)
    torch.autograd.grad(passing, list(whole.parameters()), torch.ones_like(passing))
    return shapes
