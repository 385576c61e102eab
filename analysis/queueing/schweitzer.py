"""Approximate mean value analysis (Bard 1979, Schweitzer 1979): an arriving customer meets (N−1)/N of the queue.

Cost does not grow with the population. Several servers are approximated after Seidmann, Schweitzer and Shalev-Oren
(1987): one server m times as fast, and a delay of D(m−1)/m.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from analysis.queueing.multiclass import ClassNetwork, ClassSolution
from analysis.queueing.network import Floats, Network, Solution, solution
from sim.errors import RunFailed

_STEPS, _PRECISION = 100_000, 1e-12


def solve(network: Network, population: int) -> Solution:
    """The network with ``population`` customers; some demand or think time must be above 0, no station has rates.

    R_k = D_k(1 + (N−1)/N·Q_k) means Q_k = XD_k/(1 − XD_k(N−1)/N): X is the root of ΣQ_k + XZ = N, which grows with X.
    """
    queued_s, served_s = _seidmann(network.demands_s, network.is_delay, _servers(network))
    delay_s, met = network.think_s + float(served_s.sum()), (population - 1) / population

    def queues(throughput: float) -> Floats:
        return throughput * queued_s / (1 - throughput * queued_s * met)

    def too_many(throughput: float) -> float:
        return float(queues(throughput).sum()) + throughput * delay_s - population

    alone = population / (delay_s + float(queued_s.sum()))
    most = min(alone, (1 - 1e-15) / max(met * float(queued_s.max(initial=0.0)), 1e-300))
    throughput = most if too_many(most) <= 0 else float(brentq(too_many, 0.0, most, xtol=1e-300))
    return solution(network, population, throughput, queues(throughput) + throughput * served_s)


def solve_classes(network: ClassNetwork) -> ClassSolution:
    """Several classes: R_{c,k} = D_{c,k}(1 + Σ_j Q_{j,k} − Q_{c,k}/N_c), iterated to its fixed point.

    Raises
    ------
    RunFailed : no fixed point is reached.
    """
    queued_s, served_s = _seidmann(network.demands_s, network.is_delay, network.servers)
    populations = network.populations[:, None]
    visited = queued_s > 0
    queues = populations * visited / np.maximum(visited.sum(1, keepdims=True), 1)
    for _ in range(_STEPS):
        residence_s = queued_s * (1 + queues.sum(0) - queues / populations)
        throughputs = network.populations / (network.think_s + residence_s.sum(1) + served_s.sum(1))
        before, queues = queues, throughputs[:, None] * residence_s
        if np.abs(queues - before).max(initial=0.0) <= _PRECISION * float(populations.max()):
            return ClassSolution(throughputs, throughputs[:, None] * (residence_s + served_s), network)
    raise RunFailed(f"schweitzer: no fixed point within {_STEPS} steps")


def _servers(network: Network) -> Floats:
    return np.array([station.servers for station in network.stations], float)


def _seidmann(demands_s: Floats, is_delay: NDArray[np.bool_], servers: Floats) -> tuple[Floats, Floats]:
    """What is waited for in a queue of one server, and what is only a delay; shapes as ``demands_s``."""
    queued_s = np.where(is_delay, 0.0, demands_s / servers)
    return queued_s, demands_s - queued_s
