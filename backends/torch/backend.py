"""From a plan to a trace: refuse, run the crew, and record what it measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.torch import crew, ranks, servers
from backends.torch.fingerprint import cpu, gpus, transport_of
from backends.torch.job import Accelerator, Arithmetic, Done, Job, circles
from backends.torch.refusals import accept
from backends.torch.servers import Checkpoint, Compute, Place
from sim.binding import Binding
from sim.engine.allocator import Allocator
from sim.errors import UnsupportedPlan
from sim.plan import Plan
from sim.program import Program
from sim.recording import record
from sim.schedule import Schedule
from sim.trace import Trace


class Outcome(NamedTuple):
    """A trace, and what the arithmetic came to: see `backends.torch.job.Done`."""

    trace: Trace
    done: Done


class Torch:
    """Real arithmetic on processes of this machine."""

    name: ClassVar[str] = "torch"

    def execute(self, plan: Plan, binding: Binding, seed: int = 0) -> Trace:
        """See `backends.base.Backend.execute`. Times are measured; bytes of flows and buffers are the binding's."""
        return run(plan, binding, seed).trace


BACKEND = Torch()


def run(
    plan: Plan,
    binding: Binding,
    seed: int = 0,
    *,
    arithmetic: Arithmetic = "float32",
    accelerator: Accelerator = "cpu",
    keep_gradients: bool = False,
    count_memory: bool = False,
    oversubscribe: bool = False,
    patience_s: float = 60.0,
    on_start: Callable[[Mapping[str, int]], None] = lambda pids: None,
    compute: Compute = "real",
    places: Mapping[int, Place] = {},
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train for the mini-batches of the plan.

    Weights, inputs and targets are drawn from the seed. ``arithmetic`` float64 is for comparing gradients;
    ``oversubscribe`` lets several compute lanes of a device share its core; on ``cuda`` each has a stream. For
    ``patience_s`` nothing may move before a run counts as hung; ``on_start`` is told the process id of each device.
    With parameter servers: ``compute: sleep`` holds the binding's seconds while real bytes travel, and trains nothing;
    ``places`` says where the process of a device runs, ``checkpoint`` where servers keep their state.

    Raises
    ------
    UnsupportedPlan, OutOfMemory : of the plan.
    BackendFailure : a worker raised, died or hung; none is left.
    """
    if isinstance(plan.work, Program) and plan.work.layout is not None:
        without = {"keep_gradients": keep_gradients, "count_memory": count_memory, "oversubscribe": oversubscribe}
        _refuse({**without, f"accelerator {accelerator}": accelerator != "cpu"}, "with parameter servers")
        served = servers.Job(plan, binding, seed, compute, arithmetic, checkpoint)
        return Outcome(*servers.execute(served, places, patience_s, on_start))
    with_servers = {f"compute: {compute}": compute != "real", "places": bool(places), "checkpoint": bool(checkpoint)}
    _refuse(with_servers, "without schedule.name: parameter_server")
    schedule = accept(plan, binding, oversubscribe or accelerator == "cuda")
    memory = Allocator(binding, plan.events, len(schedule), lambda op: str(schedule.id(op)))
    job = job_of(plan, binding, seed, arithmetic, accelerator, keep_gradients, count_memory)
    work = ranks.work if ranks.started() else crew.work
    start_s, end_s, done, version = work(job, binding.devices, patience_s, on_start)
    _hold_channels(schedule, start_s, end_s)
    _play(memory, start_s, end_s)
    columns = schedule.ops, schedule.lanes, schedule.order
    header = {"backend": BACKEND.name, "seed": seed, **_hardware(job, binding, version)}
    return Outcome(record(plan, binding, columns, start_s, end_s, memory.columns(), header), together(done))


def _refuse(given: Mapping[str, bool], where: str) -> None:
    """Refuse keywords that would have no influence."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise UnsupportedPlan("\n".join(f"{name} has no influence {where}" for name in names))


def job_of(
    plan: Plan,
    binding: Binding,
    seed: int,
    arithmetic: Arithmetic,
    accelerator: Accelerator = "cpu",
    keep_gradients: bool = False,
    count_memory: bool = False,
) -> Job:
    """A plan as the workers need it."""
    schedule, architecture = plan.work, plan.architecture
    assert isinstance(schedule, Schedule)
    assert architecture is not None
    shape, devices = schedule.shape, tuple(sorted({lane.device for lane in schedule.lanes}))
    return Job(
        schedule=schedule,
        partition=plan.partition,
        architecture=architecture,
        training=plan.training,
        seed=seed,
        devices=devices,
        samples=int(binding.samples) // (shape.micro_batches * shape.replicas),
        batch=int(binding.samples),
        arithmetic=arithmetic,
        accelerator=accelerator,
        transport=transport_of(accelerator, len(devices)),
        buckets=1 + int(schedule.ops["part"].max(initial=-1)) or 1,
        checkpoints=plan.checkpoints,
        keep_gradients=keep_gradients,
        count_memory=count_memory,
    )


def together(parts: Sequence[Done]) -> Done:
    """What all workers hand back as one."""
    merged = Done({}, {}, {}, {}, {})
    for part in parts:
        for mine, whole in zip(part, merged, strict=True):
            whole.update(mine)  # type: ignore[attr-defined]
    return merged


def _hold_channels(schedule: Schedule, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> None:
    """A transfer holds both ends of its channel, so it starts when it is sent and the one before it has arrived.

    It arrives no sooner than it is sent: clocks of ranks agree to half of a round trip only.
    """
    for lane, ops in zip(schedule.lanes, schedule.order, strict=True):
        if not lane.computes:
            end_s[ops] = np.maximum.accumulate(np.maximum(end_s[ops], start_s[ops]))
            start_s[ops[1:]] = np.maximum(start_s[ops[1:]], end_s[ops[:-1]])


def _play(memory: Allocator, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> None:
    """Feed the allocator every start and end in order of time, of equals the ends first."""
    times = np.stack([start_s, end_s], axis=1).ravel()
    slots = np.arange(len(times))
    for slot in np.lexsort([slots % 2 == 0, times]).tolist():
        memory.play(slot, float(times[slot]))


def _hardware(job: Job, binding: Binding, version: str) -> dict[str, Any]:
    """What this machine is, and that the figures of the planned cluster are not its own."""
    for members in circles(job.schedule):
        binding.ring_hops(members)  # which makes the links of rings where every two nodes have one
    links = [{"name": link.name, "kind": job.transport, "bytes_per_s": float("inf")} for link in binding.cluster.links]
    hardware = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "torch": version,
        "transport": job.transport,
        "arithmetic": job.arithmetic,
    }
    if job.accelerator == "cuda":
        hardware["accelerator"] = gpus(len(job.devices))
        if job.transport == "gloo":
            hardware["transport"] = "gloo through pinned memory of the host"
    return {"hardware": hardware, "links": links, "peak_flops_per_s": [0.0] * len(binding.devices)}
