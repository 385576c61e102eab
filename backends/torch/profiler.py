"""How long each layer of a model takes on this machine: seconds of every pass, with their spread.

Layers are timed one by one in the order of a training step, and all of them together as a stage runs them: the seconds
of a layer are its share of the whole, so that stages add up to what a run will take. A stage whose backward is split
into input and weight gradients runs its layers one by one, so it takes what they take.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backends.torch.data import initial, inputs, targets
from backends.torch.fingerprint import device_of, fingerprint
from backends.torch.heap import keep_freed_memory
from backends.torch.job import Accelerator
from backends.torch.pieces import Loss, Piece, Tape, back
from backends.torch.stage import Stage
from backends.torch.threads import one_thread
from backends.torch.weights import VersionedWeights
from sim.architecture import Architecture
from sim.errors import BackendFailure
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
    """A model on this machine, single-threaded as a worker runs it. ``update`` is of all parameters.

    ``layers`` are of stages that run as a whole, ``split`` of those whose backward is split.
    ``overlap_gain``: how much faster a forward and a backward are done at once, on two streams of a GPU or by two
    threads, than one after the other; from 1 to 2.
    """

    layers: tuple[MeasuredLayer, ...]
    split: tuple[MeasuredLayer, ...]
    update: Seconds
    overlap_gain: float
    fingerprint: dict[str, str]


def profile(
    layers: nn.Sequential,
    x: Tensor,
    target: Tensor,
    training: Training,
    repeats: int = 20,
    warm_up: int = 3,
    device: Accelerator = "cpu",
) -> Profile:
    """Time ``repeats`` training steps of a classifier on one batch, after ``warm_up`` that do not count."""
    with one_thread():
        bench = _Bench(layers, x, target, training, device)
        steps = [bench.step() for _ in range(warm_up + repeats)][warm_up:]
        return bench.profile(steps)


def profile_shipped(
    architecture: Architecture, batch: int, training: Training, repeats: int = 20, device: Accelerator = "cpu"
) -> Profile:
    """`profile` of a shipped model on ``batch`` samples."""
    layers = initial(architecture, 0, torch.float32)
    x, target = inputs(architecture, 0, 0, batch, torch.float32), targets(architecture, 0, 0, batch)
    return profile(layers, x, target, training, repeats, device=device)


def sizes(layers: nn.Sequential, x: Tensor) -> list[tuple[int, int, int]]:
    """Bytes of each layer's output, of what autograd keeps of it, and of its parameters.

    A storage that several layers keep counts for the first of them; parameters do not count.
    """
    known = frozenset(tensor.untyped_storage().data_ptr() for tensor in (x, *layers.parameters()))
    found = list[tuple[int, int, int]]()
    for layer in layers:
        kept: dict[int, int] = {}

        def note(tensor: Tensor, kept: dict[int, int] = kept, known: frozenset[int] = known) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            x = layer(x)
        found.append((x.nbytes, sum(kept.values()), sum(parameter.nbytes for parameter in layer.parameters())))
        known |= kept.keys()
    return found


def profile_together(
    architecture: Architecture,
    batch: int,
    training: Training,
    processes: int,
    repeats: int = 20,
    device: Accelerator = "cpu",
) -> Profile:
    """`profile_shipped` in several processes of this machine at once, which share its memory and caches as in a run.

    On ``cuda`` each is on the GPU that its rank has in a run, so several on one are time-sliced here too.

    Raises
    ------
    BackendFailure : a process died.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_meet, initargs=(start,)) as pool:
        how = architecture, batch, training, repeats, device
        try:
            return merged(list(pool.map(partial(_profile_beside, how), range(processes))))
        except BrokenProcessPool:
            raise BackendFailure("a process that measured the profile died") from None


_START: list[Any] = []


def _meet(start: Any) -> None:
    _START.append(start)


def _profile_beside(how: tuple[Architecture, int, Training, int, Accelerator], rank: int) -> Profile:
    """Each process waits here for the others: none measures alone."""
    keep_freed_memory()
    if how[-1] == "cuda":
        torch.cuda.set_device(device_of("cuda", rank))
    _START[0].wait()
    return profile_shipped(*how)


def merged(profiles: Sequence[Profile]) -> Profile:
    """The medians over several profiles of one model."""

    def middle(seconds: Sequence[Seconds]) -> Seconds:
        return Seconds(*np.median(np.array(seconds), axis=0).tolist())

    def layers(each: Iterable[tuple[MeasuredLayer, ...]]) -> tuple[MeasuredLayer, ...]:
        return tuple(
            MeasuredLayer(*(middle(same) for same in zip(*passes, strict=True))) for passes in zip(*each, strict=True)
        )

    whole, split = layers(profile.layers for profile in profiles), layers(profile.split for profile in profiles)
    gain = float(np.median([profile.overlap_gain for profile in profiles]))
    update = middle([profile.update for profile in profiles])
    return Profile(whole, split, update, gain, profiles[0].fingerprint)


class _Step(NamedTuple):
    """Seconds of one training step: of each layer (forward, input gradient, weight gradient), and of the whole.

    ``overlapped_s``: of a forward and a backward at once.
    """

    layers: list[tuple[float, float, float]]
    forward_s: float
    backward_s: float
    update_s: float
    overlapped_s: float


class _Bench:
    """A model, whole and in layers, with a batch to run on."""

    def __init__(
        self, layers: nn.Sequential, x: Tensor, target: Tensor, training: Training, device: Accelerator
    ) -> None:
        self._device = device
        self._layers, self._x, target = layers.to(device), x.to(device), target.to(device)
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
        return _Step(layers, middle - begin, end - middle, self._now() - end, self._overlapped_s())

    def _overlapped_s(self) -> float:
        """A backward in a thread of its own beside a forward, each on a stream where there are streams."""
        weights = self._weights.live
        self._whole.forward(0, self._x, weights, self._loss)
        begin = self._now()
        beside = threading.Thread(target=self._apart, args=(self._whole.backward, 0, 1, None, weights))
        beside.start()
        self._apart(self._whole.forward, 1, self._x, weights, self._loss)
        beside.join()
        took_s = self._now() - begin
        self._whole.backward(1, 1, None, weights)
        self._whole.drop(1)
        return took_s

    def _apart(self, work: Callable[..., Any], *arguments: Any) -> None:
        if self._device != "cuda":
            work(*arguments)
            return
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            work(*arguments)

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
                (gradient,) = back(tape, arriving, weights, [tape.arrived], keep_graph=True)
            middle = self._now()
            back(tape, arriving, weights, tape.leaves)
            backward.insert(0, (middle - begin, self._now() - middle))
        return [(once, *both) for once, both in zip(forward, backward, strict=True)]

    def profile(self, steps: Sequence[_Step]) -> Profile:
        """The medians over steps; layers scaled to add up to the whole."""
        of_layers = np.array([step.layers for step in steps])
        apart = np.median(of_layers, axis=0).sum(axis=0)
        forward = float(np.median([step.forward_s for step in steps])) / apart[0]
        backward = float(np.median([step.backward_s for step in steps])) / (apart[1] + apart[2])

        def layers(*scales: float) -> tuple[MeasuredLayer, ...]:
            return tuple(
                MeasuredLayer(*(Seconds.of(of_layers[:, i, each].tolist(), float(scales[each])) for each in range(3)))
                for i in range(len(self._layers))
            )

        update = Seconds.of([step.update_s for step in steps])
        gain = np.median([(step.forward_s + step.backward_s) / step.overlapped_s for step in steps])
        whole, split = layers(forward, backward, backward), layers(1, 1, 1)
        return Profile(whole, split, update, float(np.clip(gain, 1, 2)), fingerprint(self._device))
