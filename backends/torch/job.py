"""What passes between the parent and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.ops import OpKind
from sim.partition import Partition
from sim.schedule import IntColumn, Schedule
from sim.training import Training

SENDS = (OpKind.SEND_ACTIVATION, OpKind.SEND_GRADIENT)

Arrays = tuple[NDArray[np.float64], ...]
"""One array per parameter of a stage, in the order of its layers."""


@dataclass(frozen=True)
class Job:
    """One run, the same for every worker.

    ``devices`` of the plan, in the order of their ranks; ``samples`` per micro-batch; ``meeting`` is the URL of
    a file through which the workers find each other.
    """

    schedule: Schedule
    partition: Partition
    model: str
    training: Training
    seed: int
    devices: tuple[int, ...]
    samples: int
    meeting: str
    keep_gradients: bool


class Ready(NamedTuple):
    """A worker has its model and its peers, and waits for the common start."""

    torch: str


class Done(NamedTuple):
    """A worker has walked all its lanes.

    ``gradients`` by (stage, mini-batch) if they are to be kept, final ``weights`` by stage, and the most ``copies`` of
    the weights of each stage that were alive at once.
    """

    gradients: dict[tuple[int, int], Arrays]
    weights: dict[int, Arrays]
    copies: dict[int, int]


class Failed(NamedTuple):
    """A worker raised, at ``time_s`` of the monotonic clock, in op number ``op`` (−1: before its first)."""

    time_s: float
    op: int
    traceback: str


class Channel(NamedTuple):
    """The transfers from one device to another, in the order in which they travel."""

    source: int
    target: int
    ops: IntColumn


def channels(schedule: Schedule) -> list[Channel]:
    """Every channel: in the order of its lanes, or, where transfers hold no lane, of the ops that make their data."""
    ops, after = schedule.ops, schedule.after
    place = np.full(len(ops), -1, np.int64)
    place[schedule.order.values] = np.arange(len(schedule.order.values))
    sends = np.flatnonzero(np.isin(ops["kind"], SENDS))
    turn = [place[op] if place[op] >= 0 else place[after[op]].max() for op in sends.tolist()]
    sends = sends[np.argsort(turn, kind="stable")]
    ends: Any = ops[["source", "target"]][sends]
    return [Channel(int(pair["source"]), int(pair["target"]), sends[ends == pair]) for pair in np.unique(ends)]
