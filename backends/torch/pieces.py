"""Parts of a stage at whose ends autograd's graph is cut, so that backward may go through them one by one.

What a graph keeps of the weights is a name, not a tensor: backward computes with the weights it is given then, be they
the live ones, a stashed version or a prediction, and no graph keeps a version alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

Loss = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Tape:
    """One run through a piece: what went in and out, and, where it is recorded, its leaves and the weights in use.

    ``weights`` are those that the graph's names stand for whenever backward looks them up.
    """

    piece: Piece
    arrived: Tensor
    loss: Loss | None
    output: Tensor | None = None
    leaves: tuple[Tensor, ...] = ()
    weights: Sequence[Tensor] = ()
    gradient: Tensor | None = None
    noise: Tensor | None = None


class _Named(NamedTuple):
    """A tensor that shares the storage of parameter ``number`` of its piece."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Piece:
    """Consecutive layers of a stage; ``first`` is the number of their first parameter in the stage."""

    def __init__(self, layers: nn.Sequential, first: int) -> None:
        self._layers, self.first = layers, first
        self._names = [name for name, _ in layers.named_parameters()]
        self._random = any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in layers.modules())
        for name in ("inplace", "in_place"):
            if hasattr(layers[0], name):
                setattr(layers[0], name, False)  # what a piece gets belongs to the piece before

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return len(self._layers)

    @property
    def parameters(self) -> slice:
        """Which of the stage's parameters are its own."""
        return slice(self.first, self.first + len(self._names))

    def keep(self, arrived: Tensor, weights: Sequence[Tensor], loss: Loss | None) -> tuple[Tape, Tensor]:
        """Run without recording: all that is kept for backward is the input."""
        tape = Tape(self, arrived, loss, noise=torch.get_rng_state() if self._random else None)
        with torch.no_grad():
            return tape, self._output(tape, weights)

    def record(self, arrived: Tensor, weights: Sequence[Tensor], loss: Loss | None) -> tuple[Tape, Tensor]:
        """Run and record the graph."""
        tape = Tape(self, arrived, loss)
        self._record(tape, weights)
        assert tape.output is not None
        return tape, tape.output.detach()

    def again(self, tape: Tape, weights: Sequence[Tensor]) -> None:
        """Run once more what was not recorded, with the random numbers of its first run."""
        if tape.output is not None:
            return
        if tape.noise is None:
            self._record(tape, weights)
            return
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(tape.noise)
            self._record(tape, weights)

    def _record(self, tape: Tape, weights: Sequence[Tensor]) -> None:
        mine = weights[self.parameters]
        tape.leaves = tuple(weight.detach().requires_grad_() for weight in mine)
        with torch.enable_grad(), _naming(tape, mine):
            tape.output = self._output(tape, tape.leaves, whole=False)
        for leaf in tape.leaves:  # the shape without the storage: autograd checks gradients against it
            leaf.data = leaf.new_empty(1).expand(leaf.shape)

    def _output(self, tape: Tape, weights: Sequence[Tensor], whole: bool = True) -> Tensor:
        mine = weights[self.parameters] if whole else weights
        named = dict(zip(self._names, mine, strict=True))
        output: Tensor = functional_call(self._layers, named, (tape.arrived,))
        return output if tape.loss is None else tape.loss(output)


@contextmanager
def _naming(tape: Tape, weights: Sequence[Tensor]) -> Iterator[None]:
    """Let the graph keep names of the weights, looked up in ``tape.weights`` when backward needs them."""
    index_of = {weight.untyped_storage()._cdata: index for index, weight in enumerate(weights) if weight.numel()}

    def pack(tensor: Tensor) -> Tensor | _Named:
        index = index_of.get(tensor.untyped_storage()._cdata) if tensor.numel() else None
        if index is None:
            return tensor
        return _Named(index, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(kept: Tensor | _Named) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return tape.weights[kept.number].detach().as_strided(kept.size, kept.stride, kept.offset)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def back(
    tape: Tape,
    gradient: Tensor | None,
    weights: Sequence[Tensor],
    wanted: Sequence[Tensor],
    totals: Sequence[Tensor | None] = (),
    keep_graph: bool = False,
) -> list[Tensor | None]:
    """Gradients of the ``wanted`` leaves of one piece, computed with ``weights`` and added in place to ``totals``."""
    assert tape.output is not None
    if not wanted:
        return []
    for leaf, total in zip(wanted, totals, strict=bool(totals)):
        leaf.grad = total
    tape.weights = weights[tape.piece.parameters]
    torch.autograd.backward(tape.output, gradient, retain_graph=keep_graph, inputs=wanted)
    tape.weights = ()
    found = [leaf.grad for leaf in wanted]
    for leaf in wanted:
        leaf.grad = None
    return found
