"""A run in words and in a few large figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from analysis.report.tables import NONE, number
from analysis.report.tracks import capacity_bytes
from analysis.text import duration, percent, significant
from analysis.units import UNITS
from sim.trace import Trace

Result = dict[str, Any]


def sentences(trace: Trace, result: Result) -> list[str]:
    """What was run, how fast it is, what memory it takes, how old its weights are, and what limits it."""
    return [
        *_setting(trace),
        *_extrapolated(result),
        *_speed(result),
        *_memory(trace, result),
        *_age(result),
        f"What limits it: {result['why']}.",
    ]


def _setting(trace: Trace) -> Iterator[str]:
    header, shape = trace.header, trace.shape
    gpus = len([name for name in header["devices"] if name not in set(header["hosts"])])
    parts = [_count(shape.stages, "stage") if shape.stages > 1 else ""]
    parts.append(_count(shape.replicas, "replica") if shape.replicas > 1 else "")
    parts.append(
        f"{_count(shape.micro_batches, 'micro-batch', 'es')} per mini-batch" if shape.micro_batches > 1 else ""
    )
    parts.append(f"{_count(shape.mini_batches, 'mini-batch', 'es')} of {number(header['samples'])} samples")
    how = ", ".join(part for part in parts if part)
    yield f"{header['method']} trains {header['model']} on {_count(gpus, 'device')}: {how}."
    rail = "measured on real processes" if header["backend"] == "torch" else f"predicted by backend {header['backend']}"
    yield f"All times are {rail}, seed {header['seed']}; {len(trace.ops):,} ops in {duration(trace.makespan_s)}."


def _extrapolated(result: Result) -> Iterator[str]:
    if (result.get("steady_state") or {}).get("extrapolated_from"):
        yield "The figures are of the whole run, told from the shorter one whose time line is shown: it repeats itself."


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{ending if number != 1 else ''}"


def _speed(result: Result) -> Iterator[str]:
    rate = result["samples_per_s"]
    state = "in steady state" if result["steady"] else "over the whole run, which has no steady state"
    if rate is not None:
        yield f"A step takes {duration(result['step_time_s'])} {state}: {significant(rate)} samples/s."
    if (bubble := result["bubble"]["of_total"]) is not None:
        yield f"The devices do not compute for {percent(bubble)} of their total time (bubble)."


def _memory(trace: Trace, result: Result) -> Iterator[str]:
    devices = [device for device in result["devices"] if device["peak_memory_bytes"]]
    if not devices:
        return
    most = max(devices, key=lambda device: int(device["peak_memory_bytes"]))
    names = trace.header["devices"]
    capacity = capacity_bytes(trace, names.index(most["name"])) if most["name"] in names else None
    of = f" of {_size(capacity)}" if capacity else ""
    at = f", reached in {most['peak_memory_op']}" if most["peak_memory_op"] else ""
    reserved = most.get("peak_reserved_bytes")
    more = f"; its allocator reserved {_size(reserved)}" if reserved else ""
    yield f"Most memory is in use on {most['name']}: {_size(most['peak_memory_bytes'])}{of}{at}{more}."


def _size(size_bytes: float) -> str:
    """A size in the unit in which it reads well."""
    unit, factor = next(((unit, each) for unit, each in UNITS["_bytes"].items() if size_bytes >= each), ("B", 1.0))
    return f"{significant(size_bytes / factor)} {unit}"


def _age(result: Result) -> Iterator[str]:
    forward, backward = (result["staleness"][side]["max"] for side in ("forward", "backward"))
    if forward or backward:
        yield (
            "It is asynchronous: weights are up to "
            f"{_count(forward or 0, 'update')} old in forward and {_count(backward or 0, 'update')} in backward."
        )


def tiles(result: Result) -> str:
    """The large figures."""
    rate, bubble, used = result["samples_per_s"], result["bubble"]["of_total"], result["mfu"]
    peak = max((device["peak_memory_bytes"] for device in result["devices"]), default=None)
    shown: Sequence[tuple[str, str]] = (
        ("step time", duration(result["step_time_s"])),
        ("samples/s", NONE if rate is None else significant(rate)),
        ("bubble, of total time", NONE if bubble is None else percent(bubble)),
        ("most memory in use", NONE if peak is None else _size(peak)),
        ("model FLOPs utilization", NONE if used is None else percent(used)),
    )
    return '<dl class="tiles">' + "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in shown) + "</dl>\n"
