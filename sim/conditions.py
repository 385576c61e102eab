"""What a program of parameter servers meets with in a run: how its servers serve, who is slow, who fails and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sim.jitter import Jitter

Discipline = Literal["fcfs", "processor_sharing"]


@dataclass(frozen=True, slots=True)
class Service:
    """The cores of a server: an op has one of them to itself in the order of asking, or all share them equally."""

    cores: int = 1
    discipline: Discipline = "fcfs"


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker (by device; −1: any) whose step takes ``factor`` times as long, with a probability."""

    factor: float
    device: int = -1
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A device that is down from ``at_s`` for ``down_s``."""

    at_s: float
    down_s: float
    device: int


@dataclass(frozen=True, slots=True)
class Degradation:
    """Links that carry no more than ``bytes_per_s`` from ``at_s`` for ``for_s``."""

    at_s: float
    for_s: float
    links: tuple[int, ...]
    bytes_per_s: float


@dataclass(frozen=True)
class Conditions:
    """Nothing varies and nothing fails unless said.

    Parameters
    ----------
    services : by device, of those that serve.
    jitter : one factor for all that a worker computes in a step, one for each transfer, one for each op of a server.
    latest_start_s : each actor starts at a time drawn evenly from 0 to this; of actors that are not there, at 0.
    windows : by source and target, a link that limits each transfer between them by itself.
    """

    services: Mapping[int, Service] = field(default_factory=dict)
    jitter: Jitter = field(default_factory=Jitter)
    stragglers: tuple[Straggler, ...] = ()
    latest_start_s: Mapping[str, float] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    degradations: tuple[Degradation, ...] = ()
    windows: Mapping[tuple[int, int], int] = field(default_factory=dict)
