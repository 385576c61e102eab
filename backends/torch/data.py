"""What a run starts from: weights drawn from the seed, and batches of a task, or of noise drawn from the seed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backends.torch import tasks
from backends.torch.modules import build
from sim.architecture import Architecture, Operation
from sim.errors import UnsupportedPlan


def initial(architecture: Architecture, seed: int, dtype: torch.dtype) -> nn.Sequential:
    """The whole model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(architecture.entries).to(dtype)


def inputs(architecture: Architecture, seed: int, number: int, samples: int, dtype: torch.dtype) -> Tensor:
    """Noise as micro-batch ``number``: standard normal, or uniform words; shape (samples, \\*input)."""
    rng, shape = np.random.default_rng([seed, number, 0]), (samples, *architecture.input)
    first = architecture.entries[0]
    if architecture.reads_words and isinstance(first, Operation):
        return torch.from_numpy(rng.integers(first.options["words"], size=shape))
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def targets(architecture: Architecture, seed: int, number: int, samples: int) -> Tensor:
    """The classes of noise: uniform, shape (samples,), int64."""
    classes = architecture.entries[-1].leaving[0]
    return torch.from_numpy(np.random.default_rng([seed, number, 1]).integers(classes, size=samples))


class Batches:
    """Micro-batches by number: of a task, each epoch in an order of its own, or of noise where ``task`` is empty.

    Raises
    ------
    UnsupportedPlan : the task has other inputs or more classes than the model.
    """

    def __init__(self, architecture: Architecture, task: str, seed: int, samples: int, dtype: torch.dtype) -> None:
        self._architecture, self._seed, self._samples, self._dtype = architecture, seed, samples, dtype
        self._task = tasks.load(task) if task else None
        if self._task is not None:
            _check(architecture, task, self._task)

    def inputs(self, number: int) -> Tensor:
        """What a micro-batch puts in."""
        if self._task is None:
            return inputs(self._architecture, self._seed, number, self._samples, self._dtype)
        return self._tensor(self._task.inputs[self._rows(number, len(self._task.targets))])

    def targets(self, number: int) -> Tensor:
        """The classes it should give."""
        if self._task is None:
            return targets(self._architecture, self._seed, number, self._samples)
        return torch.from_numpy(self._task.targets[self._rows(number, len(self._task.targets))])

    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and classes that no micro-batch has."""
        assert self._task is not None
        return self._tensor(self._task.test_inputs), torch.from_numpy(self._task.test_targets)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        shaped = torch.from_numpy(values.reshape(-1, *self._architecture.input))
        return shaped if self._architecture.reads_words else shaped.to(self._dtype)

    def _rows(self, number: int, count: int) -> NDArray[np.int64]:
        places = np.arange(number * self._samples, (number + 1) * self._samples)
        epochs = np.unique(places // count).tolist()
        orders = {epoch: np.random.default_rng([self._seed, epoch, 2]).permutation(count) for epoch in epochs}
        return np.array([orders[place // count][place % count] for place in places.tolist()])


class Blank:
    """Micro-batches that have a shape and no data, for the meta device."""

    def __init__(self, architecture: Architecture, samples: int, dtype: torch.dtype) -> None:
        self._shape = samples, *architecture.input
        self._dtype = torch.int64 if architecture.reads_words else dtype

    def inputs(self, number: int) -> Tensor:
        """As `Batches.inputs`."""
        return torch.empty(self._shape, dtype=self._dtype, device="meta")

    def targets(self, number: int) -> Tensor:
        """As `Batches.targets`."""
        return torch.empty(self._shape[0], dtype=torch.int64, device="meta")


def _check(architecture: Architecture, name: str, task: tasks.Task) -> None:
    wanted, given = int(np.prod(architecture.input)), int(np.prod(task.inputs.shape[1:]))
    classes = architecture.entries[-1].leaving[0]
    if (wanted, architecture.reads_words) != (given, task.inputs.dtype.kind == "i") or classes < task.classes:
        reads = "words" if architecture.reads_words else "values"
        raise UnsupportedPlan(
            f"task '{name}' has {given} {'words' if task.inputs.dtype.kind == 'i' else 'values'} a sample in "
            f"{task.classes} classes, model '{architecture.name}' takes {wanted} {reads} and tells {classes} apart"
        )
