"""Captures that one clock timed, as one capture in the order of time."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Sequence

_FILE, _RECORD = struct.Struct("<24s"), struct.Struct("<IIII")


def merge(captures: Sequence[bytes]) -> bytes:
    """Little-endian pcaps of one link type and precision, such as one tcpdump after another writes, in one."""
    records = heapq.merge(*map(_records, captures), key=lambda record: record[:2])
    return captures[0][: _FILE.size] + b"".join(record for *_, record in records)


def _records(capture: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Seconds, nanoseconds and the whole of each record."""
    at = _FILE.size
    while at < len(capture):
        seconds, fraction, captured, _ = _RECORD.unpack_from(capture, at)
        end = at + _RECORD.size + captured
        yield seconds, fraction, capture[at:end]
        at = end
