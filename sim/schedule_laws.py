"""What holds of every schedule: nothing stray, missing or cyclic."""

from __future__ import annotations

import numpy as np

from sim.errors import InvalidSchedule
from sim.op_table import OPS, PASS_KINDS
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpId, OpKind
from sim.rows import IntColumn
from sim.schedule import Schedule
from sim.schedule_grid import invalid


def check(schedule: Schedule) -> None:
    """Find stray, missing, doubled and cyclic ops, on every build.

    Raises
    ------
    InvalidSchedule : with the op's name and the grid in which its cell is marked.
    """
    if not len(schedule.ops):
        raise InvalidSchedule("an empty schedule: no op at all")
    _check_names(schedule)
    _ = schedule.topological
    _check_passes(schedule)
    _check_updates(schedule)


def _check_names(schedule: Schedule) -> None:
    """Every op belongs to a stage, a replica and a micro-batch (or mini-batch) of the shape."""
    ops, shape = schedule.ops, schedule.shape
    numbers = np.where(np.isin(ops["kind"], PASS_KINDS), shape.total, shape.mini_batches)
    limits = (("stage", shape.stages), ("replica", shape.weight_sets), ("micro_batch", numbers))
    stray = np.any([(ops[name] < 0) | (ops[name] >= limit) for name, limit in limits], axis=0)
    fused = ops["kind"] == OpKind.FORWARD_BACKWARD
    stray |= fused & ((ops["other_stage"] >= shape.stages) | (ops["other_micro_batch"] >= shape.total))
    for op in np.flatnonzero(stray)[:1].tolist():
        counts = zip(shape._fields[:4], shape, strict=False)
        extent = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counts)
        raise schedule.fault(op, f"{schedule.id(op)} is unexpected: there should be {extent}")


def _check_passes(schedule: Schedule) -> None:
    """Each stage has one forward and one backward, whole, in parts or split in two, of every micro-batch."""
    halves, shape = schedule.halves, schedule.shape
    micro_batch, replica = (axis.ravel() for axis in np.indices((shape.total, shape.replicas)))
    for stage in range(shape.stages):
        if shape.copies:
            forward = halves.find(OpKind.FORWARD, stage, micro_batch, 0, anywhere=True)
            replica = np.where(forward >= 0, schedule.ops["replica"][forward], 0)
        rows = {kind: halves.find(kind, stage, micro_batch, replica) for kind in (OpKind.FORWARD, *BACKWARD_KINDS)}
        found = {kind: row >= 0 for kind, row in rows.items()}
        found[OpKind.BACKWARD] |= halves.find(OpKind.BACKWARD, stage, micro_batch, replica, 0) >= 0
        split = found[OpKind.BACKWARD_INPUT] | found[OpKind.BACKWARD_WEIGHT]
        needed = {OpKind.FORWARD: np.ones(len(split), bool), OpKind.BACKWARD: ~split}
        for kind in (*FORWARD_KINDS[:1], *BACKWARD_KINDS):
            for place in np.flatnonzero(needed.get(kind, split) & ~found[kind])[:1].tolist():
                raise _missing(schedule, OpId(kind, stage, int(micro_batch[place]), int(replica[place])))
        for place in np.flatnonzero(split & found[OpKind.BACKWARD])[:1].tolist():
            op = int(rows[OpKind.BACKWARD_INPUT][place])
            raise schedule.fault(op, f"{schedule.id(op)} computes a gradient that a full backward computes already")


def _check_updates(schedule: Schedule) -> None:
    """A stage that is updated (or a bucket that is reduced) once is so in every mini-batch."""
    once = schedule.ops[np.isin(schedule.ops["kind"], (OpKind.ALL_REDUCE, OpKind.UPDATE))]
    names, member = np.unique(once[["kind", "stage", "replica", "part"]], return_inverse=True)
    for group, (kind, stage, replica, part) in enumerate(names.tolist()):
        updates = schedule.shape.mini_batches // (schedule.shape.rounds[stage] if schedule.shape.rounds else 1)
        missing = np.setdiff1d(np.arange(updates), once["micro_batch"][member == group])
        if len(missing):
            raise _missing(schedule, OpId(OpKind(kind), stage, int(missing[0]), replica, part))


def _missing(schedule: Schedule, name: OpId) -> InvalidSchedule:
    """An `InvalidSchedule` with the cell of an op that is not there, drawn at the end of the lane of its kin."""

    def kin(lane: int) -> tuple[bool, bool]:
        on_lane = schedule.ops[schedule.order[lane]]
        of_stage = (on_lane["stage"] == name.stage) & (on_lane["replica"] == name.replica)
        return bool((of_stage & (on_lane["kind"] == name.kind)).any()), bool(of_stage.any())

    rows: list[IntColumn] = list(schedule.order)
    lane = max(range(len(rows)), key=kin)
    rows[lane] = np.append(rows[lane], len(schedule.ops))
    ops = np.append(schedule.ops, np.array([(*name, -1, -1, -1, -1)], OPS))
    return invalid(ops, schedule.lanes, rows, len(schedule.ops), f"{name} is missing")
