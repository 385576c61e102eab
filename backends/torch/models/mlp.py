"""The fully connected net of ``scenarios/models/mlp.yaml``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from backends.torch.models import Model

if TYPE_CHECKING:
    from torch import nn

WIDTHS = (64, 256, 256, 256, 256, 10)
"""Elements of the input and of the output of each linear layer; a ReLU between every two."""


def build() -> nn.Sequential:
    """The layers, one entry for each layer of the model file."""
    from torch import nn

    layers: list[nn.Module] = []
    for arriving, leaving in pairwise(WIDTHS):
        layers += [nn.Linear(arriving, leaving), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODEL = Model(layers=2 * (len(WIDTHS) - 1) - 1, sample=WIDTHS[:1], classes=WIDTHS[-1], build=build)
