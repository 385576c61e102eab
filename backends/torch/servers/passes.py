"""Forward and backward of a worker, block by block, on weights that arrive part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backends.torch.data import Batches, initial
from backends.torch.pieces import Piece, Tape, back
from backends.torch.server_state import shaped
from backends.torch.servers.job import Array, Job
from sim.ops import OpId, OpKind
from sim.sharding import Part


class _Span(NamedTuple):
    """Elements ``low`` to ``high`` of all parameters, which stand in a part from ``place`` on."""

    low: int
    high: int
    place: int


class Passes:
    """See `backends.torch.servers.computing.Computing`.

    Weights are views of one array, written through numpy, of which autograd takes no notice: what a backward needs of
    them has been used when the next pull overwrites it.
    """

    def __init__(self, job: Job, worker: int) -> None:
        architecture = job.plan.architecture
        assert architecture is not None
        dtype = torch.float32 if job.arithmetic == "float32" else torch.float64
        model = initial(architecture, job.seed, dtype)
        parameters = list(model.parameters())
        self.losses: dict[tuple[int, int], float] = {}
        self._worker, self._workers = worker, job.layout.workers
        self._batches = Batches(architecture, job.plan.training.task, job.seed, round(job.binding.samples), dtype)
        self._values: Array = np.empty(sum(parameter.numel() for parameter in parameters), job.arithmetic)
        self._weights = shaped(torch.from_numpy(self._values), model)
        self._pieces = list(_pieces(model, job.layout.blocks))
        starts = np.cumsum([0, *(parameter.numel() for parameter in parameters)]).tolist()
        self._spans = [list(_spans(part, starts)) for part in job.layout.parts]
        self._slices = [part.slices for part in job.layout.parts]
        self._gradients: list[Tensor] = [torch.empty(0)] * len(parameters)
        self._batch: tuple[int, Tensor, Tensor] = (-1, torch.empty(0), torch.empty(0))
        self._tapes: dict[int, Tape] = {}
        self._passing: Tensor | None = None
        self._warm_up()

    def _warm_up(self) -> None:
        """A step on zeros, so that no step of the run is a first one: PyTorch imports and allocates in it."""
        self._values[:] = 0.0
        self.fetch(0)
        for block in range(len(self._pieces)):
            self._forward(block, 0)
        for block in reversed(range(len(self._pieces))):
            self._backward(block)
        self.losses.clear()

    def fetch(self, number: int) -> None:
        """See `Computing`."""
        if self._batch[0] != number:
            batch = number * self._workers + self._worker
            self._batch = number, self._batches.inputs(batch), self._batches.targets(batch)

    def take(self, part: int, offset: int, values: Array) -> None:
        """See `Computing`."""
        end = offset + len(values)
        for low, high, place in self._spans[part]:
            first, last = max(offset, place), min(end, place + high - low)
            if first < last:
                self._values[low + first - place : low + last - place] = values[first - offset : last - offset]

    def compute(self, op: OpId) -> None:
        """See `Computing`."""
        block = max(op.part, 0)
        if op.kind is OpKind.FORWARD:
            self._forward(block, op.micro_batch)
        else:
            self._backward(block)

    def _forward(self, block: int, number: int) -> None:
        _, inputs, targets = self._batch
        piece, last = self._pieces[block], block == len(self._pieces) - 1
        arrived = self._passing if block else inputs
        assert arrived is not None
        arrived = arrived.detach().requires_grad_(piece.first > 0)
        loss = (lambda output: cross_entropy(output, targets)) if last else None
        self._tapes[block], self._passing = piece.record(arrived, self._weights, loss)
        if last:
            self.losses[number, self._worker] = self._passing.item()
            self._passing = None

    def _backward(self, block: int) -> None:
        tape = self._tapes.pop(block)
        arriving = [tape.arrived] if tape.arrived.requires_grad else []
        found = back(tape, self._passing, self._weights, [*arriving, *tape.leaves])
        self._passing = found[0] if arriving else None
        for number, gradient in enumerate(found[len(arriving) :], tape.piece.first):
            assert gradient is not None
            self._gradients[number] = gradient.reshape(-1)

    def gradient(self, part: int) -> Array:
        """See `Computing`."""
        pieces = [self._gradients[number][int(low) : int(high)] for number, low, high in self._slices[part]]
        gradient: Array = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).numpy()
        return gradient


def _pieces(model: nn.Sequential, blocks: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    first = 0
    for low, high in blocks:
        piece = Piece(nn.Sequential(*list(model)[low : high + 1]), first)
        first = piece.parameters.stop
        yield piece


def _spans(part: Part, starts: Sequence[int]) -> Iterator[_Span]:
    """Slices that follow one another, as one."""
    place, open_span = 0, None
    for variable, start, stop in part.slices:
        low, high = starts[variable] + int(start), starts[variable] + int(stop)
        if open_span is not None and open_span.high == low:
            open_span = open_span._replace(high=high)
        else:
            if open_span is not None:
                yield open_span
            open_span = _Span(low, high, place)
        place += high - low
    if open_span is not None:
        yield open_span
