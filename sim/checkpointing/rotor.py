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
    """C(m, a, b) for every m up to ``memory``, by numpy over m and j; Σ over a, b, j, m takes O(n³ · memory)."""

    def __init__(self, costs: Persistent, memory: int) -> None:
        self._costs, self._memory = costs, memory
        n = len(costs.output)
        shape = 2 if costs.transfer_s else 1, n, n, memory + 1
        self._least = np.full(shape, inf)  # by whose the input is (1: only this part's), a, b, m
        self._right = np.full((n, n, memory + 1), inf)  # C(m − d_{j−1}, j, b) by b, j, m
        self._before_s = np.append(0.0, np.cumsum(costs.forward_s))
        for b in range(n):
            for a in range(b, -1, -1):
                for own in range(shape[0]):
                    self._least[own, a, b] = np.minimum.reduce([part for part, _ in self._parts(own, a, b)])
                if a:
                    self._right[b, a] = _shifted(self._least[-1, a, b], costs.output[a - 1])

    def _parts(self, own: int, a: int, b: int) -> Iterator[tuple[Array, str]]:
        """What C(·, a, b) is the least of, the second kind for the best j."""
        costs, free = self._costs, np.arange(self._memory + 1)
        alone = free >= max(costs.output[a] + costs.forward[a], costs.backward[a])
        if a == b:
            yield np.where(alone, 0.0, inf), "alone"
            return
        fits = alone & (free >= costs.output[b] + costs.forward[a])
        yield np.where(fits, _shifted(self._least[0, a + 1, b], costs.saved[a]), inf), "as it is"
        yield self._through(a, b, offload=False).min(axis=0), "through"
        if own and costs.transfer_s:
            yield self._through(a, b, offload=True).min(axis=0), "offload"

    def _through(self, a: int, b: int, offload: bool) -> Array:
        """The second kind by j − a − 1 and m."""
        costs, free = self._costs, np.arange(self._memory + 1)
        seconds = self._before_s[a + 1 : b + 1] - self._before_s[a]
        right = self._right[b, a + 1 : b + 1]
        if offload:
            seconds = seconds + costs.transfer_s[a]
            right = _shifted(right, -(costs.output[a - 1] if a else costs.input))
        arriving = [0, *costs.output[a : b - 1]]
        wanted = costs.output[b] + np.maximum.accumulate(np.add(arriving, costs.through[a:b]))
        sums: Array = right + self._least[0, a, a:b]
        sums += seconds[:, None]
        sums[free < wanted[:, None]] = inf
        return sums

    def least_s(self) -> Array:
        """C(m, 1, n) for every m; the input is somebody else's."""
        least_s: Array = self._least[0, 0, -1]
        return least_s

    def plan(self, memory: int) -> Plan:
        """The plan behind C(memory, 1, n), which is finite; it ends with vertex n, the loss."""
        return tuple(self._items(0, 0, len(self._costs.output) - 1, memory))

    def _items(self, own: int, a: int, b: int, memory: int) -> list[int | Run]:
        costs = self._costs
        _, how = min(((float(part[memory]), how) for part, how in self._parts(own, a, b)), key=lambda pair: pair[0])
        if how == "alone":
            return [a + 1]
        if how == "as it is":
            return [a + 1, *self._items(0, a + 1, b, memory - costs.saved[a])]
        j = a + 1 + int(self._through(a, b, how == "offload")[:, memory].argmin())
        freed = (costs.output[a - 1] if a else costs.input) if how == "offload" else 0
        right = self._items(min(1, len(self._least) - 1), j, b, memory + freed - costs.output[j - 1])
        return [Run(tuple(self._items(0, a, j - 1, memory)), how == "offload"), *right]


def _shifted(row: Array, memory: int) -> Array:
    """``row[..., m − memory]``: nothing fits below 0, and above its end there is nothing more to gain."""
    if memory <= 0:
        return row[..., np.minimum(np.arange(row.shape[-1]) - memory, row.shape[-1] - 1)]
    shifted = np.full_like(row, inf)
    shifted[..., memory:] = row[..., :-memory]
    return shifted


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
