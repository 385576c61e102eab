"""The alphabet of plans: what kinds of work there are and how one piece of work is named.

An op is named ``{stage}{kind}{micro_batch}``, with ``@replica`` and ``.part`` where they matter:
``2F0``, ``2F0@1``, ``0G3@1.17``; a fused pair of a forward and a backward is ``(0F7;7B3)``.
Names round-trip: ``OpId.parse(str(op)) == op``.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class OpKind(enum.IntEnum):
    """What an op does. The value is its code in columns and its rank among ops of one micro-batch and stage."""

    PULL = 0
    FORWARD = 1
    SEND_ACTIVATION = 2
    RECOMPUTE = 3
    BACKWARD = 4
    BACKWARD_INPUT = 5
    SEND_GRADIENT = 6
    BACKWARD_WEIGHT = 7
    FORWARD_BACKWARD = 8
    PUSH = 9
    ALL_REDUCE = 10
    ACCUMULATE = 11
    UPDATE = 12
    SEND_SAVED = 13

    @property
    def text(self) -> str:
        """The letters of the kind in an op's name."""
        return _TEXT[self]


_TEXT = {
    OpKind.PULL: "P",
    OpKind.FORWARD: "F",
    OpKind.SEND_ACTIVATION: "SF",
    OpKind.RECOMPUTE: "R",
    OpKind.BACKWARD: "B",
    OpKind.BACKWARD_INPUT: "I",
    OpKind.SEND_GRADIENT: "SB",
    OpKind.BACKWARD_WEIGHT: "W",
    OpKind.FORWARD_BACKWARD: "FB",
    OpKind.PUSH: "G",
    OpKind.ALL_REDUCE: "AR",
    OpKind.ACCUMULATE: "A",
    OpKind.UPDATE: "U",
    OpKind.SEND_SAVED: "SS",
}
_KIND = {text: kind for kind, text in _TEXT.items()}

COMPUTE_KINDS = frozenset(
    {
        OpKind.FORWARD,
        OpKind.RECOMPUTE,
        OpKind.BACKWARD,
        OpKind.BACKWARD_INPUT,
        OpKind.BACKWARD_WEIGHT,
        OpKind.FORWARD_BACKWARD,
        OpKind.ACCUMULATE,
        OpKind.UPDATE,
    }
)
"""Kinds that occupy a compute lane; the others move bytes."""

TRANSFER_KINDS = frozenset({OpKind.SEND_ACTIVATION, OpKind.SEND_GRADIENT, OpKind.SEND_SAVED, OpKind.PULL, OpKind.PUSH})
"""Kinds that carry a payload from one device to another over a route. What a stage saved (its input and activations)
travels where its backward runs on another device than its forward; a pull brings weights to where a pass needs them."""

FORWARD_KINDS = (OpKind.FORWARD, OpKind.FORWARD_BACKWARD)
BACKWARD_KINDS = (OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)

_SINGLE = re.compile(r"(\d+)([A-Z]+)(\d+)(?:@(\d+))?(?:\.(\d+))?")
_PAIR = re.compile(r"\((\d+)F(\d+);(\d+)B(\d+)\)(?:@(\d+))?")


class OpId(NamedTuple):
    """The name of one op.

    ``micro_batch`` is global: its mini-batch is ``micro_batch // micro_batches``. An update, an all-reduce and the
    server's ops carry the number of their mini-batch in its place, a pull the version of the weights it brings.
    ``part`` is a layer or a bucket, −1 for the whole. ``other_stage`` and ``other_micro_batch`` name the backward half
    of a fused pair.
    """

    kind: OpKind
    stage: int
    micro_batch: int
    replica: int = 0
    part: int = -1
    other_stage: int = -1
    other_micro_batch: int = -1

    def __str__(self) -> str:
        replica = f"@{self.replica}" if self.replica else ""
        if self.kind is OpKind.FORWARD_BACKWARD:
            return f"({self.stage}F{self.micro_batch};{self.other_stage}B{self.other_micro_batch}){replica}"
        part = f".{self.part}" if self.part >= 0 else ""
        return f"{self.stage}{self.kind.text}{self.micro_batch}{replica}{part}"

    @classmethod
    def parse(cls, text: str) -> OpId:
        """Read an op's name.

        Raises
        ------
        ValueError : ``text`` is no op's name.
        """
        if pair := _PAIR.fullmatch(text):
            stage, micro_batch, other_stage, other_micro_batch = (int(group) for group in pair.groups()[:4])
            replica = int(pair[5] or 0)
            return cls(OpKind.FORWARD_BACKWARD, stage, micro_batch, replica, -1, other_stage, other_micro_batch)
        single = _SINGLE.fullmatch(text)
        if single is None or single[2] not in _KIND or single[2] == "FB":
            raise ValueError(f"'{text}' is no op: expected one such as 2F0, 2F0@1, 0G3.17 or (0F7;7B3)")
        part = -1 if single[5] is None else int(single[5])
        return cls(_KIND[single[2]], int(single[1]), int(single[3]), int(single[4] or 0), part)


class Lane(NamedTuple):
    """Something serial on a device: a compute stream, one end of a channel to a peer, a server core.

    ``device`` indexes the devices of a plan; ``stream`` is ``compute``, ``forward``, ``backward``, ``send>1``
    (to device 1), ``recv<0`` (from device 0), ``collective`` or ``core``.
    """

    device: int
    stream: str

    @property
    def computes(self) -> bool:
        """Whether ops on this lane use the device's arithmetic."""
        return self.stream in COMPUTE_STREAMS


COMPUTE_STREAMS = frozenset({"compute", "forward", "backward", "core"})
