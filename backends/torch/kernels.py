"""What the ops of one device mean: which tensors they take and leave, and a check of the weights they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backends.torch.data import initial, inputs, targets
from backends.torch.job import Arrays, Done, Job
from backends.torch.models import load
from backends.torch.stage import Stage
from sim.errors import BrokenInvariant
from sim.ops import OpKind

Name = tuple[int, int, int]
"""Kind, stage and micro-batch of a transfer."""


class Kernels:
    """The stages of one device, and the tensors that wait there for an op.

    The mail holds what a transfer carries under the transfer's name, at its source before and at its target after it;
    between two stages on one device tensors are handed over the same way.
    """

    def __init__(self, job: Job, device: int) -> None:
        self._job, self._ops, self._shape = job, job.schedule.ops, job.schedule.shape
        self._model = load(job.model)
        self._mail: dict[Name, Tensor] = {}
        self._kept: dict[tuple[int, int], Arrays] = {}
        backward = self._ops[self._ops["kind"] == OpKind.BACKWARD]
        columns = backward[["stage", "micro_batch", "reads"]].tolist()
        self._backward_reads = {(stage, micro_batch): version for stage, micro_batch, version in columns}
        whole = initial(job.model, job.seed)
        self._stages: dict[int, Stage] = {}
        for stage in np.unique(backward["stage"][backward["source"] == device]).tolist():
            first, last = job.partition[stage]
            self._stages[stage] = Stage(nn.Sequential(*list(whole)[first : last + 1]), job.training)
        self._arriving = _rehearse(whole, self._model.sample)
        whole.to("meta")  # no data: the stages have their weights, and nothing else shall keep a version alive

    def compute(self, op: int) -> None:
        """Do an op of the compute lane.

        Raises
        ------
        BrokenInvariant : the weights at hand are not of the version that the schedule says.
        """
        row = self._ops[op]
        kernels = {OpKind.FORWARD: self._forward, OpKind.BACKWARD: self._backward, OpKind.UPDATE: self._update}
        kernels[OpKind(int(row["kind"]))](row, int(row["stage"]), int(row["micro_batch"]))

    def _forward(self, row: Any, stage: int, micro_batch: int) -> None:
        job, at = self._job, self._stages[stage]
        _check(at.live.version, row["reads"])
        if stage:
            arrived = self._mail.pop((OpKind.SEND_ACTIVATION, stage - 1, micro_batch)).requires_grad_()
        else:
            arrived = inputs(job.seed, micro_batch, job.samples, self._model.sample)
        target = targets(job.seed, micro_batch, job.samples, self._model.classes) if self._is_last(stage) else None
        output = at.forward(micro_batch, arrived, target, job.samples * self._shape.micro_batches)
        if not self._is_last(stage):
            self._mail[OpKind.SEND_ACTIVATION, stage, micro_batch] = output

    def _backward(self, row: Any, stage: int, micro_batch: int) -> None:
        at = self._stages[stage]
        _check(at.saved[micro_batch].weights.version, row["reads"])
        gradient = None if self._is_last(stage) else self._mail.pop((OpKind.SEND_GRADIENT, stage + 1, micro_batch))
        passed_on = at.backward(micro_batch, micro_batch // self._shape.micro_batches, gradient)
        if passed_on is not None:
            self._mail[OpKind.SEND_GRADIENT, stage, micro_batch] = passed_on

    def _update(self, row: Any, stage: int, mini_batch: int) -> None:
        at = self._stages[stage]
        pending = {self._backward_reads[stage, micro_batch] for micro_batch in at.saved}
        gradients = at.update(mini_batch, keep=at.live.version in pending)
        _check(at.live.version, row["writes"])
        if self._job.keep_gradients:
            self._kept[stage, mini_batch] = tuple(gradient.numpy() for gradient in gradients)

    def _is_last(self, stage: int) -> bool:
        return stage == self._shape.stages - 1

    def _name(self, op: int) -> Name:
        row = self._ops[op]
        return int(row["kind"]), int(row["stage"]), int(row["micro_batch"])

    def outgoing(self, op: int) -> Tensor:
        """The tensor that a transfer takes away."""
        return self._mail.pop(self._name(op)).contiguous()

    def room(self, op: int) -> Tensor:
        """An empty tensor for what a transfer brings."""
        kind, stage, _ = self._name(op)
        first, _ = self._job.partition[stage + 1 if kind == OpKind.SEND_ACTIVATION else stage]
        return torch.empty(self._job.samples, *self._arriving[first], dtype=torch.float64)

    def arrived(self, op: int, tensor: Tensor) -> None:
        """Take in what a transfer brought."""
        self._mail[self._name(op)] = tensor

    def results(self) -> Done:
        """What is left at the end."""
        weights = {
            stage: tuple(weight.detach().numpy() for weight in at.live.tensors) for stage, at in self._stages.items()
        }
        return Done(self._kept, weights, {stage: at.most_copies for stage, at in self._stages.items()})


def _rehearse(whole: nn.Sequential, sample: tuple[int, ...]) -> list[torch.Size]:
    """Pass one sample forward and backward, so that no op of the run pays for what PyTorch loads on first use.

    Returns the shape of what enters each layer, without its batch. Meta tensors would tell it too, but load far more.
    """
    passing = torch.zeros(1, *sample, dtype=torch.float64)
    shapes: list[torch.Size] = []
    for layer in whole:
        shapes.append(passing.shape[1:])
        passing = layer(passing)
    torch.autograd.grad(passing, list(whole.parameters()), torch.ones_like(passing))
    return shapes


def _check(version: int, planned: int) -> None:
    if version != planned:
        raise BrokenInvariant(f"weights of version {version} are at hand, the schedule says {planned}")
