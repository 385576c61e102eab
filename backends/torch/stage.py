"""One copy of a stage on tensors: the passes of its micro-batches, and the gradients they leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from backends.torch.pieces import Loss, Piece, Tape, back
from backends.torch.weights import VersionedWeights


class Stage:
    """Layers in pieces, weights, and what pending backwards hold.

    ``cuts`` are the numbers of the first layers of all pieces but the first. With ``recompute`` a forward keeps only
    the input of each piece of several layers, which then runs again whole, as under PyTorch's ``use_reentrant=True``.
    """

    def __init__(self, layers: nn.Sequential, cuts: Iterable[int], recompute: bool, weights: VersionedWeights) -> None:
        self.weights, self._recompute = weights, recompute
        self._pieces: list[Piece] = []
        self._tapes: dict[int, list[Tape]] = {}
        self._gradients: dict[int, list[Tensor | None]] = {}
        bounds, parameters = [0, *cuts, len(layers)], 0
        for low, high in pairwise(bounds):
            self._pieces.append(Piece(nn.Sequential(*list(layers)[low:high]), parameters))
            parameters = self._pieces[-1].parameters.stop

    def forward(self, micro_batch: int, arrived: Tensor, weights: Sequence[Tensor], loss: Loss | None) -> Tensor:
        """The output; given a loss, the micro-batch's share of it. ``arrived`` wants a gradient if it requires one."""
        tapes: list[Tape] = []
        passing, wanted = arrived, arrived.requires_grad
        for piece in self._pieces:
            run = piece.keep if self._recompute and piece.layers > 1 else piece.record
            tape, passing = run(
                passing.detach().requires_grad_(wanted), weights, loss if piece is self._pieces[-1] else None
            )
            tapes.append(tape)
            wanted = wanted or piece.parameters.stop > piece.parameters.start
        self._tapes[micro_batch] = tapes
        return passing

    def recompute(self, micro_batch: int, weights: Sequence[Tensor]) -> None:
        """Run the last piece again; the others follow in backward, each when it is needed."""
        tape = self._tapes[micro_batch][-1]
        tape.piece.again(tape, weights)

    def backward(
        self,
        micro_batch: int,
        update: int,
        gradient: Tensor | None,
        weights: Sequence[Tensor],
        pieces: int | None = None,
    ) -> Tensor | None:
        """Back through the last ``pieces`` that are left, or through all; the gradient of what arrived there.

        The gradients of the parameters are added to those of the update.
        """
        tapes = self._tapes[micro_batch]
        gradient = tapes[-1].gradient if gradient is None else gradient
        for _ in range(pieces or len(tapes)):
            tape = tapes.pop()
            tape.piece.again(tape, weights)
            gradient = self._back(tape, update, gradient, weights, tape.arrived.requires_grad)
        if not tapes:
            del self._tapes[micro_batch]
            return gradient
        tapes[-1].gradient = gradient
        return None

    def backward_input(self, micro_batch: int, gradient: Tensor | None, weights: Sequence[Tensor]) -> Tensor | None:
        """The gradient of the input; what each piece needs for its parameters' gradients stays."""
        for tape in reversed(self._tapes[micro_batch]):
            tape.piece.again(tape, weights)
            tape.gradient = gradient
            if tape.arrived.requires_grad:
                (gradient,) = back(tape, gradient, weights, [tape.arrived], keep_graph=True)
        return gradient

    def backward_weight(self, micro_batch: int, update: int, weights: Sequence[Tensor]) -> None:
        """The gradients of the parameters, after the one of the input."""
        for tape in reversed(self._tapes.pop(micro_batch)):
            self._back(tape, update, tape.gradient, weights, wants_input=False)

    def _back(
        self, tape: Tape, update: int, gradient: Tensor | None, weights: Sequence[Tensor], wants_input: bool
    ) -> Tensor | None:
        """Back through one piece, adding to the gradients of an update; the gradient of its input, if wanted."""
        totals = self._gradients.setdefault(update, [None] * len(self.weights.live))
        mine = tape.piece.parameters
        wanted = [*([tape.arrived] if wants_input else []), *tape.leaves]
        found = back(tape, gradient, weights, wanted, [*([None] if wants_input else []), *totals[mine]])
        totals[mine] = found[len(found) - len(tape.leaves) :]
        return found[0] if wants_input else None

    def bucket(self, update: int, part: int) -> list[Tensor]:
        """The summed gradients of a part of the parameters, or (−1) of all: what an all-reduce adds up, in place."""
        chosen = self._gradients[update] if part < 0 else self._gradients[update][self._pieces[part].parameters]
        return [gradient for gradient in chosen if gradient is not None]

    def drop(self, update: int) -> None:
        """Forget the gradients of an update."""
        del self._gradients[update]

    def update(self, update: int) -> list[Tensor]:
        """Apply the gradients of an update; what they were."""
        applied = [gradient for gradient in self._gradients.pop(update) if gradient is not None]
        self.weights.update(applied)
        return applied
