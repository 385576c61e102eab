"""Bounds on throughput and response without a solution: asymptotic and balanced (Lazowska et al. 1984, chapter 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from analysis.queueing.multiclass import ClassNetwork
from analysis.queueing.network import Network


class Interval(NamedTuple):
    """From ``lower`` to ``upper``."""

    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What X and R lie between, ``knee`` the population N* at which the asymptotes cross; infinite without queues."""

    throughput_per_s: Interval
    response_s: Interval
    knee: float


def asymptotic(network: Network, population: int) -> Bounds:
    """N/(NΣD + Z) ≤ X ≤ min(N/(ΣD + Z), 1/Dmax), with N* = (ΣD + Z)/Dmax.

    A station of several speeds counts at its full speed in Dmax; in ΣD alone, and where all are there at its slowest.
    """
    queues = [station for station in network.stations if not station.is_delay]
    delay_s = network.delay_s
    alone_s = sum(station.demand_s / station.speeds(1)[0] for station in queues)
    crowded_s = population * sum(station.demand_s / station.speeds(population).min() for station in queues)
    slowest_s = max((station.demand_s / station.speeds(population).max() for station in queues), default=0.0)
    upper = population / max(alone_s + delay_s, population * slowest_s)
    throughput = Interval(population / (crowded_s + delay_s), upper)
    knee = (alone_s + delay_s) / slowest_s if slowest_s else float("inf")
    return Bounds(throughput, _response_s(network, population, throughput), knee)


def balanced(network: Network, population: int) -> Bounds | None:
    """Tighter ones, from the networks whose demands are all Dmax and all the mean; ``None`` unless servers are single.

    N/(D + Z + (N−1)Dmax/(1 + Z/(ND))) ≤ X ≤ min(1/Dmax, N/(D + Z + (N−1)Dmean/(1 + Z/D))).
    """
    queues = [station for station in network.stations if not station.is_delay and station.demand_s]
    if not queues or any(station.is_load_dependent for station in queues):
        return None
    demand_s, delay_s, others = sum(station.demand_s for station in queues), network.delay_s, population - 1
    most_s, mean_s = max(station.demand_s for station in queues), demand_s / len(queues)
    alone_s = demand_s + delay_s
    lower = population / (alone_s + others * most_s / (1 + delay_s / (population * demand_s)))
    upper = min(1 / most_s, population / (alone_s + others * mean_s / (1 + delay_s / demand_s)))
    throughput = Interval(lower, upper)
    return Bounds(throughput, _response_s(network, population, throughput), alone_s / most_s)


def _response_s(network: Network, population: int, throughput: Interval) -> Interval:
    """R = N/X − Z, of the cycle without thinking."""
    lower, upper = (population / rate - network.think_s for rate in reversed(throughput))
    return Interval(max(lower, 0.0), upper)


def of_classes(network: ClassNetwork) -> list[Bounds]:
    """Asymptotic bounds of each class: at most as alone, at least as where everybody is always in its queue."""
    customers = int(network.populations.sum())
    found = []
    for demands_s, think_s, population in zip(network.demands_s, network.think_s, network.populations, strict=True):
        delay_s = float(think_s + demands_s[network.is_delay].sum())
        queued_s = demands_s[~network.is_delay]
        slowest_s = float((queued_s / network.servers[~network.is_delay]).max(initial=0.0))
        alone_s, count = float(queued_s.sum()) + delay_s, int(population)
        upper = count / max(alone_s, count * slowest_s)
        throughput = Interval(count / (customers * float(queued_s.sum()) + delay_s), upper)
        response_s = Interval(*(max(count / rate - float(think_s), 0.0) for rate in reversed(throughput)))
        found.append(Bounds(throughput, response_s, alone_s / slowest_s if slowest_s else float("inf")))
    return found
