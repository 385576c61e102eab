"""The result of a long run from those of two short ones that differ by one period of a `Repetition`.

What takes time or moves bytes grows by the same with every period, and rates and shares follow from that. All the rest
must be equal in both runs, or the result cannot be told without the run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from analysis import breakdown, steady, usage, why
from analysis.breakdown import Bubble, DeviceTime, StageSpan
from analysis.result import imbalance
from analysis.steady import Steady
from analysis.usage import Usage
from analysis.why import Busy, Evidence
from sim.ops import OpId
from sim.steady_state import Repetition
from sim.trace import Trace

Result = dict[str, Any]

GROWING = {"makespan_s", "compute_s", "recompute_s", "communication_s", "idle_s", "bytes", "busy_s"}
FOLLOWING = {
    "step_time_s",
    "steady",
    "samples_per_s",
    "overall_samples_per_s",
    "mfu",
    "why",
    "bubble",
    "utilization",
    "imbalance",
    "mean",
}


class IrregularError(Exception):
    """A figure that two runs disagree on and that neither grows with time nor follows from what does."""


class Run(NamedTuple):
    """A run and its result."""

    trace: Trace
    result: Result


@dataclass(frozen=True)
class _Growth:
    """``periods`` more of what ``long`` has more than ``short``."""

    short: Run
    long: Run
    found: Repetition
    periods: int

    def of(self, short: float, long: float) -> float:
        """A figure that grows by the same with every period."""
        return long + self.periods * (long - short)

    @cached_property
    def by_mini_batch(self) -> bool:
        """Whether it grows by mini-batches."""
        return self.found.axis == "mini_batches"

    @cached_property
    def steady(self) -> tuple[Steady, Steady]:
        """The windows that step times are taken over, of the shorter run and of the longer one."""
        return steady.compute(self.short.trace), steady.compute(self.long.trace)

    @cached_property
    def used(self) -> tuple[Usage, Usage]:
        """Who uses which device, in the shorter run and in the longer one."""
        return usage.compute(self.short.trace), usage.compute(self.long.trace)


def extend(short: Run, long: Run, found: Repetition, units: int) -> Result:
    """The result of a run of ``units`` units, where ``long`` has ``found.units`` and ``short`` a period less.

    Raises
    ------
    IrregularError : it cannot be told without the run.
    """
    growth = _Growth(short, long, found, (units - found.units) // found.period)
    _refuse_phases(growth)
    result: Result = _grown(growth, "", short.result, long.result)
    for device in (*result["devices"], *result["hosts"]):
        busy = breakdown.parts(result["makespan_s"], device["compute_s"], device["communication_s"])
        device |= dict(zip(("compute_s", "communication_s", "idle_s"), busy, strict=True))
    result |= _rates(growth, result["makespan_s"])
    result["why"] = why.phrase(_evidence(growth))
    result["bubble"] = asdict(_bubble(growth, result))
    result["imbalance"] = imbalance([device["compute_s"] for device in result["devices"]])
    for link, now in zip(long.result["links"], result["links"], strict=True):
        if link["utilization"]:
            now["utilization"] *= now["bytes"] / link["bytes"] * long.trace.makespan_s / result["makespan_s"]
    for side in ("forward", "backward"):
        means = (run.result["staleness"][side]["mean"] for run in (short, long))
        result["staleness"][side]["mean"] = _mean(growth, *means)
    return result


def _refuse_phases(growth: _Growth) -> None:
    """Refuse where a figure is taken in the middle of the run, or between mini-batches, that repeats otherwise."""
    found, shape, (before, over) = growth.found, growth.long.trace.shape, growth.steady
    if growth.by_mini_batch:
        third = found.units // 3
        if not over.steady or found.first > third or found.last < found.units - third:
            raise IrregularError("the middle of the run is not in its steady state")
        if found.period > 1 and (shape.rounds or shape.copies or growth.long.result["prediction"]):
            raise IrregularError("what mini-batches read differs within a period")
    elif (before.first, before.last, before.steady) != (over.first, over.last, over.steady) or over.first > 1:
        raise IrregularError("how many mini-batches fill the pipeline depends on their size")
    elif not over.steady and shape.mini_batches > 1:
        raise IrregularError("too few mini-batches for a step time")


def _grown(growth: _Growth, key: str, short: Any, long: Any) -> Any:
    """A value of the result: grown, the same in both runs, or still to be worked out."""
    if key in GROWING:
        return growth.of(short, long)
    if key == "histogram" and all(short[side].keys() == long[side].keys() for side in long):
        return {side: {age: growth.of(short[side][age], count) for age, count in long[side].items()} for side in long}
    if key in FOLLOWING:
        return long
    if isinstance(long, dict) and isinstance(short, dict) and short.keys() == long.keys():
        return {name: _grown(growth, name, short[name], value) for name, value in long.items()}
    if isinstance(long, list) and isinstance(short, list) and len(short) == len(long):
        return [_grown(growth, key, *pair) for pair in zip(short, long, strict=True)]
    if short == long:
        return long
    if key == "peak_memory_op" and short and long:  # in the drain, it is named by the end of the run
        number = growth.of(OpId.parse(short).micro_batch, OpId.parse(long).micro_batch)
        return str(OpId.parse(long)._replace(micro_batch=int(number)))
    raise IrregularError(f"'{key}' differs")


def _window(growth: _Growth) -> tuple[float, int]:
    """Seconds and steps of the window that step times are taken over."""
    found, (before, over) = growth.found, growth.steady
    window_s, steps = over.end_s - over.start_s, over.last - over.first if over.steady else over.last + 1
    if growth.by_mini_batch:
        return window_s + growth.periods * found.period_s, steps + growth.periods * found.period
    return growth.of(before.end_s - before.start_s, window_s), steps


def _rates(growth: _Growth, makespan_s: float) -> Result:
    """Step time and what goes by it."""
    short, long = growth.short.trace, growth.long.trace
    window_s, steps = _window(growth)
    step_s, mini_batches = window_s / steps, long.shape.mini_batches
    mini_batches += growth.periods * growth.found.period * growth.by_mini_batch
    samples = growth.of(short.header["samples"], long.header["samples"])
    mfu = growth.long.result["mfu"]
    if mfu is not None:
        flops = growth.of(short.header["flops"], long.header["flops"]) / long.header["flops"]
        mfu *= flops * growth.long.result["step_time_s"] / step_s
    return {
        "step_time_s": step_s,
        "samples_per_s": samples / step_s if step_s else None,
        "overall_samples_per_s": samples * mini_batches / makespan_s if makespan_s else None,
        "mfu": mfu,
    }


def _evidence(growth: _Growth) -> Evidence:
    """What limits the run in the window that step times are taken over."""
    over = growth.steady[1]
    seen = why.evidence(growth.used[1], over.start_s, over.end_s)
    windows = [(each.start_s, each.end_s) for each in growth.steady]
    if growth.by_mini_batch:  # the shorter run may have no window
        windows = [(0.0, run.trace.makespan_s) for run in (growth.short, growth.long)]
    before, after = (why.evidence(used, *window) for used, window in zip(growth.used, windows, strict=True))

    def grown(now: float, less: float, more: float) -> float:
        return now + growth.periods * (more - less)

    def busy(name: str) -> tuple[Busy, ...]:
        each = zip(*(getattr(evidence, name) for evidence in (seen, before, after)), strict=True)
        return tuple(now._replace(busy_s=grown(now.busy_s, less.busy_s, more.busy_s)) for now, less, more in each)

    return Evidence(
        window_s=_window(growth)[0],
        lanes=busy("lanes"),
        links=busy("links"),
        computing_s=grown(seen.computing_s, before.computing_s, after.computing_s),
        active_s=grown(seen.active_s, before.active_s, after.active_s),
    )


def _bubble(growth: _Growth, result: Result) -> Bubble:
    names = DeviceTime.__dataclass_fields__
    devices = [DeviceTime(**{name: device[name] for name in names}) for device in result["devices"]]
    both = (breakdown.stage_spans(used) for used in growth.used)
    spans = [
        StageSpan(growth.of(short.span_s, long.span_s), growth.of(short.work_s, long.work_s))
        for short, long in zip(*both, strict=True)
    ]
    return breakdown.bubble(devices, result["makespan_s"], spans)


def _mean(growth: _Growth, short: float | None, long: float | None) -> float | None:
    """A mean over ops, of which every period has as many."""
    if short is None or long is None or short == long:
        return long
    if growth.long.trace.shape.rounds:
        raise IrregularError("updates of several mini-batches leave some without")
    less, more = growth.short.trace.shape.total, growth.long.trace.shape.total
    return growth.of(short * less, long * more) / growth.of(less, more)
