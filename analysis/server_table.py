"""Tables of runs with parameter servers, as text: the results side by side, and who does what in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.text import percent, significant

Result = dict[str, Any]
NONE = "–"

COLUMNS = (
    "variant",
    "steps/s",
    "± 95 %",
    "samples/s",
    "staleness mean",
    "p50/p99/max",
    "not applied",
    "busiest link",
    "busiest server",
    "imbalance",
    "peak GiB",
    "why",
)
DETAILS = ("node", "share of bytes", "cores busy", "out", "in", "steps/s", "staleness mean", "p50/p99/max")


def rows(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and a row of text for each result."""
    return COLUMNS, [_row(result) for result in results]


def _row(result: Result) -> tuple[str, ...]:
    served = result["parameter_servers"]
    stale, interval = served["staleness"], served["steps_per_s_interval"]
    return (
        result["name"],
        _figure(served["steps_per_s"]),
        NONE if interval is None else significant((interval[1] - interval[0]) / 2),
        _figure(result["samples_per_s"]),
        _figure(stale["mean"]),
        _spread(stale),
        str(served["dropped_steps"]),
        _percent(max((link["utilization"] for link in served["links"]), default=None)),
        _percent(max((server["utilization"] or 0.0 for server in served["servers"]), default=None)),
        _figure(served["imbalance"]),
        _figure(max((device["peak_memory_bytes"] for device in result["devices"]), default=0) / 2**30),
        result["why"],
    )


def details(result: Result) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and a row for each server and each worker of one result."""
    served = result["parameter_servers"]
    busy = {link["name"]: link["utilization"] for link in served["links"]}

    def links(node: str) -> tuple[str, str]:
        out = [share for name, share in busy.items() if name.startswith(f"{node}>")]
        into = [share for name, share in busy.items() if name.endswith(f">{node}")]
        return _percent(max(out, default=None)), _percent(max(into, default=None))

    servers = [
        (each["name"], _percent(each["share"]), _percent(each["utilization"]), *links(each["name"]), *[NONE] * 3)
        for each in served["servers"]
    ]
    workers = [
        (
            each["name"],
            NONE,
            NONE,
            *links(each["name"]),
            _figure(each["steps_per_s"]),
            _figure(each["mean"]),
            _spread(each),
        )
        for each in served["staleness"]["workers"]
    ]
    return DETAILS, servers + workers


def _figure(value: float | None) -> str:
    return NONE if value is None else significant(value)


def _percent(share: float | None) -> str:
    return NONE if share is None else percent(share)


def _spread(stale: Result) -> str:
    return NONE if stale["max"] is None else f"{stale['p50']:.0f}/{stale['p99']:.0f}/{stale['max']}"
