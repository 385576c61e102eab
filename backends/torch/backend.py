"""From a plan to a trace: refuse, run the crew, and record what it measured."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from backends.torch import crew
from backends.torch.job import Arrays, Job
from backends.torch.refusals import accept
from sim.binding import Binding
from sim.engine.allocator import Allocator
from sim.plan import Plan
from sim.recording import record
from sim.schedule import Schedule
from sim.trace import Trace


@dataclass(frozen=True)
class Outcome:
    """A trace, and what the arithmetic came to.

    ``gradients[stage, mini_batch]`` are those that the update applied (of the mean loss over the mini-batch), empty
    unless they were to be kept; ``weights[stage]`` those at the end, in both one array per parameter; ``copies[stage]``
    is how many versions of the weights were alive at most.
    """

    trace: Trace
    gradients: Mapping[tuple[int, int], Arrays]
    weights: Mapping[int, Arrays]
    copies: Mapping[int, int]


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
    keep_gradients: bool = False,
    patience_s: float = 60.0,
    on_start: Callable[[Mapping[str, int]], None] = lambda pids: None,
) -> Outcome:
    """Train for the mini-batches of the plan.

    Weights, inputs and targets are drawn from the seed. ``patience_s`` is how long nothing may move before the run
    counts as hung; ``on_start`` is told the process id of each device when all start.

    Raises
    ------
    UnsupportedPlan, OutOfMemory : of the plan.
    BackendFailure : a worker raised, died or hung; none is left.
    """
    schedule = accept(plan, binding)
    memory = Allocator(binding, plan.events, len(schedule), lambda op: str(schedule.id(op)))
    with tempfile.TemporaryDirectory(prefix="twinrail-") as folder:
        job = Job(
            schedule=schedule,
            partition=plan.partition,
            model=plan.model,
            training=plan.training,
            seed=seed,
            devices=tuple(sorted({lane.device for lane in schedule.lanes})),
            samples=int(binding.samples) // schedule.shape.micro_batches,
            meeting=f"file://{folder}/meeting",
            keep_gradients=keep_gradients,
        )
        start_s, end_s, done, version = crew.work(job, binding.devices, patience_s, on_start)
    _hold_channels(schedule, start_s, end_s)
    _play(memory, start_s, end_s)
    columns = schedule.ops, schedule.lanes, schedule.order
    header = {"backend": BACKEND.name, "seed": seed, **_hardware(binding, version)}
    return Outcome(
        record(plan, binding, columns, start_s, end_s, memory.columns(), header),
        {key: arrays for part in done for key, arrays in part.gradients.items()},
        {stage: arrays for part in done for stage, arrays in part.weights.items()},
        {stage: count for part in done for stage, count in part.copies.items()},
    )


def _hold_channels(schedule: Schedule, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> None:
    """A transfer holds both ends of its channel, so it starts when it is sent and the one before it has arrived."""
    for lane, ops in zip(schedule.lanes, schedule.order, strict=True):
        if not lane.computes:
            start_s[ops[1:]] = np.maximum(start_s[ops[1:]], end_s[ops[:-1]])


def _play(memory: Allocator, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> None:
    """Feed the allocator every start and end in order of time, of equals the ends first."""
    times = np.stack([start_s, end_s], axis=1).ravel()
    slots = np.arange(len(times))
    for slot in np.lexsort([slots % 2 == 0, times]).tolist():
        memory.play(slot, float(times[slot]))


def _hardware(binding: Binding, version: str) -> dict[str, Any]:
    """What this machine is, and that the figures of the planned cluster are not its own."""
    links = [{"name": link.name, "kind": "gloo", "bytes_per_s": float("inf")} for link in binding.cluster.links]
    hardware = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "torch": version,
        "transport": "gloo",
        "arithmetic": "float64",
    }
    return {"hardware": hardware, "links": links, "peak_flops_per_s": [0.0] * len(binding.devices)}


def _cpu() -> str:
    """The name of the processor model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
