"""Three snapshots that PyTorch recorded on a GPU: every address, block and total as it happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import memory_timeline
from sim.memory import snapshot
from sim.memory.replay import replay
from sim.memory.settings import Settings
from sim.memory.what_if import compare, least_capacity, what_if

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "snapshots"
RECORDED = {  # bytes at the end allocated, reserved; at most allocated (facts/memory.md)
    "128_inference": (1703276544, 1763704832, 1738928128),
    "128_training": (6816891392, 7235174400, 7026606592),
    "1024_training": (6874481152, 25178406912, 24213918720),
}


def recorded(name: str) -> snapshot.Snapshot:
    """A recorded snapshot, where the shared data is there."""
    path = FOLDER / f"wedsonlin_medium_{name}.pickle"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return snapshot.read(path)


@pytest.mark.parametrize("name", RECORDED)
def test_everything_as_recorded(name: str) -> None:
    shot = recorded(name)
    found = replay(shot)
    allocations = sum(entry.action == "alloc" for entry in shot.traces[0])
    blocks = sum(len(segment.blocks) for segment in shot.segments)
    assert found.agrees, found.mismatches
    assert (found.cached_allocations.checked, found.final_blocks.checked) == (allocations, blocks)
    assert (found.allocated_bytes, found.reserved_bytes, found.peak_allocated_bytes) == RECORDED[name]
    assert found.peak_reserved_bytes == found.reserved_bytes  # no trace holds a new segment or a release
    assert shot.settings == Settings.DEFAULT


@pytest.mark.parametrize("name", RECORDED)
def test_the_time_line_has_the_peak_and_the_end(name: str) -> None:
    timeline = memory_timeline.of_snapshot(recorded(name))
    allocated, _, peak = RECORDED[name]
    assert (timeline.allocated[-1], timeline.allocated[timeline.at_peak]) == (allocated, peak)
    assert sum(part.size for segment in timeline.segments for part in segment.parts if part.category) == peak


def test_it_would_have_fitted_and_on_less_it_would_not() -> None:
    shot = recorded("128_inference")
    least = least_capacity(shot)
    assert what_if(shot, capacity_bytes=least).fits
    short = what_if(shot, capacity_bytes=least - 2**21)
    assert not short.fits
    assert "CUDA out of memory" in short.message
    roomy = what_if(shot)
    assert (roomy.layout, roomy.fits) == ("as recorded", True)
    assert roomy.stats["allocated_bytes.all.peak"] == RECORDED["128_inference"][2]


def test_no_allocator_beats_what_lives_at_once() -> None:
    needed = compare(recorded("128_inference"))
    assert needed["live"] <= needed["arena"] <= needed["best_fit"] < needed["caching"]
    assert needed["live"] <= needed["expandable_segments"]
