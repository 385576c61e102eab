"""The rules of PyTorch's allocator one by one, against addresses, sizes and figures worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sim.errors import BrokenInvariant, UnsupportedPlan
from sim.memory.arena import Arena, Request, pack
from sim.memory.best_fit import BestFit
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.rules import DeviceCall, Grant
from sim.memory.settings import Settings, parse_settings

MIB = 2**20


def allocator(total_mib: float | None = None, settings: str = "") -> Caching:
    """On a GPU of so many MiB, with a history."""
    total = None if total_mib is None else int(total_mib * MIB)
    return Caching(parse_settings(settings), SimulatedDriver(total), record=True)


def take(caching: Caching, size: int, stream: int = 0) -> Grant:
    """An allocation that must succeed."""
    grant = caching.malloc(size, stream)
    assert grant is not None
    return grant


def actions(caching: Caching) -> list[str]:
    """What happened, without sizes."""
    return [happening.action for happening in caching.history or ()]


def offsets(caching: Caching, grants: Sequence[Grant]) -> list[int]:
    """Addresses from the lowest segment on."""
    first = min(run[0].address for run in caching.segments())
    return [grant.address - first for grant in grants]


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_block_and_segment_by_size(size: int, block: int, segment: int) -> None:
    """A rest of 1 MiB or less stays with a large block; a small one is always cut to its 512 bytes."""
    caching = allocator()
    grant = take(caching, size)
    assert (grant.block_bytes, grant.calls) == (block, (DeviceCall("segment_alloc", segment),))
    assert caching.stats()["requested_bytes.all.current"] == size


@pytest.mark.parametrize(
    ("text", "size", "rounded"),
    [
        ("roundup_power2_divisions:4", 1200 * 1024, 1280 * 1024),  # the example in PyTorch's source
        ("roundup_power2_divisions:4", 2048, 2048),
        ("roundup_power2_divisions:4", 2049, 2560),
        ("roundup_power2_divisions:4", 2000, 2048),  # not above 512 a division: multiples of 512
        ("roundup_power2_divisions:1", 5 * MIB, 5 * MIB),
        ("roundup_power2_divisions:[4:2,>:8]", 5 * MIB, 6 * MIB),
        ("roundup_power2_divisions:[4:2,>:8]", 9 * MIB + 1, 10 * MIB),
        ("roundup_power2_divisions:[4:2,>:8]", 3 * MIB + 1, 4 * MIB),  # the first entry counts below it too
    ],
)
def test_rounding_to_divisions_of_powers_of_two(text: str, size: int, rounded: int) -> None:
    assert parse_settings(text).rounded(size) == rounded


def test_the_smallest_block_that_fits_then_the_lowest() -> None:
    caching = allocator()
    blocks = [take(caching, size * MIB) for size in (4, 2, 3, 2, 3, 2)]
    for index in (0, 2, 4):
        caching.free(blocks[index].address)
    assert take(caching, 3 * MIB).address == blocks[2].address
    assert take(caching, 3 * MIB).address == blocks[4].address
    assert take(caching, 3 * MIB).address == blocks[0].address


def test_free_neighbours_merge() -> None:
    caching = allocator()
    blocks = [take(caching, size * MIB) for size in (5, 5, 5)]
    assert offsets(caching, blocks) == [0, 5 * MIB, 10 * MIB]
    for index in (0, 2, 1):
        caching.free(blocks[index].address)
    assert [[block.size for block in run] for run in caching.segments()] == [[20 * MIB]]
    assert caching.stats()["inactive_split.all.current"] == 0


def test_a_stream_never_gets_the_memory_of_another() -> None:
    caching = allocator()
    first = take(caching, 3 * MIB, stream=1)
    caching.free(first.address)
    assert take(caching, 3 * MIB, stream=2).calls
    assert take(caching, 3 * MIB, stream=1).address == first.address


def test_a_freed_block_waits_for_every_stream_that_used_it() -> None:
    caching = allocator()
    block = take(caching, 3 * MIB)
    for stream in (0, 7, 8):  # its own stream asks for no wait
        caching.record_stream(block.address, stream)
    caching.free(block.address)
    stats = caching.stats()
    assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 3 * MIB)
    caching.finish(7)
    assert take(caching, 4 * MIB).address == block.address + 3 * MIB
    caching.finish(8)
    assert take(caching, 3 * MIB).address == block.address
    assert actions(caching) == ["segment_alloc", "alloc", "free_requested", "alloc", "free_completed", "alloc"]


def test_work_given_after_the_free_is_not_waited_for() -> None:
    caching = allocator()
    first, second = take(caching, 3 * MIB), take(caching, 3 * MIB)
    caching.record_stream(first.address, 7)
    caching.free(first.address)
    caching.finish(7)
    caching.record_stream(second.address, 7)
    caching.free(second.address)
    caching.poll()
    assert [*caching.active] == [second.address]


def test_without_room_all_that_is_free_goes_large_first_and_the_request_is_tried_again() -> None:
    caching = allocator(64)
    cached = [take(caching, size, stream) for size, stream in ((512, 0), (14 * MIB, 3), (12 * MIB, 3), (16 * MIB, 0))]
    for grant in cached:
        caching.free(grant.address)
    grant = take(caching, 40 * MIB, stream=9)
    sizes = [16 * MIB, 12 * MIB, 14 * MIB, 2 * MIB]  # by stream, size, address; then the small pool
    assert grant.calls == (
        DeviceCall("segment_alloc", 40 * MIB, failed=True),
        DeviceCall("synchronize", 0),
        *(DeviceCall("segment_free", size) for size in sizes),
        DeviceCall("segment_alloc", 40 * MIB),
    )
    stats = caching.stats()
    assert (stats["num_alloc_retries"], stats["num_sync_all_streams"], stats["num_ooms"]) == (1, 1, 0)
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (5, 4)
    assert (stats["reserved_bytes.all.current"], stats["reserved_bytes.all.peak"]) == (40 * MIB, 44 * MIB)


def test_a_segment_in_use_is_not_released() -> None:
    caching = allocator(40)
    blocks = [take(caching, 3 * MIB) for _ in range(2)]
    caching.free(blocks[0].address)
    assert caching.malloc(30 * MIB) is None
    assert caching.reserved_bytes == 20 * MIB


def test_out_of_memory_in_pytorchs_words() -> None:
    caching = allocator(100)
    take(caching, 50 * MIB + 512)
    assert caching.malloc(60 * MIB - 1) is None
    assert caching.refusal == (
        "CUDA out of memory. Tried to allocate 60.00 MiB. GPU 0 has a total capacity of 100.00 MiB of which 48.00 MiB "
        "is free. Including non-PyTorch memory, this process has 52.00 MiB memory in use. Of the allocated memory "
        "50.00 MiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    assert caching.stats()["num_ooms"] == 1
    assert (caching.history or [])[-1][:4] == ("oom", 48 * MIB, 60 * MIB, 0)


def test_a_fraction_of_the_device_limits_what_is_reserved() -> None:
    caching = allocator(100, "per_process_memory_fraction:0.5")
    take(caching, 40 * MIB)
    assert caching.malloc(12 * MIB) is None
    assert "50.00 MiB allowed; Of the allocated memory 40.00 MiB" in caching.refusal
    assert take(caching, 10 * MIB).calls


def test_blocks_above_max_split_size_serve_only_what_is_nearly_as_large() -> None:
    caching = allocator(None, "max_split_size_mb:30")
    large = take(caching, 60 * MIB)
    caching.free(large.address)
    assert take(caching, 25 * MIB).address != large.address  # below the limit: never from above it
    assert take(caching, 40 * MIB).address != large.address  # 20 MiB or more would be wasted
    assert take(caching, 40 * MIB + 512) == Grant(large.address, 60 * MIB)  # whole: it is not split
    stats = caching.stats()
    assert (stats["max_split_size"], stats["oversize_allocations.current"]) == (30 * MIB, 2)
    assert stats["oversize_segments.current"] == 2


def test_with_max_split_size_only_as_many_oversize_blocks_go_as_are_needed() -> None:
    caching = allocator(200, "max_split_size_mb:30")
    grants = [take(caching, size * MIB) for size in (90, 60, 40)]
    for grant in grants:
        caching.free(grant.address)
    freed = [call.bytes // MIB for call in take(caching, 22 * MIB).calls if call.action == "segment_free"]
    assert freed == [40]  # the smallest that is large enough
    freed = [call.bytes // MIB for call in take(caching, 120 * MIB).calls if call.action == "segment_free"]
    assert freed == [90, 60]  # none is: the largest first


def test_garbage_collection_frees_what_was_passed_over_most_often() -> None:
    caching = allocator(100, "garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
    old, young = take(caching, 20 * MIB), take(caching, 22 * MIB)
    caching.free(old.address)
    caching.free(young.address)
    for _ in range(2):
        caching.free(take(caching, 22 * MIB).address)
    grant = take(caching, 28 * MIB)
    assert [call.action for call in grant.calls] == ["segment_alloc"]  # 42 of 100 MiB: below the threshold
    grant = take(caching, 24 * MIB)  # 70 MiB: 20 too many, and the first block is 4 searches old, the second 2
    assert grant.calls == (DeviceCall("segment_free", 20 * MIB), DeviceCall("segment_alloc", 24 * MIB))


def test_expandable_segments_grow_by_pages_and_hand_back_pages() -> None:
    caching = allocator(200, "expandable_segments:True")
    first = take(caching, 25 * MIB)
    assert first.calls == (DeviceCall("segment_map", 40 * MIB, pages=2),)
    second = take(caching, 30 * MIB)  # 15 MiB are mapped and free; the rest takes one page
    assert (second.address - first.address, second.calls) == (25 * MIB, (DeviceCall("segment_map", 20 * MIB),))
    small = take(caching, 512)
    assert small.calls == (DeviceCall("segment_map", 2 * MIB),)
    assert small.address - first.address == 240 * MIB  # 9/8 of the device, in pages of 20 MiB
    caching.free(first.address)
    assert caching.empty_cache() == (DeviceCall("synchronize", 0), DeviceCall("segment_unmap", 20 * MIB))
    third = take(caching, 24 * MIB)  # 5 MiB before the second block are mapped, but the hole has 25
    assert (third.address, third.calls) == (first.address, (DeviceCall("segment_map", 20 * MIB),))
    stats = caching.stats()
    assert (stats["segment.all.current"], stats["inactive_split.all.peak"]) == (0, 0)  # neither counts pages


def test_no_bytes_need_no_block_and_a_double_free_is_a_defect() -> None:
    caching = allocator()
    assert caching.malloc(0) == Grant(0, 0)
    caching.free(0)
    block = take(caching, 1)
    caching.free(block.address)
    with pytest.raises(BrokenInvariant, match="invalid device pointer"):
        caching.free(block.address)
    assert caching.stats()["allocation.all.allocated"] == 1


def test_peaks_can_start_over() -> None:
    caching = allocator()
    caching.free(take(caching, 5 * MIB).address)
    caching.statistics.reset_peaks()
    take(caching, 2 * MIB)
    assert caching.stats()["allocated_bytes.all.peak"] == 2 * MIB


def test_statistics_have_pytorchs_names(monkeypatch: Any) -> None:
    """PyTorch's own summary finds every figure that it prints."""
    memory = pytest.importorskip("torch").cuda.memory
    caching = allocator(100)
    caching.free(take(caching, 3 * MIB).address)
    monkeypatch.setattr(memory, "memory_stats", lambda device=None: caching.stats())
    monkeypatch.setattr(memory, "_get_device_index", lambda device, optional=False: 0)
    summary = memory.memory_summary()
    assert "20480 KiB" in summary


@pytest.mark.parametrize("kind", ["best_fit", "arena", "caching"])
def test_every_allocator_speaks_the_same_verbs(kind: str) -> None:
    sizes, lives = (3 * MIB, 2 * MIB, 3 * MIB), ((0, 2), (1, 9), (3, 9))
    planned = pack([Request(size, *life) for size, life in zip(sizes, lives, strict=True)])
    rules: Any = {"best_fit": BestFit(), "arena": Arena(planned), "caching": Caching()}[kind]
    first, second = rules.malloc(sizes[0]), rules.malloc(sizes[1])
    rules.free(first.address)
    third = rules.malloc(sizes[2])
    assert third.address == first.address != second.address
    assert rules.stats()["allocated_bytes.all.current"] == rules.live_bytes == 5 * MIB
    assert rules.stats()["reserved_bytes.all.peak"] == {"caching": 20 * MIB}.get(kind, 5 * MIB)
    with pytest.raises(BrokenInvariant):
        rules.free(12345)


def test_best_fit_shrinks_waits_and_refuses() -> None:
    rules = BestFit(4 * MIB)
    first, second = rules.malloc(MIB), rules.malloc(2 * MIB)
    assert first is not None
    assert second is not None
    assert rules.malloc(2 * MIB) is None
    rules.record_stream(second.address, 5)
    rules.free(second.address)
    assert rules.malloc(2 * MIB) is None
    rules.finish(5)
    assert rules.malloc(3 * MIB) is not None
    assert rules.stats()["num_ooms"] == 2
    assert rules.stats()["reserved_bytes.all.current"] == 4 * MIB


def test_an_arena_holds_exactly_what_was_planned() -> None:
    planned = pack([Request(1000, 0, 5), Request(600, 5, 9), Request(400, 5, 9)])
    assert (planned.total_bytes, planned.live_bytes) == (1536, 1536)
    with pytest.raises(UnsupportedPlan, match="larger than 1,000 B"):
        Arena(planned, 1000)
    arena = Arena(planned)
    with pytest.raises(UnsupportedPlan, match="request 0 of 7 B"):
        arena.malloc(7)


def test_defaults_round_like_a_plain_allocator() -> None:
    assert Settings.DEFAULT.rounds_simply
    assert not parse_settings("roundup_power2_divisions:[256:4]").rounds_simply
