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


def score(architecture: Architecture, task: str, done: Done, replica: int = 0) -> Score:
    """Of the final weights of a run."""
    model = initial(architecture, 0, torch.float32)
    arrays = [array for (_, copy), stage in sorted(done.weights.items()) if copy == replica for array in stage]
    names = [name for name, _ in model.named_parameters()]
    weights = {name: torch.from_numpy(array).float() for name, array in zip(names, arrays, strict=True)}
    inputs, classes = Batches(architecture, task, 0, 1, torch.float32).test()
    with torch.no_grad():
        found = functional_call(model, weights, (inputs,))
    return Score(float(cross_entropy(found, classes)), float((found.argmax(1) == classes).float().mean()))


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
