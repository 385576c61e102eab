"""Closed queueing networks of one class: their stations, and what a solution says of them.

N customers circulate: each thinks for Z, then visits the stations. Names are those of Lazowska et al., *Quantitative
System Performance* (1984): V visits, S service time, D = V·S demand, X throughput, R residence, Q queue, U utilization.
Seconds stand for any one unit of time, the same in a whole network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["queue", "delay"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Station:
    """A place where customers are served: processor sharing, or in order with exponential times.

    Parameters
    ----------
    service_s : mean service time of one visit without others. ``visits``: how many a cycle.
    kind : ``queue``, or ``delay`` where nobody waits.
    servers : how many customers a queue serves at once, each as fast.
    rates : of a load-dependent queue, its speed with 1, 2, … customers relative to ``service_s``; the last one holds
        for all beyond. (1, 2, 3) is the same as 3 servers.
    """

    name: str
    service_s: float
    visits: float = 1.0
    kind: Kind = "queue"
    servers: int = 1
    rates: tuple[float, ...] = ()

    @property
    def demand_s(self) -> float:
        """D = V·S."""
        return self.visits * self.service_s

    @property
    def is_delay(self) -> bool:
        return self.kind == "delay"

    @property
    def is_load_dependent(self) -> bool:
        """Whether its speed depends on how many it holds: several servers, or rates."""
        return not self.is_delay and self.demand_s > 0 and (self.servers > 1 or bool(self.rates))

    @property
    def full_speed(self) -> float:
        """Its greatest speed, of one server 1."""
        return max(self.rates, default=float(self.servers))

    def speeds(self, population: int) -> Floats:
        """Its speed with 1, 2, … ``population`` customers."""
        if not self.rates:
            return np.arange(1.0, population + 1).clip(max=self.servers)
        beyond = (self.rates[-1],) * (population - len(self.rates))
        return np.array((*self.rates, *beyond)[:population], float)


@dataclass(frozen=True)
class Network:
    """Stations that customers of one class visit, and the time ``think_s`` that each spends outside between cycles."""

    stations: tuple[Station, ...]
    think_s: float = 0.0

    @property
    def demands_s(self) -> Floats:
        """Of every station, shape [stations]."""
        return np.array([station.demand_s for station in self.stations], float)

    @property
    def is_delay(self) -> NDArray[np.bool_]:
        """Which stations are delays, shape [stations]."""
        return np.array([station.is_delay for station in self.stations], bool)

    @property
    def delay_s(self) -> float:
        """Time of a cycle that nobody else can lengthen: thinking, and the delay stations."""
        return self.think_s + sum(station.demand_s for station in self.stations if station.is_delay)


@dataclass(frozen=True, eq=False)
class Solution:
    """What holds of ``population`` customers in the long run; arrays have shape [stations].

    ``utilization`` is the share of a station's full speed in use, X·D/m; of a delay the mean number in it, X·D.
    ``response_s`` is a cycle without thinking, the sum of ``residence_s``, each over all visits of a cycle.
    """

    population: int
    throughput_per_s: float
    queue_lengths: Floats
    residence_s: Floats
    utilization: Floats

    @property
    def response_s(self) -> float:
        return float(self.residence_s.sum())


def solution(network: Network, population: int, throughput_per_s: float, queue_lengths: Floats) -> Solution:
    """A solution from X and Q, by Little's law."""
    speeds = np.array([1.0 if station.is_delay else station.full_speed for station in network.stations])
    used = throughput_per_s * network.demands_s / speeds
    return Solution(population, throughput_per_s, queue_lengths, queue_lengths / throughput_per_s, used)
