"""How PyTorch names the actions of a pipeline, and the ops they are.

``2F0`` is the forward of stage 2, micro-batch 0; I the input gradient, W the weight gradient, B both at once;
``(0F7;7B3)OVERLAP_F_B`` a forward and a full backward together. In the ``legacy`` dialect B is the input gradient: its
files hold W but no I. Communication has two ends, each numbered by its own stage: ``0SEND_F3`` meets ``1RECV_F3``,
``1SEND_B3`` meets ``0RECV_B3``. ``0UNSHARD``, ``0RESHARD`` and ``0REDUCE_GRAD`` gather, shard and sum what belongs to
a stage over data-parallel ranks: they move nothing in a pipeline by itself.

As in ``torch/distributed/pipelining/schedules.py`` (PyTorch 2.13).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from sim.ops import OpId, OpKind

Dialect = Literal["current", "legacy"]

EXAMPLES = "2F0, 2SEND_F0, 2UNSHARD or (0F7;7B3)OVERLAP_F_B"

_NUMBER = "(0|[1-9][0-9]{0,5})"
_ACTION = re.compile(f"{_NUMBER}(F|I|W|B|SEND_F|SEND_B|RECV_F|RECV_B){_NUMBER}")
_PAIR = re.compile(rf"\({_NUMBER}F{_NUMBER} *; *{_NUMBER}B{_NUMBER}\)OVERLAP_F_B")
_SHARDING = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)")

LETTERS = {
    OpKind.FORWARD: "F",
    OpKind.BACKWARD_INPUT: "I",
    OpKind.BACKWARD_WEIGHT: "W",
    OpKind.BACKWARD: "B",
    OpKind.SEND_ACTIVATION: "SEND_F",
    OpKind.SEND_GRADIENT: "SEND_B",
}
_KINDS = {letters: kind for kind, letters in LETTERS.items()}

NEXT = {OpKind.SEND_ACTIVATION: +1, OpKind.SEND_GRADIENT: -1}
"""From the stage that sends to the stage that receives."""


class Action(NamedTuple):
    """An op, or the receiving end of a transfer."""

    op: OpId
    receives: bool = False

    @property
    def halves(self) -> tuple[OpId, ...]:
        """The op, or the two that a pair is made of."""
        op = self.op
        if op.kind is not OpKind.FORWARD_BACKWARD:
            return (op,)
        backward = OpId(OpKind.BACKWARD, op.other_stage, op.other_micro_batch)
        return OpId(OpKind.FORWARD, op.stage, op.micro_batch), backward

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages whose rank does it."""
        ahead = NEXT[self.op.kind] if self.receives else 0
        return tuple(half.stage + ahead for half in self.halves)


def parse(text: str) -> Action | None:
    """The action of a text, B as a full backward; ``None`` where it is none or moves nothing."""
    if pair := _PAIR.fullmatch(text):
        stage, micro_batch, other_stage, other_micro_batch = (int(number) for number in pair.groups())
        return Action(OpId(OpKind.FORWARD_BACKWARD, stage, micro_batch, 0, -1, other_stage, other_micro_batch))
    if not (single := _ACTION.fullmatch(text)):
        return None
    stage, letters, micro_batch = int(single[1]), single[2], int(single[3])
    if receives := letters.startswith("RECV"):
        letters = letters.replace("RECV", "SEND")
        stage -= NEXT[_KINDS[letters]]
    return Action(OpId(_KINDS[letters], stage, micro_batch), receives)


def moves_nothing(text: str) -> bool:
    """Whether it is an action on sharded weights."""
    return bool(_SHARDING.fullmatch(text))


def write(action: Action, dialect: Dialect) -> str:
    """The text of an action whose op has letters in PyTorch: `parse` read it, or could have."""
    op = action.op
    if op.kind is OpKind.FORWARD_BACKWARD:
        return f"({op.stage}F{op.micro_batch};{op.other_stage}B{op.other_micro_batch})OVERLAP_F_B"
    letters = LETTERS[op.kind].replace("I", "B") if dialect == "legacy" else LETTERS[op.kind]
    if action.receives:
        letters = letters.replace("SEND", "RECV")
    return f"{action.stages[0]}{letters}{op.micro_batch}"
