"""The points of a sweep as flat rows: what was swept, and the scalars of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.report.tables import Column, column, is_number
from analysis.units import parted

Result = Mapping[str, Any]
Row = dict[str, Any]

MOST_ROWS = 500
"""A longer table is cut to the best."""
MOST_AXES = 6
"""Where more keys differ, points are no grid."""
SHOWN = (
    Column("samples_per_s", "throughput", "samples/s"),
    column("step_time_s", "step time"),
    column("makespan_s", "makespan"),
    Column("bubble_of_total", "bubble, of total", "%", 100),
    Column("mfu", "MFU", "%", 100),
    column("max_device_peak_memory_bytes", "most memory in use"),
    Column("staleness_forward_max", "staleness F", "updates"),
    Column("staleness_backward_max", "staleness B", "updates"),
    Column("why", "what limits it"),
    Column("error", "error"),
)
"""What a report shows of each point, by the names of the columns in a sweep's data base."""
TITLES = {
    each.key: each
    for each in (
        Column("name", "point"),
        *SHOWN,
        Column("error_simulated", "error of simulation", "%", 100, signed=True),
        Column("error_theory", "error of theory", "%", 100, signed=True),
    )
}


class Sweep(NamedTuple):
    """All points: rows, the keys that were swept, and the keys of figures that can be plotted."""

    rows: Sequence[Row]
    swept: Sequence[str]

    @property
    def columns(self) -> list[Column]:
        """A column for each key of the rows: what was swept first unless points are named variants, errors last."""
        keys = dict.fromkeys(key for row in self.rows for key in row)
        swept = (0 if self.is_grid else 2, 0)
        place = {"name": (-1, 0), "why": (1, 1), "error": (3, 0), **dict.fromkeys(self.swept, swept)}
        ordered = sorted(keys, key=lambda key: place.get(key, (1, 0)))
        axes = {axis.key: axis for axis in self.axes}
        return [axes.get(key) or TITLES.get(key) or column(key) for key in ordered]

    @property
    def axes(self) -> list[Column]:
        """The columns that were swept, called by their paths."""
        return [column(key, parted(key)[0]) for key in self.swept]

    @property
    def is_grid(self) -> bool:
        """Whether what was swept are axes on which every point has its place; else points are variants with names."""
        placed = all(row.get(key) is not None for row in self.rows for key in self.swept)
        return placed and 0 < len(self.swept) < MOST_AXES

    @property
    def figures(self) -> list[Column]:
        """The columns that hold numbers and are no parameters (whose names are paths)."""
        given = [each for each in self.columns if each.key not in self.swept and "." not in each.key]
        return [each for each in given if any(is_number(row.get(each.key)) for row in self.rows)]

    @property
    def best_first(self) -> list[Row]:
        """Rows by throughput; those without come last. Equal ones stay in their order."""
        return sorted(self.rows, key=lambda row: -_rate(row))


def _rate(row: Row) -> float:
    return next((float(row[key]) for key in ("samples_per_s", "measured_steps_per_s") if is_number(row.get(key))), -1.0)


def of_results(results: Iterable[Result]) -> list[Row]:
    """A row for each result (`analysis.result`); of a point that failed its name and error."""
    return [_row(result) for result in results]


def _row(result: Result) -> Row:
    if "why" not in result:
        return {"name": result["name"], "error": result["error"]}
    return {
        "name": result["name"],
        **{key: value for key, value in _flat("", result.get("overrides", {})) if key != "name"},
        "samples_per_s": result["samples_per_s"],
        "step_time_s": result["step_time_s"],
        "makespan_s": result["makespan_s"],
        "bubble_of_total": result["bubble"]["of_total"],
        "mfu": result["mfu"],
        "max_device_peak_memory_bytes": max((each["peak_memory_bytes"] for each in result["devices"]), default=None),
        "staleness_forward_max": result["staleness"]["forward"]["max"],
        "staleness_backward_max": result["staleness"]["backward"]["max"],
        "why": result["why"],
    }


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every scalar of a mapping by its dotted path; a list as text."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), child)
    else:
        yield path, value if isinstance(value, str | int | float) or value is None else str(value)


def swept(results: Iterable[Result]) -> list[str]:
    """The keys in which points differ."""
    found = [dict(_flat("", result.get("overrides", {}))) for result in results]
    keys = dict.fromkeys(key for row in found for key in row if key != "name")
    return [key for key in keys if len({repr(row.get(key)) for row in found}) > 1]
