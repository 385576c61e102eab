"""The peak of live memory of a run that has not been made: a simulated order, played on tensors without data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from backends.torch.backend import job_of
from backends.torch.job import SENDS, Job
from backends.torch.kernels import Kernels
from backends.torch.refusals import accept
from sim.binding import Binding
from sim.ops import COMPUTE_KINDS
from sim.plan import Plan
from sim.trace import Trace


def predicted_peaks(plan: Plan, binding: Binding, trace: Trace) -> dict[int, int]:
    """Most live bytes of each device, as ``count_memory`` of a real run counts them.

    Each device does its ops in the order of a trace of the plan. A peak is the most over many ops, which no two runs
    time alike, so what arrives while an op computes counts from the start of the op, what leaves until its end.

    Raises
    ------
    UnsupportedPlan : there are no kernels for it.
    """
    accept(plan, binding, oversubscribe=True)
    job = job_of(plan, binding, 0, "float32", "meta", count_memory=True)
    return {device: _peak_bytes(job, device, trace) for device in job.devices}


def _peak_bytes(job: Job, device: int, trace: Trace) -> int:
    kernels = Kernels(job, (device,))
    ops = job.schedule.ops
    for step in sorted(_steps(job, device, trace)):
        if not step.travels:
            kernels.compute(step.op)
        elif int(ops["source"][step.op]) == device:
            kernels.outgoing(step.op)
        else:
            kernels.arrived(step.op, kernels.room(step.op))
    return kernels.peak_bytes


class _Step(NamedTuple):
    """An op that computes, or the end of a transfer, in the order of their doing."""

    time_s: float
    computes: bool
    place: int
    op: int
    travels: bool


def _steps(job: Job, device: int, trace: Trace) -> Iterator[_Step]:
    schedule = job.schedule
    ops, place = schedule.ops, np.empty(len(schedule), np.int64)
    place[trace.as_schedule().topological] = np.arange(len(schedule))
    here = (ops["source"] == device) & np.isin(ops["kind"], [*COMPUTE_KINDS])
    computing = np.flatnonzero(here)
    computing = computing[np.lexsort([place[computing], trace.start_s[computing]])]
    for op in computing.tolist():
        yield _Step(float(trace.start_s[op]), True, int(place[op]), op, False)
    lanes = sum(lane.device == device and lane.computes for lane in schedule.lanes)
    start_s, end_s = trace.start_s[computing], trace.end_s[computing]
    ends = (ops["source"] == device) | (ops["target"] == device)
    for op in np.flatnonzero(ends & np.isin(ops["kind"], SENDS) & (ops["source"] != ops["target"])).tolist():
        time_s, during = float(trace.end_s[op]), int(np.searchsorted(start_s, trace.end_s[op], "right")) - 1
        inside = lanes == 1 and during >= 0 and time_s < end_s[during]
        if inside:
            time_s = float((start_s if int(ops["target"][op]) == device else end_s)[during])
        yield _Step(time_s, not inside, int(place[op]), op, True)
