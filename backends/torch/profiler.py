"""How long each layer of a model takes on this machine: seconds of every pass, with their spread.

Layers are timed one by one, and all of them together as a stage runs them, in the order of its ops: with as many
micro-batches in flight, whose memory is no longer in a cache when backward needs it, and gradients that are added to
those of the micro-batch before. The seconds of a layer are its share of the whole, so that stages add up to what a run
will take.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from backends.torch.job import ONE_STEP, Accelerator, Part
from backends.torch.pieces import Loss, Piece, Tape, back
from backends.torch.stage import Stage
from backends.torch.threads import one_thread
from backends.torch.weights import VersionedWeights
from sim.architecture import Architecture
from sim.errors import BackendFailure
from sim.ops import BACKWARD_KINDS, OpKind
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

    ``overlap_gain``: how much faster a forward and a backward are done at once, on two streams of a GPU or by two
    threads, than one after the other; from 1 to 2.
    """

    layers: tuple[MeasuredLayer, ...]
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
    part: Part | None = None,
) -> Profile:
    """Time a classifier on one batch: ``repeats`` times its ops in order, after ``warm_up`` times that do not count.

    ``part`` says which of its layers and which ops; all, and one step, unless given.
    """
    with one_thread():
        bench = _Bench(layers, x, target, training, device, part or (0, len(layers) - 1, ONE_STEP))
        steps = [bench.step() for _ in range(warm_up + repeats)][warm_up:]
        return bench.profile(steps)


def profile_shipped(
    architecture: Architecture,
    batch: int,
    training: Training,
    repeats: int = 20,
    device: Accelerator = "cpu",
    part: Part | None = None,
) -> Profile:
    """`profile` of a shipped model on ``batch`` samples; ``repeats`` counts forwards, beside three that warm up."""
    layers = initial(architecture, 0, torch.float32)
    x, target = inputs(architecture, 0, 0, batch, torch.float32), targets(architecture, 0, 0, batch)
    forwards = sum(kind is OpKind.FORWARD for kind, _, _ in part[-1]) if part else 1
    times, warm_up = (-(-count // forwards) for count in (repeats, 3))
    return profile(layers, x, target, training, times, warm_up, device, part)


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
    parts: Sequence[Part],
    repeats: int = 20,
    device: Accelerator = "cpu",
) -> Profile:
    """`profile_shipped` in a process for each part, at once, so that they share memory and caches as in a run.

    On ``cuda`` each is on the GPU that its rank has in a run, so several on one are time-sliced here too.

    Raises
    ------
    BackendFailure : a process died.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(parts))
    with ProcessPoolExecutor(len(parts), mp_context=context, initializer=_meet, initargs=(start,)) as pool:
        how = architecture, batch, training, repeats, device
        try:
            found = list(pool.map(partial(_profile_beside, how), range(len(parts)), parts))
        except BrokenProcessPool:
            raise BackendFailure("a process that measured the profile died") from None
    alike = dict[int, list[Profile]]()
    for (first, _, _), each in zip(parts, found, strict=True):
        alike.setdefault(first, []).append(each)
    return _joined([merged(alike[first]) for first in sorted(alike)])


def _joined(profiles: Sequence[Profile]) -> Profile:
    """Of parts of a model, one after the other, the whole."""
    update = Seconds(*(sum(seconds) for seconds in zip(*(each.update for each in profiles), strict=True)))
    gain = float(np.median([each.overlap_gain for each in profiles]))
    return Profile(sum((each.layers for each in profiles), ()), update, gain, profiles[0].fingerprint)


_START: list[Any] = []


def _meet(start: Any) -> None:
    _START.append(start)


def _profile_beside(how: tuple[Architecture, int, Training, int, Accelerator], rank: int, part: Part) -> Profile:
    """Each process waits here for the others: none measures alone."""
    keep_freed_memory()
    if how[-1] == "cuda":
        torch.cuda.set_device(device_of("cuda", rank))
    _START[0].wait()
    return profile_shipped(*how, part)


def merged(profiles: Sequence[Profile]) -> Profile:
    """The medians over several profiles of one model."""

    def middle(seconds: Sequence[Seconds]) -> Seconds:
        return Seconds(*np.median(np.array(seconds), axis=0).tolist())

    layers = tuple(
        MeasuredLayer(*(middle(same) for same in zip(*passes, strict=True)))
        for passes in zip(*(profile.layers for profile in profiles), strict=True)
    )
    gain = float(np.median([profile.overlap_gain for profile in profiles]))
    update = middle([profile.update for profile in profiles])
    return Profile(layers, update, gain, profiles[0].fingerprint)


class _Step(NamedTuple):
    """Seconds of each layer (forward, input gradient, weight gradient), and of the whole: the mean of each kind of op.

    ``overlapped_s``: of a forward and a backward at once.
    """

    layers: list[tuple[float, float, float]]
    whole_s: dict[OpKind, float]
    overlapped_s: float

    @property
    def backward_s(self) -> float:
        """Of the whole, in one piece or two."""
        return sum(self.whole_s.get(kind, 0.0) for kind in BACKWARD_KINDS)


class _Bench:
    """Some layers of a model, as a whole and one by one, with a batch that arrives and a gradient that comes back."""

    def __init__(
        self, model: nn.Sequential, x: Tensor, target: Tensor, training: Training, device: Accelerator, part: Part
    ) -> None:
        first, last, order = part
        self._device, self._order, target = device, order, target.to(device)
        every = list(model.to(device))
        self._layers = nn.Sequential(*every[first : last + 1])
        with torch.no_grad():
            self._x = nn.Sequential(*every[:first])(x.to(device)).detach().requires_grad_(first > 0)
            output = self._layers(self._x)
        self._loss: Loss | None = None
        self._gradient: Tensor | None = torch.randn_like(output)
        if last == len(every) - 1:
            self._loss, self._gradient = lambda output: cross_entropy(output, target), None
        self._pieces = list[Piece]()
        for layer in self._layers:
            first = self._pieces[-1].parameters.stop if self._pieces else 0
            self._pieces.append(Piece(nn.Sequential(layer), first))
        self._weights = VersionedWeights(list(self._layers.parameters()), training, Counter())
        split = any(kind is OpKind.BACKWARD_INPUT for kind, _, _ in order)
        self._whole = Stage(self._layers, range(1, len(self._layers)) if split else (), False, self._weights)

    def _now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self) -> _Step:
        """A training step in layers, then the ops of the whole in their order."""
        layers, spent = self._step_by_layer(), dict[OpKind, list[float]]()
        for kind, micro_batch, update in self._order:
            begin = self._now()
            self._do(kind, micro_batch, update)
            spent.setdefault(kind, []).append(self._now() - begin)
        whole_s = {kind: float(np.mean(seconds)) for kind, seconds in spent.items()}
        return _Step(layers, whole_s, self._overlapped_s())

    def _do(self, kind: OpKind, micro_batch: int, update: int) -> None:
        whole, weights = self._whole, self._weights.live
        match kind:
            case OpKind.FORWARD:
                whole.forward(micro_batch, self._x, weights, self._loss)
            case OpKind.BACKWARD:
                whole.backward(micro_batch, update, self._gradient, weights)
            case OpKind.BACKWARD_INPUT:
                whole.backward_input(micro_batch, self._gradient, weights)
            case OpKind.BACKWARD_WEIGHT:
                whole.backward_weight(micro_batch, update, weights)
            case _:
                whole.update(update)

    def _overlapped_s(self) -> float:
        """A backward in a thread of its own beside a forward, each on a stream where there are streams."""
        weights = self._weights.live
        self._whole.forward(0, self._x, weights, self._loss)
        begin = self._now()
        beside = threading.Thread(target=self._apart, args=(self._whole.backward, 0, 1, self._gradient, weights))
        beside.start()
        self._apart(self._whole.forward, 1, self._x, weights, self._loss)
        beside.join()
        took_s = self._now() - begin
        self._whole.backward(1, 1, self._gradient, weights)
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
        forward, backward, wanted = list[float](), list[tuple[float, float]](), self._x.requires_grad
        for piece in self._pieces:
            begin = self._now()
            wanted = wanted or bool(tapes and tapes[-1].leaves)
            loss = self._loss if piece is self._pieces[-1] else None
            tape, passing = piece.record(passing.detach().requires_grad_(wanted), weights, loss)
            forward.append(self._now() - begin)
            tapes.append(tape)
        gradient = self._gradient
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
        forward, *backward = np.median(of_layers, axis=0).sum(axis=0).tolist()
        whole_s = {kind: float(np.median([step.whole_s[kind] for step in steps])) for kind in steps[0].whole_s}
        scales = [whole_s[OpKind.FORWARD] / forward, *[whole_s.get(OpKind.BACKWARD, 0.0) / sum(backward)] * 2]
        if OpKind.BACKWARD not in whole_s:
            split = whole_s[OpKind.BACKWARD_INPUT], whole_s[OpKind.BACKWARD_WEIGHT]
            scales[1:] = (seconds / apart for seconds, apart in zip(split, backward, strict=True))
        layers = tuple(
            MeasuredLayer(*(Seconds.of(of_layers[:, i, each].tolist(), scales[each]) for each in range(3)))
            for i in range(len(self._layers))
        )
        update = Seconds.of([step.whole_s[OpKind.UPDATE] for step in steps])
        gain = np.median([(step.whole_s[OpKind.FORWARD] + step.backward_s) / step.overlapped_s for step in steps])
        return Profile(layers, update, float(np.clip(gain, 1, 2)), fingerprint(self._device))
