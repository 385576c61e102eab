"""The model of PyTorch's allocator: how fast a recorded trace is rewound, replayed and compared."""

from __future__ import annotations

import random
import statistics

from benchmarks.measure import Row, cpu_seconds
from sim.memory import snapshot
from sim.memory.caching import Caching
from sim.memory.replay import replay
from sim.memory.snapshot import Snapshot

LAYERS, STEPS = 400, 20
WANTED_PER_S = 200_000


def training(layers: int = LAYERS, steps: int = STEPS) -> Snapshot:
    """A trace of training steps: activations pile up and go in reverse, temporaries come and go between."""
    chance, caching = random.Random(0), Caching(record=True)
    sizes = [chance.choice((4096, 60_000, 800_000, 2 << 20, 9 << 20, 33 << 20)) for _ in range(layers)]
    for _ in range(steps):
        kept = []
        for size in sizes:
            kept.append(_take(caching, size))
            caching.free(_take(caching, 2 * size))
        for size in reversed(sizes):
            gradient = _take(caching, size)
            caching.free(kept.pop())
            caching.free(gradient)
    return snapshot.parse(snapshot.as_pytorch([caching]))


def _take(caching: Caching, size: int) -> int:
    grant = caching.malloc(size)
    assert grant is not None
    return grant.address


def measure() -> list[Row]:
    """The row of this benchmark: the median of five."""
    recorded = training()
    events = len(recorded.traces[0])
    assert replay(recorded).agrees
    seconds = statistics.median(cpu_seconds(lambda: replay(recorded)) for _ in range(5))
    rate = events / seconds
    ours, wanted = f"{rate:,.0f} events/s", f"{WANTED_PER_S:,} events/s"
    return [Row("allocator replay", ours, wanted, rate / WANTED_PER_S, "1", "the rate that was asked for")]
