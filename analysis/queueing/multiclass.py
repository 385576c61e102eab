"""Exact mean value analysis of several classes of customers (Reiser and Lavenberg, JACM 1980)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from analysis.queueing.network import Floats
from sim.errors import UnsupportedPlan

MOST_CELLS = 40_000_000
"""Populations below the wanted one times stations: what is kept of the lattice, 8 bytes each."""


@dataclass(frozen=True, eq=False)
class ClassNetwork:
    """Customers of several classes at the same stations: processor sharing, or one exponential mean for all in order.

    ``demands_s`` has shape [classes, stations], ``populations`` and ``think_s`` [classes], ``is_delay`` and
    ``servers`` [stations].
    """

    demands_s: Floats
    populations: NDArray[np.int64]
    think_s: Floats
    is_delay: NDArray[np.bool_]
    servers: Floats


@dataclass(frozen=True, eq=False)
class ClassSolution:
    """What holds of each class in the long run: X of shape [classes], Q of shape [classes, stations]."""

    throughputs_per_s: Floats
    queue_lengths: Floats
    network: ClassNetwork

    @property
    def residence_s(self) -> Floats:
        """Over all visits of a cycle, shape [classes, stations]."""
        return self.queue_lengths / self.throughputs_per_s[:, None]

    @property
    def utilization(self) -> Floats:
        """The share of a station's full speed that serves each class; of a delay the mean number in it."""
        used: Floats = self.throughputs_per_s[:, None] * self.network.demands_s
        return used / np.where(self.network.is_delay, 1.0, self.network.servers)


def solve(network: ClassNetwork) -> ClassSolution:
    """R_{c,k} = D_{c,k}(1 + Σ_j Q_{j,k}(n − e_c)), over the lattice of populations n, one total after the other.

    Raises
    ------
    UnsupportedPlan : stations with several servers, or a lattice too large to keep.
    """
    if (network.servers[~network.is_delay] > 1).any():
        raise UnsupportedPlan("several servers with several classes have no exact recursion here: use schweitzer")
    sizes, (classes, stations) = network.populations + 1, network.demands_s.shape
    points = prod(int(size) for size in sizes)
    if points * (stations + classes) > MOST_CELLS:
        lattice = " × ".join(str(size) for size in sizes)
        message = f"exact needs {lattice} = {points} populations of {stations} stations, at most {MOST_CELLS} cells"
        raise UnsupportedPlan(f"{message}: use schweitzer, which is approximate")
    customers = np.indices(tuple(sizes)).reshape(classes, points)
    strides = np.array([prod(int(size) for size in sizes[index + 1 :]) for index in range(classes)])
    present = np.zeros((points, stations))
    for level in _levels(customers.sum(0)):
        for index in range(classes):
            here = level[customers[index, level] > 0]
            met = np.where(network.is_delay, 1.0, 1.0 + present[here - strides[index]])
            residence_s = network.demands_s[index] * met
            rates = customers[index, here] / (network.think_s[index] + residence_s.sum(1))
            present[here] += rates[:, None] * residence_s
    return _at_the_end(network, present[points - 1 - strides])


def _levels(totals: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The points of each total above 0, in order."""
    order = np.argsort(totals, kind="stable")
    return np.split(order, np.cumsum(np.bincount(totals))[:-1])[1:]


def _at_the_end(network: ClassNetwork, met: Floats) -> ClassSolution:
    """The whole population, from the queues that each class's next customer meets, shape [classes, stations]."""
    residence_s = network.demands_s * np.where(network.is_delay, 1.0, 1.0 + met)
    throughputs = network.populations / (network.think_s + residence_s.sum(1))
    return ClassSolution(throughputs, throughputs[:, None] * residence_s, network)
