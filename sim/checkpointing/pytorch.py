"""Plans as PyTorch runs them: their peak from the facts of each vertex, for both modes of ``torch.utils.checkpoint``.

What a run of vertices h + 1 … i adds to what is kept to its left: while vertex k is run again, what those before it
saved and the gradient of y_i; in backward of vertex k the same saved tensors and what `Facts.backward` says, and under
``reentrant`` y_i and its gradient all along. Weight gradients of the vertices to the right are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    input_bytes: int
    lasting_bytes: int = 0
    update_bytes: int = 0

    @property
    def sizes(self) -> list[int]:
        """d_0 … d_n."""
        return [self.input_bytes, *(vertex.output for vertex in self.facts[:-1])]

    @property
    def gradients_behind(self) -> list[int]:
        """Bytes of the weight gradients that are there when backward reaches each vertex; the loss last."""
        return [*accumulate((vertex.gradients for vertex in reversed(self.facts[1:])), initial=0)][::-1]


def chain_of(tape: Tape, optimizer: Optimizer = "sgd") -> Chain:
    """A recorded model as a chain, with its weights and the state of its optimizer."""
    lasting = sum(size for size, _ in lasting_bytes(tape, optimizer))
    input_bytes, loss_and_one = tape.sizes[tape.boundaries[0]], 2 * tape.sizes[-1]
    updating = lasting + input_bytes + update_bytes(tape, optimizer)
    return Chain(tuple(facts(tape)), input_bytes, lasting + loss_and_one, updating)


def convolutions(sizes: Sequence[int]) -> Chain:
    """Sizes alone: each vertex a convolution and a ReLU in place, without weights, and nothing behind the last."""
    found = []
    for k, size in enumerate(sizes[1:], 1):
        onwards = sizes[k - 1] if k > 1 else 0
        holding = 3 * size + onwards
        found.append(Facts(size, 0, True, True, size, size, size, max(3 * size, size + onwards), holding))
    return Chain((*found, Facts(0, saves_input=False)), sizes[0])


def peak(mode: Mode, chain: Chain, plan: Plan) -> int:
    """Peak bytes of a plan without runs in runs."""
    behind, facts = chain.gradients_behind, chain.facts
    kept, most, before = chain.lasting_bytes, chain.update_bytes, 0
    for item in (*plan, len(facts)):
        last = max(vertices([item]))
        start = last - sum(1 for _ in vertices([item]))
        size, vertex = chain.sizes[start], facts[start]
        if isinstance(item, Run):
            kept += size
            most = max(most, kept + _run(mode, chain, start, last))
        else:
            held = not start or vertex.saves_input or (before == start and facts[start - 1].saves_output)
            kept += size * held
            most = max(most, kept + max(vertex.forward + size * (not held), vertex.backward + behind[start]))
            kept += vertex.kept
            before = last
    return most


def _run(mode: Mode, chain: Chain, start: int, last: int) -> int:
    """The peak of a run beyond its input and what is kept to its left."""
    facts, sizes, behind, reentrant = chain.facts, chain.sizes, chain.gradients_behind, mode == "reentrant"
    saved = most = 0
    for k in range(start + 1, last + 1):
        vertex, previous = facts[k - 1], facts[k - 2]
        arriving = sizes[k - 1] if k - 1 > start else 0
        loose = 0 if not arriving or previous.saves_output or vertex.saves_input else arriving
        again = vertex.forward if k < last or reentrant else vertex.stopped
        backward = vertex.backward + 2 * sizes[last] * reentrant if k < last or not reentrant else vertex.holding
        most = max(most, arriving + vertex.through, sizes[last] + behind[last - 1] + saved + loose + again)
        most = max(most, saved + backward + behind[k - 1])
        saved += vertex.kept + vertex.output * (vertex.saves_output or facts[k].saves_input)
    return most


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
    """`_run` for all runs that begin at one vertex, at once; columns hold what vertex k adds, at its number."""

    def __init__(self, mode: Mode, chain: Chain, held: NDArray[np.bool_]) -> None:
        self._reentrant = mode == "reentrant"
        self._d = d = np.array(chain.sizes, np.float64)
        self._behind = np.append(0.0, np.array(chain.gradients_behind[:-1], np.float64))
        self._through, self._forward = _column(chain, "through"), _column(chain, "forward")
        self._ending = self._forward if self._reentrant else _column(chain, "stopped")
        arriving = np.append(0.0, d[:-1])
        self._before = np.append(0.0, np.cumsum(_column(chain, "kept") + d * held)[:-1])
        self._before -= d[0]  # the input is no part of any run
        loose = arriving * np.append(False, ~held[:-1])
        self._arriving, self._loose = arriving, loose
        self._backward = _column(chain, "backward") + self._behind
        self._last = _column(chain, "holding") + self._behind if self._reentrant else self._backward

    def of(self, i: int) -> Array:
        """Their peaks, ending at i + 1, i + 2, …"""
        later, d = slice(i + 1, None), self._d[i + 1 :]
        before = self._before[later] - self._before[i + 1]
        arriving, loose = self._arriving[later].copy(), self._loose[later].copy()
        arriving[0] = loose[0] = 0.0
        through = np.maximum.accumulate(self._through[later] + arriving)
        again = _of_earlier(before + loose + self._forward[later])
        ending = before + loose + self._ending[later]
        recomputed = d + self._behind[later] + np.maximum(again, ending)
        backward = _of_earlier(before + self._backward[later]) + 2 * d * self._reentrant
        return np.maximum.reduce([through, recomputed, backward, before + self._last[later]])


def _of_earlier(column: Array) -> Array:
    """The largest of all entries before each."""
    return np.maximum.accumulate(np.append(-np.inf, column[:-1]))
