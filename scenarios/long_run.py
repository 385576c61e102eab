"""Long scenarios by short runs: what a run of many mini-batches or micro-batches repeats is run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis.extrapolation import IrregularError, Run, extend
from backends.base import load
from scenarios.compose import compose
from scenarios.document import Document
from scenarios.schema import Scenario
from sim.errors import TwinrailError, UnsupportedPlan
from sim.schedule import Schedule
from sim.steady_state import Axis, find, period_of
from sim.trace import Trace

AXES: tuple[Axis, ...] = ("mini_batches", "micro_batches")
WORTH = 4
"""A run must be at least this many times as long as those that it is told from."""


def play(scenario: Scenario, document: Document, analyse: Callable[[Trace], dict[str, Any]]) -> Run:
    """The result of a scenario, told from short runs where these repeat themselves, and the longer trace of them.

    Its ``steady_state`` names the period and the counts of the run that stands for the whole; or says why the whole was
    run.

    Raises
    ------
    UnsupportedPlan : its order depends on time, or its backend cannot honour it.
    """
    reason = "where blocks lie need not repeat when times do: this is the whole run"
    if scenario.memory.allocator == "counting":
        reason = "no run that is short enough repeats itself: this is the whole run"
        for axis in AXES:
            for size in _sizes(scenario, axis):
                if (run := _extended(scenario, document, analyse, axis, size)) is not None:
                    return run
    _, trace = _execute(scenario, document, {})
    steady = {"extrapolated_from": None, "reason": reason}
    return Run(trace, {**analyse(trace), "steady_state": steady})


def _sizes(scenario: Scenario, axis: Axis) -> Iterator[int]:
    """How many units to try: few, and ever twice as many. Some schedules take micro-batches by rounds of stages."""
    units = scenario.schedule.given.get(axis, 0)
    round_of = 1 if axis == "mini_batches" else scenario.schedule.stages or 1
    rounds = 2
    while WORTH * (size := units % round_of + rounds * round_of) <= units:
        yield size
        rounds *= 2


def _execute(scenario: Scenario, document: Document, instead: Mapping[str, int]) -> tuple[Schedule, Trace]:
    plan, binding = compose(scenario, document, instead)
    if not isinstance(plan.work, Schedule):
        raise UnsupportedPlan(f"steady_state: the order of '{plan.method}' depends on time")
    return plan.work, load(scenario.backend).execute(plan, binding, scenario.seed)


def _extended(
    scenario: Scenario, document: Document, analyse: Callable[[Trace], dict[str, Any]], axis: Axis, size: int
) -> Run | None:
    """The run of ``size`` units and what follows from it for the whole; ``None`` where that is nothing."""
    units: int = scenario.schedule.given[axis]
    try:
        schedule, long = _execute(scenario, document, {axis: size})
        period = period_of(long, axis)
        if period is None or size < 2 * period:
            return None
        if beyond := (units - size) % period:
            size += beyond - period  # so that whole periods are left
            schedule, long = _execute(scenario, document, {axis: size})
        _, short = _execute(scenario, document, {axis: size - period})
        if (found := find(short, long, schedule, axis)) is None:
            return None
        result = extend(Run(short, analyse(short)), Run(long, analyse(long)), found, units)
    except (TwinrailError, IrregularError):
        return None  # whatever is wrong with the whole run as well, that will say
    counts = {"mini_batches": long.shape.mini_batches, "micro_batches": long.shape.micro_batches}
    steady = {"period_s": found.period_s, f"period_{axis}": found.period, "extrapolated_from": counts}
    return Run(long, {**result, "steady_state": steady})
