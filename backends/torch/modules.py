"""A structure as real modules: one for each entry, in the order of the model file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sim.architecture import Block, Entry, Operation


class Joined(nn.Module):
    """Branches that read one input, added or side by side."""

    def __init__(self, join: str, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.join, self.branches = join, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Run the branches one after the other and join their ends."""
        ends = [branch(x) for branch in self.branches]
        if self.join == "concat":
            return torch.cat(ends, dim=2 if x.dim() == 3 else 1)
        total: Tensor = ends[0]
        for end in ends[1:]:
            total = total.add_(end) if self.join == "add_in_place" else total + end
        return total


class Mean(nn.Module):
    """The mean over the places of an image or the positions of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep batch and channels."""
        return x.mean(dim=(2, 3)) if x.dim() == 4 else x.mean(dim=1)


class PositionEmbedding(nn.Module):
    """A learned vector added at each position."""

    def __init__(self, positions: int, features: int, in_place: bool) -> None:
        super().__init__()
        self.vectors, self.in_place = nn.Parameter(torch.zeros(positions, features)), in_place

    def forward(self, x: Tensor) -> Tensor:
        """Add the vectors."""
        return x.add_(self.vectors) if self.in_place else x + self.vectors


class SelfAttention(nn.Module):
    """Scaled dot-product attention over several heads (Vaswani et al. 2017), its probabilities written to memory."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(features, features) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Project, attend within each head, project."""
        query, key, value = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        none = torch.empty(1, dtype=x.dtype, device=x.device)
        scores = torch.baddbmm(none, query, key.mT, beta=0, alpha=query.shape[-1] ** -0.5)
        mixed = torch.bmm(scores.softmax(dim=-1), value)
        together: Tensor = self.out(mixed.view(len(x), self.heads, *mixed.shape[1:]).transpose(1, 2).flatten(2))
        return together

    def _split(self, x: Tensor) -> Tensor:
        """Batch × positions × features to (batch · heads) × positions × features of a head."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2).flatten(0, 1)


LSTM = 2
"""oneDNN's number of that kind of cell."""


class Recurrent(nn.LSTM):
    """A layer of long short-term memory whose output is its hidden states."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The hidden state of every step."""
        states: Tensor = super().forward(x)[0] if not x.is_meta else self._as_on_the_cpu(x)
        return states

    def _as_on_the_cpu(self, x: Tensor) -> Tensor:
        """Which calls oneDNN; on the meta device PyTorch would take the steps one by one."""
        state = [x.new_zeros(1, len(x), self.hidden_size) for _ in range(2)]
        weights = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
        how: tuple[Any, ...] = False, [], LSTM, self.hidden_size, 1, True, False, False
        steps = x.transpose(0, 1).contiguous()
        found = torch.ops.aten.mkldnn_rnn_layer(steps, *weights, *state, *how, self.training)
        states: Tensor = found[0].transpose(0, 1)
        return states


def _conv(op: Operation) -> nn.Module:
    options, channels = op.options, op.arriving[0]
    window = {key: options[key] for key in ("stride", "padding", "groups", "bias")}
    return nn.Conv2d(channels, options["out"], options["kernel"], **window)


def _pool(make: Callable[..., nn.Module]) -> Callable[[Operation], nn.Module]:
    return lambda op: make(op.options["kernel"], op.options["stride"], op.options["padding"])


def _batch_norm(op: Operation) -> nn.Module:
    return nn.BatchNorm2d(op.arriving[0]) if len(op.arriving) == 3 else nn.BatchNorm1d(op.arriving[0])


MODULES: dict[str, Callable[[Operation], nn.Module]] = {
    "conv": _conv,
    "linear": lambda op: nn.Linear(op.arriving[-1], op.options["out"], op.options["bias"]),
    "max_pool": _pool(nn.MaxPool2d),
    "avg_pool": _pool(nn.AvgPool2d),
    "adaptive_avg_pool": lambda op: nn.AdaptiveAvgPool2d(op.options["out"]),
    "global_avg_pool": lambda op: Mean(),
    "relu": lambda op: nn.ReLU(op.in_place),
    "selu": lambda op: nn.SELU(op.in_place),
    "dropout": lambda op: nn.Dropout(op.options["probability"]),
    "flatten": lambda op: nn.Flatten(),
    "batch_norm": _batch_norm,
    "layer_norm": lambda op: nn.LayerNorm(op.arriving[-1]),
    "embedding": lambda op: nn.Embedding(op.options["words"], op.options["out"]),
    "position_embedding": lambda op: PositionEmbedding(op.arriving[0], op.arriving[1], op.in_place),
    "self_attention": lambda op: SelfAttention(op.arriving[1], op.options["heads"]),
    "lstm": lambda op: Recurrent(op.arriving[1], op.options["hidden"], batch_first=True),
}
"""The module of each kind of layer."""


def build(entries: Sequence[Entry]) -> nn.Sequential:
    """Fresh modules with PyTorch's default initialisation."""
    return nn.Sequential(*(_module(entry) for entry in entries))


def _module(entry: Entry) -> nn.Module:
    if isinstance(entry, Block):
        return Joined(entry.join, [build(branch) for branch in entry.branches])
    return MODULES[entry.kind](entry)
