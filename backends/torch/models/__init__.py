"""Real modules by model name: a file of this folder with an attribute ``MODEL``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class Model(NamedTuple):
    """A classifier as a chain of layers.

    ``layers`` counts them, ``sample`` is the shape of one input, ``classes`` the width of the output; ``build`` makes
    a fresh module with PyTorch's default initialisation.
    """

    layers: int
    sample: tuple[int, ...]
    classes: int
    build: Callable[[], nn.Sequential]


def names() -> list[str]:
    """The models there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Model:
    """The model of that name, one of `names`; does not import torch."""
    model: Model = importlib.import_module(f"{__name__}.{name}").MODEL
    return model
