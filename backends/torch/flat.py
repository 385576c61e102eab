"""Several tensors as one, for a collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements one after the other, in the memory of the host."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()


def unflatten(values: Tensor, tensors: Sequence[Tensor]) -> None:
    """Overwrite the tensors with what `flat` made of them."""
    parts = torch.split(values, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
