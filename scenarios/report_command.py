"""``twinrail report``: a folder of a run, a sweep or a validation as one page, and its plots as files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from analysis import result, throughput_plot
from analysis.report import figures
from analysis.report.page import Page, Point, render
from analysis.report.points import Sweep, of_results, swept
from analysis.report.tables import Column, table
from scenarios import report_folder
from scenarios.load import load_document
from scenarios.report_folder import Loader
from scenarios.results_read import SWEPT
from scenarios.run_folder import file_name
from scenarios.text_file import read_text, saving
from sim.errors import Fault, ScenarioError, nearest
from sim.trace import Trace

MOST_SCENARIO = 1 << 24
MOST_ERRORS = 3
SCALES = {"s": ("ms", 1e3), "B": ("MiB", 2**-20), "share": ("%", 100.0)}
METRICS = (
    Column("metric", "figure"),
    Column("predicted", "predicted"),
    Column("measured", "measured, median"),
    Column("low", "least"),
    Column("high", "most"),
    Column("error", "error", "%", signed=True),
    Column("difference", "difference", "updates"),
)


def read(folder: Path) -> Page:
    """The report of a folder, told apart by what stands in it.

    Raises
    ------
    ScenarioError, BadTraceFile : it is no such folder, or something in it is damaged.
    """
    scenario = folder / "scenario.yaml"
    text = read_text(scenario, "the scenario of a run", MOST_SCENARIO) if scenario.exists() else ""
    facts = {"folder": folder.resolve().name}
    facts |= {"scenario sha256": hashlib.sha256(text.encode()).hexdigest()} if text else {}
    title = _title(scenario) if text else folder.resolve().name
    loader = Loader()
    sweep: Sweep | None
    if (folder / "validation.json").exists():
        what, points, sweep = _validation(folder, loader)
    elif (folder / SWEPT).exists() or (folder / "result.json").exists():
        what, points, sweep = _runs(folder, loader, title)
    else:
        hint = "give the folder that 'twinrail run', 'sweep' or 'validate' wrote"
        raise ScenarioError.of(
            [Fault("holds no result.json, results.sqlite or validation.json", file=str(folder), suggestion=hint)]
        )
    return Page(title, what, points, text, sweep, _note(loader), facts, _failed(sweep) or _agreement(sweep))


def _failed(sweep: Sweep | None) -> str:
    """The points that failed, the first with their errors."""
    rows = sweep.rows if sweep else ()
    failed = [row for row in rows if row.get("error")]
    if not failed:
        return ""
    told = " ".join(f"{row['name']}: {row['error']}." for row in failed[:MOST_ERRORS])
    more = f" The table has the errors of {len(failed) - MOST_ERRORS} more." if len(failed) > MOST_ERRORS else ""
    return f"{len(failed):,} of {len(rows):,} points failed. {told}{more}"


def _agreement(sweep: Sweep | None) -> str:
    """How far simulation and theory are from what was measured on parameter servers."""
    told = []
    for words, key in (("Simulation", "error_simulated"), ("Theory", "error_theory")):
        errors = sorted(abs(row[key]) for row in (sweep.rows if sweep else ()) if row.get(key) is not None)
        if errors:
            middle, most = (f"{100 * error:.1f} %" for error in (median(errors), errors[-1]))
            told.append(f"{words} is off by {middle} in the median, by at most {most}, over {len(errors)} points.")
    return " ".join(told)


def _title(scenario: Path) -> str:
    """The name of the scenario; a file that does not load is still shown as it is."""
    try:
        return str(load_document(str(scenario)).data.get("name") or scenario.resolve().parent.name)
    except ScenarioError:
        return scenario.resolve().parent.name


def _note(loader: Loader) -> str:
    if not loader.left_out:
        return ""
    return f"The time lines of {loader.left_out} more points are left out: a page holds {report_folder.MOST_OPS:,} ops."


def _runs(folder: Path, loader: Loader, scenario: str) -> tuple[str, list[Point], Sweep | None]:
    """One run, or all points of a sweep; those with traces have time lines."""
    found = report_folder.results(folder) if (folder / "result.json").exists() else []
    points = []
    files = report_folder.traces_of(folder, found)  # others are left from an older run
    runs: list[tuple[dict[str, Any], Path]] = [(found[place], file) for place, file in files.items()]
    if not found:
        runs = [({"name": traced.name}, traced.file) for traced in report_folder.traced(folder)]
    for own, file in runs:
        for title, trace in loader.load({"Every lane": file}).items():
            shown = own if found else result.compute(trace, scenario, own["name"])
            points.append(Point(shown["name"], {title: trace}, shown))
    sweep = None
    if (folder / SWEPT).exists():
        sweep = report_folder.stored_points(folder)
    elif len(found) > 1:
        sweep = Sweep(of_results(found), swept(found))
    what = "one run" if sweep is None else f"a sweep of {len(sweep.rows):,} points"
    return what, points, sweep


def _validation(folder: Path, loader: Loader) -> tuple[str, list[Point], Sweep | None]:
    found = report_folder.validations(folder)
    if found and "workers" in found[0]:
        return _servers(folder, found, loader)
    points = []
    for number, each in enumerate(found, 1):
        if traces := loader.load(_both(folder, number)):
            points.append(Point(each["name"], traces, None, f"{each['name']}: {each['verdict']}.", _metrics(each)))
    return "a validation: predicted beside measured", points, None


def _both(folder: Path, number: int) -> dict[str, Path]:
    """The files of the prediction and of the run with the median makespan."""
    predicted = [traced.file for traced in report_folder.traced(folder, "-predicted") if traced.number == number]
    measured = [traced.file for traced in report_folder.traced(folder, r"-measured-\d+") if traced.number == number]
    if not predicted or not measured:
        raise ScenarioError.of([Fault(f"holds no traces of both rails of point {number}", file=str(folder / "traces"))])
    by_length = sorted((report_folder.load(file).makespan_s, file) for file in measured)
    return {"Predicted": predicted[0], "Measured, the run of median length": by_length[len(by_length) // 2][1]}


def _metrics(validation: Mapping[str, Any]) -> str:
    rows = []
    for metric in validation["metrics"]:
        unit, per = SCALES.get(metric["unit"], (metric["unit"], 1.0))
        row = {name: metric[name] * per for name in ("predicted", "measured", "low", "high")}
        kind = "difference" if metric["unit"] == "updates" else "error"
        rows.append({"metric": f"{metric['metric']} ({unit})", **row, kind: metric["error"]})
    of = "relative to what was measured; of shares the difference in percentage points"
    return table(METRICS, rows, f"Predicted beside measured; errors are {of}")


def _servers(folder: Path, found: list[dict[str, Any]], loader: Loader) -> tuple[str, list[Point], Sweep]:
    points = []
    for traced in report_folder.traced(folder, "-1"):
        if 0 < traced.number <= len(found):
            name = found[traced.number - 1]["name"]
            for title, trace in loader.load({"Measured, the first run": traced.file}).items():
                points.append(Point(name, {title: trace}, result.compute(trace, "", name)))
    sweep = Sweep([_cell(cell) for cell in found], ("workers", "group"))
    return "a validation of parameter servers: measured beside simulation and theory", points, sweep


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": cell["name"],
        "workers": cell["workers"],
        "group": cell["group"],
        "measured_steps_per_s": cell["measured_steps_per_s"],
        "spread_share": cell["spread"],
        "simulated_steps_per_s": cell["simulated_steps_per_s"],
        "error_simulated": cell["errors"].get("simulated"),
        "theory_steps_per_s": cell["theory_steps_per_s"],
        "error_theory": cell["errors"].get("theory"),
        "cpu_busy_share": cell["cpu_busy"],
        "valid": "yes" if cell["valid"] else "no",
    }


def write(folder: Path, out: Path | None, figures_in: Path | None = None, ending: str = "svg") -> dict[str, Any]:
    """Write the page of a folder, beside what it is of unless said otherwise; what was written, for ``--json``.

    ``figures_in`` : where every plot is written too, in the format ``ending``.

    Raises
    ------
    ScenarioError, BadTraceFile : the folder cannot be read, or something not be written.
    """
    page = read(folder)
    written = _write_page(page, out or folder / "report.html")
    return written if figures_in is None else {**written, "figures": draw(folder, page, figures_in, ending)}


def _write_page(page: Page, file: Path) -> dict[str, Any]:
    text = render(page)
    with saving(file):
        file.write_text(text, encoding="utf-8", newline="\n")
    ops = sum(len(trace.ops) for point in page.points for trace in point.traces.values())
    return {
        "page": str(file),
        "what": page.what,
        "bytes": len(text.encode()),
        "time_lines": len(page.points),
        "ops": ops,
    }


def draw(folder: Path, page: Page, out: Path, ending: str) -> list[str]:
    """Write every plot that applies to the report of a folder; their names.

    Raises
    ------
    ScenarioError : no such format, or the folder cannot be written.
    """
    if ending not in figures.FORMATS:
        formats = ", ".join(figures.FORMATS)
        raise ScenarioError.of(
            [Fault(f"expected {formats}, got '{ending}'", "--format", suggestion=nearest(ending, figures.FORMATS))]
        )
    written = []
    with saving(out, "--figures"):
        out.mkdir(parents=True, exist_ok=True)
        for stem, figure in _figures(folder, page):
            name = f"{file_name(stem)}.{ending}"
            figures.save(figure, out / name)
            written.append(name)
    return written


def _figures(folder: Path, page: Page) -> Iterator[tuple[str, Any]]:
    compared = [point for point in page.points if len(point.traces) > 1]
    for number, point in enumerate(compared, 1):
        named = {f"{point.name}, {title.lower()}": trace for title, trace in point.traces.items()}
        yield from ((f"{number:02d}-{stem}", figure) for stem, figure in figures.of_runs(named) if stem == "timeline")
    runs: dict[str, Trace] = {}
    for point in page.points:
        if len(point.traces) == 1:
            runs[point.name] = next(iter(point.traces.values()))
    if runs:
        yield from figures.of_runs(runs)
    if (folder / "validation.json").exists() and page.sweep is not None:
        yield "throughput", throughput_plot.draw(throughput_plot.curves(report_folder.validations(folder)))
