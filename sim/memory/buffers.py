"""What buffers there are and what an op does to them.

An op carries an ordered list of events, each an allocation or a release of one buffer at its start or its end. The
events are symbolic: a `Binding` gives each kind of buffer its bytes.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np


class Category(enum.StrEnum):
    """What memory is spent on, as reports break it down."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    CHECKPOINT = "checkpoint"
    STASH = "stash"
    PREDICTION = "prediction"
    COMMUNICATION = "communication"


class BufferKind(enum.IntEnum):
    """Kinds of buffer; the value is the code in columns.

    The first three are resident for the whole run. ``RECEIVED_ACTIVATION`` is the input of a stage from the stage
    before, ``INPUT_GRADIENT`` what a stage sends back to it, ``OUTPUT_GRADIENT`` what it receives from the stage after,
    ``PUSHED_GRADIENT`` what a parameter server has received and not yet added, ``WEIGHT_STATE`` what is left of an
    activation between the input gradient and the weight gradient, where backward is split, ``CHECKPOINT`` what a stage
    that recomputes keeps from forward (its ``ACTIVATION`` is then what is live at most while it recomputes).
    """

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    ACTIVATION = 3
    STASHED_WEIGHTS = 4
    PREDICTED_WEIGHTS = 5
    RECEIVED_ACTIVATION = 6
    INPUT_GRADIENT = 7
    OUTPUT_GRADIENT = 8
    PUSHED_GRADIENT = 9
    WEIGHT_STATE = 10
    CHECKPOINT = 11

    @property
    def category(self) -> Category:
        """The category that reports count it under."""
        return _CATEGORY[self]


_CATEGORY = {
    BufferKind.WEIGHTS: Category.WEIGHTS,
    BufferKind.GRADIENTS: Category.GRADIENTS,
    BufferKind.OPTIMIZER: Category.OPTIMIZER,
    BufferKind.ACTIVATION: Category.ACTIVATIONS,
    BufferKind.STASHED_WEIGHTS: Category.STASH,
    BufferKind.PREDICTED_WEIGHTS: Category.PREDICTION,
    BufferKind.RECEIVED_ACTIVATION: Category.COMMUNICATION,
    BufferKind.INPUT_GRADIENT: Category.COMMUNICATION,
    BufferKind.OUTPUT_GRADIENT: Category.COMMUNICATION,
    BufferKind.PUSHED_GRADIENT: Category.COMMUNICATION,
    BufferKind.WEIGHT_STATE: Category.ACTIVATIONS,
    BufferKind.CHECKPOINT: Category.CHECKPOINT,
}

START, END = 0, 1
"""When in an op an event happens."""


class BufferEvent(NamedTuple):
    """One allocation (``sign`` 1) or release (−1) of a buffer, at an op's `START` or `END`.

    ``number`` tells buffers of one kind and stage apart: a micro-batch, or a weight version.
    """

    when: int
    sign: int
    kind: BufferKind
    device: int
    stage: int
    number: int


EVENTS = np.dtype(
    [("op", "i4"), ("when", "i1"), ("sign", "i1"), ("kind", "i1"), ("device", "i4"), ("stage", "i4"), ("number", "i4")]
)
"""Columns of buffer events, sorted by op and when; within these in the order of happening."""
