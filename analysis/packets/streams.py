"""What each worker and server sent each other: payload over time, without what was sent twice.

Kept per stream (worker, server, direction) is a bounded number of bursts, so that memory does not grow with the
capture: when there are too many, pairs with little silence between them are joined.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from analysis.packets.capture import Ints
from analysis.packets.decode import Bools, Segments, Words
from analysis.packets.endpoints import Address, Server

DOWN, UP = 0, 1
"""From the server to the worker, and back."""

MOST_BURSTS, MOST_PER_STREAM, LEAST_PER_STREAM = 1 << 21, 1 << 14, 1 << 8
BURSTS_PER_PAUSE = 16
"""With fewer, responses would run into what follows them."""
MOST_STREAMS, MOST_CONNECTIONS, MOST_HOLES = 1 << 12, 1 << 16, 1 << 9
NO_PAUSE = 1 << 62
_WINDOW = 1 << 32


class Bursts(NamedTuple):
    """Payload in order of time: when its first and last segments were seen, all its bytes, those of the first."""

    begin_ns: Ints
    end_ns: Ints
    size: Ints
    first: Ints

    def some(self, kept: Ints | Bools) -> Bursts:
        """Those of a mask, or in that order."""
        return Bursts(*(column[kept] for column in self))


def joined(parts: Sequence[Bursts]) -> Bursts:
    """All bursts of some streams, in order of their begin."""
    columns = Bursts(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return columns.some(np.argsort(columns.begin_ns, kind="stable"))


def idle_gap_ns(streams: Iterable[Bursts]) -> int:
    """The silence that tells a pause from the spacing of segments.

    Otsu's threshold (1979) on the logarithms of all silences, each weighted by its length: transfers are many short
    ones, computing is few long ones. `NO_PAUSE` where they fall into no two classes.
    """
    silences = [bursts.begin_ns[1:] - bursts.end_ns[:-1] for bursts in streams]
    gap = np.sort(np.concatenate([np.empty(0, np.int64), *silences]))
    gap = gap[gap > 0].astype(np.float64)
    if len(gap) < 2:
        return NO_PAUSE
    below, log = np.cumsum(gap)[:-1], np.log10(gap)
    moment = np.cumsum(log * gap)
    above = gap.sum() - below
    means = moment[:-1] / below, (moment[-1] - moment[:-1]) / above
    spread = np.where(np.diff(gap) > 0, below * above * (means[1] - means[0]) ** 2, -1.0)
    at = int(np.argmax(spread))
    apart = means[1][at] - means[0][at] >= 1 or gap[at + 1] >= 2 * gap[at]
    return int(math.sqrt(gap[at] * gap[at + 1])) if apart else NO_PAUSE


@dataclass(eq=False)
class Stream:
    """One direction between a worker and a server, over all their connections.

    ``sent_bytes``: payload, each byte once; ``again_bytes``: seen once more; ``joined_ns``: the longest silence that
    had to be forgotten.
    """

    sent_bytes: int = 0
    again_bytes: int = 0
    joined_ns: int = 0
    full: bool = False
    _parts: list[Bursts] = field(default_factory=list)
    _count: int = 0
    _pause_ns: int = NO_PAUSE

    def add(self, time_ns: Ints, size: Ints, most: int) -> None:
        """Append segments of new bytes; keep at most ``most`` bursts."""
        self._parts.append(Bursts(time_ns, time_ns, size, size))
        self._count += len(size)
        if self._count > most:
            bursts = self.bursts
            self._pause_ns, before = min(self._pause_ns, idle_gap_ns([bursts])), 0
            while len(bursts.size) > most // 2 and len(bursts.size) != before:
                before = len(bursts.size)
                bursts = self._joined_pairs(bursts)
            self._parts, self._count = [bursts], len(bursts.size)
            pauses = np.count_nonzero(bursts.begin_ns[1:] - bursts.end_ns[:-1] >= self._pause_ns)
            self.full = self._count > most // 2 or bool(pauses > most // BURSTS_PER_PAUSE)

    @property
    def bursts(self) -> Bursts:
        """Everything kept."""
        self._parts = [joined(self._parts) if self._parts else Bursts(*(np.empty(0, np.int64) for _ in range(4)))]
        return self._parts[0]

    def _joined_pairs(self, bursts: Bursts) -> Bursts:
        """Join neighbours over the shorter half of all silences below a pause, no burst with both of its neighbours.

        A silence counts for more between a small message and a large burst.
        """
        silence = bursts.begin_ns[1:] - bursts.end_ns[:-1]
        sizes = bursts.size[1:], bursts.size[:-1]
        weighted = np.maximum(silence, 1) * (np.maximum(*sizes) / np.minimum(*sizes))
        short = silence < self._pause_ns  # the least so far: what is joined tells pauses apart no more
        if short.any():
            short &= weighted <= np.median(weighted[short])
        place = np.arange(len(short))
        run = np.maximum.accumulate(np.where(short, 0, place + 1))
        first = np.flatnonzero(short & ((place - run) % 2 == 0))
        self.joined_ns = max(self.joined_ns, int(silence[first].max(initial=0)))
        end_ns, size = bursts.end_ns.copy(), bursts.size.copy()
        end_ns[first] = np.maximum(end_ns[first], end_ns[first + 1])
        size[first] += size[first + 1]
        kept = np.ones(len(size), np.bool_)
        kept[first + 1] = False
        return Bursts(bursts.begin_ns, end_ns, size, bursts.first).some(kept)


class _Sequence:
    """The sequence numbers of one direction of a connection, which wrap around, and what is missing of them."""

    def __init__(self, first: int) -> None:
        self._raw, self._place, self._next = first, 0, 0
        self._holes: list[tuple[int, int]] = []

    def add(self, sequence: Ints, payload: Ints) -> tuple[Ints, Ints]:
        """Of each segment, the bytes that were not seen before and those that were."""
        steps = (np.diff(sequence, prepend=self._raw) + _WINDOW // 2) % _WINDOW - _WINDOW // 2
        place = self._place + np.cumsum(steps)
        self._raw, self._place = int(sequence[-1]), int(place[-1])
        end = np.where(payload > 0, place + payload, self._next)
        reach = np.maximum.accumulate(np.append(self._next, end))
        before, self._next = reach[:-1], int(reach[-1])
        fresh = np.minimum(payload, np.maximum(end - before, 0))
        for index in np.flatnonzero((place != before) & (payload > 0)).tolist():
            if place[index] > before[index]:
                self._holes = [*self._holes[-MOST_HOLES + 1 :], (int(before[index]), int(place[index]))]
            elif self._holes:
                fresh[index] += self._fill(int(place[index]), int(min(end[index], before[index])))
        return fresh, payload - fresh

    def _fill(self, begin: int, end: int) -> int:
        """Take a range out of what is missing; how much of it was."""
        left = list[tuple[int, int]]()
        for low, high in self._holes:
            left += [(a, b) for a, b in ((low, min(high, begin)), (max(low, end), high)) if a < b]
        filled = sum(b - a for a, b in self._holes) - sum(b - a for a, b in left)
        self._holes = left
        return filled

    @property
    def missing_bytes(self) -> int:
        """Payload that was skipped and never came."""
        return sum(high - low for low, high in self._holes)


Key = tuple[Address, int, int, int, int]
"""A direction of a connection: the worker's address and port, the server by number, its port, the direction."""

Worker = tuple[Address, int]
"""A worker's address, and its port where every connection is a worker; else 0."""


class _Chunk(NamedTuple):
    """Segments between workers and servers in order of time, seen from the worker."""

    time_ns: Ints
    high: Words
    low: Words
    port: Ints
    server: Ints
    server_port: Ints
    direction: Ints
    sequence: Ints
    payload: Ints
    syn: Bools

    def key(self, row: int) -> Key:
        address = int(self.high[row]), int(self.low[row])
        ports = int(self.port[row]), int(self.server_port[row])
        return address, ports[0], int(self.server[row]), ports[1], int(self.direction[row])


class Streams:
    """Collects segments by worker, server and direction; after ``full_ns`` bytes are only counted.

    ``each_connection``: every connection is a worker of its own, as where several workers share an address.
    """

    def __init__(self, servers: Sequence[Server], each_connection: bool = False) -> None:
        self._servers, self._each_connection = servers, each_connection
        self._sequences: OrderedDict[Key, _Sequence] = OrderedDict()
        self.by_worker: dict[Worker, dict[tuple[int, int], Stream]] = {}
        self.segments = self.missing_bytes = self.left_out = 0
        self.first_ns: int | None = None
        self.full_ns: int | None = None

    def add(self, segments: Segments) -> None:
        """Take the segments of a chunk in."""
        chunk = self._chunk(segments)
        count = len(chunk.time_ns)
        if not count:
            return
        self.segments += count
        if self.first_ns is None:
            self.first_ns = int(chunk.time_ns[0])
        fresh, again = np.zeros(count, np.int64), np.zeros(count, np.int64)
        members: dict[tuple[Worker, int, int], list[Ints]] = {}
        for rows in rows_alike(*chunk[1:7]):
            key = chunk.key(int(rows[0]))
            address, port, server, _, way = key
            fresh[rows], again[rows] = self._follow(key, chunk.sequence[rows], chunk.payload[rows], chunk.syn[rows])
            worker = address, port if self._each_connection else 0
            members.setdefault((worker, server, way), []).append(rows)
        for (worker, server, way), parts in members.items():
            rows = np.sort(np.concatenate(parts))
            self._record(worker, server, way, chunk.time_ns[rows], fresh[rows], again[rows])
        if self.full_ns is None and any(stream.full for each in self.by_worker.values() for stream in each.values()):
            self.full_ns = int(chunk.time_ns[-1])

    def _chunk(self, segments: Segments) -> _Chunk:
        """The segments between a worker and a server; those between two servers are left out."""
        ends = []
        for address, port in ((segments.source, segments.source_port), (segments.target, segments.target_port)):
            found = np.full(len(segments.time_ns), -1)
            for number, server in enumerate(self._servers):
                found[server.matches(address, port)] = number
            ends.append(found)
        kept = np.flatnonzero((ends[0] >= 0) != (ends[1] >= 0))
        kept = kept[np.argsort(segments.time_ns[kept], kind="stable")]
        is_up = ends[1][kept] >= 0
        source, target = segments.source, segments.target
        source_port, target_port = segments.source_port[kept], segments.target_port[kept]
        return _Chunk(
            segments.time_ns[kept],
            np.where(is_up, source[0][kept], target[0][kept]),
            np.where(is_up, source[1][kept], target[1][kept]),
            np.where(is_up, source_port, target_port),
            np.maximum(*ends)[kept],
            np.where(is_up, target_port, source_port),
            np.where(is_up, UP, DOWN),
            segments.sequence[kept],
            segments.payload[kept],
            segments.syn[kept],
        )

    def _record(self, worker: Worker, server: int, way: int, time_ns: Ints, fresh: Ints, again: Ints) -> None:
        stream = self._stream(worker, server, way)
        if stream is None:
            self.left_out += len(time_ns)
            return
        stream.sent_bytes += int(fresh.sum())
        stream.again_bytes += int(again.sum())
        if self.full_ns is None:
            stream.add(time_ns[fresh > 0], fresh[fresh > 0], self._most)

    def _follow(self, key: Key, sequence: Ints, payload: Ints, syn: Bools) -> tuple[Ints, Ints]:
        """New and repeated bytes of the segments of one direction; a SYN starts it afresh, one after it."""
        parts = []
        for rows in np.split(np.arange(len(syn)), np.flatnonzero(syn)):
            if not len(rows):
                continue
            known = self._sequences.get(key)
            if known is None or syn[rows[0]]:
                self._forget(key)
                known = self._sequences[key] = _Sequence(int(sequence[rows[0]]) + int(syn[rows[0]]))
                if len(self._sequences) > MOST_CONNECTIONS:
                    self._forget(next(iter(self._sequences)))
            self._sequences.move_to_end(key)
            parts.append(known.add(sequence[rows] + syn[rows], np.where(syn[rows], 0, payload[rows])))
        return np.concatenate([fresh for fresh, _ in parts]), np.concatenate([again for _, again in parts])

    def _forget(self, key: Key) -> None:
        if (sequence := self._sequences.pop(key, None)) is not None:
            self.missing_bytes += sequence.missing_bytes

    def _stream(self, worker: Worker, server: int, way: int) -> Stream | None:
        streams = self.by_worker.get(worker, {})
        if (server, way) not in streams:
            if sum(map(len, self.by_worker.values())) >= MOST_STREAMS:
                return None
            self.by_worker[worker] = streams
            streams[server, way] = Stream()
        return streams[server, way]

    @property
    def _most(self) -> int:
        streams = sum(map(len, self.by_worker.values()))
        return min(max(MOST_BURSTS // streams, LEAST_PER_STREAM), MOST_PER_STREAM)

    def close(self) -> None:
        """No more segments will come: what is still missing is missing."""
        for key in list(self._sequences):
            self._forget(key)


def rows_alike(*columns: Ints | Words) -> list[Ints]:
    """The rows of each combination of values, in order."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            code = np.unique(code * len(values) + place, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
