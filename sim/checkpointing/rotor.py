"""Least time under a budget of memory, where a recomputation may be checkpointed in turn.

The dynamic program of Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova (rotor, arXiv 1911.13214), exact for persistent
schedules: what is kept is kept until it is used. C(m, a, b), the least time that vertices a … b recompute with m bytes
free beside y_{a−1}:

    C(m, a, a) = 0                                                   if dy_a and forward or backward of a fit into m
    C(m, a, b) = min of
      C(m − x̄_a, a + 1, b)                                           a runs as it is and keeps x̄_a; a alone fits too
      Σ_{a≤k<j} f_k + C(m − d_{j−1}, j, b) + C(m, a, j − 1)           a … j − 1 run through, all but y_{j−1} is let go

Offloading, if y_{a−1} is kept for this part alone (another part was run through before it), the second may also move it
to the memory of the host while j … b are at work: C(m + d_{a−1} − d_{j−1}, j, b) and twice the time of its transfer. No
transfer overlaps with work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from sim.checkpointing import program, pytorch
from sim.checkpointing.plan import Plan, Run, vertices
from sim.checkpointing.program import Array, Choice
from sim.checkpointing.pytorch import Chain

MOST_SLOTS = 1000
_MOST_CELLS = 10**7


@dataclass(frozen=True)
class Persistent:
    """What the program knows of vertices 1 … n, the last of which nothing recomputes, at index 0 … n − 1.

    ``output`` d_k, ``saved`` x̄_k with the output; most bytes ``through`` (beside the input), ``forward`` (with what it
    saves) and ``backward`` (from the gradient of its output on); ``input`` is d_0. Seconds: ``forward_s``, and
    ``transfer_s`` of d_0 … d_{n−1} to the host and back; empty: there is no host.
    """

    input: int
    output: tuple[int, ...]
    saved: tuple[int, ...]
    through: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_s: tuple[float, ...]
    transfer_s: tuple[float, ...] = ()


class Table:
    """C(m, a, b) for every m up to ``memory``: all parts of one length at once, O(n³ · memory) in all.

    Vertices count from 0 here; ``_least[own][length][a]`` is of a … a + length, by m, ``own``: whether their input is
    kept for them alone. ``_right[length][j]`` is of j … j + length with y_{j−1} kept, and the time up to j.
    """

    def __init__(self, costs: Persistent, memory: int) -> None:
        self._costs, self._memory = costs, memory
        self._before_s = np.append(0.0, np.cumsum(costs.forward_s))
        self._arriving = (costs.input, *costs.output[:-1])
        self._output, self._saving_nothing = np.array(costs.output), np.array(costs.through)
        kinds, vertices = 2 if costs.transfer_s else 1, len(costs.output)
        self._least: list[list[Array]] = [[] for _ in range(kinds)]
        self._right: list[Array] = []
        self._buffers = np.empty((2, vertices, memory + 1))
        for length in range(vertices):
            for own in range(kinds):
                self._least[own].append(self._parts(own, length))
            kept = self._least[-1][length]
            right = np.full_like(kept, inf)
            for j in range(1, vertices - length):
                _shift(kept[j], self._arriving[j], right[j])
            right += self._before_s[: vertices - length, None]
            self._right.append(right)

    def _parts(self, own: int, length: int) -> Array:
        """C for all parts of this length, one row each."""
        costs, parts = self._costs, len(self._costs.output) - length
        best = np.full((parts, self._memory + 1), inf)
        for a in range(parts):
            fits = self._as_it_is(a, a + length)
            if length:
                _shift(self._least[0][length - 1][a + 1], costs.saved[a], best[a])
                best[a, :fits] = inf
            else:
                best[a, fits:] = 0.0
        again, sums = (buffer[:parts] for buffer in self._buffers)
        for offload in (False, True) if own and costs.transfer_s else (False,):
            again[:], wanted = inf, np.zeros(parts, np.int64)
            for k in range(length):
                np.add(self._least[0][k][:parts], self._moved(length, k, offload), out=sums)
                np.maximum(wanted, self._through(length, k), out=wanted)
                for row, fits in zip(sums, wanted.tolist(), strict=True):
                    row[:fits] = inf
                np.minimum(again, sums, out=again)
            again -= self._before_s[:parts, None]
            np.minimum(best, again, out=best)
        return best

    def _as_it_is(self, a: int, b: int) -> int:
        """The least memory in which a runs forward, the gradient of b being there, and is taken back alone."""
        costs = self._costs
        return max(max(costs.output[a], costs.output[b]) + costs.forward[a], costs.backward[a])

    def _through(self, length: int, k: int) -> NDArray[np.int64]:
        """The least memory in which a + k runs forward and saves nothing, in a run from a on, for each part."""
        parts = len(self._output) - length
        arriving = self._output[k - 1 : k - 1 + parts] if k else 0
        wanted: NDArray[np.int64] = self._output[length:] + self._saving_nothing[k : k + parts] + arriving
        return wanted

    def _moved(self, length: int, k: int, offload: bool) -> Array:
        """What lies right of a … a + k in each part; ``offload``: with the memory that the input of a had taken."""
        parts = len(self._costs.output) - length
        right = self._right[length - k - 1][k + 1 : k + 1 + parts]
        if not offload:
            return right
        moved = np.full_like(right, inf)
        for a in range(parts):
            _shift(right[a], -self._arriving[a], moved[a])
            moved[a] += self._costs.transfer_s[a]
        return moved

    def least_s(self) -> Array:
        """C(m, 1, n) for every m; the input is somebody else's."""
        least_s: Array = self._least[0][-1][0]
        return least_s

    def plan(self, memory: int) -> Plan:
        """The plan behind C(memory, 1, n), which is finite; it ends with vertex n, the loss."""
        return tuple(self._items(0, 0, len(self._costs.output) - 1, memory))

    def _items(self, own: int, a: int, b: int, memory: int) -> list[int | Run]:
        if a == b:
            return [a + 1]
        costs, arriving = self._costs, self._arriving
        best, found = inf, list[tuple[int, int, bool]]()  # where the first item ends, memory right of it, offloaded
        if memory >= max(self._as_it_is(a, b), costs.saved[a]):
            best, found = self._value(0, a + 1, b, memory - costs.saved[a]), []
        wanted = 0
        for k in range(a, b):
            wanted = max(wanted, int(self._through(b - a, k - a)[a]))
            for offload in (False, True) if own and costs.transfer_s else (False,):
                left = min(memory - arriving[k + 1] + arriving[a] * offload, self._memory)
                if memory < wanted or left < 0:
                    continue
                seconds = self._before_s[k + 1] - self._before_s[a] + (costs.transfer_s[a] if offload else 0.0)
                seconds += self._value(len(self._least) - 1, k + 1, b, left) + self._value(0, a, k, memory)
                if seconds < best:
                    best, found = seconds, [(k, left, offload)]
        if not found:
            return [a + 1, *self._items(0, a + 1, b, memory - costs.saved[a])]
        ((k, left, offload),) = found
        inside = Run(tuple(self._items(0, a, k, memory)), offload)
        return [inside, *self._items(len(self._least) - 1, k + 1, b, left)]

    def _value(self, own: int, a: int, b: int, memory: int) -> float:
        return float(self._least[own][b - a][a, memory])


def _shift(row: Array, memory: int, out: Array) -> None:
    """``out[m] = row[m − memory]`` where there is one; above its end there is nothing more to gain."""
    length = len(row)
    if memory >= 0:
        out[memory:] = row[: max(0, length - memory)]
    else:
        out[: max(0, length + memory)] = row[-memory:]
        out[max(0, length + memory) :] = row[-1]


def persistent(
    chain: Chain, seconds: Sequence[float], slot_bytes: float, host_bytes_per_s: float | None = None
) -> Persistent:
    """A chain in slots of memory, every size rounded up; weight gradients of later vertices count as backward's.

    What a vertex saves is taken to include its output, whether anything saves that or not.
    """

    def slots(size_bytes: float) -> int:
        return ceil(size_bytes / slot_bytes)

    facts, behind = chain.facts, chain.gradients_behind
    moved = () if host_bytes_per_s is None else tuple(2 * size / host_bytes_per_s for size in chain.sizes)
    return Persistent(
        input=slots(chain.input_bytes),
        output=tuple(slots(vertex.output) for vertex in facts),
        saved=tuple(slots(vertex.kept + vertex.output) for vertex in facts),
        through=tuple(slots(vertex.through) for vertex in facts),
        forward=tuple(slots(vertex.forward + after) for vertex, after in zip(facts, behind, strict=True)),
        backward=tuple(slots(vertex.backward + after) for vertex, after in zip(facts, behind, strict=True)),
        forward_s=(*seconds, 0.0),
        transfer_s=moved,
    )


def front(chain: Chain, seconds: Sequence[float], host_bytes_per_s: float | None = None) -> list[Choice]:
    """The plans that no other beats in both peak and time, from the least peak to the least time.

    Memory is counted in a thousandth of what the chain takes without a plan (less finely for more than a hundred
    vertices), so a plan may need a little less than the program believes: the peaks given are exact, of
    ``non_reentrant``. Plans without runs in runs are among them. Time of transfers counts as recomputed.
    """
    found = program.front(pytorch.program("non_reentrant", chain), seconds)
    for rate in dict.fromkeys((None, host_bytes_per_s)):
        found += _nested(chain, seconds, rate)
    return program.undominated(found)


def _nested(chain: Chain, seconds: Sequence[float], host_bytes_per_s: float | None) -> Iterator[Choice]:
    """One plan for every budget at which the least time falls."""
    n = len(seconds)
    always = chain.lasting_bytes + chain.input_bytes
    most = pytorch.peak("non_reentrant", chain, tuple(range(1, n + 1))) - always
    slots = min(MOST_SLOTS, _MOST_CELLS // (n + 1) ** 2)
    costs = persistent(chain, seconds, max(1.0, most / slots), host_bytes_per_s)
    table = Table(costs, slots + 2 * n)
    least_s = table.least_s()
    for memory in np.flatnonzero(least_s < np.append(inf, least_s[:-1])).tolist():
        plan = table.plan(memory)[:-1]
        moved_s = sum(costs.transfer_s[first - 1] for first in _offloaded(plan))
        spent_s = program.recompute_s(plan, seconds) + moved_s
        yield Choice(pytorch.peak("non_reentrant", chain, plan), spent_s, plan)


def _offloaded(plan: Plan) -> Iterator[int]:
    """The first vertex of every run whose input goes to the host."""
    for item in plan:
        if isinstance(item, Run):
            if item.offload:
                yield next(vertices(item.items))
            yield from _offloaded(item.items)
