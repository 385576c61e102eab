"""What a run starts from: weights, inputs and targets, all drawn from the seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from backends.torch.modules import build
from sim.architecture import Architecture, Operation


def initial(architecture: Architecture, seed: int, dtype: torch.dtype) -> nn.Sequential:
    """The whole model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(architecture.entries).to(dtype)


def inputs(architecture: Architecture, seed: int, number: int, samples: int, dtype: torch.dtype) -> Tensor:
    """The inputs of micro-batch ``number``: standard normal, or uniform words; shape (samples, \\*input)."""
    rng, shape = np.random.default_rng([seed, number, 0]), (samples, *architecture.input)
    first = architecture.entries[0]
    if architecture.reads_words and isinstance(first, Operation):
        return torch.from_numpy(rng.integers(first.options["words"], size=shape))
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def targets(architecture: Architecture, seed: int, number: int, samples: int) -> Tensor:
    """The classes of micro-batch ``number``: uniform, shape (samples,), int64."""
    classes = architecture.entries[-1].leaving[0]
    return torch.from_numpy(np.random.default_rng([seed, number, 1]).integers(classes, size=samples))
