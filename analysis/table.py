"""The table of a sweep: results side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.text import percent, significant

Result = dict[str, Any]
NONE = "–"

COLUMNS = (
    "variant",
    "samples/s",
    "× single",
    "× data par.",
    "bubble",
    "compute/comm/idle %",
    "staleness F/B",
    "copies",
    "in-flight",
    "peak GiB",
    "MFU",
    "why",
)
"""``comm`` is exposed communication; copies (+ predicted ones), in-flight, peak: of each GPU where they differ."""

RESERVED = ("reserved GiB", "mallocs/retries", "driver %")
"""After the peak, where memory is more than counted: what was reserved at most; of all GPUs the calls that took memory
from the driver, and how often all was given back to try again; the time in the driver and waiting for it."""
_BEFORE = COLUMNS.index("MFU")


def rows(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and a row of text for each result.

    Speed-ups are against the result of method ``single`` and the first of ``data_parallel``, where there is one;
    shares are means over the accelerators; staleness is the steady value of the stage with the most.
    """
    single, parallel = (_throughput_of(results, method) for method in ("single", "data_parallel"))
    found = [_row(result, single, parallel) for result in results]
    if all(result["allocator"]["name"] == "counting" for result in results):
        return COLUMNS, found
    more = [(*row[:_BEFORE], *_reserved(result), *row[_BEFORE:]) for row, result in zip(found, results, strict=True)]
    return (*COLUMNS[:_BEFORE], *RESERVED, *COLUMNS[_BEFORE:]), more


def _row(result: Result, single: float | None, parallel: float | None) -> tuple[str, ...]:
    devices, throughput = result["devices"], result["samples_per_s"]
    return (
        result["name"],
        NONE if throughput is None else significant(throughput),
        _ratio(throughput, single),
        _ratio(throughput, parallel),
        _percent(result["bubble"]["of_total"]),
        _shares(result),
        "/".join(_steady(result["staleness"][side]) for side in ("forward", "backward")),
        _per_gpu([_copies(device) for device in devices]),
        _per_gpu([str(device["in_flight"]) for device in devices]),
        _per_gpu([significant(device["peak_memory_bytes"] / 2**30) for device in devices]),
        _percent(result["mfu"]),
        result["why"],
    )


def _reserved(result: Result) -> tuple[str, ...]:
    devices = result["devices"]
    if result["allocator"]["name"] == "counting":
        return (NONE,) * len(RESERVED)
    waited_s = sum(device["driver_s"] + device["synchronize_s"] for device in devices)
    return (
        _per_gpu([significant(device["peak_reserved_bytes"] / 2**30) for device in devices]),
        "/".join(str(sum(device[name] for device in devices)) for name in ("num_device_alloc", "num_alloc_retries")),
        percent(waited_s / (len(devices) * result["makespan_s"])) if result["makespan_s"] else NONE,
    )


def _throughput_of(results: Sequence[Result], method: str) -> float | None:
    """Samples per second of the first result of a method."""
    return next((result["samples_per_s"] for result in results if result["method"] == method), None)


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value is not None and base else NONE


def _shares(result: Result) -> str:
    parts = [sum(device[part] for device in result["devices"]) for part in ("compute_s", "communication_s", "idle_s")]
    return "/".join(f"{100 * part / sum(parts):.0f}" for part in parts) if sum(parts) else NONE


def _copies(device: Result) -> str:
    predicted = f"+{device['predicted_copies']}" if device["predicted_copies"] else ""
    return f"{device['weight_copies']}{predicted}"


def _steady(side: Result) -> str:
    return str(max((value for value in side["by_stage"] if value is not None), default=NONE))


def _percent(share: float | None) -> str:
    return NONE if share is None else percent(share)


def _per_gpu(values: Sequence[str]) -> str:
    """One value where all agree, each of up to four, else the first and the last of them."""
    if len(set(values)) <= 1:
        return "".join(values[:1])
    return " ".join(values) if len(values) <= 4 else f"{values[0]} … {values[-1]}"
