"""How long each layer of a model takes on this machine: seconds of every pass, with their spread.

Layers are timed one by one in the order of a training step, and all of them together as a stage runs them: the seconds
of a layer are its share of the whole, so that stages add up to what a run will take.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backends.torch.data import initial, inputs, targets
from backends.torch.fingerprint import fingerprint
from backends.torch.pieces import Loss, Piece, Tape, gradients
from backends.torch.stage import Stage
from backends.torch.weights import VersionedWeights
from sim.architecture import Architecture
from sim.training import Training


class Seconds(NamedTuple):
    """A median over repeats, and the quartiles about it."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, samples: Sequence[float], scale: float = 1.0) -> Seconds:
        """From the seconds of each repeat, times ``scale``."""
        low, middle, high = np.percentile(samples, (25, 50, 75)).tolist()
        return cls(scale * middle, scale * low, scale * high)


class MeasuredLayer(NamedTuple):
    """Each pass of one layer at the profile's batch."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds


@dataclass(frozen=True)
class Profile:
    """A model on this machine, single-threaded as a worker runs it. ``update`` is of all parameters."""

    layers: tuple[MeasuredLayer, ...]
    update: Seconds
    fingerprint: dict[str, str]


def profile(
    architecture: Architecture,
    batch: int,
    training: Training,
    repeats: int = 20,
    warm_up: int = 3,
    device: Literal["cpu", "cuda"] = "cpu",
) -> Profile:
    """Time ``repeats`` training steps of ``batch`` samples after ``warm_up`` that do not count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = _Bench(architecture, batch, training, device)
        steps = [bench.step() for _ in range(warm_up + repeats)][warm_up:]
        return bench.profile(steps)
    finally:
        torch.set_num_threads(threads)


class _Step(NamedTuple):
    """Seconds of one training step: of each layer (forward, input gradient, weight gradient), and of the whole."""

    layers: list[tuple[float, float, float]]
    forward_s: float
    backward_s: float
    update_s: float


class _Bench:
    """A model, whole and in layers, with a batch to run on."""

    def __init__(self, architecture: Architecture, batch: int, training: Training, device: str) -> None:
        self._device = device
        self._layers = initial(architecture, 0, torch.float32).to(device)
        self._x = inputs(architecture, 0, 0, batch, torch.float32).to(device)
        target = targets(architecture, 0, 0, batch).to(device)
        self._loss: Loss = lambda output: cross_entropy(output, target)
        self._pieces = list[Piece]()
        for layer in self._layers:
            first = self._pieces[-1].parameters.stop if self._pieces else 0
            self._pieces.append(Piece(nn.Sequential(layer), first))
        self._weights = VersionedWeights(list(self._layers.parameters()), training, Counter())
        self._whole = Stage(self._layers, (), False, self._weights)

    def _now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self) -> _Step:
        """One training step in layers, then one as a whole, which updates."""
        layers, weights, begin = self._step_by_layer(), self._weights.live, self._now()
        self._whole.forward(0, self._x, weights, self._loss)
        middle = self._now()
        self._whole.backward(0, 0, None, weights)
        end = self._now()
        self._whole.update(0)
        return _Step(layers, middle - begin, end - middle, self._now() - end)

    def _step_by_layer(self) -> list[tuple[float, float, float]]:
        weights, passing, tapes = self._weights.live, self._x, list[Tape]()
        forward, backward = list[float](), list[tuple[float, float]]()
        for piece in self._pieces:
            begin = self._now()
            wanted = bool(tapes) and (tapes[-1].arrived.requires_grad or bool(tapes[-1].leaves))
            loss = self._loss if piece is self._pieces[-1] else None
            tape, passing = piece.record(passing.detach().requires_grad_(wanted), weights, loss)
            forward.append(self._now() - begin)
            tapes.append(tape)
        gradient: Tensor | None = None
        for tape in reversed(tapes):
            begin, arriving = self._now(), gradient
            if tape.arrived.requires_grad:
                gradient, _ = gradients(tape, arriving, weights, True, keep_graph=True, leaves=())
            middle = self._now()
            gradients(tape, arriving, weights, False, keep_graph=False)
            backward.insert(0, (middle - begin, self._now() - middle))
        return [(once, *both) for once, both in zip(forward, backward, strict=True)]

    def profile(self, steps: Sequence[_Step]) -> Profile:
        """The medians over steps; layers scaled to add up to the whole."""
        of_layers = np.array([step.layers for step in steps])
        apart = np.median(of_layers, axis=0).sum(axis=0)
        forward = float(np.median([step.forward_s for step in steps])) / apart[0]
        backward = float(np.median([step.backward_s for step in steps])) / (apart[1] + apart[2])
        scales = (forward, backward, backward)
        layers = tuple(
            MeasuredLayer(*(Seconds.of(of_layers[:, i, each].tolist(), float(scales[each])) for each in range(3)))
            for i in range(len(self._layers))
        )
        update = Seconds.of([step.update_s for step in steps])
        return Profile(layers, update, fingerprint(self._device))
