"""Names of ops: what is written is what is read."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.ops import COMPUTE_KINDS, TRANSFER_KINDS, Lane, OpId, OpKind

NUMBER = st.integers(0, 10**9)
KIND = st.sampled_from([kind for kind in OpKind if kind is not OpKind.FORWARD_BACKWARD])
SINGLE = st.tuples(KIND, NUMBER, NUMBER, NUMBER, st.just(-1) | NUMBER).map(lambda fields: OpId(*fields))
PAIR = st.tuples(NUMBER, NUMBER, NUMBER, st.just(-1), NUMBER, NUMBER).map(
    lambda fields: OpId(OpKind.FORWARD_BACKWARD, *fields)
)


@given(SINGLE | PAIR)
@example(OpId(OpKind.FORWARD, 2, 0))
@example(OpId(OpKind.PUSH, 0, 3, 1, 17))
@example(OpId(OpKind.FORWARD_BACKWARD, 0, 7, 2, -1, 7, 3))
def test_names_round_trip(op: OpId) -> None:
    assert OpId.parse(str(op)) == op


@given(SINGLE | PAIR, SINGLE | PAIR)
def test_different_ops_have_different_names(one: OpId, other: OpId) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("2F0", OpId(OpKind.FORWARD, 2, 0)),
        ("2F0@1", OpId(OpKind.FORWARD, 2, 0, 1)),
        ("0P0.17", OpId(OpKind.PULL, 0, 0, 0, 17)),
        ("0G3@1.17", OpId(OpKind.PUSH, 0, 3, 1, 17)),
        ("3SF12", OpId(OpKind.SEND_ACTIVATION, 3, 12)),
        ("3SB12", OpId(OpKind.SEND_GRADIENT, 3, 12)),
        ("1AR4.2", OpId(OpKind.ALL_REDUCE, 1, 4, 0, 2)),
        ("(0F7;7B3)", OpId(OpKind.FORWARD_BACKWARD, 0, 7, 0, -1, 7, 3)),
        ("(0F7;7B3)@2", OpId(OpKind.FORWARD_BACKWARD, 0, 7, 2, -1, 7, 3)),
    ],
)
def test_names_as_documented(text: str, op: OpId) -> None:
    assert OpId.parse(text) == op
    assert str(op) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "2F",
        "F0",
        "2f0",
        "2FB0",
        "2X0",
        "-1F0",
        "2F-1",
        "2F0@",
        "2F0.",
        "2F0.1@1",
        " 2F0",
        "2F0\n",
        "(0F7;7B3",
        "0F7;7B3",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no op"):
        OpId.parse(text)


@given(st.text("0123456789FBSIWRPGAU@.();", max_size=12))
def test_parsing_gives_an_op_or_a_value_error(text: str) -> None:
    try:
        op = OpId.parse(text)
    except ValueError:
        return
    assert OpId.parse(str(op)) == op


def test_every_kind_computes_or_moves() -> None:
    assert set(OpKind) - COMPUTE_KINDS - TRANSFER_KINDS == {OpKind.ALL_REDUCE}
    assert not COMPUTE_KINDS & TRANSFER_KINDS
    assert len({kind.text for kind in OpKind}) == len(OpKind)


def test_streams_that_compute() -> None:
    assert [
        stream
        for stream in ("compute", "forward", "backward", "core", "send>1", "recv<0", "collective")
        if Lane(0, stream).computes
    ] == ["compute", "forward", "backward", "core"]
