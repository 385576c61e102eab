"""Where the time of each device goes: compute, exposed communication, idle; and the bubble that this leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis import usage
from analysis.usage import Usage
from sim.op_table import of_kinds
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.trace import Trace

STAGE_KINDS = (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE)
"""What counts as the work of a stage: not its update."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """One device: ``compute_s + communication_s + idle_s`` is the makespan.

    ``compute_s``: some compute lane is busy, ``recompute_s`` of it with recomputing activations. ``communication_s``:
    a transfer of the device is under way and no compute lane is busy, so it is exposed.
    """

    name: str
    compute_s: float
    recompute_s: float
    communication_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Bubble:
    """Time lost on the accelerators, always a share of something; ``None`` where there is nothing to divide by.

    ``of_total``: of devices × makespan. ``of_ideal``: of the time spent computing (Megatron-LM, arXiv 2104.04473).
    ``longest_stage_span``: of the longest span from a device's first to its last forward or backward (Zero Bubble,
    arXiv 2401.10241).
    """

    of_total: float | None
    of_ideal: float | None
    longest_stage_span: float | None


class StageSpan(NamedTuple):
    """From a device's first to its last forward or backward, and the work in between.

    Passes that run side by side count once.
    """

    span_s: float
    work_s: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The accelerators and hosts that run something, and the bubble of the accelerators."""

    devices: tuple[DeviceTime, ...]
    hosts: tuple[DeviceTime, ...]
    bubble: Bubble


def compute(trace: Trace, used: Usage | None = None) -> Breakdown:
    """The breakdown of a run. ``used`` saves sorting the ops again."""
    used = used or usage.compute(trace)
    devices, hosts = (tuple(_times(used, device) for device in group) for group in (used.accelerators, used.hosts))
    return Breakdown(devices, hosts, bubble(devices, trace.makespan_s, stage_spans(used)))


def _times(used: Usage, device: int) -> DeviceTime:
    trace, ops = used.trace, used.compute[device]
    busy_s = used.computing[device].length_s
    compute_s, communication_s, idle_s = parts(trace.makespan_s, busy_s, used.active[device].length_s - busy_s)
    return DeviceTime(
        name=used.name(device),
        compute_s=compute_s,
        recompute_s=min(used.spans(ops[trace.ops["kind"][ops] == OpKind.RECOMPUTE]).length_s, compute_s),
        communication_s=communication_s,
        idle_s=idle_s,
    )


def parts(whole_s: float, compute_s: float, communication_s: float) -> tuple[float, float, float]:
    """Compute, communication and the rest, none negative, that add up to the whole in spite of rounding."""
    compute_s = min(compute_s, whole_s)
    communication_s = min(max(communication_s, 0.0), whole_s - compute_s)
    idle_s = max(whole_s - (compute_s + communication_s), 0.0)
    if compute_s + communication_s + idle_s != whole_s:  # on the grid of the whole, sums are exact
        grid_s = math.ulp(whole_s)
        compute_s = round(compute_s / grid_s) * grid_s
        communication_s = min(round(communication_s / grid_s) * grid_s, whole_s - compute_s)
        idle_s = whole_s - (compute_s + communication_s)
    return compute_s, communication_s, idle_s


def bubble(devices: Sequence[DeviceTime], makespan_s: float, spans: Sequence[StageSpan]) -> Bubble:
    """The bubble of accelerators, from their times and `stage_spans`."""
    total_s = len(devices) * makespan_s
    compute_s = sum(device.compute_s for device in devices)
    longest = max(spans, key=lambda each: each.span_s, default=StageSpan(0.0, 0.0))  # of equals the first
    return Bubble(
        of_total=1 - compute_s / total_s if total_s else None,
        of_ideal=(total_s - compute_s) / compute_s if compute_s else None,
        longest_stage_span=max(longest.span_s - longest.work_s, 0.0) / longest.span_s if longest.span_s else None,
    )


def stage_spans(used: Usage) -> list[StageSpan]:
    """The span of each accelerator; one that runs no forward or backward spans nothing."""
    found, works = [], of_kinds(used.trace.ops, STAGE_KINDS)
    for device in used.accelerators:
        ops = used.compute[device]
        spans = used.spans(ops[works[ops]])
        span_s = float(spans.end_s[-1] - spans.start_s[0]) if len(spans.start_s) else 0.0
        found.append(StageSpan(span_s, spans.length_s))
    return found
