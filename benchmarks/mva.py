"""Exact mean value analysis, and the same recursion in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from analysis.queueing.exact import recursion
from benchmarks.measure import Row, side_by_side

CUSTOMERS, STATIONS, MOST_STATIONS, THINK_S = 1000, 20, 500, 10.0


def measure() -> list[Row]:
    """The rows of this benchmark."""
    rows = []
    for stations, most_s in ((STATIONS, 0.010), (MOST_STATIONS, None)):
        demands_s = np.random.default_rng(1).uniform(0.1, 2.0, stations)
        as_list = demands_s.tolist()
        fast, slow = recursion(demands_s, THINK_S, CUSTOMERS)[0][-1], _plain(as_list, THINK_S, CUSTOMERS)
        if abs(fast / slow - 1) > 1e-10:
            raise RuntimeError(f"{fast} and {slow} customers a second")
        ours_s, reference_s = side_by_side(
            partial(recursion, demands_s, THINK_S, CUSTOMERS), partial(_plain, as_list, THINK_S, CUSTOMERS)
        )
        name = f"exact MVA, {CUSTOMERS} customers, {stations} stations"
        if most_s:
            rows.append(Row(name, f"{1e3 * ours_s:.1f} ms", "10 ms", most_s / ours_s, "1", "the limit set"))
        plain = f"{1e3 * reference_s:.0f} ms"
        wanted = "–" if most_s else "20"
        rows.append(
            Row(name, f"{1e3 * ours_s:.1f} ms", plain, reference_s / ours_s, wanted, "a plain Python recursion")
        )
    return rows


def _plain(demands_s: Sequence[float], think_s: float, customers: int) -> float:
    """X(N) by the textbook's loop."""
    queues, throughput = [0.0] * len(demands_s), 0.0
    for count in range(1, customers + 1):
        residence_s = [demand_s * (1 + queue) for demand_s, queue in zip(demands_s, queues, strict=True)]
        throughput = count / (think_s + sum(residence_s))
        queues = [throughput * each_s for each_s in residence_s]
    return throughput
