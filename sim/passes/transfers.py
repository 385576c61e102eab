"""Insert a transfer wherever a pipeline's data cross from one device to another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.longest_path import unit_slots
from sim.ops import Lane, OpKind
from sim.schedule import FORWARD_KINDS, OPS, Halves, IntColumn, Schedule, assemble


def apply(schedule: Schedule, holds_lanes: Callable[[int, int], bool]) -> Schedule:
    """The schedule with its sends.

    A transfer is one op that holds the send lane of one device and the receive lane of the other (a channel), or no
    lane where ``holds_lanes(source, target)`` is false: a pure delay. A channel carries its transfers in the order in
    which a unit-slot run makes them ready: one order that fits all data dependencies, so channels cannot deadlock.
    """
    activations, activation_ready = _sends(schedule, OpKind.SEND_ACTIVATION, +1)
    gradients, gradient_ready = _sends(schedule, OpKind.SEND_GRADIENT, -1)
    sends = np.concatenate([activations, gradients])
    if not len(sends):
        return schedule
    ready = np.concatenate([activation_ready, gradient_ready])
    by_time = np.lexsort([sends["stage"], sends["micro_batch"], ready])
    channels: dict[Lane, list[int]] = {}
    for place in by_time:
        source, target = int(sends["source"][place]), int(sends["target"][place])
        if holds_lanes(source, target):
            for lane in (Lane(source, f"send>{target}"), Lane(target, f"recv<{source}")):
                channels.setdefault(lane, []).append(len(schedule) + int(place))
    return assemble(
        schedule.shape,
        [*schedule.lanes, *channels],
        np.concatenate([schedule.ops, sends]),
        [*schedule.order, *channels.values()],
        schedule.extra,
        schedule.weights,
        schedule.distances,
    )


def _sends(schedule: Schedule, kind: OpKind, step: int) -> tuple[NDArray[np.void], IntColumn]:
    """Transfers from every stage to the stage ``step`` further, and the slot at which each is ready."""
    ops = schedule.ops
    forward = step > 0
    kinds = FORWARD_KINDS if forward else (OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.FORWARD_BACKWARD)
    producer = np.flatnonzero(np.isin(ops["kind"], kinds))
    fused = (ops["kind"][producer] == OpKind.FORWARD_BACKWARD) & (not forward)
    stage = np.where(fused, ops["other_stage"][producer], ops["stage"][producer])
    micro_batch = np.where(fused, ops["other_micro_batch"][producer], ops["micro_batch"][producer])
    replica = ops["replica"][producer]
    halves = Halves(ops)
    wanted = (OpKind.FORWARD,) if forward else (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)
    found = [halves.find(want, stage + step, micro_batch, replica, anywhere=True) for want in wanted]
    consumer = np.maximum.reduce(found)
    crosses = (consumer >= 0) & (ops["source"][consumer] != ops["source"][producer])
    crosses &= halves.find(kind, stage, micro_batch, replica) < 0
    sends = np.zeros(int(crosses.sum()), OPS)
    for name, column in (("stage", stage), ("micro_batch", micro_batch), ("replica", replica)):
        sends[name] = column[crosses]
    for name in ("part", "other_stage", "other_micro_batch", "reads", "writes"):
        sends[name] = -1
    sends["kind"] = kind
    sends["source"] = ops["source"][producer[crosses]]
    sends["target"] = ops["source"][consumer[crosses]]
    _, end = unit_slots(schedule)
    return sends, end[producer[crosses]]
