"""``twinrail results``: what a sweep left, as a table, JSON, CSV or Parquet, and drawn over its axes."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.text import significant
from scenarios.results_read import Results, Selected, more_is_better, quoted
from scenarios.sweep_row import Scalar
from scenarios.terminal import render
from scenarios.text_file import saving
from sim.errors import Fault, ScenarioError

if TYPE_CHECKING:
    from analysis.sweep_plot import Column

SHOWN = 20
"""Rows of a table for people; ``--json`` and ``--csv`` have all."""
HEADLINE = ("samples_per_s", "step_time_s", "bubble_of_total", "max_device_peak_memory_bytes", "mfu")
THROUGHPUT = "samples_per_s"


def overview(results: Results) -> str:
    """A table of the best points."""
    points, failed = results.count()
    if points == failed:
        return "no point has a result\n"
    return best(results, THROUGHPUT if THROUGHPUT in results.columns else results.metrics[0])


def best(results: Results, metric: str) -> str:
    """A table of the points that have the most of a rate, or the least of anything else."""
    direction = "most" if more_is_better(metric) else "least"
    points, failed = results.count()
    found = results.best(metric, SHOWN, _headline(results, metric))
    head = f"{points} points, {failed} failed; those with the {direction} {metric} first"
    return f"{head}\n{table(found)}"


def first(results: Results) -> str:
    """A table of the first points and what the others are."""
    points, failed = results.count()
    shown = table(results.rows((*_headline(results), "error"), limit=SHOWN))
    left = f", {points - SHOWN} more rows: use --json, --csv or --sql" if points > SHOWN else ""
    return f"{shown}{points} points, {failed} failed{left}\n"


def _headline(results: Results, metric: str | None = None) -> tuple[str, ...]:
    """The columns that a table for people has."""
    figures = [name for name in HEADLINE if name != metric and results.has(name)]
    return ("point", *(results.swept or ["name"]), *([metric] if metric else []), *figures)


def table(found: Selected) -> str:
    """Rows as text, the first of many."""
    rows = list(islice(found.rows, SHOWN + 1))
    more = "…\n" if len(rows) > SHOWN else ""
    return render(found.columns, ([_cell(value) for value in row] for row in rows[:SHOWN])) + more


def _cell(value: Scalar) -> str:
    if value is None:
        return ""
    return significant(value) if isinstance(value, float) else str(value)


def as_json(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A JSON list, in parts, so that it need not be held at once.

    Raises
    ------
    ScenarioError : a row has an infinite figure, for which JSON has no word.
    """
    mark = "["
    for row in rows:
        try:
            text = json.dumps(row, indent=2, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise ScenarioError("--json: a figure is infinite, for which JSON has no word: use --csv") from None
        yield f"{mark}\n  " + text.replace("\n", "\n  ")
        mark = ","
    yield "[]\n" if mark == "[" else "\n]\n"


def as_csv(found: Selected) -> Iterator[str]:
    """CSV, a line of names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.columns)
    for row in found.rows:
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def write_parquet(found: Selected, path: Path) -> None:
    """Write rows as a Parquet file.

    Raises
    ------
    ScenarioError : pyarrow is not installed, two columns have one name, or it cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ScenarioError("--parquet needs pyarrow, which is not installed: use twinrail[parquet]") from None
    _refuse_doubles(found, "--parquet")
    rows = list(found.rows)
    columns = {name: _alike([row[index] for row in rows]) for index, name in enumerate(found.columns)}
    with saving(path, "--parquet"):
        parquet.write_table(pyarrow.table(columns), path)


def _refuse_doubles(found: Selected, option: str) -> None:
    """Raise where columns cannot be told apart by name."""
    if doubled := next((name for name, count in Counter(found.columns).items() if count > 1), None):
        raise ScenarioError(f"{option}: two columns are named '{doubled}': name them apart, with AS")


def _alike(values: Sequence[Scalar]) -> Sequence[Scalar]:
    """A column of one type: text where values differ in kind."""
    kinds = {str if isinstance(value, str) else float for value in values if value is not None}
    return values if len(kinds) < 2 else [None if value is None else str(value) for value in values]


def plot(results: Results, text: str, path: Path) -> None:
    """Draw ``x,y[,metric]``: a heat map where ``y`` was swept, else lines of the metric ``y`` over ``x``.

    Where more was swept than is drawn, each place shows the best of its points; lines have one more axis.

    Raises
    ------
    ScenarioError : no such names, or the image cannot be written.
    """
    from analysis import sweep_plot

    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ScenarioError.of([Fault("expected .png, .svg or .pdf", "--out", str(path))])
    names = [name.strip() for name in text.split(",")]
    if not 2 <= len(names) <= 3 or not all(names):
        raise ScenarioError(f"--plot: expected x,y or x,y,metric, got '{text}'")
    x, y = (results.column(name) for name in names[:2])
    if x not in results.parameters:
        hint = f"swept were {', '.join(results.parameters)}"
        raise ScenarioError.of(
            [Fault(f"'{x}' was not swept: it is no axis", "--plot", str(results.path), suggestion=hint)]
        )
    if y not in results.parameters and len(names) == 3:
        raise ScenarioError(f"--plot: '{y}' was not swept, so '{names[2]}' has no influence")
    metric = results.metric(names[2] if len(names) == 3 else THROUGHPUT if y in results.parameters else y)
    across = y if y in results.parameters else _second_axis(results, x)
    axes = [x] if across is None else [x, across]
    *places, figures = _columns(results, [*axes, metric])
    others = _others(results, axes)
    picture = sweep_plot.Picture(
        results.scenario, places, figures, more_is_better(metric), others, heat_map=y in results.parameters
    )
    with saving(path):
        sweep_plot.plot(picture, path)


def _others(results: Results, axes: Sequence[str]) -> list[str]:
    """What was swept beside some axes."""
    return [name for name in results.swept if results.column(name) not in axes]


def _second_axis(results: Results, x: str) -> str | None:
    """What tells lines apart: what else was swept, where that is one thing of few values."""
    others = _others(results, [x])
    if len(others) != 1:
        return None
    column = results.column(others[0])
    few = len(list(islice(results.select(f"SELECT DISTINCT {quoted(column)} FROM points").rows, 9))) < 9
    return column if few else None


def _columns(results: Results, names: Sequence[str]) -> list[Column]:
    from analysis.sweep_plot import Column

    found = results.rows(names, f"{quoted(names[-1])} IS NOT NULL")
    values = list(zip(*found.rows, strict=True))
    if not values:
        raise ScenarioError.of([Fault(f"no point has {names[-1]}", "--plot", str(results.path))])
    return [Column(name, list(each)) for name, each in zip(names, values, strict=True)]


def printed(found: Selected, csv: bool, json: bool) -> Iterable[str]:
    """Rows as they were asked for.

    Raises
    ------
    ScenarioError : two columns have one name, which JSON cannot hold.
    """
    if json:
        _refuse_doubles(found, "--json")
        return as_json(dict(zip(found.columns, row, strict=True)) for row in found.rows)
    return as_csv(found) if csv else [table(found)]
