"""Data parallelism: the whole model on every GPU, each a share of the mini-batch, gradients summed at every step.

``sync: ring`` is a `Schedule` with ring all-reduces; ``sync: parameter_server`` is a `Program` under the ``bsp``
policy: pull, forward, backward, push, and the server adds and updates. Where the workers update, the server only adds,
and what they pull at the end of a step is the sum.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from sim.assembly import ScheduleBuilder
from sim.errors import InvalidSchedule, UnsupportedPlan
from sim.memory.buffers import END, START, BufferEvent, BufferKind
from sim.ops import Lane, OpId, OpKind
from sim.policies import BulkSynchronous
from sim.program import Actor, Ask, Do, Op, Program
from sim.schedule import Schedule, Shape


def plan(
    gpus: int,
    mini_batches: int = 1,
    sync: Literal["ring", "parameter_server"] = "ring",
    scaling: Literal["strong", "weak"] = "strong",
    buckets: int = 1,
    server: Literal["host", "gpu"] = "host",
    update: Literal["server", "worker"] = "server",
) -> Schedule | Program:
    """``scaling``: strong divides the mini-batch among the replicas, weak gives each a whole one (for the binding).

    ``buckets`` cuts the backward pass and its gradients into parts of about equal parameter bytes, so that the ring
    sums one bucket while the next is computed (as PyTorch's DistributedDataParallel does).

    ``server`` is a host, or the first GPU, whose worker then has no transfer. ``update`` is done there, or by every
    worker on a copy of its own.
    """
    if buckets < 1:
        raise InvalidSchedule(f"buckets = {buckets}: a ring needs at least 1")
    shape = Shape(1, 1, mini_batches, gpus)
    if sync == "ring":
        _refuse({"server": server == "gpu", "update": update == "worker"}, "parameter_server")
        return _ring(shape, buckets)
    _refuse({"buckets": buckets > 1}, "ring")
    return _parameter_server(shape, 0 if server == "gpu" else gpus, update)


def _refuse(given: dict[str, bool], sync: str) -> None:
    """A key that only another ``sync`` heeds would be a knob without influence."""
    if named := [key for key, is_given in given.items() if is_given]:
        raise UnsupportedPlan(f"schedule.{named[0]} has no influence without sync: {sync}")


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


def _parameter_server(shape: Shape, server: int, update: Literal["server", "worker"]) -> Program:
    actors = {f"worker{index}": partial(_worker, shape, index, server, update) for index in range(shape.replicas)}
    return Program(
        shape,
        placement={(0, index): index for index in range(shape.replicas)},
        actors={**actors, "server": partial(_server, shape, server, update)},
        policy=partial(BulkSynchronous, shape.replicas),
        server=server,
        update=update,
    )


def _core(shape: Shape, server: int) -> tuple[Lane]:
    """Where the server adds and updates: a core of the host, or between the passes of the worker on that GPU."""
    return (Lane(server, "core" if server == shape.replicas else "compute"),)


def _worker(shape: Shape, worker: int, server: int, update: Literal["server", "worker"]) -> Actor:
    gpu, core = (Lane(worker, "compute"),), _core(shape, server)
    down = (Lane(server, f"send>{worker}"), Lane(worker, f"recv<{server}"))
    up = (Lane(worker, f"send>{server}"), Lane(server, f"recv<{worker}"))
    remote = worker != server
    for step in range(shape.mini_batches):

        def name(kind: OpKind, step: int = step) -> OpId:
            return OpId(kind, 0, step, worker)

        def activation(when: int, sign: int, step: int = step) -> tuple[BufferEvent, ...]:
            return (BufferEvent(when, sign, BufferKind.ACTIVATION, worker, 0, step),)

        def pushed(when: int, sign: int, step: int = step) -> tuple[BufferEvent, ...]:
            number = step * shape.replicas + worker
            return (BufferEvent(when, sign, BufferKind.PUSHED_GRADIENT, server, 0, number),) if remote else ()

        if remote and update == "server":
            yield Do(Op(name(OpKind.PULL), down, server, worker, reads=step))
        yield Do(Op(name(OpKind.FORWARD), gpu, worker, reads=step, memory=activation(START, +1)))
        yield Do(Op(name(OpKind.BACKWARD), gpu, worker, reads=step, memory=activation(END, -1)))
        if remote:
            yield Do(Op(name(OpKind.PUSH), up, worker, server, memory=pushed(START, +1)))
        yield Do(Op(name(OpKind.ACCUMULATE), core, server, memory=pushed(END, -1)))
        yield Ask("applied", f"worker{worker}", step)
        if update == "worker":
            if remote:
                yield Do(Op(name(OpKind.PULL), down, server, worker))
            yield Do(Op(name(OpKind.UPDATE), gpu, worker, reads=step, writes=step + 1))


def _server(shape: Shape, server: int, update: Literal["server", "worker"]) -> Actor:
    for step in range(shape.mini_batches):
        yield Ask("gathered", "server", step)
        if update == "server":
            core = _core(shape, server)
            yield Do(Op(OpId(OpKind.UPDATE, 0, step), core, server, reads=step, writes=step + 1))
        yield Ask("updated", "server", step)
