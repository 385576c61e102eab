"""Partitions against brute force over every set of cuts."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import ScenarioError
from sim.partition import Partition, at_cuts, balanced

ZERO_TO_THREE = st.integers(0, 3).map(float)  # many ties
TENTHS = st.integers(0, 30).map(lambda tenths: tenths / 10)  # ties that rounding would break
ANY_COST = st.floats(0, 1e300, allow_subnormal=True)


def brute_force(costs: list[float], stages: int) -> Partition:
    """The definition: least maximum, then least sum of squares, then smallest cuts, in exact fractions."""

    def rank(cuts: tuple[int, ...]) -> tuple[Fraction, Fraction, tuple[int, ...]]:
        sums = [sum(map(Fraction, costs[a:b]), Fraction(0)) for a, b in pairwise((0, *cuts, len(costs)))]
        return max(sums), sum((total**2 for total in sums), Fraction(0)), cuts

    best = min(combinations(range(1, len(costs)), stages - 1), key=rank)
    return tuple((a, b - 1) for a, b in pairwise((0, *best, len(costs))))


@given(st.one_of(*(st.lists(cost, min_size=1, max_size=9) for cost in (ZERO_TO_THREE, TENTHS, ANY_COST))), st.data())
@settings(deadline=None, max_examples=300)
def test_balanced_is_the_best_of_all_partitions(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    assert balanced(costs, stages) == brute_force(costs, stages)


def test_equal_costs_give_equal_stages_and_the_larger_ones_come_last() -> None:
    assert balanced([0.1] * 10, 4) == ((0, 1), (2, 3), (4, 6), (7, 9))


@pytest.mark.parametrize(
    ("costs", "bottleneck"),
    # 1000 layers in 64 stages: some stage holds 16; nothing is cheaper than the dearest layer.
    [([0.1] * 1000, 16 * Fraction(0.1)), ([0.0] * 1000, 0), ([500.0] + [1.0 + i % 7 for i in range(999)], 500)],
)
def test_a_thousand_layers_on_64_stages(costs: list[float], bottleneck: Fraction) -> None:
    partition = balanced(costs, 64)
    assert len(partition) == 64
    assert [first for first, _ in partition] == [0, *(last + 1 for _, last in partition[:-1])]
    sums = [sum(map(Fraction, costs[first : last + 1])) for first, last in partition]
    assert max(sums) == bottleneck
    assert sum(sums) == sum(map(Fraction, costs))


def test_cuts_name_the_first_layer_of_the_next_stage() -> None:
    assert at_cuts(6, [2, 5]) == ((0, 1), (2, 4), (5, 5))
    assert at_cuts(6, []) == ((0, 5),)


@pytest.mark.parametrize(
    ("layers", "cuts", "paths"),
    [
        (6, [0, 6], ["partition.cuts.0", "partition.cuts.1"]),
        (6, [3, 3], ["partition.cuts.1"]),
        (6, [4, 2, 9], ["partition.cuts.1", "partition.cuts.2"]),
        (6, [True, 2.5, -1, "2"], [f"partition.cuts.{index}" for index in range(4)]),
        (1, [1], ["partition.cuts.0"]),
    ],
)
def test_every_bad_cut_is_named(layers: int, cuts: list[int], paths: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        at_cuts(layers, cuts)
    assert [fault.path for fault in caught.value.faults] == paths


@pytest.mark.parametrize("stages", [-1, 0, 4])
def test_stages_beyond_the_layers_are_refused(stages: int) -> None:
    with pytest.raises(ScenarioError, match=f"{stages} stages for 3 layers.*use 1 to 3"):
        balanced([1.0, 1.0, 1.0], stages)


def test_no_layers_and_bad_costs_are_refused_together() -> None:
    with pytest.raises(ScenarioError, match="1 stages for 0 layers"):
        balanced([], 1)
    with pytest.raises(ScenarioError) as caught:
        balanced([float("nan"), 1.0, -2.0, float("inf")], 9)
    assert len(caught.value.faults) == 4
