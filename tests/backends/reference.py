"""Training of the shipped fully connected net written out in numpy, with every version of the weights kept.

It knows which version each pass reads, and nothing of orders, lanes or processes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.torch.data import initial, inputs, targets
from sim.ops import BACKWARD_KINDS, OpKind
from sim.plan import Plan
from sim.schedule import Schedule

Array = NDArray[np.float64]
Arrays = list[Array]


class Reference(NamedTuple):
    """The gradients of every update by (stage, update), and the final weights by stage."""

    gradients: dict[tuple[int, int], Arrays]
    weights: list[Arrays]


class Optimizer:
    """The weights of one stage at every version, and what one more update was then expected to add."""

    def __init__(self, weights: Arrays, plan: Plan, back: int) -> None:
        self.training, self.back = plan.training, back
        self.versions = [weights]
        zero = [np.zeros_like(weight) for weight in weights]
        self.drifts, self._first, self._second = [zero], zero, zero

    def update(self, gradients: Arrays) -> None:
        """Append a version."""
        momentum = self.training.momentum if self.training.optimizer == "momentum" else 0.0
        if self.training.optimizer.startswith("adam"):
            count = len(self.versions)
            self._first = [0.9 * m + 0.1 * g for m, g in zip(self._first, gradients, strict=True)]
            self._second = [0.999 * v + 0.001 * g * g for v, g in zip(self._second, gradients, strict=True)]
            scale = [np.sqrt(v / (1 - 0.999**count)) + 1e-8 for v in self._second]
            step = [m / (1 - 0.9**count) / s for m, s in zip(self._first, scale, strict=True)]
        else:
            step = self._first = [momentum * m + g for m, g in zip(self._first, gradients, strict=True)]
        rate = self.training.learning_rate
        decayed = [(1 - rate * 0.01 * (self.training.optimizer == "adamw")) * weight for weight in self.versions[-1]]
        self.versions.append([weight - rate * change for weight, change in zip(decayed, step, strict=True)])
        if self.back:
            decay = 0.135 ** (1 / self.back)
            moved = [new - old for new, old in zip(*self.versions[:-3:-1], strict=True)]
            self.drifts.append([decay * a + (1 - decay) * m for a, m in zip(self.drifts[-1], moved, strict=True)])
        elif self.training.optimizer == "sgd":
            self.drifts.append(self.drifts[0])
        else:
            self.drifts.append([-rate * change for change in step])

    def ahead(self, version: int, updates: int) -> Arrays:
        """A version after so many more expected updates."""
        return [w + updates * d for w, d in zip(self.versions[version], self.drifts[version], strict=True)]


def forward(stage: tuple[int, int], weights: Arrays, x: Array) -> Arrays:
    """The input of every layer of a stage, and its output."""
    passing, mine = [x], iter(weights)
    for layer in range(stage[0], stage[1] + 1):
        x = x @ next(mine).T + next(mine) if layer % 2 == 0 else np.maximum(x, 0)
        passing.append(x)
    return passing


def backward(stage: tuple[int, int], weights: Arrays, passing: Arrays, dy: Array) -> tuple[Arrays, Array]:
    """Gradients of the weights and of the input, from what forward saw and the weights at hand now."""
    found: Arrays = []
    matrices = list(weights[::2])
    for layer in range(stage[1], stage[0] - 1, -1):
        x = passing[layer - stage[0]]
        if layer % 2:
            dy = dy * (x > 0)
        else:
            found[:0] = [dy.T @ x, dy.sum(0)]
            dy = dy @ matrices.pop()
    return found, dy


def loss_gradient(scores: Array, classes: NDArray[np.int64], samples: int) -> Array:
    """Of the summed cross-entropy over ``samples``: softmax minus one-hot."""
    odds = np.exp(scores - scores.max(1, keepdims=True))
    result: Array = odds / odds.sum(1, keepdims=True)
    result[np.arange(len(classes)), classes] -= 1
    return result / samples


def train(plan: Plan, samples: int, batch: int, seed: int) -> Reference:
    """The whole run in float64; ``samples`` of a micro-batch, ``batch`` of a mini-batch over all replicas."""
    import torch

    schedule = plan.work
    assert isinstance(schedule, Schedule)
    assert plan.architecture is not None
    shape = schedule.shape
    whole = [weight.detach().numpy() for weight in initial(plan.architecture, seed, torch.float64).parameters()]
    distances = schedule.distances or ((0, 0),) * shape.stages
    stages = [
        Optimizer(
            [array for layer in range(first, last + 1) if layer % 2 == 0 for array in whole[layer : layer + 2]],
            plan,
            -back if schedule.predict == "pipemare" else 0,
        )
        for (first, last), (_, back) in zip(plan.partition, distances, strict=True)
    ]
    gradients: dict[tuple[int, int], Arrays] = {}
    for micro_batch in range(shape.total):
        for replica in range(shape.replicas):
            number = micro_batch * shape.replicas + replica
            x = inputs(plan.architecture, seed, number, samples, torch.float64).numpy()
            y = targets(plan.architecture, seed, number, samples).numpy()
            for stage, found in enumerate(_passes(plan, schedule, stages, micro_batch, replica, x, y, batch)):
                name = stage, int(shape.update_of(stage, micro_batch))
                known = gradients.get(name)
                gradients[name] = found if known is None else [a + b for a, b in zip(known, found, strict=True)]
        for stage, optimizer in enumerate(stages):
            update = int(shape.update_of(stage, micro_batch))
            if micro_batch + 1 == shape.total or int(shape.update_of(stage, micro_batch + 1)) > update:
                optimizer.update(gradients[stage, update])
    return Reference(gradients, [optimizer.versions[-1] for optimizer in stages])


def _passes(
    plan: Plan,
    schedule: Schedule,
    stages: list[Optimizer],
    micro_batch: int,
    replica: int,
    x: Array,
    y: NDArray[np.int64],
    batch: int,
) -> list[Arrays]:
    """The gradients of one micro-batch by stage, each pass on the weights that the schedule says."""
    saved: list[Arrays] = []
    used: list[Arrays] = []
    for stage, layers in enumerate(plan.partition):
        used.append(_weights(schedule, stages[stage], OpKind.FORWARD, stage, micro_batch, replica))
        saved.append(forward(layers, used[-1], x))
        x = saved[-1][-1]
    dy, gradients = loss_gradient(x, y, batch), list[Arrays]()
    for stage in reversed(range(len(stages))):
        weights = used[stage]
        if schedule.predict != "pipeoptim":
            weights = _weights(schedule, stages[stage], OpKind.BACKWARD, stage, micro_batch, replica)
        found, dy = backward(plan.partition[stage], weights, saved[stage], dy)
        gradients.insert(0, found)
    return gradients


def _weights(
    schedule: Schedule, stage_weights: Optimizer, kind: OpKind, stage: int, micro_batch: int, replica: int
) -> Arrays:
    first = micro_batch - micro_batch % schedule.shape.micro_batches
    of = first if schedule.predict == "xpipe" else micro_batch
    kinds = (kind,) if kind is OpKind.FORWARD else BACKWARD_KINDS[:2]
    rows = [int(schedule.halves.find(kind, stage, of, replica, anywhere=True)) for kind in kinds]
    version = int(schedule.ops["reads"][max(rows)])
    ahead = schedule.distances[stage][kind is not OpKind.FORWARD] if schedule.distances else 0
    return stage_weights.ahead(version, ahead)
