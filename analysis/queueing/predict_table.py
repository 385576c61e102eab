"""Simulation and theory side by side, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.text import duration, percent, significant

COLUMNS = (
    "servers",
    "workers",
    "simulated",
    "interval",
    "theory",
    "off",
    "in turn",
    "largest share",
    "bounds",
    "staleness sim.",
    "theory",
    "busiest",
)
"""Steps/s of all workers; ``off``: theory over simulation; in turn and largest share: what brackets several servers."""


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each number of servers and workers."""
    return [_row(each) for each in result["predictions"]]


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    simulated, theory, limits = found["simulated"], found["theory"], found["bounds"]
    interval, busiest = simulated["interval"], found["bottleneck"]
    several = theory["method"] == "fork_join"
    return (
        str(found["servers"]),
        str(found["workers"]),
        significant(simulated["steps_per_s"]),
        "–" if interval is None else "–".join(significant(each) for each in interval),
        f"{significant(theory['steps_per_s'])}{_uncertainty(theory)}",
        f"{100 * found['difference']:+.1f} %",
        *(_figure(theory[f"{key}_steps_per_s"] if several else None) for key in ("one_after_another", "largest_share")),
        f"{significant(limits['lower'])}–{significant(limits['upper'])}",
        significant(simulated["staleness"]),
        significant(theory["staleness"]),
        f"{busiest['name']} {percent(busiest['utilization'])}",
    )


def _uncertainty(theory: Mapping[str, Any]) -> str:
    if theory["interval"] is None:
        return ""
    low, high = theory["interval"]
    return f" ± {percent((high - low) / 2 / theory['steps_per_s'])}"


def _figure(value: float | None) -> str:
    return "–" if value is None else significant(value)


def summary(result: Mapping[str, Any]) -> str:
    """Knees, answers to a target, and the assumptions that the scenario breaks."""
    lines = [
        f"{_count(each['servers'], 'server')}: queues dominate beyond N* = {significant(each['knee'])} workers"
        f" (think {duration(each['think_time_s'])})"
        for each in result["networks"]
        if each["knee"] is not None
    ]
    starts = max(each["simulated"]["starts"] for each in result["predictions"])
    if starts > 1:
        lines.append(f"intervals: least and most of {starts} runs from other random phases")
    lines += [f"{key}: {text}" for key, text in result["broken_assumptions"].items()]
    target = result["target"]
    return "\n".join([*lines, *(_answer(each, target) for each in (target or {}).get("answers", ()))]) + "\n"


def _answer(answer: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    wanted, workers = percent(target["efficiency"]), _count(answer["workers"], "worker")
    if answer["servers"] is None:
        most = target["most_servers"]
        return (
            f"{workers}: {wanted} of linear speed is out of reach, {percent(answer['efficiency'])} with {most} servers"
        )
    found = f"{percent(answer['efficiency'])} in theory, {percent(answer['simulated_efficiency'])} simulated"
    return f"{workers}: {_count(answer['servers'], 'server')} for {wanted} of linear speed ({found})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
