"""One stage on tensors: forward, backward and update, and which copy of its weights each of them uses."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from sim.training import Training


@dataclass(eq=False)
class Weights:
    """A copy of a stage's parameters; ``version`` counts the updates applied to it."""

    version: int
    tensors: list[Tensor]


class Saved(NamedTuple):
    """What backward needs of a forward: its input, its output with the graph, and the weights it ran on."""

    arrived: Tensor
    output: Tensor
    weights: Weights


class Stage:
    """Layers, live weights, and what pending backwards hold.

    A superseded version lives exactly as long as a pending backward refers to it.
    """

    def __init__(self, layers: nn.Sequential, training: Training) -> None:
        self._layers, self._training = layers, training
        self._names = [name for name, _ in layers.named_parameters()]
        self.live = Weights(0, [weight.detach().requires_grad_() for weight in layers.parameters()])
        self._velocity = [torch.zeros_like(weight) for weight in self.live.tensors]
        self.saved: dict[int, Saved] = {}
        self._gradients: dict[int, list[Tensor]] = {}
        self._copies = weakref.WeakSet([self.live])
        self.most_copies = 1

    def forward(self, micro_batch: int, arrived: Tensor, target: Tensor | None, samples: int) -> Tensor:
        """The output; given a target, the micro-batch's share of the mean loss over ``samples``."""
        named = dict(zip(self._names, self.live.tensors, strict=True))
        output: Tensor = functional_call(self._layers, named, (arrived,))
        if target is not None:
            output = cross_entropy(output, target, reduction="sum") / samples
        self.saved[micro_batch] = Saved(arrived, output, self.live)
        return output.detach()

    def backward(self, micro_batch: int, mini_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Add to the gradients of the mini-batch; the gradient of the input, where the input asks for one."""
        arrived, output, weights = self.saved.pop(micro_batch)
        passed_on = [arrived] if arrived.requires_grad else []
        found = torch.autograd.grad(output, [*passed_on, *weights.tensors], gradient)
        self._accumulate(mini_batch, found[len(passed_on) :])
        return found[0] if passed_on else None

    def _accumulate(self, mini_batch: int, gradients: Sequence[Tensor]) -> None:
        if mini_batch not in self._gradients:
            self._gradients[mini_batch] = list(gradients)
            return
        for total, gradient in zip(self._gradients[mini_batch], gradients, strict=True):
            total.add_(gradient)

    def update(self, mini_batch: int, keep: bool) -> list[Tensor]:
        """Step to the next version, on a copy if the present one is to be kept; the gradients that were applied."""
        if keep:
            self._move_to_copy()
        gradients = self._gradients.pop(mini_batch)
        for weight, velocity, gradient in zip(self.live.tensors, self._velocity, gradients, strict=True):
            step = gradient
            if self._training.optimizer == "momentum":  # PyTorch's convention: no factor (1 − momentum)
                step = velocity.mul_(self._training.momentum).add_(gradient)
            # By .data autograd does not see the overwriting: under weights latest a pending backward is to read it.
            weight.data.add_(step, alpha=-self._training.learning_rate)
        self.live.version += 1
        return gradients

    def _move_to_copy(self) -> None:
        tensors = [weight.detach().clone().requires_grad_() for weight in self.live.tensors]
        self.live = Weights(self.live.version, tensors)
        self._copies.add(self.live)
        self.most_copies = max(self.most_copies, len(self._copies))
