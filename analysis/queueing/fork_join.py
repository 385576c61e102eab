"""Steps that fork to several servers and wait for all of them: no product form, so an estimate.

A step thinks (computes), and passes sections one after the other: in each, every server works on its share at once, and
the step goes on when the last is done. With one server this is exact mean value analysis; with one worker a section
takes the mean of the slowest of independent times. In between, two corrections (derived in docs/parameter-servers.md):

* the branches of a step differ by what is random in them: a response R has the standard deviation of its own service,
  slowed 1 + Q times, and of those of about Q others that are served meanwhile, cv·√((1 + Q)² + Q)/(1 + Q) of R;
* whoever waits for the slowest closes up to those ahead, so steps bunch: one meets Q + b(n − 1 − Q) others, b = tanh κ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.queueing.bounds import Bounds, Interval
from analysis.queueing.bunching import FITTED, UNSURE, Attraction, Fitted
from analysis.queueing.network import Floats, Network, Station
from analysis.queueing.slowest import mean_of_slowest

LEAST_VARIATION = 0.1
"""Where nothing varies as much as this (coefficient of variation), steps lock in phase and depend on how they began."""
_NEARLY_CONSTANT = 1e-4
"""The least coefficient of variation reckoned with, so that logarithms stay finite."""

_UNSURE_APART = 0.02
"""How far off a throughput without bunching is in 1 of 20 networks."""


@dataclass(frozen=True, eq=False)
class Section:
    """Work that all servers do at once for a step, on each server in stages that follow one another.

    ``demands_s`` has shape [stages, servers]; ``variations``, the coefficients of variation of service times, and
    ``cores``, how many steps a server serves at once (infinite: no step waits for another), have shape [stages].
    """

    name: str
    demands_s: Floats
    variations: Floats
    cores: Floats

    @property
    def unloaded_s(self) -> Floats:
        """Each server's branch where no other step is met, shape [servers]."""
        return np.asarray(self.demands_s.sum(0), float)


@dataclass(frozen=True, eq=False)
class ForkJoin:
    """A step: thinking for ``think_s`` on average, and its sections in their order."""

    think_s: float
    think_variation: float
    sections: tuple[Section, ...]

    def largest_share(self) -> Network:
        """Of each section only the longest branch: an optimistic network, with product form."""
        return self._network([[int(section.unloaded_s.argmax())] for section in self.sections])

    def one_after_another(self) -> Network:
        """The branches of each section in turn: a pessimistic network, with product form."""
        return self._network([[*range(len(section.unloaded_s))] for section in self.sections])

    def _network(self, visited: list[list[int]]) -> Network:
        stations = tuple(
            _station(f"{section.name} {server}", float(demands_s[server]), float(cores))
            for section, servers in zip(self.sections, visited, strict=True)
            for server in servers
            for demands_s, cores in zip(section.demands_s, section.cores, strict=True)
        )
        return Network(stations, self.think_s)


def _station(name: str, demand_s: float, cores: float) -> Station:
    if cores == float("inf"):
        return Station(name, demand_s, kind="delay")
    if cores.is_integer():
        return Station(name, demand_s, servers=int(cores))
    return Station(name, demand_s, rates=(*(float(count) for count in range(1, int(cores) + 1)), cores))


class Estimate(NamedTuple):
    """What is expected of ``population`` steps at a time.

    ``gathered_s`` holds what each section takes until its last branch is done, ``residence_s`` and ``queue_lengths``
    for each section an array [stages, servers]. ``bunching`` b is 0 where steps pass independently, 1 where all
    pass together.
    """

    population: int
    throughput_per_s: float
    gathered_s: tuple[float, ...]
    residence_s: tuple[Floats, ...]
    queue_lengths: tuple[Floats, ...]
    bunching: float


def estimates(step: ForkJoin, population: int, fitted: Fitted = FITTED) -> list[Estimate]:
    """For 1, 2, … ``population`` steps at a time; some demand or think time must be above 0."""
    found: list[Estimate] = []
    queues, bunching = [np.zeros_like(section.demands_s) for section in step.sections], 0.0
    attraction = _attraction(step, fitted)
    for customers in range(1, population + 1):
        passed = [
            _pass(section, _met(queue, bunching, customers))
            for section, queue in zip(step.sections, queues, strict=True)
        ]
        throughput = customers / (step.think_s + sum(each.gathered_s for each in passed))
        queues = [throughput * each.residence_s for each in passed]
        residence_s, _, gathered_s = zip(*passed, strict=True) if passed else ((), (), ())
        found.append(Estimate(customers, throughput, gathered_s, residence_s, tuple(queues), bunching))
        bunching = attraction.bunching(customers, throughput, *_taken(passed))
    return found


def intervals(step: ForkJoin, population: int) -> list[Interval]:
    """Where the throughput of 1, 2, … steps at a time is to be expected, by how sure bunching is."""
    more, less = (
        estimates(step, population, FITTED._replace(constant=FITTED.constant + change)) for change in (UNSURE, -UNSURE)
    )
    return [
        Interval(slow.throughput_per_s * (1 - _UNSURE_APART), fast.throughput_per_s * (1 + _UNSURE_APART))
        for slow, fast in zip(more, less, strict=True)
    ]


def bounds(step: ForkJoin, population: int) -> Bounds:
    """Asymptotic bounds that hold for any dependence between branches, of ``population`` steps at a time.

    Among N steps a branch is slowed N times at most and once at least: with A the time of a step alone,
    N/(Z + N(A − Z)) ≤ X ≤ min(N/A, 1/Dmax), N* = A/Dmax.
    """
    sections_s = sum(_pass(section, np.zeros_like(section.demands_s)).gathered_s for section in step.sections)
    alone_s = step.think_s + sections_s
    busiest = (section.demands_s / section.cores[:, None] for section in step.sections)
    slowest_s = max((float(demands_s.max()) for demands_s in busiest), default=0.0)
    upper = population / max(alone_s, population * slowest_s)
    throughput = Interval(population / (step.think_s + population * sections_s), upper)
    response_s = Interval(*(population / rate - step.think_s for rate in reversed(throughput)))
    return Bounds(throughput, response_s, alone_s / slowest_s if slowest_s else float("inf"))


class _Passed(NamedTuple):
    """A section: each stage on each server, the longest mean of a branch, and the mean of the slowest branch."""

    residence_s: Floats
    longest_s: float
    gathered_s: float


def _met(queue: Floats, bunching: float, customers: int) -> Floats:
    """How many others a step meets at each stage of each server."""
    met: Floats = queue + bunching * np.maximum(customers - 1 - queue, 0.0)
    return met


def _pass(section: Section, met: Floats) -> _Passed:
    """Processor sharing by ``cores``, taken as one core as many times as fast and a delay (Seidmann)."""
    queued_s = section.demands_s / section.cores[:, None] * (1 + met)
    residence_s = queued_s + section.demands_s * (1 - 1 / section.cores[:, None])
    varied = np.maximum(section.variations, _NEARLY_CONSTANT)[:, None] * np.sqrt((1 + met) ** 2 + met) / (1 + met)
    branches_s, deviations_s = residence_s.sum(0), np.sqrt(((varied * residence_s) ** 2).sum(0))
    used = branches_s > 0
    if not used.any():
        return _Passed(residence_s, 0.0, 0.0)
    gathered_s = mean_of_slowest(branches_s[used], deviations_s[used] / branches_s[used])
    return _Passed(residence_s, float(branches_s.max()), gathered_s)


def _taken(passed: list[_Passed]) -> tuple[Floats, Floats]:
    """Of the sections that take time, the longest branch's mean, and that of the slowest; shape [sections]."""
    used = [each for each in passed if each.longest_s]
    return np.array([each.longest_s for each in used]), np.array([each.gathered_s for each in used])


def _attraction(step: ForkJoin, fitted: Fitted) -> Attraction:
    sections = [section for section in step.sections if section.demands_s.any()]
    longest_s, gathered_s = _taken([_pass(section, np.zeros_like(section.demands_s)) for section in sections])
    return Attraction(
        think_s=step.think_s,
        think_variation=step.think_variation,
        variations=np.array([max(_variation(section), _NEARLY_CONSTANT) for section in sections]),
        longest_s=longest_s,
        gathered_s=gathered_s,
        fitted=fitted,
    )


def _variation(section: Section) -> float:
    """The coefficient of variation of the longest branch, unloaded."""
    longest_s = section.demands_s[:, section.unloaded_s.argmax()]
    return float(np.sqrt(((section.variations * longest_s) ** 2).sum()) / longest_s.sum())
