"""From a plan with parameter servers and its binding to the step that queueing theory knows, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from analysis.queueing import ways
from analysis.queueing.fork_join import LEAST_VARIATION, ForkJoin, Section
from analysis.queueing.network import Floats
from analysis.queueing.ways import Ways
from sim.binding import Binding, Cost
from sim.distributions import Distribution
from sim.ops import OpKind
from sim.program import Layout

BROKEN: Mapping[str, str] = {
    "bunching": "steps on several servers close up to each other: theory gives an interval of more than ± 5 %",
    "phase_locked": f"no time varies by {LEAST_VARIATION} or more: throughput depends on the phases at the start",
    "fcfs_not_exponential": "served in order, times not exponential: the truth lies between theory and upper bound",
    "heterogeneous_workers": "workers compute at different speeds: theory takes their mean",
    "stragglers": "some steps compute longer at random: theory takes the mean and the spread",
    "layer_overlap": "transfers overlap with computing: what they hide is taken off the think time",
    "worker_nic_binds": "a worker alone cannot use all of the servers' links: theory serves several steps at once",
    "shared_links": "only some workers share a link, or several servers do: theory takes one for each server",
    "second_job": "theory leaves out what a second job asks of the servers",
    "faults": "theory leaves out what fails and degrades",
    "stale_synchronous": "theory leaves out that fast workers wait for slow ones",
    "beyond_fit": "the estimate for several servers was fitted up to 32 workers, 8 servers and a variation of 1",
}
"""Assumptions of the theory that a scenario can break, in words."""
_MOST_WORKERS, _MOST_SERVERS, _MOST_VARIATION = 32, 8, 1.0


class Described(NamedTuple):
    """The step of every worker, its sections a download and an upload that ends with applying; and keys of `BROKEN`."""

    step: ForkJoin
    broken: tuple[str, ...]


def describe(layout: Layout, binding: Binding, overlap_s: float = 0.0) -> Described:
    """What a step asks of each server's link out, link in and cores; Z = max(0, computing − overlap) + latencies.

    ``overlap_s`` is how much shorter a step of one worker alone is than its parts.
    """
    jitter, cores = binding.conditions.jitter, float(binding.conditions.services[layout.servers[0]].cores)
    pulls, pushes, applies = (_parts(layout, figures, kind) for figures, kind in _asked(binding))
    down = ways.find(layout, binding, pulls.totals, pulls.largest, pulls=True)
    up = ways.find(layout, binding, pushes.totals, pushes.largest, pulls=False)
    moving = [parts.variation(jitter.communication) * way.spread for parts, way in ((pulls, down), (pushes, up))]
    compute_s, deviation_s = _computing(layout, binding)
    alone_s = max(compute_s - overlap_s, 0.0)
    think_s = alone_s + down.latency_s + up.latency_s
    download = Section(
        "download",
        demands_s=down.demands_s[None, :],
        variations=np.array(moving[:1]),
        cores=np.array([down.cores]),
    )
    upload = Section(
        "upload",
        demands_s=np.stack((up.demands_s, applies.totals)),
        variations=np.array([moving[1], applies.variation(jitter.apply)]),
        cores=np.array([up.cores, cores]),
    )
    variation = deviation_s / compute_s * alone_s / think_s if compute_s and think_s else 0.0
    step = ForkJoin(think_s, variation, (download, upload))
    return Described(step, tuple(_broken(layout, binding, step, (down, up))))


class _Parts(NamedTuple):
    """A figure of a step over the parts of each server: sum, root of the sum of squares, and most; shape [servers]."""

    totals: Floats
    roots: Floats
    largest: Floats

    def variation(self, distribution: Distribution | None) -> float:
        """Of the sum over the parts of the server with the most, each part varying by itself."""
        most = int(self.totals.argmax())
        share = self.roots[most] / self.totals[most] if self.totals[most] else 0.0
        return distribution.variation * float(share) if distribution else 0.0


def _asked(binding: Binding) -> tuple[tuple[Mapping[Cost, float], OpKind], ...]:
    moved = binding.payload_bytes
    return (moved, OpKind.PULL), (moved, OpKind.PUSH), (binding.seconds, OpKind.UPDATE)


def _parts(layout: Layout, figures: Mapping[Cost, float], kind: OpKind) -> _Parts:
    totals, squares, largest = np.zeros((3, len(layout.servers)))
    for number, part in enumerate(layout.parts):
        figure = figures[Cost(kind, 0, number)]
        totals[part.server] += figure
        squares[part.server] += figure**2
        largest[part.server] = max(largest[part.server], figure)
    return _Parts(totals, np.sqrt(squares), largest)


def _each_computes_s(layout: Layout, binding: Binding) -> Floats:
    """What each worker computes in a step on average, stragglers not counted, shape [workers]."""
    seconds = np.zeros(layout.workers)
    for cost, each_s in binding.seconds.items():
        if cost.kind in (OpKind.FORWARD, OpKind.BACKWARD) and cost.stage == 0 and 0 <= cost.device < layout.workers:
            seconds[cost.device] += each_s
    return seconds


def _computing(layout: Layout, binding: Binding) -> tuple[float, float]:
    """Mean and standard deviation of what a worker computes in a step, over all workers' means."""
    means_s, varies = _each_computes_s(layout, binding), binding.conditions.jitter.compute
    squares_s2 = means_s**2 * (1 + (varies.variation if varies else 0.0) ** 2)
    for straggler in binding.conditions.stragglers:
        chosen = slice(None) if straggler.device < 0 else straggler.device
        means_s[chosen] *= 1 + straggler.probability * (straggler.factor - 1)
        squares_s2[chosen] *= 1 + straggler.probability * (straggler.factor**2 - 1)
    return float(means_s.mean()), float(np.sqrt((squares_s2 - means_s**2).mean().clip(0)))


def _broken(layout: Layout, binding: Binding, step: ForkJoin, both: tuple[Ways, Ways]) -> Iterator[str]:
    """Which of `BROKEN` hold."""
    conditions, (download, upload) = binding.conditions, step.sections
    variations = [*download.variations, *upload.variations]
    if max(step.think_variation, *variations) < LEAST_VARIATION:
        yield "phase_locked"
    waits = layout.workers > upload.cores[1] and upload.demands_s[1].any()
    in_order = waits and conditions.services[layout.servers[0]].discipline == "fcfs"
    served = [(any(way.fifo for way in both), conditions.jitter.communication), (in_order, conditions.jitter.apply)]
    if any(fcfs and not (varies and varies.kind == "exponential") for fcfs, varies in served):
        yield "fcfs_not_exponential"
    if np.ptp(_each_computes_s(layout, binding)) or any(each.device >= 0 for each in conditions.stragglers):
        yield "heterogeneous_workers"
    if any(each.device < 0 for each in conditions.stragglers):
        yield "stragglers"
    if len(layout.blocks) > 1 or len(layout.parts) > len(layout.servers):
        yield "layer_overlap"
    if any(1 + 1e-9 < way.cores < float("inf") for way in both):
        yield "worker_nic_binds"
    if any(way.entangled for way in both):
        yield "shared_links"
    if layout.background:
        yield "second_job"
    if conditions.outages or conditions.degradations:
        yield "faults"
    if layout.consistency == "ssp":
        yield "stale_synchronous"
    if len(layout.servers) > 1 and (
        layout.workers > _MOST_WORKERS
        or len(layout.servers) > _MOST_SERVERS
        or max(step.think_variation, *variations) > _MOST_VARIATION
    ):
        yield "beyond_fit"
