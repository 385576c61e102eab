"""What queueing theory says of steps on parameter servers, for every number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from analysis.queueing import exact, fork_join
from analysis.queueing.bounds import Bounds, Interval
from analysis.queueing.fork_join import ForkJoin
from analysis.queueing.staleness import Snapshot, staleness

STAGES = (("link out",), ("link in", "cores"))
"""What the stages of a download and of an upload keep busy at a server."""


class Theory(NamedTuple):
    """What is expected of ``workers``.

    ``method``: ``mva``, exact for processor sharing, or ``fork_join``, an estimate with the interval in which 19 of 20
    simulations lie; beside it what exact analysis says of the largest share alone, and of servers visited one after
    another (``None`` where a step alone cannot use all of a link). ``bottleneck``: the busiest link or core.
    """

    workers: int
    method: Literal["mva", "fork_join"]
    throughput_per_s: float
    interval_per_s: Interval | None
    one_after_another_per_s: float | None
    largest_share_per_s: float
    bounds: Bounds
    staleness: float
    bottleneck: str
    utilization: float

    @property
    def uncertainty(self) -> float:
        """Half of the interval, as a share of the throughput."""
        low, high = self.interval_per_s or (0.0, 0.0)
        return (high - low) / 2 / self.throughput_per_s


def theories(step: ForkJoin, most: int, servers: Sequence[str], snapshot: Snapshot) -> list[Theory]:
    """For 1, 2, … ``most`` workers with steps of a download and an upload."""
    found = fork_join.estimates(step, most)
    longest, in_turn = step.largest_share(), step.one_after_another()
    optimistic, pessimistic = (exact.throughputs_per_s(network, most) for network in (longest, in_turn))
    is_exact, whole = len(servers) == 1, all(section.cores[0] == 1 for section in step.sections)
    sure = [None] * most if is_exact else fork_join.intervals(step, most)
    theory = []
    for number, estimate in enumerate(found):
        if is_exact:
            away = exact.solve(longest, number).queue_lengths[0] if number else 0.0
            rate, stale = float(optimistic[number]), number - (float(away) if snapshot == "on_delivery" else 0.0)
        else:
            fewer = found[number - 1] if number else None
            rate, stale = estimate.throughput_per_s, float(staleness(fewer, estimate, snapshot).mean())
        name, utilization = _busiest(step, rate, servers)
        theory.append(
            Theory(
                workers=number + 1,
                method="mva" if is_exact else "fork_join",
                throughput_per_s=rate,
                interval_per_s=sure[number],
                one_after_another_per_s=float(pessimistic[number]) if whole else None,
                largest_share_per_s=float(optimistic[number]),
                bounds=fork_join.bounds(step, number + 1),
                staleness=stale,
                bottleneck=name,
                utilization=utilization,
            )
        )
    return theory


def _busiest(step: ForkJoin, throughput_per_s: float, servers: Sequence[str]) -> tuple[str, float]:
    """The link or the cores with the highest utilization X·D/c."""
    used = {
        f"{server} {what}": throughput_per_s * float(demand_s / cores)
        for section, stages in zip(step.sections, STAGES, strict=True)
        for what, demands_s, cores in zip(stages, section.demands_s, section.cores, strict=True)
        for server, demand_s in zip(servers, demands_s, strict=True)
    }
    busiest = max(used, key=lambda name: used[name])
    return busiest, used[busiest]
