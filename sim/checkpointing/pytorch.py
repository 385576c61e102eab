"""Plans as PyTorch runs them: their peak from the facts of each vertex, for both modes of ``torch.utils.checkpoint``.

What a run of vertices h + 1 … i adds to what is kept to its left: while vertex k is run again, what those before it
saved and the gradient of y_i; in backward of vertex k the same saved tensors and what `Facts.backward` says, and under
``reentrant`` y_i and its gradient all along. Weight gradients of the vertices to the right are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sim.checkpointing.plan import Plan, Run, vertices
from sim.checkpointing.program import Array, Program
from sim.liveness import Facts, Mode, facts, lasting_bytes, update_bytes
from sim.tape import Tape
from sim.training import Optimizer


@dataclass(frozen=True)
class Chain:
    """Vertices 1 … n and the loss behind them; bytes of the input, of what is always there, and of the update."""

    facts: tuple[Facts, ...]
    input_bytes: float
    lasting_bytes: float = 0
    update_bytes: float = 0

    @cached_property
    def sizes(self) -> list[float]:
        """d_0 … d_n."""
        return [self.input_bytes, *(vertex.output for vertex in self.facts[:-1])]

    @cached_property
    def gradients_behind(self) -> list[float]:
        """Bytes of the weight gradients that are there when backward reaches each vertex; the loss last."""
        return [*accumulate((vertex.gradients for vertex in reversed(self.facts[1:])), initial=0)][::-1]


def chain_of(tape: Tape, optimizer: Optimizer = "sgd") -> Chain:
    """A recorded model as a chain, with its weights and the state of its optimizer."""
    lasting = sum(size for size, _ in lasting_bytes(tape, optimizer))
    input_bytes, loss_and_one = tape.sizes[tape.boundaries[0]], 2 * tape.sizes[-1]
    updating = lasting + input_bytes + update_bytes(tape, optimizer)
    return Chain(tuple(facts(tape)), input_bytes, lasting + loss_and_one, updating)


def convolutions(sizes: Sequence[float]) -> Chain:
    """Sizes alone: each vertex a convolution and a ReLU in place, without weights, and nothing behind the last."""
    found = []
    for k, size in enumerate(sizes[1:], 1):
        onwards = sizes[k - 1] if k > 1 else 0
        holding = 3 * size + onwards
        found.append(Facts(size, 0, True, True, size, size, size, max(3 * size, size + onwards), holding))
    return Chain((*found, Facts(0, saves_input=False)), sizes[0])


def peak(mode: Mode, chain: Chain, plan: Plan) -> float:
    """Peak bytes of a plan."""
    whole = (*plan, len(chain.facts))
    return max(chain.update_bytes, chain.lasting_bytes + chain.input_bytes + _items(mode, chain, whole, None))


def _items(mode: Mode, chain: Chain, items: Plan, run: Run | None) -> float:
    """The peak of items one after the other beyond their input; they are the inside of ``run``, or all there is."""
    facts, sizes, behind = chain.facts, chain.sizes, chain.gradients_behind
    kept = most = 0.0
    last = max(vertices(items))
    waiting = sizes[last] + behind[last - 1] if run else 0.0  # while its inside runs again
    stops, holds = run is not None and mode == "non_reentrant", run is not None and mode == "reentrant"
    after_plain = False
    for index, item in enumerate(items):
        k, end = next(vertices([item])), max(vertices([item]))
        size, vertex, stop = sizes[k - 1] if index else 0, facts[k - 1], stops and index == len(items) - 1
        saved_before = after_plain and facts[k - 2].saves_output
        held = isinstance(item, Run) or vertex.saves_input or saved_before
        kept += size * held
        waits = (2 if end < last else isinstance(item, Run)) * sizes[last] if holds else 0
        if isinstance(item, Run):
            through, copied = 0 if stop else _through(chain, item), size * (item.offload and saved_before)
            most = max(most, kept + waiting + through, kept + copied + waits + _items(mode, chain, item.items, item))
            kept -= size * (item.offload and not saved_before)
        else:
            again = (vertex.stopped if stop else vertex.forward) + size * (not held)
            backward = (vertex.holding if holds and k == last else vertex.backward + waits) + behind[k - 1]
            most = max(most, kept + waiting + again, kept + backward)
            kept += vertex.kept
        after_plain = not isinstance(item, Run)
    return most


def _through(chain: Chain, run: Run) -> float:
    """The peak of running forward and saving nothing."""
    inside = [*vertices(run.items)]
    return max(chain.facts[k - 1].through + (chain.sizes[k - 1] if k > inside[0] else 0) for k in inside)


def program(mode: Mode, chain: Chain) -> Program:
    """The chain for the dynamic programs."""
    loss, d = chain.facts[-1], np.array(chain.sizes, np.float64)
    saves_input, saves_output = (_column(chain, name) > 0 for name in ("saves_input", "saves_output"))
    next_saves = np.append(saves_input[1:], loss.saves_input)
    held = np.stack([next_saves, next_saves | saves_output])
    held[:, 0] = True
    forward, backward = _column(chain, "forward"), _column(chain, "backward")
    backward[1:] += chain.gradients_behind[:-1]
    plain = np.stack([np.maximum(forward + np.append(0.0, d[:-1]), backward), np.maximum(forward, backward)])
    end = [d[-1] * on + max(loss.forward + d[-1] * (not on), loss.backward) for on in held[:, -1].tolist()]
    return Program(
        sizes=d,
        runs=_Runs(mode, chain, held[1]).of,
        kept=_column(chain, "kept"),
        plain=plain,
        held=held,
        end=(float(end[0]), float(end[1])),
        again=True,
        base=chain.lasting_bytes,
        floor=chain.update_bytes,
    )


def _column(chain: Chain, name: str) -> Array:
    """One fact of each vertex, at its number."""
    return np.array([0, *(getattr(vertex, name) for vertex in chain.facts[:-1])], np.float64)


class _Runs:
    """`_items` for all runs that begin at one vertex, at once.

    Columns hold what vertex k brings, at its number, with what all vertices before it save; ``_later`` has what a run
    cannot know of its first vertex, whose input is kept anyway.
    """

    def __init__(self, mode: Mode, chain: Chain, held: NDArray[np.bool_]) -> None:
        d, behind = np.array(chain.sizes), np.append(0.0, chain.gradients_behind[:-1])
        arriving, reentrant = np.append(0.0, d[:-1]), mode == "reentrant"
        saved = np.append(0.0, np.cumsum(_column(chain, "kept") + d * held)[:-1]) - d[0]
        loose = arriving * np.append(False, ~held[:-1])
        self._saved, self._receiving, self._waiting = saved, d + behind, 2 * d * reentrant
        self._through, self._forward = _column(chain, "through"), _column(chain, "forward") + saved
        self._ending = (_column(chain, "forward") if reentrant else _column(chain, "stopped")) + saved
        self._later = self._through + arriving, self._forward + loose, self._ending + loose
        self._backward = _column(chain, "backward") + behind + saved
        self._last = _column(chain, "holding") + behind + saved if reentrant else self._backward

    def of(self, i: int) -> Array:
        """Their peaks, ending at i + 1, i + 2, …"""
        first, later = i + 1, slice(i + 1, None)
        through, forward, ending = (column[later].copy() for column in self._later)
        through[0], forward[0], ending[0] = self._through[first], self._forward[first], self._ending[first]
        peaks: Array = np.maximum(ending, self._last[later] - self._receiving[later], out=ending)
        np.maximum(peaks[1:], np.maximum.accumulate(forward[:-1]), out=peaks[1:])
        peaks += self._receiving[later]
        backward = np.maximum.accumulate(self._backward[first:-1]) + self._waiting[first + 1 :]
        np.maximum(peaks[1:], backward, out=peaks[1:])
        peaks -= self._saved[first]
        return np.maximum(peaks, np.maximum.accumulate(through), out=peaks)
