"""The parameters as parameter servers keep them: flat, in parts, each with its version and its momentum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from sim.errors import UnsupportedPlan
from sim.sharding import Part
from sim.training import Training


def places(model: nn.Module, parts: Sequence[Part]) -> list[Tensor]:
    """For each part the elements of all parameters, one after the other, that are in it (int64).

    Variables follow one another in the sizes of the plan: within a layer PyTorch may cut and order them otherwise.

    Raises
    ------
    UnsupportedPlan : the model has other parameters than the plan counts.
    """
    ends: dict[int, int] = {}
    for piece in (piece for part in parts for piece in part.slices):
        ends[piece.variable] = max(ends.get(piece.variable, 0), int(piece.stop))
    starts = [0, *accumulate(ends[variable] for variable in sorted(ends))]
    if starts[-1] != (count := sum(parameter.numel() for parameter in model.parameters())):
        raise UnsupportedPlan(f"the plan counts {starts[-1]} parameters, the model has {count}")
    return [
        torch.cat([torch.arange(starts[v] + int(low), starts[v] + int(high)) for v, low, high in part.slices])
        for part in parts
    ]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def shaped(values: Tensor, model: nn.Module) -> list[Tensor]:
    """What `flat` made of the parameters, in their shapes."""
    pieces = torch.split(values, [parameter.numel() for parameter in model.parameters()])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, model.parameters(), strict=True)]


class PartState:
    """One part on its server. Momentum is PyTorch's: no factor (1 − momentum)."""

    def __init__(self, values: Tensor, training: Training) -> None:
        if training.optimizer not in ("sgd", "momentum"):
            raise UnsupportedPlan(f"training.optimizer: a server applies sgd or momentum, not {training.optimizer}")
        self.values, self.version = values.clone(), 0
        self._rate = training.learning_rate
        self._momentum = training.momentum if training.optimizer == "momentum" else 0.0
        self.velocity = torch.zeros_like(values) if self._momentum else None
        self._sum: Tensor | None = None
        self._added = 0

    def apply(self, gradient: Tensor) -> None:
        """Update with one gradient."""
        if self.velocity is not None:
            gradient = self.velocity.mul_(self._momentum).add_(gradient)
        self.values.add_(gradient, alpha=-self._rate)
        self.version += 1

    def add(self, gradient: Tensor) -> None:
        """Add a gradient to those of a step."""
        self._sum = gradient.clone() if self._sum is None else self._sum.add_(gradient)
        self._added += 1

    def apply_mean(self) -> None:
        """Update with the mean of what was added."""
        assert self._sum is not None
        self.apply(self._sum.div_(self._added))
        self._sum, self._added = None, 0
