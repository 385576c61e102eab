"""Checkpoint selection: solvers against the limits set, rotor's program against its recurrence in plain Python."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from math import inf

from benchmarks.measure import Row, cpu_seconds, side_by_side
from sim.checkpointing.objectives import Objective, program
from sim.checkpointing.program import least_peak
from sim.checkpointing.rotor import Persistent, Table
from sim.checkpointing.solvers import linear

LINEAR_N, LINEAR_S = 200_000, 1.0
QUADRATIC_N, QUADRATIC_S = 10_000, 2.0
ROTOR_N, ROTOR_SLOTS = 54, 1000  # as many vertices as ResNet-152 has


def sizes(n: int) -> list[int]:
    """Random sizes, the same every time."""
    rng = random.Random(n)
    return [rng.randint(1, 10**9) for _ in range(n + 1)]


def costs(n: int) -> Persistent:
    """A chain whose vertices save their output and need some bytes beside it."""
    rng = random.Random(n)
    output = tuple(rng.randint(5, 60) for _ in range(n))
    larger = tuple(size + rng.randint(0, 20) for size in output)
    seconds = tuple(float(rng.randint(1, 9)) for _ in range(n))
    return Persistent(50, output, larger, output, larger, tuple(2 * size for size in larger), seconds)


def plain(costs: Persistent, memory: int) -> list[float]:
    """The recurrence of rotor in loops, as its paper writes it; C(m, 1, n) for every m."""
    n, d = len(costs.output), costs.output
    least = [[[inf] * (memory + 1) for _ in range(n)] for _ in range(n)]
    for b in range(n):
        for a in range(b, -1, -1):
            for m in range(max(d[a] + costs.forward[a], costs.backward[a]), memory + 1):
                if a == b:
                    least[a][b][m] = 0.0
                elif m >= max(d[b] + costs.forward[a], costs.saved[a]):
                    least[a][b][m] = least[a + 1][b][m - costs.saved[a]]
            seconds, wanted = 0.0, 0
            for j in range(a + 1, b + 1):
                seconds += costs.forward_s[j - 1]
                wanted = max(wanted, d[b] + costs.through[j - 1] + (d[j - 2] if j - 1 > a else 0))
                for m in range(max(wanted, d[j - 1]), memory + 1):
                    total = seconds + least[j][b][m - d[j - 1]] + least[a][j - 1][m]
                    if total < least[a][b][m]:
                        least[a][b][m] = total
    return least[0][n - 1]


def measure() -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []

    def limited(name: str, seconds: float, limit_s: float) -> None:
        rows.append(Row(name, f"{seconds:.2f} s", f"{limit_s:.0f} s", limit_s / seconds, "1", "the limit set"))

    seconds = [min(cpu_seconds(partial(linear, sizes(n))) for _ in range(3)) for n in (LINEAR_N // 2, LINEAR_N)]
    limited(f"checkpoints, O(n), n = {LINEAR_N:,}", seconds[-1], LINEAR_S)
    growth = max(later / earlier for earlier, later in pairwise(seconds))
    rows.append(Row("growth, n doubled", f"x {growth:.2f} time", "x 2.00", 2 / growth, "0.8", "linear time"))
    objectives: tuple[Objective, ...] = ("corrected", "non_reentrant")
    for objective in objectives:
        work = program(objective, sizes(QUADRATIC_N))
        limited(f"{objective}, O(n²), n = {QUADRATIC_N:,}", cpu_seconds(partial(least_peak, work)), QUADRATIC_S)
    chain = costs(ROTOR_N)
    assert Table(chain, ROTOR_SLOTS).least_s().tolist() == plain(chain, ROTOR_SLOTS)
    ours, theirs = side_by_side(partial(Table, chain, ROTOR_SLOTS), partial(plain, chain, ROTOR_SLOTS), repeats=3)
    name = f"rotor, n = {ROTOR_N}, {ROTOR_SLOTS} slots"
    text = "its recurrence in plain Python"
    rows.append(Row(name, f"{1e3 * ours:.0f} ms", f"{1e3 * theirs:.0f} ms", theirs / ours, "50", text))
    return rows
