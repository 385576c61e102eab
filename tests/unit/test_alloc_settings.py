"""PYTORCH_ALLOC_CONF: what PyTorch takes we take, what it refuses we refuse, and every fault is named at once."""

from __future__ import annotations

import pytest

from sim.errors import ScenarioError
from sim.memory.settings import LARGE_BUFFER, MIB, UNLIMITED, Settings, parse_settings

GOOD = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:128,",
    " max_split_size_mb : 64 , expandable_segments : True ",
    "expandable_segments:False",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[>:8]",
    "roundup_power2_divisions:[64:8,]",
    "roundup_power2_divisions:[64:8,256:4,1024:4,>:1]",
    "roundup_power2_divisions:[131072:8]",
    "max_non_split_rounding_mb:40,max_split_size_mb:25",
    "pinned_use_background_threads:True",
    "max_split_size_mb:30,max_split_size_mb:40",
]
BAD = [
    "max_split_size_mb:10",
    "max_split_size_mb:19,expandable_segments:True",
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb=64",
    "max_split_size_mb:20 expandable_segments:Yes,expandable_segments:no",
    "max_non_split_rounding_mb:10",
    "expandable_segments:true",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[100:8]",
    "roundup_power2_divisions:[64:3]",
    ":",
]
STRICTER = [
    "max_split_size_mb:-5",
    "max_split_size_mb:32.5",
    "max_split_size_mb:x",
    "garbage_collection_threshold:0.8x",
    "roundup_power2_divisions:[64:8",
    "roundup_power2_divisions:[64]",
    "backend:cudaMallocAsync",
    "backend:mine",
    "no_such_setting:1",
]


def pytorch_takes(text: str) -> bool:
    """Whether PyTorch's own parser takes the text."""
    torch = pytest.importorskip("torch")
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        pytest.skip("this PyTorch has no parser without CUDA")
    try:
        change(text)
    except (RuntimeError, ValueError):
        return False
    finally:
        change("")
    return True


@pytest.mark.parametrize("text", GOOD)
def test_taken_as_pytorch_takes_it(text: str) -> None:
    parse_settings(text)
    assert pytorch_takes(text)


@pytest.mark.parametrize("text", BAD)
def test_refused_as_pytorch_refuses_it(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_settings(text)
    assert not pytorch_takes(text)


@pytest.mark.parametrize("text", STRICTER)
def test_slips_are_refused(text: str) -> None:
    """PyTorch reads on past some of these: a number with a tail, a wrapped negative, an unknown key without CUDA."""
    with pytest.raises(ScenarioError):
        parse_settings(text)


def test_values() -> None:
    settings = parse_settings(
        "max_split_size_mb:64,max_non_split_rounding_mb:30,garbage_collection_threshold:0.75,"
        "expandable_segments:True,per_process_memory_fraction:0.5,release_lock_on_cudamalloc:True,backend:native"
    )
    assert settings == Settings(
        max_split_size_bytes=64 * MIB,
        max_non_split_rounding_bytes=30 * MIB,
        garbage_collection_threshold=0.75,
        expandable_segments=True,
        memory_fraction=0.5,
    )
    assert Settings.DEFAULT.max_split_size_bytes == UNLIMITED
    assert Settings.DEFAULT.large_segment_bytes == LARGE_BUFFER


def test_the_list_of_divisions_as_pytorch_documents_it() -> None:
    """The first entry counts for all smaller sizes, ``>`` for all larger than the last, and what is not named is 0."""
    divisions = parse_settings("roundup_power2_divisions:[64:8,256:4,1024:4,>:1]").roundup_power2_divisions
    assert dict(zip((1 << power for power in range(16)), divisions, strict=True)) == {
        **dict.fromkeys((1, 2, 4, 8, 16, 32, 64), 8),
        128: 0,
        256: 4,
        512: 0,
        1024: 4,
        **dict.fromkeys((2048, 4096, 8192, 16384, 32768), 1),
    }


def test_every_fault_at_once_with_the_nearest_key() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_settings(
            "expandable_segment:True,max_split_size_mb:5,roundup_power2_divisions:12,expandable_segments:true"
        )
    path, meant = "PYTORCH_ALLOC_CONF.expandable_segment", "did you mean 'expandable_segments'?"
    assert [str(fault) for fault in caught.value.faults] == [
        f"{path}: unknown setting 'expandable_segment' ({meant})",
        "PYTORCH_ALLOC_CONF.roundup_power2_divisions: a number of divisions must be a power of two, got 12 (write 8)",
        "PYTORCH_ALLOC_CONF.expandable_segments: expected True or False, got 'true' (write True)",
        "PYTORCH_ALLOC_CONF.max_split_size_mb: must be at least 20 MB, got 5",
    ]


@pytest.mark.parametrize("text", GOOD)
def test_written_and_read_again(text: str) -> None:
    settings = parse_settings(text)
    assert parse_settings(str(settings)) == settings
    assert pytorch_takes(str(settings))
