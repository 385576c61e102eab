"""What travels between a worker and a server: messages of a head, and elements of a part where it moves some.

A part goes in chunks, so that its head is copied while its tail still travels, and no chunk of one worker keeps the
others waiting for long. There is nothing in a message that could be executed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import zmq

from backends.torch.servers.job import Array

CHUNK_BYTES = 1 << 19
_TURN = 64
"""Messages that are read before looking elsewhere."""
_HEAD = struct.Struct("<BBiqqqd")


class What(enum.IntEnum):
    """What a message says; to a server the first three, to a worker the others."""

    PULL = 0
    GRADIENT = 1
    ADD = 2
    VALUES = 3
    ARRIVED = 4
    DONE = 5


class Change(enum.IntEnum):
    """What a server does to a part: nothing yet, update with one gradient, add one, update with the mean of these."""

    HOLD = 0
    APPLY = 1
    ADD = 2
    MEAN = 3


class Head(NamedTuple):
    """The first frame of every message.

    ``number`` of the step; ``change``: what to do with a gradient; ``version`` of values; ``offset``: of the first
    element in this chunk; ``sent_s``: when the first chunk left, on the monotonic clock.
    """

    what: int
    part: int
    number: int
    change: int = Change.HOLD
    version: int = -1
    offset: int = 0
    sent_s: float = 0.0

    def pack(self) -> bytes:
        """As bytes."""
        what, part, number, change, version, offset, sent_s = self
        return _HEAD.pack(what, change, part, number, version, offset, sent_s)

    @classmethod
    def unpack(cls, frame: Any) -> Head:
        """From bytes."""
        what, change, part, number, version, offset, sent_s = _HEAD.unpack(frame)
        return cls(what, part, number, change, version, offset, sent_s)


def chunks(head: Head, values: Array) -> Iterator[tuple[bytes, memoryview]]:
    """The messages of a part, which share its memory."""
    step = CHUNK_BYTES // values.itemsize
    for offset in range(0, len(values), step):
        yield head._replace(offset=offset).pack(), values[offset : offset + step].data


def elements(frame: zmq.Frame, dtype: np.dtype[Any]) -> Array:
    """The elements in a frame."""
    return np.frombuffer(frame.buffer, dtype)


def connector(kind: int) -> zmq.Socket[bytes]:
    """A socket whose queues have no limit: nobody asks for more before the last has come."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.linger, socket.sndhwm, socket.rcvhwm = 0, 0, 0
    return socket


def messages(socket: zmq.Socket[bytes]) -> Iterator[list[zmq.Frame]]:
    """Some of those that have arrived."""
    for _ in range(_TURN):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
