"""How a benchmark measures: interleaved repeats, CPU seconds, medians."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table; ``ratio`` is above 1 where ours is better."""

    name: str
    ours: str
    reference: str
    ratio: float
    wanted: str
    reference_is: str


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def side_by_side(ours: Callable[[], object], reference: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """Median CPU seconds of both, measured in turn so that a slow moment of the machine meets both."""
    pairs = [(cpu_seconds(ours), cpu_seconds(reference)) for _ in range(repeats)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
