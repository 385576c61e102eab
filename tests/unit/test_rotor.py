"""Least time under a budget: the dynamic program against every plan there is, each played out op by op."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from scenarios.checkpoint_subject import of_model
from sim.checkpointing import program, pytorch, rotor
from sim.checkpointing.plan import Plan, Run, vertices
from sim.checkpointing.pytorch import convolutions
from sim.checkpointing.rotor import Persistent, Table, persistent
from sim.liveness import training_step

MOST = 40
"""Slots of memory in the random cases."""


def trees(a: int, b: int, offload: bool) -> Iterator[Plan]:
    """Every plan of vertices a … b whose last is not recomputed."""
    if a == b:
        yield (a,)
        return
    for rest in trees(a + 1, b, offload):
        yield (a, *rest)
    for j in range(a + 1, b + 1):
        for left in trees(a, j - 1, offload):
            for right in trees(j, b, offload):
                yield from ((Run(left, away), *right) for away in ((False, True) if offload else (False,)))


class Played:
    """A plan played out: what is allocated when, counted beside the input, which is somebody else's."""

    def __init__(self, costs: Persistent, plan: Plan) -> None:
        self._costs, self._live = costs, 0
        self.peak, self.seconds, self.allowed = 0, 0.0, True
        self._backward(plan, own=False)

    def _size(self, k: int) -> int:
        return self._costs.output[k - 1] if k else self._costs.input

    def _meet(self, beside: int) -> None:
        self.peak = max(self.peak, self._live + beside)

    def _backward(self, items: Plan, own: bool) -> None:
        """All of a part whose output's gradient is there; ``own``: nothing else holds its input."""
        costs, item, rest = self._costs, items[0], items[1:]
        k, last = next(vertices([item])), max(vertices(items))
        if isinstance(item, Run):
            end = max(vertices([item]))
            for each in range(k, end + 1):
                arriving = self._size(each - 1) if each > k else 0
                self._meet(self._size(last) + arriving + costs.through[each - 1])
                self.seconds += costs.forward_s[each - 1]
            if item.offload:
                self.allowed &= own
                self.seconds += costs.transfer_s[k - 1]
                self._live -= self._size(k - 1)
            self._live += self._size(end)
            self._backward(rest, own=True)
            self._live += (self._size(k - 1) if item.offload else 0) - self._size(end)
            self._backward(item.items, own=False)
            return
        self._meet(self._size(last) + costs.forward[k - 1])
        if rest:
            self._live += costs.saved[k - 1]
            self._backward(rest, own=False)
            self._live -= costs.saved[k - 1]
        self._meet(self._size(k) + costs.forward[k - 1])
        self._meet(costs.backward[k - 1])


def random_costs(rng: random.Random, n: int) -> Persistent:
    output = tuple(rng.randint(1, 6) for _ in range(n))
    return Persistent(
        input=rng.randint(1, 6),
        output=output,
        saved=tuple(size + rng.randint(0, 6) for size in output),
        through=tuple(size + rng.randint(0, 2) for size in output),
        forward=tuple(size + rng.randint(0, 6) for size in output),
        backward=tuple(2 * size + rng.randint(0, 6) for size in output),
        forward_s=tuple(float(rng.randint(0, 6)) for _ in range(n)),
        transfer_s=tuple(rng.choice((0.0, 0.5, 1.0, 3.0)) for _ in range(n)),
    )


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_the_program_is_brute_force(count: int, offload: bool) -> None:
    rng = random.Random(count)
    for _ in range(count):
        n = rng.randint(1, 6 - offload)
        known = random_costs(rng, n)
        costs = known if offload else replace(known, transfer_s=())
        least = [inf] * (MOST + 1)
        for plan in trees(1, n, offload):
            played = Played(costs, plan)
            if played.allowed:
                least[played.peak :] = [min(seconds, played.seconds) for seconds in least[played.peak :]]
        table = Table(costs, MOST)
        assert table.least_s().tolist() == least
        for memory in (memory for memory in range(MOST + 1) if least[memory] < inf):
            played = Played(costs, table.plan(memory))
            assert played.allowed
            assert played.peak <= memory
            assert played.seconds == least[memory]


def test_four_equal_layers_by_hand() -> None:
    """Every output and gradient takes 1, backward of a layer 3: its output and two gradients."""
    ones = (1, 1, 1, 1)
    least_s = Table(Persistent(1, ones, ones, ones, ones, (3, 3, 3, 3), (1.0, 1.0, 1.0, 0.0)), 7).least_s().tolist()
    assert least_s[:4] == [inf] * 4  # whatever is recomputed, y_3 is there in backward of layer 4
    assert least_s[4] == 5.0  # layers 1 to 3 again, then 1 and 2
    assert least_s[5] == 2.0  # y_1 is kept, layers 2 and 3 again
    assert least_s[6:] == [0.0, 0.0]  # all is kept: three outputs, and backward of layer 4


@pytest.mark.parametrize(("name", "batch"), [("resnet50", 16), ("transformer-imdb", 8), ("vgg13", 8)])
def test_plans_of_real_models_need_what_is_said(name: str, batch: int) -> None:
    """Peaks equal a played step, runs in runs and offloaded inputs too; no plan beats another in both."""
    subject = of_model(name, batch)
    assert subject.seconds is not None
    flat = program.front(pytorch.program("non_reentrant", subject.chain), subject.seconds)
    for rate in (None, 12e9):
        choices = rotor.front(subject.chain, subject.seconds, rate)
        assert choices[0].peak_bytes <= flat[0].peak_bytes
        assert choices[-1].recompute_s == 0
        assert all(a.peak_bytes < b.peak_bytes and a.recompute_s > b.recompute_s for a, b in pairwise(choices))
        for choice in choices[:: max(1, len(choices) // 5)]:
            played = training_step(subject.tape, choice.plan).peak().bytes
            assert played <= choice.peak_bytes <= played + 8  # the loss and its gradient may not be there yet


def test_recomputing_again_takes_less_memory() -> None:
    chain = convolutions([8] * 30)
    flat = program.front(pytorch.program("non_reentrant", chain), [1.0] * 29)
    nested = rotor.front(chain, [1.0] * 29)
    assert nested[0].peak_bytes < flat[0].peak_bytes
    for choice in flat:
        assert any(
            other.peak_bytes <= choice.peak_bytes and other.recompute_s <= choice.recompute_s for other in nested
        )


def test_sizes_are_rounded_up_to_slots() -> None:
    costs = persistent(convolutions([10, 11, 20]), [1.0, 2.0], 10, host_bytes_per_s=20.0)
    assert (costs.input, costs.output, costs.saved) == (1, (2, 2, 0), (2, 2, 0))
    assert costs.forward_s == (1.0, 2.0, 0.0)
    assert costs.transfer_s == (1.0, 1.1, 2.0)
