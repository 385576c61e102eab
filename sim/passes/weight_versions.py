"""Which version of its weights each op reads, and how far ahead a prediction must look."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from sim.errors import UnsupportedPlan
from sim.longest_path import unit_slots
from sim.ops import OpKind
from sim.schedule import BACKWARD_KINDS, Halves, IntColumn, Schedule

Weights = Literal["latest", "stash", "predict"]


def apply(schedule: Schedule, weights: Weights, distances: tuple[tuple[int, int], ...] = ()) -> Schedule:
    """The schedule under a weight policy.

    ``latest``: every op reads what is there when it starts. ``stash``: a backward reads the version its forward read,
    kept until then (PipeDream). ``predict``: as latest, moved ``distances[stage]`` updates ahead (SpecTrain).
    """
    if weights == "stash":
        return replace(schedule, ops=_stashed(schedule), weights=weights)
    if weights == "predict" and not distances:
        raise UnsupportedPlan("weights: predict needs a prediction distance for every stage")
    return replace(schedule, weights=weights, distances=distances if weights == "predict" else ())


def _stashed(schedule: Schedule) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    ops = schedule.ops.copy()
    backward = np.flatnonzero(np.isin(ops["kind"], BACKWARD_KINDS))
    op = ops[backward]
    forward = Halves(ops).find(OpKind.FORWARD, op["stage"], op["micro_batch"], op["replica"])
    ops["reads"][backward] = ops["reads"][forward]
    return ops


def staleness(schedule: Schedule) -> IntColumn:
    """Updates applied to an op's weights between its reading them and the applying of its gradient; −1: no reader.

    An op of mini-batch b feeds the update that writes version b + 1, so its staleness is b minus the version read.
    """
    ops = schedule.ops
    readers = (ops["reads"] >= 0) & (ops["kind"] != OpKind.UPDATE)
    applied_by = schedule.shape.update_of(ops["stage"], ops["micro_batch"])
    return np.where(readers, applied_by - ops["reads"], -1).astype(np.int64)


def prediction_distances(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """SpecTrain's s for (forward, backward) of every stage, from the unit-slot run of a schedule.

    s(op of stage k, mini-batch j) is the number of updates of stage k that end after the op starts and not later than
    the end of B(0, j), ties included, j's own excluded, in steady state (C18, section on SpecTrain, whose formulas
    ⌊k/2⌋ + N − k − 1 and ⌊k/2⌋ this gives for alternating 1F1B with F = B). The schedule must be long enough for a
    steady state in its middle.
    """
    return distances_at(schedule, *unit_slots(schedule))


def distances_at(schedule: Schedule, start: IntColumn, end: IntColumn) -> tuple[tuple[int, int], ...]:
    """`prediction_distances` for any times: those of a trace give the realised distance."""
    shape, halves = schedule.shape, Halves(schedule.ops)
    mini_batch = shape.mini_batches // 2
    last = (mini_batch + 1) * shape.micro_batches - 1
    deadline = end[halves.find(OpKind.BACKWARD, 0, last, 0)]
    others = np.setdiff1d(np.arange(shape.mini_batches), [mini_batch])
    distances: list[tuple[int, int]] = []
    for stage in range(shape.stages):
        updated = end[halves.find(OpKind.UPDATE, stage, others, 0)]
        begins = [start[halves.find(kind, stage, last, 0)] for kind in (OpKind.FORWARD, OpKind.BACKWARD)]
        forward, backward = (int(((updated > begin) & (updated <= deadline)).sum()) for begin in begins)
        distances.append((forward, backward))
    return tuple(distances)
