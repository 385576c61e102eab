"""PipeDream (arXiv 1806.03377): asynchronous 1F1B, an update after every mini-batch and no flush; replicated stages."""

from __future__ import annotations

import math

from sim.assembly import ScheduleBuilder
from sim.errors import Fault, ScenarioError
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape

DEFAULTS = {"weights": "stash"}


def plan(stages: int, micro_batches: int = 1, mini_batches: int = 0, replicas: tuple[int, ...] = ()) -> Schedule:
    """Stage k keeps N − k micro-batches in flight, and updates when the last backward of a mini-batch is done.

    ``replicas`` are the GPUs of each stage, ``[3, 1]`` for three and one: GPU j mod r of a stage computes mini-batch j,
    and after every r mini-batches the r GPUs sum their gradients and update at once. Each GPU keeps ⌈n / r⌉ of them in
    flight, n the number of GPUs from its stage on: at the input stage the paper's NOAM, behind it as its runtime does.

    ``mini_batches`` defaults to eight for every GPU, enough for a steady state.

    Raises
    ------
    ScenarioError : ``replicas`` do not fit the other counts.
    """
    gpus = tuple(replicas) or (1,) * stages
    replicated = any(count != 1 for count in gpus)
    if replicated:
        _check(stages, micro_batches, mini_batches, gpus)
    period = math.lcm(*gpus)
    mini_batches = mini_batches or -(-8 * sum(gpus) // period) * period
    shape = Shape(stages, micro_batches, mini_batches)
    builder = ScheduleBuilder(shape._replace(copies=gpus, rounds=gpus) if replicated else shape)
    for stage in range(stages):
        for replica in range(gpus[stage]):
            _one_gpu(builder, stage, replica, gpus)
        if gpus[stage] > 1:
            rings = [builder.lane(sum(gpus[:stage]) + replica, "collective") for replica in range(gpus[stage])]
            for update in range(mini_batches // gpus[stage]):
                builder.add(rings, OpId(OpKind.ALL_REDUCE, stage, update))
    return builder.build()


def _one_gpu(builder: ScheduleBuilder, stage: int, replica: int, gpus: tuple[int, ...]) -> None:
    """The mini-batches of one GPU: as many forwards ahead as it keeps in flight but one, then one and one."""
    micro_batches, total = builder.shape.micro_batches, builder.shape.total
    gpu = builder.lane(sum(gpus[:stage]) + replica, "compute")
    mine = [index for index in range(total) if index // micro_batches % gpus[stage] == replica]
    warm_up = -(-sum(gpus[stage:]) // gpus[stage]) - 1
    for micro_batch in mine[:warm_up]:
        builder.add(gpu, OpId(OpKind.FORWARD, stage, micro_batch, replica))
    for place, micro_batch in enumerate(mine):
        for ahead in mine[place + warm_up : place + warm_up + 1]:
            builder.add(gpu, OpId(OpKind.FORWARD, stage, ahead, replica))
        builder.add(gpu, OpId(OpKind.BACKWARD, stage, micro_batch, replica))
        if (micro_batch + 1) % micro_batches == 0:
            builder.add(gpu, OpId(OpKind.UPDATE, stage, micro_batch // micro_batches // gpus[stage], replica))


def _check(stages: int, micro_batches: int, mini_batches: int, gpus: tuple[int, ...]) -> None:
    """Refuse replicas that do not fit, every fault at once."""
    faults = []
    if len(gpus) != stages or min(gpus) < 1:
        counts = f"{len(gpus)} of them for {stages} stages" if min(gpus) >= 1 else "at least 1 GPU each"
        faults.append(Fault(f"{list(gpus)}: {counts}", "schedule.replicas", suggestion="one count for each stage"))
    if micro_batches != 1:
        message = f"{micro_batches} with replicas, which take whole mini-batches in turn"
        faults.append(Fault(message, "schedule.micro_batches", suggestion="leave it out"))
    if not faults and mini_batches % (period := math.lcm(*gpus)):
        below, above = mini_batches // period * period, -(-mini_batches // period) * period
        message = f"{mini_batches} is no multiple of {period}, after which all replicas have had equally many"
        nearest = f"use {below} or {above}" if below else f"use {above}"
        faults.append(Fault(message, "schedule.mini_batches", suggestion=nearest))
    if faults:
        raise ScenarioError.of(faults)
