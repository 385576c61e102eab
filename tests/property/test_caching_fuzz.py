"""Random programs: PyTorch's allocator against a naive one, and laws that hold whatever the program does."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.memory import snapshot
from sim.memory.arena import Request, pack
from sim.memory.best_fit import BestFit
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.memory_stats import METRICS
from sim.memory.replay import replay
from sim.memory.settings import Settings, parse_settings

MIB = 2**20
EDGES = [1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 19 * MIB, 20 * MIB]
SIZES = st.one_of(
    st.sampled_from(EDGES),
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 40 * MIB),
)
STREAMS = st.sampled_from([0, 3])
STEPS = st.one_of(
    st.tuples(st.just("malloc"), SIZES, STREAMS),
    st.tuples(st.just("malloc"), SIZES, STREAMS),
    st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("use"), st.integers(0, 10**6), STREAMS),
    st.tuples(st.just("finish"), st.just(0), STREAMS),
    st.tuples(st.just("empty"), st.just(0), st.just(0)),
)
PROGRAMS = st.lists(STEPS, max_size=60)
SETTINGS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:21",
        "roundup_power2_divisions:[1:8,2:1,8:2,>:4]",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
        "max_split_size_mb:30,garbage_collection_threshold:0.6,per_process_memory_fraction:1.0",
    ]
).map(parse_settings)
CAPACITY = st.sampled_from([24 * MIB, 64 * MIB, 200 * MIB])
Program = list[tuple[str, int, int]]


def run(program: Program, rules: Any) -> dict[int, int]:
    """Play a program; the size asked for at every address that is live at its end."""
    live: dict[int, int] = {}
    for verb, number, stream in program:
        if verb == "malloc":
            grant = rules.malloc(number, stream)
            if grant is not None:
                assert grant.address not in live
                live[grant.address] = number
        elif verb == "empty":
            rules.empty_cache()
        elif verb == "finish":
            rules.finish(stream)
        elif live:
            address = [*live][number % len(live)]
            if verb == "use":
                rules.record_stream(address, stream)
            else:
                rules.free(address)
                del live[address]
    return live


@dataclass
class Segment:
    """A naive segment: parts in order, each a list of size and whether it is in use."""

    stream: int
    small: bool
    address: int
    parts: list[list[int]]


@dataclass
class Naive:
    """The default rules as plainly as possible: look at every part of every segment, every time."""

    capacity: int
    segments: list[Segment] = field(default_factory=list)
    next_address: int = 0x7F00_0000_0000

    def malloc(self, size: int, stream: int) -> int | None:
        """The address, or ``None``."""
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        for attempt in range(3):
            found = self._find(size, stream, small) if attempt != 2 else None
            if found is None and attempt:
                found = self._grow(size, stream, small)
            if found is None and attempt == 1:
                self.empty_cache()
            if found is not None:
                return self._take(*found, size)
        return None

    def _find(self, size: int, stream: int, small: bool) -> tuple[Segment, int] | None:
        fits = []
        for segment in self.segments:
            if (segment.stream, segment.small) == (stream, small):
                at = segment.address
                for index, (part, used) in enumerate(segment.parts):
                    if not used and part >= size:
                        fits.append((part, at, segment, index))
                    at += part
        if not fits:
            return None
        _, _, segment, index = min(fits, key=lambda fit: fit[:2])
        return segment, index

    def _grow(self, size: int, stream: int, small: bool) -> tuple[Segment, int] | None:
        wanted = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        held = sum(part for segment in self.segments for part, _ in segment.parts)
        if held + wanted > self.capacity:
            return None
        self.segments.append(Segment(stream, small, self.next_address, [[wanted, 0]]))
        self.next_address += wanted
        return self.segments[-1], 0

    def _take(self, segment: Segment, index: int, size: int) -> int:
        rest = segment.parts[index][0] - size
        if rest >= 512 if segment.small else rest > MIB:
            segment.parts[index : index + 1] = [[size, 1], [rest, 0]]
        else:
            segment.parts[index][1] = 1
        return segment.address + sum(part for part, _ in segment.parts[:index])

    def free(self, address: int) -> None:
        """Give back, and join what is free side by side."""
        segment = next(s for s in self.segments if s.address <= address < s.address + sum(p for p, _ in s.parts))
        at = segment.address
        for part in segment.parts:
            if at == address:
                part[1] = 0
            at += part[0]
        joined: list[list[int]] = []
        for size, used in segment.parts:
            if joined and not used and not joined[-1][1]:
                joined[-1][0] += size
            else:
                joined.append([size, used])
        segment.parts = joined

    def empty_cache(self) -> None:
        """Give back segments without a part in use."""
        self.segments = [s for s in self.segments if any(used for _, used in s.parts)]


@given(PROGRAMS, CAPACITY)
def test_every_address_as_a_naive_allocator_gives_it(program: Program, capacity: int) -> None:
    caching, naive, live = Caching(driver=SimulatedDriver(capacity)), Naive(capacity), list[int]()
    for verb, number, stream in program:
        if verb == "malloc":
            grant, address = caching.malloc(number, stream), naive.malloc(number, stream)
            assert (grant and grant.address) == address
            live += [address] if address is not None else []
        elif verb == "free" and live:
            address = live.pop(number % len(live))
            caching.free(address)
            naive.free(address)
        elif verb == "empty":
            caching.empty_cache()
            naive.empty_cache()
    blocks = {(block.address, block.size) for run in caching.segments() for block in run}
    parts = {
        (segment.address + sum(part for part, _ in segment.parts[:index]), segment.parts[index][0])
        for segment in naive.segments
        for index in range(len(segment.parts))
    }
    assert blocks == parts


@given(PROGRAMS, CAPACITY, SETTINGS)
def test_no_overlap_and_every_byte_accounted_for(program: Program, capacity: int, chosen: Settings) -> None:
    caching = Caching(chosen, SimulatedDriver(capacity))
    live = run(program, caching)
    blocks = sorted((block for segment in caching.segments() for block in segment), key=lambda block: block.address)
    assert all(left.end <= right.address for left, right in pairwise(blocks))
    assert {block.address: block.requested for block in blocks if block.allocated} == live
    assert all(block.size >= block.requested for block in blocks if block.active)
    driver = caching.driver
    assert isinstance(driver, SimulatedDriver)
    assert sum(block.size for block in blocks) == caching.reserved_bytes == driver.used_bytes <= capacity
    for segment in caching.segments():
        assert all(left.active or right.active for left, right in pairwise(segment)), "free neighbours merge"


@given(PROGRAMS, CAPACITY, SETTINGS)
def test_statistics_equal_a_recount(program: Program, capacity: int, chosen: Settings) -> None:
    """Currents recounted from the blocks, peaks and totals from the history."""
    caching = Caching(chosen, SimulatedDriver(capacity), record=True)
    run(program, caching)
    stats, count = caching.stats(), Counter[str]()
    for segment in caching.segments():
        for block in segment:
            for pool in ("all", "small_pool" if block.pool.small else "large_pool"):
                count[f"reserved_bytes.{pool}"] += block.size
                count[f"allocation.{pool}"] += block.allocated
                count[f"allocated_bytes.{pool}"] += block.size * block.allocated
                count[f"active.{pool}"] += block.active
                count[f"active_bytes.{pool}"] += block.size * block.active
                count[f"requested_bytes.{pool}"] += block.requested * block.active
                if not chosen.expandable_segments:
                    inactive = not block.active and len(segment) > 1
                    count[f"inactive_split.{pool}"] += inactive
                    count[f"inactive_split_bytes.{pool}"] += block.size * inactive
                    count[f"segment.{pool}"] += block is segment[0]
    names = [f"{metric}.{pool}" for metric in METRICS for pool in ("all", "large_pool", "small_pool")]
    assert {name: stats[f"{name}.current"] for name in names} == {name: count[name] for name in names}
    for name in names:
        assert stats[f"{name}.allocated"] - stats[f"{name}.freed"] == stats[f"{name}.current"] <= stats[f"{name}.peak"]
    history = caching.history or []
    happened = Counter(happening.action for happening in history)
    assert stats["allocation.all.allocated"] == happened["alloc"]
    assert stats["allocation.all.freed"] == happened["free_requested"]
    assert stats["active.all.freed"] == happened["free_completed"]
    assert stats["num_ooms"] == happened["oom"]
    assert stats["num_device_alloc"] == happened["segment_alloc"] + happened["segment_map"]
    assert stats["num_device_free"] == happened["segment_free"] + happened["segment_unmap"]
    assert stats["reserved_bytes.all.peak"] == most(history, "segment_alloc segment_map", "segment_free segment_unmap")
    assert stats["requested_bytes.all.peak"] == most(history, "alloc", "free_completed")


def most(history: list[Any], ups: str, downs: str) -> int:
    """The highest level that these events reach."""
    level = highest = 0
    for happening in history:
        level += happening.size * ((happening.action in ups.split()) - (happening.action in downs.split()))
        highest = max(highest, level)
    return highest


@given(PROGRAMS, st.sampled_from([64 * MIB, 200 * MIB]), st.integers(0, 60))
def test_a_written_history_replays(program: Program, capacity: int, forgotten: int) -> None:
    """On one stream, from any event on; what a file leaves open (streams that fail together) is not asked here."""
    program = [(verb, number, 0) for verb, number, _ in program if verb != "use"]
    caching = Caching(driver=SimulatedDriver(capacity), record=True)
    run(program[:forgotten], caching)
    assert caching.history is not None
    caching.history.clear()
    run(program[forgotten:], caching)
    shot = snapshot.parse(pickle.loads(pickle.dumps(snapshot.as_pytorch([caching]), 4)))
    if shot.segments or any(shot.traces):
        found = replay(shot)
        assert found.allocated_bytes == caching.live_bytes
        assert found.reserved_bytes == caching.reserved_bytes
        assert found.final_blocks.matched == found.final_blocks.checked
        if not forgotten:
            assert found.agrees, found.mismatches


@given(PROGRAMS)
def test_best_fit_keeps_the_same_laws(program: Program) -> None:
    rules = BestFit(100 * MIB)
    live = run([step for step in program if step[0] != "empty"], rules)
    blocks = sorted(rules.active.values(), key=lambda block: block.address)
    assert all(left.end <= right.address for left, right in pairwise(blocks))
    assert {block.address: block.requested for block in blocks if block.allocated} == live
    stats = rules.stats()
    assert stats["allocated_bytes.all.current"] == sum(block.size for block in blocks)
    last = max((block.end for block in blocks), default=512)
    assert stats["reserved_bytes.all.current"] == last - 512 <= 100 * MIB


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(1, 20)), max_size=30))
def test_packed_requests_never_overlap(lives: list[tuple[int, int, int]]) -> None:
    requests = [Request(size, start, start + length) for size, start, length in lives]
    packing = pack(requests)
    places = [*zip(requests, packing.offsets.tolist(), packing.sizes.tolist(), strict=True)]
    for index, (one, low, size) in enumerate(places):
        for other, offset, wide in places[:index]:
            together = one.start < other.end and other.start < one.end
            assert not (together and low < offset + wide and offset < low + size)
    level = [sum(size for one, _, size in places if one.start <= now < one.end) for now in range(40)]
    assert packing.live_bytes == max(level) <= packing.total_bytes <= sum(packing.sizes.tolist())
