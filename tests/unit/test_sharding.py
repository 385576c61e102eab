"""Which server keeps what: every rule against its definition worked out by hand, and what travels together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.load import shipped
from scenarios.profiles import shipped_table
from sim.model import DeviceSpec, roofline
from sim.sharding import Rule, Shards, Slice, Variable, by_layer, held, imbalance, shard, variables_of, whole

RULES: tuple[Rule, ...] = ("round_robin", "greedy", "even", "best_fit")
DEVICE = DeviceSpec("device", 1, 1.0, {"fp32": 1.0, "bf16": 1.0}, {"fp32": 1.0, "bf16": 1.0}, 1.0, "")


def sizes(*elements: float) -> tuple[Variable, ...]:
    return tuple(Variable(layer, each) for layer, each in enumerate(elements))


def model(name: str) -> tuple[Variable, ...]:
    return variables_of(roofline(shipped_table(name), DEVICE, "fp32", 1.0))


def names(shards: Shards) -> list[list[int]]:
    return [[piece.variable for piece in pieces] for pieces in shards]


def test_round_robin_goes_by_number() -> None:
    assert names(shard(sizes(5, 1, 5, 1, 5), 2, "round_robin")) == [[0, 2, 4], [1, 3]]


def test_greedy_goes_where_the_fewest_bytes_are() -> None:
    shards = shard(sizes(5, 1, 3, 2, 9), 2, "greedy")
    assert names(shards) == [[0, 4], [1, 2, 3]]  # of equals, 5 and 1 + 3 + 2 > 5, the first
    assert held(shards) == (14, 6)


def test_even_cuts_what_is_large_and_scatters_the_rest_as_mxnet_does() -> None:
    shards = shard(sizes(10**6, 999_999, 1_000_001, 7), 3, "even")
    cut = [333_333, 666_666]
    assert shards == (
        (Slice(0, 0, cut[0]), Slice(2, 0, cut[0]), Slice(3, 0, 7)),  # 3 * 9973 % 3 = 0
        (Slice(0, cut[0], cut[1]), Slice(1, 0, 999_999), Slice(2, cut[0], 666_667)),  # 9973 % 3 = 1
        (Slice(0, cut[1], 10**6), Slice(2, 666_667, 1_000_001)),
    )


def test_best_fit_cuts_at_an_even_share_and_fills_up() -> None:
    """40 on two servers, 20 each: 26 is cut; 9 leaves the least room beside its rest of 6; 5 fits nowhere else."""
    shards = shard(sizes(26, 9, 5), 2, "best_fit")
    assert shards == ((Slice(0, 0, 20),), (Slice(0, 20, 26), Slice(1, 0, 9), Slice(2, 0, 5)))


def test_best_fit_counts_tiny_variables_by_number() -> None:
    """Below a hundredth of the even share of 1000 a variable goes where the fewest are, not the fewest bytes."""
    shards = shard(sizes(999, 500, 495, 3, 2, 1), 2, "best_fit")
    assert [len(pieces) for pieces in shards] == [3, 3]


def test_explicit_goes_by_layer() -> None:
    variables = (Variable(0, 4), Variable(0, 1), Variable(2, 9))
    assert names(shard(variables, 2, {0: 1, 2: 0})) == [[2], [0, 1]]


@given(st.lists(st.integers(1, 3 * 10**6), min_size=1, max_size=30), st.integers(1, 9), st.sampled_from(RULES))
def test_every_element_lies_on_one_server(elements: list[int], servers: int, rule: Rule) -> None:
    variables = sizes(*elements)
    shards = shard(variables, servers, rule)
    assert len(shards) == servers
    for number, variable in enumerate(variables):
        pieces = sorted(piece for pieces in shards for piece in pieces if piece.variable == number)
        edges = [edge for piece in pieces for edge in (piece.start, piece.stop)]
        assert edges[0] == 0
        assert edges[-1] == variable.elements
        assert edges[1:-1:2] == edges[2::2]
        assert all(piece.elements > 0 for piece in pieces)
    for parts in (whole(shards, variables), by_layer(shards, variables, 0), by_layer(shards, variables, 10**6)):
        assert sorted(piece for part in parts for piece in part.slices) == sorted(
            piece for pieces in shards for piece in pieces
        )


def test_the_trap_of_two_servers() -> None:
    """VGG16 has 16 weights and 16 biases that alternate: all weights land on the first of two servers."""
    variables = model("vgg16")
    assert len(variables) == 32
    shards = shard(variables, 2, "round_robin")
    weights, biases = held(shards)
    assert biases == 64 * 2 + 128 * 2 + 256 * 3 + 512 * 6 + 4096 * 2 + 1000
    assert weights + biases == 138_357_544
    assert imbalance(shards) == pytest.approx(2, rel=1e-3)
    assert imbalance(shard(variables, 3, "round_robin")) > 1.5  # an odd number alternates, but one tensor is 74 %
    assert imbalance(shard(variables, 2, "even")) < 1.02
    assert imbalance(shard(variables, 2, "best_fit")) < 1.1
    greedy = imbalance(shard(variables, 2, "greedy"))
    assert greedy == pytest.approx(2 * max(held(shard(variables, 2, "greedy"))) / 138_357_544)
    assert 1.5 < greedy < 1.7  # the first linear layer alone is 102,760,448 parameters, and is never cut


@pytest.mark.parametrize("name", shipped("models"))
def test_variables_are_the_parameters_of_a_shipped_model(name: str) -> None:
    table = shipped_table(name)
    for work in table.layers:
        assert sum(work.variables) == work.parameter_elements
        assert all(size > 0 for size in work.variables)
    assert sum(variable.elements for variable in model(name)) == sum(work.parameter_elements for work in table.layers)


def test_resnet50_has_the_variables_of_its_definition() -> None:
    """53 convolutions without bias, 53 batch normalisations of two, a linear layer with a bias."""
    assert len(model("resnet50")) == 53 + 2 * 53 + 2


def test_parts_of_a_step_are_whole_shards() -> None:
    variables = (Variable(0, 4), Variable(0, 1), Variable(2, 9))
    parts = whole(shard(variables, 3, {0: 0, 2: 2}), variables)
    assert [(part.server, part.layers, part.elements) for part in parts] == [(0, (0,), 5), (2, (2,), 9)]


def test_small_neighbours_travel_together_up_to_a_bucket() -> None:
    variables = (Variable(0, 4), Variable(0, 1), Variable(1, 9), Variable(2, 2), Variable(3, 2))
    shards = shard(variables, 1, "round_robin")

    def together(bucket: float) -> list[list[int]]:
        return [[piece.variable for piece in part.slices] for part in by_layer(shards, variables, bucket)]

    assert together(0) == [[0], [1], [2], [3], [4]]
    assert together(5) == [[0, 1], [2], [3, 4]]
    assert together(100) == [[0, 1, 2, 3, 4]]
    assert by_layer(shards, variables, 5)[2].layers == (2, 3)


def test_no_parameters_are_in_balance() -> None:
    assert imbalance(((), ())) == 1.0
