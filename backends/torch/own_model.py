"""A model of the user's own: an ``nn.Sequential`` that a function of theirs makes, profiled layer by layer."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from backends.torch.job import Accelerator
from backends.torch.profiler import Profile, profile, sizes
from sim.errors import ScenarioError
from sim.training import Training


class OwnProfile(NamedTuple):
    """Times, and for each layer its name and the bytes of its output, of what it saves and of its parameters."""

    profile: Profile
    layers: list[tuple[str, int, int, int]]
    input_bytes: int


def profile_own(
    name: str, sample: tuple[int, ...], batch: int, training: Training, repeats: int, device: Accelerator
) -> OwnProfile:
    """Profile what ``module:factory`` makes, on normal noise of ``batch`` samples.

    Raises
    ------
    ScenarioError : there is no such function, or it makes no chain of layers that classifies.
    """
    layers, x = _load(name), torch.randn(batch, *sample)
    try:
        output = layers(x)
    except (RuntimeError, ValueError) as error:
        raise ScenarioError(f"{name} does not take samples of shape {sample}: {error}") from None
    if output.dim() != 2:
        raise ScenarioError(f"{name} returns a tensor of shape {tuple(output.shape)}: expected one score per class")
    bytes_of = sizes(layers, x)
    found = profile(layers, x, torch.zeros(batch, dtype=torch.int64), training, repeats, device=device)
    names = [child for child, _ in layers.named_children()]
    return OwnProfile(found, [(child, *each) for child, each in zip(names, bytes_of, strict=True)], x.nbytes)


def _load(name: str) -> nn.Sequential:
    module, _, factory = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ScenarioError(f"{name}: {error}") from None
    finally:
        sys.path.pop(0)
    if not isinstance(made, nn.Sequential) or not len(made):
        raise ScenarioError(f"{name} makes a {type(made).__name__}: expected an nn.Sequential of at least one layer")
    return made
