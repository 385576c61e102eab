"""What forward, backward and update mean on tensors, and which weights each of them uses."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from backends.torch import models
from backends.torch.job import Arrays, Done, Job
from sim.errors import BrokenInvariant
from sim.ops import OpKind
from sim.training import Training


def inputs(seed: int, micro_batch: int, samples: int, sample: tuple[int, ...]) -> Tensor:
    """The inputs of a micro-batch, shape (samples, \\*sample), standard normal."""
    return torch.from_numpy(np.random.default_rng([seed, micro_batch, 0]).standard_normal((samples, *sample)))


def targets(seed: int, micro_batch: int, samples: int, classes: int) -> Tensor:
    """The classes of a micro-batch, shape (samples,)."""
    return torch.from_numpy(np.random.default_rng([seed, micro_batch, 1]).integers(classes, size=samples))


def initial(model: str, seed: int) -> nn.Sequential:
    """The whole model in float64, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.load(model).build().double()


@dataclass(eq=False)
class Weights:
    """A copy of a stage's parameters; ``version`` counts the updates applied to it."""

    version: int
    tensors: list[Tensor]


class Saved(NamedTuple):
    """What backward needs of a forward: input, output with its graph, and the weights it ran on."""

    arrived: Tensor
    output: Tensor
    weights: Weights


class Stage:
    """One stage: its layers, its live weights, and what its pending backwards still hold.

    A superseded version lives exactly as long as a pending backward refers to it.
    """

    def __init__(self, layers: nn.Sequential, training: Training) -> None:
        self.layers, self.training = layers, training
        self.names = [name for name, _ in layers.named_parameters()]
        self.live = Weights(0, [weight.detach().requires_grad_() for weight in layers.parameters()])
        self.velocity = [torch.zeros_like(weight) for weight in self.live.tensors]
        self.saved: dict[int, Saved] = {}
        self.gradients: dict[int, list[Tensor]] = {}
        self.copies, self.most_copies = weakref.WeakSet([self.live]), 1

    def forward(self, micro_batch: int, arrived: Tensor, target: Tensor | None, samples: int) -> Tensor:
        """The output, or, given a target, the micro-batch's share of the mean loss over ``samples``."""
        named = dict(zip(self.names, self.live.tensors, strict=True))
        output: Tensor = functional_call(self.layers, named, (arrived,))
        if target is not None:
            output = cross_entropy(output, target, reduction="sum") / samples
        self.saved[micro_batch] = Saved(arrived, output, self.live)
        return output.detach()

    def backward(self, micro_batch: int, mini_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Add to the gradients of the mini-batch; the gradient of the input where that came from another stage."""
        arrived, output, weights = self.saved.pop(micro_batch)
        passes_on = [arrived] if arrived.requires_grad else []
        found = torch.autograd.grad(output, [*passes_on, *weights.tensors], gradient)
        own = list(found[len(passes_on) :])
        for total, part in zip(self.gradients.setdefault(mini_batch, own), own, strict=True):
            if total is not part:
                total.add_(part)
        return found[0] if passes_on else None

    def update(self, mini_batch: int, keep: bool) -> list[Tensor]:
        """Step to the next version, on a copy where the present one is to be kept; the gradients applied."""
        gradients = self.gradients.pop(mini_batch)
        if keep:
            self.live = Weights(self.live.version, [weight.detach().clone() for weight in self.live.tensors])
            self.copies.add(self.live)
            self.most_copies = max(self.most_copies, len(self.copies))
        for weight, velocity, gradient in zip(self.live.tensors, self.velocity, gradients, strict=True):
            if self.training.optimizer == "momentum":  # PyTorch's convention: no (1 − momentum)
                gradient = velocity.mul_(self.training.momentum).add_(gradient)
            # Through .data, which autograd does not watch: under weights latest a pending backward means to read these.
            weight.requires_grad_().data.add_(gradient, alpha=-self.training.learning_rate)
        self.live.version += 1
        return gradients


class Kernels:
    """The stages of one device, and the tensors that wait there for an op.

    ``mail[SEND_ACTIVATION, k, j]`` is what the transfer of that name carries, at its source before and at its target
    after; between stages on one device it is handed over the same way.
    """

    def __init__(self, job: Job, device: int) -> None:
        self.job, self.ops, self.shape = job, job.schedule.ops, job.schedule.shape
        self.model = models.load(job.model)
        self.mail: dict[tuple[int, int, int], Tensor] = {}
        self.kept: dict[tuple[int, int], Arrays] = {}
        backward = self.ops[self.ops["kind"] == OpKind.BACKWARD]
        self.backward_reads = dict(
            zip(zip(backward["stage"].tolist(), backward["micro_batch"].tolist()), backward["reads"].tolist())
        )
        whole = initial(job.model, job.seed)
        self.stages: dict[int, Stage] = {}
        for stage in np.unique(backward["stage"][backward["source"] == device]).tolist():
            first, last = job.partition[stage]
            self.stages[stage] = Stage(whole[first : last + 1], job.training)
        whole.to("meta")  # shapes only: the stages have their weights, and nothing else must keep a copy alive
        self.boundaries = self._boundaries(whole)

    def _boundaries(self, whole: nn.Sequential) -> list[torch.Size]:
        """The shape of what enters each layer."""
        passing = torch.empty(self.job.samples, *self.model.sample, dtype=torch.float64, device="meta")
        shapes: list[torch.Size] = []
        for layer in whole:
            shapes.append(passing.shape)
            passing = layer(passing)
        return shapes

    def compute(self, op: int) -> None:
        """Do an op of the compute lane.

        Raises
        ------
        BrokenInvariant : the weights at hand are not the version that the schedule says.
        """
        row = self.ops[op]
        kind, stage, number = (int(row[name]) for name in ("kind", "stage", "micro_batch"))
        _KERNELS[OpKind(kind)](self, row, self.stages[stage], stage, number)

    def _forward(self, row: Any, at: Stage, stage: int, micro_batch: int) -> None:
        self._check(row["reads"], at.live.version)
        job, last = self.job, stage == self.shape.stages - 1
        if stage:
            arrived = self.mail.pop((OpKind.SEND_ACTIVATION, stage - 1, micro_batch)).requires_grad_()
        else:
            arrived = inputs(job.seed, micro_batch, job.samples, self.model.sample)
        target = targets(job.seed, micro_batch, job.samples, self.model.classes) if last else None
        output = at.forward(micro_batch, arrived, target, job.samples * self.shape.micro_batches)
        if not last:
            self.mail[OpKind.SEND_ACTIVATION, stage, micro_batch] = output

    def _backward(self, row: Any, at: Stage, stage: int, micro_batch: int) -> None:
        self._check(row["reads"], at.saved[micro_batch].weights.version)
        last = stage == self.shape.stages - 1
        gradient = None if last else self.mail.pop((OpKind.SEND_GRADIENT, stage + 1, micro_batch))
        passed_on = at.backward(micro_batch, micro_batch // self.shape.micro_batches, gradient)
        if passed_on is not None:
            self.mail[OpKind.SEND_GRADIENT, stage, micro_batch] = passed_on

    def _update(self, row: Any, at: Stage, stage: int, mini_batch: int) -> None:
        pending = {self.backward_reads[stage, micro_batch] for micro_batch in at.saved}
        gradients = at.update(mini_batch, keep=at.live.version in pending)
        self._check(row["writes"], at.live.version)
        if self.job.keep_gradients:
            self.kept[stage, mini_batch] = tuple(gradient.numpy() for gradient in gradients)

    def _check(self, planned: int, version: int) -> None:
        if version != planned:
            raise BrokenInvariant(f"weights of version {version} at hand where the schedule says {planned}")

    def outgoing(self, op: int) -> Tensor:
        """The tensor that a transfer takes away."""
        return self.mail.pop(self._name(op)).contiguous()

    def room(self, op: int) -> Tensor:
        """An empty tensor for what a transfer brings."""
        kind, stage, _ = self._name(op)
        first = self.job.partition[stage + 1 if kind == OpKind.SEND_ACTIVATION else stage][0]
        return torch.empty(self.boundaries[first], dtype=torch.float64)

    def arrived(self, op: int, tensor: Tensor) -> None:
        """Take in what a transfer brought."""
        self.mail[self._name(op)] = tensor

    def _name(self, op: int) -> tuple[int, int, int]:
        row = self.ops[op]
        return int(row["kind"]), int(row["stage"]), int(row["micro_batch"])

    def results(self) -> Done:
        """What is left at the end."""
        weights = {
            stage: tuple(weight.detach().numpy() for weight in at.live.tensors) for stage, at in self.stages.items()
        }
        return Done(self.kept, weights, {stage: at.most_copies for stage, at in self.stages.items()})


_KERNELS = {OpKind.FORWARD: Kernels._forward, OpKind.BACKWARD: Kernels._backward, OpKind.UPDATE: Kernels._update}
