"""The settings of PyTorch's allocator, read from the text of ``PYTORCH_ALLOC_CONF`` (once ``PYTORCH_CUDA_ALLOC_CONF``).

The rules are those of c10/cuda/CUDACachingAllocator.cpp at commit `RULES`; keys that came later and change nothing at
their defaults are taken too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sim.errors import Fault, ScenarioError, nearest

RULES = "001074d"
"""The commit of PyTorch whose rules these are."""

KIB, MIB = 2**10, 2**20
MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER, LARGE_BUFFER = 512, MIB, 2 * MIB, 20 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE = 10 * MIB, 2 * MIB
UNLIMITED = 2**64 - 1
_INTERVALS = 16  # 1 MiB to 64 GiB, one a power of two


@dataclass(frozen=True, slots=True)
class Settings:
    """How the allocator rounds, splits and grows.

    ``max_split_size_bytes`` is `UNLIMITED` by default. ``roundup_power2_divisions`` has one number for each interval
    from 1 MiB to 64 GiB. ``memory_fraction`` is the share of the device that the process may take, ``None`` where
    nobody set one; garbage collection starts only where one is set.
    """

    max_split_size_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_BUFFER
    large_segment_bytes: int = LARGE_BUFFER
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    expandable_segments: bool = False
    memory_fraction: float | None = None
    DEFAULT: ClassVar[Settings]

    def rounded(self, size_bytes: int) -> int:
        """The size of the block that a request needs."""
        if size_bytes < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.roundup_power2_divisions[min(max(size_bytes.bit_length() - 21, 0), _INTERVALS - 1)]
        if divisions > 1 and size_bytes > MIN_BLOCK * divisions:
            return _next_division(size_bytes, divisions)
        return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK

    def segment_bytes(self, block_bytes: int) -> int:
        """The size of the segment to ask the driver for, given a rounded size."""
        if block_bytes <= SMALL_SIZE:
            return SMALL_BUFFER
        if block_bytes < MIN_LARGE_ALLOC:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE

    def __str__(self) -> str:
        """The text that means the same; empty for the defaults."""
        divisions = self.roundup_power2_divisions
        intervals = ",".join(f"{1 << index}:{number}" for index, number in enumerate(divisions))
        spelled = {
            "max_split_size_mb": self.max_split_size_bytes // MIB,
            "max_non_split_rounding_mb": self.max_non_split_rounding_bytes // MIB,
            "large_segment_size_mb": self.large_segment_bytes // MIB,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "roundup_power2_divisions": f"[{intervals}]",
            "expandable_segments": self.expandable_segments,
            "per_process_memory_fraction": self.memory_fraction,
        }
        changed = (key for key in spelled if getattr(self, _READERS[key][0]) != getattr(self.DEFAULT, _READERS[key][0]))
        return ",".join(f"{key}:{spelled[key]}" for key in changed)

    @property
    def rounds_simply(self) -> bool:
        """Whether every size is rounded to the next multiple of 512."""
        return not any(self.roundup_power2_divisions)


Settings.DEFAULT = Settings()


def _next_division(size_bytes: int, divisions: int) -> int:
    """Up to the next of ``divisions`` equal steps between the powers of two around the size."""
    floor = 1 << (size_bytes.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if size_bytes == floor:
        return size_bytes
    return -(-size_bytes // step) * step if step else floor << 1


class _Wrong(ValueError):
    """A value that a user must correct: the message, and what to write instead."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def _integer(text: str, low: int, unit: str = "") -> int:
    if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or int(text) < low:
        raise _Wrong(f"expected a whole number{f' of {unit}' if unit else ''}, at least {low}, got '{_short(text)}'")
    return int(text)


def _fraction(text: str, ends: bool) -> float:
    number = float(text) if re.fullmatch(r"\d{0,12}\.?\d{1,30}", text, re.ASCII) else -1.0
    if not (0 <= number <= 1 if ends else 0 < number < 1):
        raise _Wrong(f"expected a number from 0 to 1{'' if ends else ', without the ends'}, got '{_short(text)}'")
    return number


def _boolean(text: str) -> bool:
    if text not in ("True", "False"):
        same = text.capitalize()
        raise _Wrong(
            f"expected True or False, got '{_short(text)}'", f"write {same}" if same in ("True", "False") else None
        )
    return text == "True"


def _divisions(text: str) -> tuple[int, ...]:
    """One number for all sizes, or a list ``[size in MB:number,…,>:number]``."""
    if not text.startswith("["):
        return (_power_of_two(text, "a number of divisions"),) * _INTERVALS
    if not text.endswith("]"):
        raise _Wrong("the list has no closing ']'")
    divisions, last, first = [0] * _INTERVALS, 0, True
    for entry in filter(None, text[1:-1].split(",")):
        bound, colon, value = entry.partition(":")
        if not colon:
            raise _Wrong(f"expected entries like 256:4 or >:1, got '{_short(entry)}'")
        number = 0 if value == "0" else _power_of_two(value, "a number of divisions")
        if bound == ">":
            divisions[last + 1 :] = [number] * (_INTERVALS - last - 1)
            continue
        last = min(_power_of_two(bound, "a size in MB").bit_length() - 1, _INTERVALS - 1)
        if first:
            divisions[:last] = [number] * last
        divisions[last], first = number, False
    return tuple(divisions)


def _power_of_two(text: str, what: str) -> int:
    number = _integer(text, 1)
    if number & (number - 1):
        raise _Wrong(f"{what} must be a power of two, got {number}", f"write {1 << (number.bit_length() - 1)}")
    return number


def _backend(text: str) -> None:
    if text == "cudaMallocAsync":
        raise _Wrong("cudaMallocAsync is the driver's allocator, whose rules are not public", "write native")
    if text != "native":
        raise _Wrong(f"expected native, got '{_short(text)}'", nearest(text, ["native"]))


def _megabytes(text: str) -> int:
    return _integer(text, 1, "MB") * MIB


_READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "max_split_size_mb": ("max_split_size_bytes", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes),
    "large_segment_size_mb": ("large_segment_bytes", _megabytes),
    "garbage_collection_threshold": ("garbage_collection_threshold", lambda text: _fraction(text, ends=False)),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "expandable_segments": ("expandable_segments", _boolean),
    "per_process_memory_fraction": ("memory_fraction", lambda text: _fraction(text, ends=True)),
    # The rest decides nothing about memory on the device.
    "backend": ("", _backend),
    "release_lock_on_cudamalloc": ("", _boolean),
    "release_lock_on_hipmalloc": ("", _boolean),
    "graph_capture_record_stream_reuse": ("", _boolean),
    "pinned_use_cuda_host_register": ("", _boolean),
    "pinned_use_hip_host_register": ("", _boolean),
    "pinned_use_background_threads": ("", _boolean),
    "pinned_free_catch_all": ("", _boolean),
    "pinned_num_register_threads": ("", lambda text: _power_of_two(text, "a number of threads")),
    "pinned_reserve_segment_size_mb": ("", _megabytes),
    "pinned_max_round_threshold_mb": ("", _megabytes),
    "pinned_max_cached_size_mb": ("", _megabytes),
}
KEYS = tuple(_READERS)


def parse_settings(text: str, path: str = "PYTORCH_ALLOC_CONF") -> Settings:
    """Read ``key:value,key:value``; white space means nothing, and the last of equal keys counts.

    Raises
    ------
    ScenarioError : every fault, with the nearest key; ``path`` says where the text stands.
    """
    fields: dict[str, Any] = {}
    faults: list[Fault] = []
    for item in _items("".join(text.split())):
        key, colon, value = item.partition(":")
        try:
            field, reader = _reader(key, bool(colon))
            fields[field] = reader(value)
        except _Wrong as wrong:
            faults.append(Fault(str(wrong), f"{path}.{_short(key)}" if key else path, suggestion=wrong.suggestion))
    fields.pop("", None)
    settings = replace(Settings.DEFAULT, **fields)
    faults += [Fault(message, f"{path}.{key}") for key, message in _too_small(fields, settings)]
    if faults:
        raise ScenarioError.of(faults)
    return settings


def _items(text: str) -> list[str]:
    """The parts between commas outside brackets; one empty part at the end is a trailing comma."""
    items = re.split(r",(?![^\[]*\])", text)
    return items[:-1] if not items[-1] else items


def _reader(key: str, has_value: bool) -> tuple[str, Callable[[str], Any]]:
    if key in _READERS and has_value:
        return _READERS[key]
    name, equals, value = key.partition("=")
    if equals and not has_value:
        raise _Wrong(f"expected key:value, got '{_short(key)}'", f"write {name}:{value}")
    if key in _READERS:
        raise _Wrong("has no value: expected key:value")
    raise _Wrong(f"unknown setting '{_short(key)}'" if key else "expected key:value, got nothing", nearest(key, KEYS))


def _too_small(fields: Mapping[str, Any], settings: Settings) -> Iterator[tuple[str, str]]:
    """Sizes that PyTorch refuses because they depend on one another."""
    if settings.large_segment_bytes <= MIN_LARGE_ALLOC:
        yield "large_segment_size_mb", f"must be above {MIN_LARGE_ALLOC // MIB} MB"
    least = settings.large_segment_bytes
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        field = _READERS[key][0]
        if field in fields and fields[field] < least:
            yield key, f"must be at least {least // MIB} MB, got {fields[field] // MIB}"


def _short(text: str) -> str:
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
