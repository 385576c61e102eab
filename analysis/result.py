"""Every number of a run as one JSON object: what ``--json`` prints and ``result.json`` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis import breakdown, links, memory, occupancy, parameter_server, served_steps, staleness, steady, usage, why
from analysis.breakdown import Bubble, DeviceTime
from analysis.links import LinkUse
from analysis.memory import Peak, Reserve
from analysis.occupancy import Occupancy
from analysis.staleness import Staleness, Summary
from analysis.usage import Usage
from sim.trace import Trace


def compute(trace: Trace, scenario: str, name: str) -> dict[str, Any]:
    """The result of a run: JSON types only; ``None`` where a number is unknown or has no meaning.

    Times in seconds, memory in bytes. ``bubble``: see `analysis.breakdown.Bubble`; ``staleness``: see
    `analysis.staleness.Summary`; what is reserved: see `analysis.memory.Reserve`, ``None`` where memory is only
    counted; ``prediction``: its method, and distances (forward, backward) of each stage, planned and realised;
    ``imbalance``: the most time that an accelerator computes, over their mean.

    Raises
    ------
    BrokenInvariant : an op ran on other weights than its schedule says.
    """
    header, used, measured = trace.header, usage.compute(trace), staleness.compute(trace)
    occupied = occupancy.compute(trace, measured)
    over = steady.compute(trace, measured, occupied)
    times, held = breakdown.compute(trace, used), [*zip(memory.compute(trace), memory.reserve(trace), strict=True)]
    return {
        "scenario": scenario,
        "name": name,
        "method": header["method"],
        "weights": header["weights"],
        "backend": header["backend"],
        "seed": header["seed"],
        "allocator": dict(header["allocator"]),
        "makespan_s": trace.makespan_s,
        "step_time_s": over.step_time_s,
        "steady": over.steady,
        "samples_per_s": over.samples_per_s,
        "overall_samples_per_s": over.overall_samples_per_s,
        "mfu": _mfu(used, over.step_time_s),
        "why": why.compute(trace, used, over),
        "bubble": _fields(times.bubble),
        "imbalance": imbalance([device.compute_s for device in times.devices]),
        "devices": [
            _device(spent, *held[device]) | _kept(occupied, device)
            for device, spent in zip(used.accelerators, times.devices, strict=True)
        ],
        "hosts": [_device(spent, *held[host]) for host, spent in zip(used.hosts, times.hosts, strict=True)],
        "links": [_fields(link) for link in links.compute(trace, used)],
        "staleness": {
            "forward": _summary(measured.forward),
            "backward": _summary(measured.backward),
            "histogram": {"forward": _histogram(measured.forward), "backward": _histogram(measured.backward)},
        },
        "prediction": _prediction(trace, measured),
        **({"parameter_servers": parameter_server.compute(trace)} if served_steps.has_servers(trace) else {}),
        "partition": [list(stage) for stage in header["partition"]],
        "provenance": header["provenance"],
    }


def _mfu(used: Usage, step_time_s: float) -> float | None:
    """Model flops of a step over what the accelerators in use could do in that time (PaLM, arXiv 2204.02311)."""
    header = used.trace.header
    peaks = [float(peak) for peak in header["peak_flops_per_s"]]
    known = [peaks[device] for device in used.accelerators if device < len(peaks) and peaks[device]]
    if not header["flops"] or not step_time_s or not known or len(known) < len(used.accelerators):
        return None
    return float(header["flops"]) / (step_time_s * sum(known))


def _fields(figures: DeviceTime | Bubble | LinkUse | Reserve) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


def _device(spent: DeviceTime, peak: Peak, reserve: Reserve | None) -> dict[str, Any]:
    return {
        **_fields(spent),
        "peak_memory_bytes": peak.peak_bytes,
        "peak_memory_op": peak.op or None,
        "memory_by_category": {str(category): size_bytes for category, size_bytes in peak.by_category.items()},
        **(_fields(reserve) if reserve is not None else dict.fromkeys(Reserve.__dataclass_fields__)),
    }


def _kept(occupied: Occupancy, device: int) -> dict[str, Any]:
    return {
        "weight_copies": occupied.weight_copies[device],
        "predicted_copies": occupied.predicted_copies[device],
        "in_flight": occupied.in_flight[device],
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {"mean": summary.mean, "max": summary.max, "by_stage": list(summary.by_stage)}


def _histogram(summary: Summary) -> dict[str, int]:
    return {str(staleness): count for staleness, count in summary.histogram.items()}


def imbalance(busy_s: Sequence[float]) -> float | None:
    """The most over the mean of some times; ``None`` where all are 0."""
    return max(busy_s) / (sum(busy_s) / len(busy_s)) if sum(busy_s) else None


def _prediction(trace: Trace, measured: Staleness) -> dict[str, Any] | None:
    if measured.realised is None:
        return None
    return {
        "method": trace.header["predict"],
        "distances": [list(pair) for pair in trace.header["distances"]],
        "realised": [list(pair) for pair in measured.realised],
    }
