"""How good weights are on samples that training never saw, and how well updates can be foreseen."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from backends.torch.data import Batches, initial
from backends.torch.job import Done
from backends.torch.stage import Stage
from backends.torch.weights import VersionedWeights
from sim.architecture import Architecture
from sim.training import Training


class Score(NamedTuple):
    """On the test samples of a task."""

    loss: float
    accuracy: float


class Exam:
    """The test samples of a task, for weights of a model.

    Raises
    ------
    UnsupportedPlan : the task does not fit the model.
    """

    def __init__(self, architecture: Architecture, task: str) -> None:
        self._model = initial(architecture, 0, torch.float32)
        self._names = [name for name, _ in self._model.named_parameters()]
        self._inputs, self._classes = Batches(architecture, task, 0, 1, torch.float32).test()

    def score(self, done: Done) -> Score:
        """Of the weights of the first copy of each stage."""
        arrays = [array for (_, replica), stage in sorted(done.weights.items()) if not replica for array in stage]
        weights = {name: torch.from_numpy(array).float() for name, array in zip(self._names, arrays, strict=True)}
        with torch.no_grad():
            found = functional_call(self._model, weights, (self._inputs,))
        right = (found.argmax(1) == self._classes).float().mean()
        return Score(float(cross_entropy(found, self._classes)), float(right))


class PredictionError(NamedTuple):
    """Root mean square over parameters and steps of predicted and of stale weights against those some updates on."""

    ahead: int
    predicted: float
    stale: float


def prediction_errors(
    architecture: Architecture,
    training: Training,
    batch: int,
    steps: int,
    seed: int,
    ahead: tuple[int, ...] = (1, 2, 3),
) -> list[PredictionError]:
    """SpecTrain's prediction of future weights beside using the present ones, in plain training."""
    model = initial(architecture, seed, torch.float32)
    weights = VersionedWeights(list(model.parameters()), training, Counter())
    stage, batches = Stage(model, (), False, weights), Batches(architecture, training.task, seed, batch, torch.float32)
    past: deque[tuple[Tensor, dict[int, Tensor]]] = deque(maxlen=max(ahead))
    squares = {s: torch.zeros(2) for s in ahead}
    for step in range(steps):
        loss = partial(_loss, batches.targets(step))
        stage.forward(0, batches.inputs(step), weights.live, loss)
        stage.backward(0, step, None, weights.live)
        stage.update(step)
        now = _flat(weights.live)
        for s in (s for s in ahead if len(past) >= s):
            stale, predicted = past[-s]
            squares[s] += torch.stack([(guess - now).square().mean() for guess in (predicted[s], stale)])
        past.append((now, {s: _flat(weights.ahead(weights.version, s)) for s in ahead}))
    return [PredictionError(s, *(squares[s] / (steps - s)).sqrt().tolist()) for s in ahead]


def _loss(target: Tensor, output: Tensor) -> Tensor:
    return cross_entropy(output, target)


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
