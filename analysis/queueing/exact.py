"""Exact mean value analysis of one class; no step subtracts, so nothing cancels and no throughput turns negative.

Single servers and delays by the recursion of Reiser and Lavenberg (JACM 1980). A load-dependent station then joins the
others, which act on it like one station whose speed with n customers is their own throughput X(n) (Chandy, Herzog and
Woo, IBM J. 1975).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.queueing.network import Floats, Network, Solution, Station, solution
from sim.errors import UnsupportedPlan

_MOST_OPERATIONS = 5 * 10**9
"""Some ten seconds."""


def solve(network: Network, population: int) -> Solution:
    """The network with ``population`` customers, at least 1; some demand or think time must be above 0.

    O(N·K); with load-dependent stations O(N²·K).

    Raises
    ------
    UnsupportedPlan : that would take too long.
    """
    throughputs, queues = _solve(network, population)
    return solution(network, population, float(throughputs[-1]), queues)


def throughputs_per_s(network: Network, population: int) -> Floats:
    """X(1), X(2), … X(``population``), shape [population]."""
    return _solve(network, population)[0]


def recursion(
    demands_s: Floats, delay_s: float, population: int, history: Floats | None = None
) -> tuple[Floats, Floats]:
    """MVA of single servers: R_k = D_k(1 + Q_k(n−1)), X(n) = n/(Z + ΣR_k), Q_k = X·R_k.

    ``history``, shape [population + 1, stations], receives Q(n) in row n. Returns X(1…N) and Q(N).
    """
    dot, throughputs, scale = demands_s.dot, [], 1.0  # queues are kept times G(n), X(n) = G(n−1)/G(n): saves a product
    queues, met = np.zeros(len(demands_s)), np.ones(len(demands_s))  # who arrives meets Q(n−1), and itself
    for customers in range(1, population + 1):
        before, scale = scale, (delay_s * scale + float(dot(met))) / customers
        throughputs.append(before / scale)
        np.multiply(demands_s, met, queues)
        if not 1e-100 < scale < 1e100:
            queues /= scale
            scale = 1.0
        if history is not None:
            history[customers] = queues / scale
        np.add(queues, scale, met)
    return np.array(throughputs), queues / scale


@dataclass(frozen=True, eq=False)
class _Group:
    """Stations seen as one: throughput with 1…N customers in it, and each one's queue, shape [N + 1, stations]."""

    throughputs: Floats
    queues: Floats


def _solve(network: Network, population: int) -> tuple[Floats, Floats]:
    """X(1…N), and Q(N) of every station."""
    demands, delay_s = network.demands_s, network.delay_s
    dependent = [index for index, station in enumerate(network.stations) if station.is_load_dependent]
    if len(demands) * population ** (2 if dependent else 1) > _MOST_OPERATIONS:
        size = f"{population}{'²' * bool(dependent)} × {len(demands)}"
        raise UnsupportedPlan(f"exact takes {size} operations: use schweitzer, which is approximate, or bounds")
    single = [index for index, delay in enumerate(network.is_delay) if not delay and index not in dependent]
    queues = np.zeros(len(demands))
    if not dependent:
        throughputs, queues[single] = recursion(demands[single], delay_s, population)
    else:
        group = _group(demands[single], delay_s, population)
        for index in dependent:
            group = _joined(group, network.stations[index])
        throughputs, queues[[*single, *dependent]] = group.throughputs, group.queues[-1]
    delays = network.is_delay
    queues[delays] = throughputs[-1] * demands[delays]
    return throughputs, queues


def _group(demands_s: Floats, delay_s: float, population: int) -> _Group:
    """Single servers and delays as one; where there are none, as fast as can be."""
    history = np.zeros((population + 1, len(demands_s)))
    if not delay_s and not demands_s.any():
        return _Group(np.full(population, np.inf), history)
    return _Group(recursion(demands_s, delay_s, population, history)[0], history)


def _joined(group: _Group, station: Station) -> _Group:
    """The group and one station more: p(j|n), j of n customers at the station.

    p(j|n) = X(n)/μ(j)·p(j−1|n−1) = X(n)/X_group(n−j)·p(j|n−1): of the two states before, the likelier one tells the
    new one, so that tails which underflow come back from the middle. Σp = 1 gives X(n).
    """
    population = len(group.throughputs)
    speeds = station.speeds(population) / station.demand_s
    throughputs, queues = np.zeros(population), np.zeros((population + 1, group.queues.shape[1] + 1))
    chances = np.zeros(population + 1)
    chances[0] = 1.0
    for customers in range(1, population + 1):
        before = chances[:customers]
        by_station = before / speeds[:customers]
        by_group = before / group.throughputs[customers - 1 :: -1]
        likelier = np.where(before[:-1] >= before[1:], by_station[:-1], by_group[1:])
        weights = np.concatenate((by_group[:1], likelier, by_station[-1:]))
        throughputs[customers - 1] = throughput = 1 / float(weights.sum())
        chances[: customers + 1] = weights * throughput
        now = chances[: customers + 1]
        queues[customers, :-1] = now @ group.queues[customers::-1]
        queues[customers, -1] = now @ np.arange(customers + 1)
    return _Group(throughputs, queues)
