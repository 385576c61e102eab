"""What passes between the parent and its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.architecture import Architecture
from sim.ops import OpKind
from sim.partition import Partition
from sim.rows import IntColumn
from sim.schedule import Schedule
from sim.training import Training

SENDS = (OpKind.SEND_ACTIVATION, OpKind.SEND_GRADIENT)

Arithmetic = Literal["float32", "float64"]

Accelerator = Literal["cpu", "cuda", "meta"]
"""Where ops compute; tensors on ``meta`` have sizes and no data, and no process of a crew runs there."""

TransportName = Literal["gloo", "nccl"]

Order = tuple[tuple[OpKind, int, int], ...]
"""The ops of a stage: what, of which micro-batch, and the update that its gradient belongs to or that it is."""

Part = tuple[int, int, Order]
"""What a process runs of a model: first and last layer, and its ops in order."""

ONE_STEP: Order = ((OpKind.FORWARD, 0, 0), (OpKind.BACKWARD, 0, 0), (OpKind.UPDATE, 0, 0))

Arrays = tuple[NDArray[np.floating[Any]], ...]
"""One array per parameter of a stage, in the order of its layers."""


@dataclass(frozen=True)
class Job:
    """One run, the same for every worker.

    ``devices`` of the plan, in the order of their ranks; ``samples`` of a micro-batch, ``batch`` those of a mini-batch
    over all replicas; ``buckets`` cuts each backward pass; ``checkpoints`` are the vertices that each stage keeps.
    ``count_memory`` counts live storages, which takes time.
    """

    schedule: Schedule
    partition: Partition
    architecture: Architecture
    training: Training
    seed: int
    devices: tuple[int, ...]
    samples: int
    batch: int
    arithmetic: Arithmetic = "float32"
    accelerator: Accelerator = "cpu"
    transport: TransportName = "gloo"
    buckets: int = 1
    checkpoints: tuple[tuple[int, ...], ...] = ()
    keep_gradients: bool = False
    count_memory: bool = False


class Ready(NamedTuple):
    """A worker has its model and its peers, and waits for the common start."""

    torch: str


class Done(NamedTuple):
    """A worker has walked all its lanes.

    By (stage, replica): the final ``weights``, and the most ``copies`` of them that were alive at once; by (stage,
    replica, update): the ``gradients`` that were applied, if they are to be kept. ``losses`` by micro-batch and
    replica, where the last stage is here: each the micro-batch's share of the mean over its mini-batch. By device:
    ``peaks``, the most live bytes, if they were counted.
    """

    gradients: dict[tuple[int, int, int], Arrays]
    weights: dict[tuple[int, int], Arrays]
    copies: dict[tuple[int, int], int]
    losses: dict[tuple[int, int], float]
    peaks: dict[int, int]


class Failed(NamedTuple):
    """A worker raised, at ``time_s`` of the monotonic clock, in op number ``op`` (−1: before its first)."""

    time_s: float
    op: int
    traceback: str


Watch = Callable[[float, Callable[[], Done]], None]
"""Told when each update ends, in seconds, with a function that gives what there is then."""


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


def known_on(schedule: Schedule, device: int) -> NDArray[np.bool_]:
    """Which ops a device hears of: those it computes, transfers that arrive there, and collectives it is part of."""
    ops = schedule.ops
    known: NDArray[np.bool_] = np.where(ops["target"] >= 0, ops["target"], ops["source"]) == device
    for op in np.flatnonzero(ops["kind"] == OpKind.ALL_REDUCE).tolist():
        known[op] = device in schedule.devices_of(op)
    return known


def circles(schedule: Schedule) -> list[tuple[int, ...]]:
    """The sets of devices that reduce among each other."""
    reduces = np.flatnonzero(schedule.ops["kind"] == OpKind.ALL_REDUCE).tolist()
    return sorted({tuple(schedule.devices_of(op)) for op in reduces})
