"""What a run starts from: weights, inputs and targets, all drawn from the seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from backends.torch.models import load


def initial(model: str, seed: int) -> nn.Sequential:
    """The whole model in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return load(model).build().double()


def inputs(seed: int, micro_batch: int, samples: int, sample: tuple[int, ...]) -> Tensor:
    """The inputs of a micro-batch: standard normal, shape (samples, \\*sample), float64."""
    return torch.from_numpy(np.random.default_rng([seed, micro_batch, 0]).standard_normal((samples, *sample)))


def targets(seed: int, micro_batch: int, samples: int, classes: int) -> Tensor:
    """The classes of a micro-batch: uniform, shape (samples,), int64."""
    return torch.from_numpy(np.random.default_rng([seed, micro_batch, 1]).integers(classes, size=samples))
