"""From a program of parameter servers to its trace: refuse, run the crew, and record what it did."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.torch.fingerprint import cpu
from backends.torch.job import Done
from backends.torch.refusals import accept_served
from backends.torch.servers import records
from backends.torch.servers.coordinator import Came, Coordinator
from backends.torch.servers.crew import crew, devices
from backends.torch.servers.job import Array, Job, Place
from sim.engine.allocator import Allocator
from sim.errors import UnsupportedPlan
from sim.recording import record
from sim.server_binding import about
from sim.trace import Trace


def execute(
    job: Job,
    places: Mapping[int, Place],
    patience_s: float,
    on_start: Callable[[Mapping[str, int]], None],
) -> tuple[Trace, Done]:
    """Train, and tell how it went.

    Raises
    ------
    UnsupportedPlan, OutOfMemory : of the plan.
    BackendFailure : a server died or one raised or hung; none is left. See `coordinator` for a worker that dies.
    """
    accept_served(job.plan, job.binding, job.compute == "sleep")
    _check_places(job, places)
    _check_folder(job)
    memory = Allocator(job.binding, None, 0, lambda op: "")
    patience_s += _longest_sleep_s(job)
    with crew(job, places) as members:
        came = Coordinator(job, members, patience_s).run(on_start)
        done = records.columns(job.program, [records.read(member.rows) for member in members], came.zero_s)
    shape = job.program.shape._replace(mini_batches=1 + int(done.ops["micro_batch"].max()))
    ran = replace(job.plan, work=replace(job.program, shape=shape))
    header = _header(job, came, float(done.end_s.max()))
    trace = record(ran, job.binding, done[:3], done.start_s, done.end_s, memory.columns(), header)
    return trace, Done({}, _weights(job, came.values), {}, came.losses, {})


def _longest_sleep_s(job: Job) -> float:
    """What a worker may hold still as planned: an exponential time exceeds 20 times its mean once in 5·10⁸."""
    conditions = job.binding.conditions
    start_s = max(conditions.latest_start_s.values(), default=0.0)
    if job.compute == "real":
        return start_s
    factor = max((straggler.factor for straggler in conditions.stragglers), default=1.0)
    return start_s + 20 * max(factor, 1.0) * max(job.binding.seconds.values())


def _check_places(job: Job, places: Mapping[int, Place]) -> None:
    for device, place in places.items():
        if device not in devices(job):
            raise UnsupportedPlan(f"places: the plan has no device {device}")
        if place.port and device not in job.layout.servers:
            raise UnsupportedPlan(f"places: a port has no influence on {job.binding.devices[device]}, a worker")


def _check_folder(job: Job) -> None:
    """Whether a checkpoint is where one should be, and nowhere else."""
    if (checkpoint := job.checkpoint) is None:
        return
    if checkpoint.every < 1:
        raise UnsupportedPlan(f"checkpoint: every {checkpoint.every} updates: at least 1")
    folder, paths = checkpoint.folder, [checkpoint.files(number)[0] for number in range(len(job.layout.servers))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [path for path in paths if path.exists()]
    except OSError as error:
        raise UnsupportedPlan(f"checkpoint: {folder} cannot be used: {error.strerror}") from None
    if there and not checkpoint.resume:
        raise UnsupportedPlan(f"checkpoint: {there[0]} is one already: resume from it, or name another folder")
    if checkpoint.resume and len(there) < len(paths):
        missing: Path = next(path for path in paths if path not in there)
        raise UnsupportedPlan(f"checkpoint: there is no {missing} to resume from")


def _header(job: Job, came: Came, end_s: float) -> dict[str, Any]:
    """What this machine is, and what of the program's conditions was so in fact."""
    processes, cores = len(devices(job)), os.cpu_count() or 1
    lost = [(at_s - came.zero_s, member.device) for at_s, member in came.lost]
    served = about(job.layout, job.binding)
    compute_varies = served["variation"]["compute"] if job.compute == "sleep" else 0.0
    return {
        "backend": "torch",
        "seed": job.seed,
        "hardware": {
            "cpu": cpu(),
            "cores": cores,
            "torch": came.versions["torch"],
            "transport": f"tcp, ZeroMQ {came.versions['zmq']}",
            "arithmetic": job.arithmetic,
            "compute": job.compute,
            "processes": processes,
            "oversubscribed": job.compute == "real" and processes > cores,
        },
        "links": [
            {"name": link.name, "kind": "tcp", "bytes_per_s": float("inf")} for link in job.binding.cluster.links
        ],
        "peak_flops_per_s": [0.0] * len(job.binding.devices),
        "parameter_servers": {
            **served,
            "variation": {"compute": compute_varies, "communication": 0.0, "apply": 0.0},
            "outages": [[at_s, max(0.0, end_s - at_s), device] for at_s, device in lost],
        },
    }


def _weights(job: Job, values: Mapping[int, Array]) -> dict[tuple[int, int], tuple[Array, ...]]:
    """The parameters in their shapes; none where nothing was trained."""
    if job.compute == "sleep":
        return {}
    import torch

    from backends.torch.data import initial
    from backends.torch.server_state import places, shaped

    architecture = job.plan.architecture
    assert architecture is not None
    model = initial(architecture, job.seed, torch.float32)
    whole = np.empty(sum(parameter.numel() for parameter in model.parameters()), job.arithmetic)
    for number, place in enumerate(places(model, job.layout.parts)):
        whole[place.numpy()] = values[number]
    return {(0, 0): tuple(weight.numpy() for weight in shaped(torch.from_numpy(whole), model))}
