"""Payload over time: what is new, what was sent twice, whose it is, and that memory stays bounded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.packets import streams
from analysis.packets.decode import Segments
from analysis.packets.endpoints import parse_servers
from analysis.packets.streams import DOWN, UP, Stream, Streams, idle_gap_ns, joined

MAPPED = 0xFFFF << 32
SERVER, WORKER = 10 << 24 | 1, 10 << 24 | 2


def segments(rows: list[tuple[int, ...]], syn: tuple[int, ...] = ()) -> Segments:
    """Rows of time, source, target, source port, target port, sequence number, payload."""
    time, source, target, *rest = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    high = np.zeros(len(rows), np.uint64)
    low = [(MAPPED | each).astype(np.uint64) for each in (source, target)]
    return Segments(time, (high, low[0]), (high, low[1]), *rest, np.isin(np.arange(len(rows)), syn))


def down(time: int, sequence: int, payload: int, port: int = 40000, worker: int = WORKER) -> tuple[int, ...]:
    return (time, SERVER, worker, 2222, port, sequence % 2**32, payload)


def collect(*chunks: Segments, **options: Any) -> Streams:
    found = Streams(parse_servers(["10.0.0.1:2222"]), **options)
    for chunk in chunks:
        found.add(chunk)
    found.close()
    return found


def only(found: Streams, way: int = DOWN) -> Stream:
    (streams_of_worker,) = found.by_worker.values()
    return streams_of_worker[0, way]


PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=40)


@given(PIECES, st.integers(0, 2**32 - 1), st.lists(st.integers(1, 39), max_size=3, unique=True))
def test_each_byte_counts_once_in_any_order_across_the_wrap(
    pieces: list[tuple[int, int]], initial: int, cuts: list[int]
) -> None:
    """Against a set of all places in the stream; a capture starts where its first segment does."""
    pieces = [(place if number else 0, size) for number, (place, size) in enumerate(pieces)]
    rows = [down(number, initial + place, size) for number, (place, size) in enumerate(pieces)]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    found = collect(*(segments(rows[a:b]) for a, b in itertools.pairwise(bounds)))
    seen: set[int] = set()
    fresh = []
    for place, size in pieces:
        new = set(range(place, place + size)) - seen
        fresh.append(len(new))
        seen |= new
    stream = only(found)
    assert stream.sent_bytes == len(seen)
    assert stream.again_bytes == sum(size for _, size in pieces) - len(seen)
    assert found.missing_bytes == max(seen) + 1 - len(seen)
    assert list(zip(stream.bursts.begin_ns, stream.bursts.size, strict=True)) == [
        (time, size) for time, size in enumerate(fresh) if size
    ]


def test_a_syn_starts_afresh_and_sends_nothing() -> None:
    first = [down(0, 99, 0), down(1, 100, 50), down(2, 150, 50)]
    again = [down(3, 5_000_000, 0), down(4, 5_000_001, 10), down(5, 5_000_011, 10)]
    found = collect(segments(first + again, syn=(0, 3)))
    assert only(found).sent_bytes == 120
    assert (found.missing_bytes, only(found).again_bytes) == (0, 0)


def test_connections_of_an_address_are_one_worker_or_many() -> None:
    rows = [down(number, 7, 100, port=40000 + number) for number in range(3)]
    rows += [(9, WORKER, SERVER, 40000, 2222, 0, 40), (10, WORKER, SERVER, 40000, 80, 0, 1000)]
    found = collect(segments(rows))
    assert (only(found).sent_bytes, only(found, UP).sent_bytes) == (300, 40)
    apart = collect(segments(rows), each_connection=True)
    assert sorted(port for _, port in apart.by_worker) == [40000, 40001, 40002]


def test_traffic_between_servers_is_no_step() -> None:
    found = Streams(parse_servers(["10.0.0.1:2222", "10.0.0.2"]))
    found.add(segments([down(0, 0, 100)]))
    assert (found.segments, found.by_worker) == (0, {})


def test_memory_is_bounded_and_no_byte_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_PER_STREAM", 512)
    stream = Stream()
    random = np.random.default_rng(0)
    time, total, edges = 0, 0, []
    for _ in range(20):
        spacing = random.integers(1_000, 20_000, 1000)
        times, size = time + np.cumsum(spacing), random.integers(1, 1448, 1000)
        stream.add(times, size, 512)
        time, total = int(times[-1]) + 10**9, total + int(size.sum())
        edges.append((int(times[0]), int(times[-1])))
        assert len(stream.bursts.size) <= 512
        assert int(stream.bursts.size.sum()) == total
    bursts = stream.bursts
    starts = np.append(0, np.flatnonzero(bursts.begin_ns[1:] - bursts.end_ns[:-1] >= 10**8) + 1)
    stops = np.append(starts[1:], len(bursts.size)) - 1
    assert list(zip(bursts.begin_ns[starts], bursts.end_ns[stops], strict=True)) == edges  # every pause is still there
    assert stream.joined_ns < 10**6
    assert not stream.full


def test_a_full_stream_ends_the_time_line_but_not_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_PER_STREAM", 64)
    found = Streams(parse_servers(["10.0.0.1:2222"]))
    for second in range(300):
        times = [second * 10**9 + each * 10**6 for each in range(5)]
        found.add(segments([down(time, 1000 * (5 * second + each), 1000) for each, time in enumerate(times)]))
    stream = only(found)
    assert stream.sent_bytes == 1_500_000
    assert found.full_ns is not None
    assert int(stream.bursts.end_ns[-1]) <= found.full_ns < 100 * 10**9


def test_more_workers_than_are_followed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS", 3)
    found = collect(segments([down(each, 0, 10, worker=WORKER + each) for each in range(5)]))
    assert (len(found.by_worker), found.left_out) == (3, 2)


def test_the_idle_gap_lies_between_spacing_and_pauses() -> None:
    random = np.random.default_rng(1)
    for spacing, pause in ((10_000, 10**8), (4 * 10**6, 2 * 10**8), (50_000, 2 * 10**6)):
        gaps = [random.exponential(spacing, 200), [pause * random.uniform(0.7, 1.4)]]
        times = np.cumsum(np.concatenate(gaps * 8)).astype(np.int64)
        one = np.ones(len(times), np.int64)
        found = idle_gap_ns([streams.Bursts(times, times, one, one)])
        assert np.percentile(np.concatenate(gaps[:1]), 99) < found < 0.7 * pause
    even = np.arange(0, 10**6, 1000)
    one = np.ones(len(even), np.int64)
    assert idle_gap_ns([streams.Bursts(even, even, one, one)]) == idle_gap_ns([]) == streams.NO_PAUSE


def test_bursts_of_several_streams_are_put_in_order() -> None:
    parts = []
    for first in (5, 2):
        time = np.array([first, first + 10])
        parts.append(streams.Bursts(time, time, time, time))
    assert joined(parts).begin_ns.tolist() == [2, 5, 12, 15]
