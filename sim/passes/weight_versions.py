"""Which version of its weights each op reads, and how far ahead a prediction must look."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import UnsupportedPlan
from sim.longest_path import unit_slots
from sim.op_table import Halves
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule, Shape
from sim.training import Predict as Predict
from sim.training import Weights as Weights
from sim.weights import reader_of

Distances = tuple[tuple[int, int], ...]
"""Updates ahead (negative: back) that the (forward, backward) of each stage predict."""

Times = NDArray[np.float64]

_HINTS = {"double_buffer": " (use at least as many micro_batches as stages)"}


def apply(schedule: Schedule, weights: Weights, distances: Distances = (), predict: Predict = "spectrain") -> Schedule:
    """The schedule under a weight policy: see `sim.training`. Predictions look ``distances[stage]`` updates ahead.

    Raises
    ------
    UnsupportedPlan : the order does not allow the policy.
    """
    if weights != "predict":
        distances = ()
    elif not distances:
        raise UnsupportedPlan("weights: predict needs a prediction distance for every stage")
    method = predict if weights == "predict" else ""
    _refuse_copies_elsewhere(schedule, weights, distances)
    ops = schedule.ops.copy()
    ops["reads"] = _reads(schedule, weights, method)
    for op in np.flatnonzero(ops["reads"] > schedule.ops["reads"])[:1].tolist():
        there = f"only {schedule.ops['reads'][op]} of {ops['reads'][op]} updates are there when {schedule.id(op)} runs"
        raise UnsupportedPlan(f"weights: {weights} does not fit this order: {there}{_HINTS.get(weights, '')}")
    return replace(schedule, ops=ops, weights=weights, distances=distances, predict=method)


def _refuse_copies_elsewhere(schedule: Schedule, weights: Weights, distances: Distances) -> None:
    """A device that only runs forwards has the weights it was sent: no older ones, and no moments to predict from."""
    for (stage, _), device in schedule.forward_only.items():
        if weights in ("vertical_sync", "double_buffer") or (distances and distances[stage][0]):
            reason = f"the forwards of stage {stage} run on device {device}, which has but the weights it was sent"
            raise UnsupportedPlan(f"weights: {weights} does not fit this schedule: {reason}")


def _reads(schedule: Schedule, weights: Weights, predict: str) -> IntColumn:
    shape, ops = schedule.shape, schedule.ops
    reader = reader_of(shape, ops, schedule.halves, weights, predict)
    reads = ops["reads"][reader].astype(np.int64)
    if weights == "vertical_sync":
        reads = same_mini_batches(shape, ops["stage"][reader], reads, ops["stage"])
    counted = np.maximum(shape.update_of(ops["stage"], ops["micro_batch"]) - 1, 0)
    return np.where(ops["reads"] < 0, ops["reads"], np.where(reader < 0, counted, reads))


def same_mini_batches(shape: Shape, stage: IntColumn, version: IntColumn, other: IntColumn) -> IntColumn:
    """The version of ``other`` stages made of the mini-batches that ``version`` of ``stage`` is made of.

    Raises
    ------
    UnsupportedPlan : there is none, since they are updated after different numbers of mini-batches.
    """
    if not shape.rounds:
        return version.astype(np.int64)
    rounds = np.asarray(shape.rounds, np.int64)
    mini_batches = version * rounds[stage]
    for place in np.flatnonzero(mini_batches % rounds[other])[:1].tolist():
        apart = (f"stage {k} is updated after every {rounds[k]} mini-batches" for k in (stage[place], other[place]))
        raise UnsupportedPlan(f"weights: vertical_sync has no common version: {', '.join(apart)}")
    return np.asarray(mini_batches // rounds[other], np.int64)


def staleness(schedule: Schedule) -> IntColumn:
    """Updates applied to an op's weights between its reading them and the applying of its gradient; −1: no reader.

    An op whose gradient feeds update u, which writes version u + 1, is as stale as u minus the version read.
    """
    ops = schedule.ops
    readers = (ops["reads"] >= 0) & np.isin(ops["kind"], (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE))
    applied_by = schedule.shape.update_of(ops["stage"], ops["micro_batch"])
    return np.where(readers, applied_by - ops["reads"], -1).astype(np.int64)


def prediction_distances(schedule: Schedule, predict: Predict = "spectrain") -> Distances:
    """How far each stage predicts, from the unit-slot run of a schedule with a steady state in its middle third."""
    start, end = (column.astype(np.float64) for column in unit_slots(schedule))
    return distances_at(schedule.shape, schedule.ops, start, end, predict)


def mini_batches_to_measure(shape: Shape) -> int:
    """Mini-batches of a run whose middle third is steady: six times what fills it, up to 2N micro-batches in flight.

    A multiple of the rounds after which all replicas have had equally many.
    """
    enough = 6 * (1 + -(-2 * shape.stages // shape.micro_batches))
    period = math.lcm(*shape.rounds)
    return -(-enough // period) * period


def distances_at(
    shape: Shape, ops: NDArray[np.void], start: Times, end: Times, predict: str = "spectrain"
) -> Distances:
    """How many updates ahead (forward, backward) of each stage should have predicted, given when everything ran.

    ``spectrain``: s(op of stage k, mini-batch j) is the number of updates of stage k that end after the op starts and
    not later than the end of B(0, j), ties included, j's own excluded (C18, section on SpecTrain, whose formulas
    ⌊k/2⌋ + N − k − 1 and ⌊k/2⌋ this gives for alternating 1F1B with F = B). ``xpipe``: that of the first micro-batch.
    ``pipeoptim``: the updates between the forward and the one that applies its gradient, for both passes.
    ``pipemare``: nothing ahead, and the backward goes back by the updates since its forward.

    Of a stage's micro-batches the most frequent value in the middle third of the mini-batches counts.
    """
    halves = Halves(ops)
    passes = _Passes.of(shape, ops, halves)
    finished = end[halves.find(OpKind.UPDATE, passes.stage, passes.update, passes.replica)]
    if predict in ("spectrain", "xpipe"):
        finished = _done(shape, ops, end)[passes.micro_batch // shape.micro_batches]
    forward, backward = (
        _updates_between(ops, end, passes, start[rows], finished) for rows in (passes.forward, passes.backward)
    )
    if predict == "pipeoptim":
        backward = forward
    elif predict == "pipemare":
        forward, backward = np.zeros_like(forward), backward - forward
    chosen = passes.micro_batch % shape.micro_batches == 0 if predict == "xpipe" else np.ones(len(forward), bool)
    chosen &= in_steady_state(shape, passes.micro_batch)
    mine = [chosen & (passes.stage == stage) for stage in range(shape.stages)]
    return tuple((most_frequent(forward[rows]) or 0, most_frequent(backward[rows]) or 0) for rows in mine)


class _Passes(NamedTuple):
    """Forward and backward (its input gradient where it is split) of every micro-batch of every stage."""

    forward: IntColumn
    backward: IntColumn
    stage: IntColumn
    micro_batch: IntColumn
    replica: IntColumn
    update: IntColumn

    @classmethod
    def of(cls, shape: Shape, ops: NDArray[np.void], halves: Halves) -> _Passes:
        forward = np.flatnonzero(np.isin(ops["kind"], FORWARD_KINDS))
        stage, micro_batch, replica = (
            ops[name][forward].astype(np.int64) for name in ("stage", "micro_batch", "replica")
        )
        kinds = (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)
        backward = np.maximum(*(halves.find(kind, stage, micro_batch, replica) for kind in kinds))
        return cls(forward, backward, stage, micro_batch, replica, shape.update_of(stage, micro_batch))


def _done(shape: Shape, ops: NDArray[np.void], end: Times) -> Times:
    """When the last backward of each mini-batch on stage 0 ends."""
    done = np.zeros(shape.mini_batches)
    for kinds, stage, micro_batch in (
        (BACKWARD_KINDS, "stage", "micro_batch"),
        ((OpKind.FORWARD_BACKWARD,), "other_stage", "other_micro_batch"),
    ):
        rows = np.flatnonzero(np.isin(ops["kind"], kinds) & (ops[stage] == 0))
        np.maximum.at(done, ops[micro_batch][rows] // shape.micro_batches, end[rows])
    return done


def _updates_between(ops: NDArray[np.void], end: Times, passes: _Passes, begin: Times, until: Times) -> IntColumn:
    """Updates of a pass's weights that end after ``begin`` and not later than ``until``, the pass's own excluded."""
    counts = np.zeros(len(begin), np.int64)
    updates = ops["kind"] == OpKind.UPDATE
    for stage, replica in np.unique(ops[["stage", "replica"]][updates]).tolist():
        rows = np.flatnonzero(updates & (ops["stage"] == stage) & (ops["replica"] == replica))
        mine = (passes.stage == stage) & (passes.replica == replica)
        ended = np.sort(end[rows])
        counts[mine] = np.searchsorted(ended, until[mine], "right") - np.searchsorted(ended, begin[mine], "right")
        own = end[rows][np.argsort(ops["micro_batch"][rows])][passes.update[mine]]
        counts[mine] -= (own > begin[mine]) & (own <= until[mine])
    return counts


def in_steady_state(shape: Shape, micro_batch: IntColumn) -> NDArray[np.bool_]:
    """Whether micro-batches belong to the middle third of the mini-batches."""
    mini_batch, count = micro_batch // shape.micro_batches, shape.mini_batches
    return (mini_batch >= count // 3) & (mini_batch < count - count // 3)


def most_frequent(values: IntColumn) -> int | None:
    """The most frequent value, of equals the largest; ``None`` where there is none."""
    found, counts = np.unique(values, return_counts=True)
    return int(found[len(found) - 1 - counts[::-1].argmax()]) if len(found) else None
