"""Data parallelism: the whole model on every GPU, each a share of the mini-batch, gradients summed at every step.

``sync: ring`` is a `Schedule` with ring all-reduces; ``sync: parameter_server`` is a `Program` under the ``bsp`` policy
with the weights on the host: pull, forward, backward, push, and the server adds and updates.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from sim.errors import InvalidSchedule
from sim.memory.buffers import END, START, BufferEvent, BufferKind
from sim.ops import Lane, OpId, OpKind
from sim.program import Actor, Ask, BulkSynchronous, Do, Op, Program
from sim.schedule import Schedule, ScheduleBuilder, Shape


def plan(
    replicas: int,
    mini_batches: int = 1,
    sync: Literal["ring", "parameter_server"] = "ring",
    scaling: Literal["strong", "weak"] = "strong",
    buckets: int = 1,
) -> Schedule | Program:
    """``scaling``: strong divides the mini-batch among the replicas, weak gives each a whole one (for the binding).

    ``buckets`` cuts the backward pass and its gradients into parts of about equal parameter bytes, so that the ring
    sums one bucket while the next is computed (as PyTorch's DistributedDataParallel does).
    """
    if buckets < 1:
        raise InvalidSchedule(f"buckets = {buckets}: a ring needs at least 1")
    shape = Shape(1, 1, mini_batches, replicas)
    return _ring(shape, buckets) if sync == "ring" else _parameter_server(shape)


def _ring(shape: Shape, buckets: int) -> Schedule:
    builder = ScheduleBuilder(shape)
    gpus = [builder.lane(device, "compute") for device in range(shape.replicas)]
    rings = [builder.lane(device, "collective") for device in range(shape.replicas)]
    parts = range(buckets) if buckets > 1 else (-1,)
    for step in range(shape.mini_batches):
        for replica, gpu in enumerate(gpus):
            builder.add(gpu, OpId(OpKind.FORWARD, 0, step, replica))
            for part in reversed(parts):
                builder.add(gpu, OpId(OpKind.BACKWARD, 0, step, replica, part))
        for part in reversed(parts):
            builder.add(rings, OpId(OpKind.ALL_REDUCE, 0, step, 0, part))
        for replica, gpu in enumerate(gpus):
            builder.add(gpu, OpId(OpKind.UPDATE, 0, step, replica))
    return builder.build()


def _parameter_server(shape: Shape) -> Program:
    server = shape.replicas
    actors = {f"worker{index}": partial(_worker, shape, index, server) for index in range(shape.replicas)}
    return Program(
        shape,
        placement={(0, index): index for index in range(shape.replicas)},
        actors={**actors, "server": partial(_server, shape, server)},
        policy=partial(BulkSynchronous, shape.replicas),
    )


def _worker(shape: Shape, worker: int, server: int) -> Actor:
    gpu = (Lane(worker, "compute"),)
    core = (Lane(server, "core"),)
    down = (Lane(server, f"send>{worker}"), Lane(worker, f"recv<{server}"))
    up = (Lane(worker, f"send>{server}"), Lane(server, f"recv<{worker}"))
    for step in range(shape.mini_batches):

        def name(kind: OpKind, step: int = step) -> OpId:
            return OpId(kind, 0, step, worker)

        def activation(when: int, sign: int, step: int = step) -> tuple[BufferEvent, ...]:
            return (BufferEvent(when, sign, BufferKind.ACTIVATION, worker, 0, step),)

        yield Do(Op(name(OpKind.PULL), down, server, worker, reads=step))
        yield Do(Op(name(OpKind.FORWARD), gpu, worker, reads=step, memory=activation(START, +1)))
        yield Do(Op(name(OpKind.BACKWARD), gpu, worker, reads=step, memory=activation(END, -1)))
        yield Do(Op(name(OpKind.PUSH), up, worker, server))
        yield Do(Op(name(OpKind.ACCUMULATE), core, server))
        yield Ask("applied", f"worker{worker}", step)


def _server(shape: Shape, server: int) -> Actor:
    core = (Lane(server, "core"),)
    for step in range(shape.mini_batches):
        yield Ask("gathered", "server", step)
        yield Do(Op(OpId(OpKind.UPDATE, 0, step), core, server, reads=step, writes=step + 1))
        yield Ask("updated", "server", step)
