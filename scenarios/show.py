"""What there is to look at without running: schedules as grids, shipped files, a starter, differences of runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scenarios import schedule_csv
from scenarios.check import refuse_sets
from scenarios.compose import compose, read_csv
from scenarios.document import Document
from scenarios.load import Kind, apply_sets, load_document, shipped
from scenarios.points import Point
from scenarios.run_folder import point_name, read_points
from sim.errors import Fault, ScenarioError, UnsupportedPlan, nearest
from sim.longest_path import grid
from sim.planners import PLANNERS
from sim.schedule import Schedule

KINDS = ("schedules", "models", "clusters", "devices", "scenarios")


def drawings(file: str, sets: Sequence[str], wanted: str | None, columns: int) -> dict[str, str]:
    """The grid of each point of a scenario, or of one of them, or of a schedule in CSV.

    Raises
    ------
    ScenarioError : there is no point of that name.
    """
    if schedule_csv.is_schedule(file):
        return {Path(file).name: grid(_recorded(file, sets, wanted).schedule, columns)}
    return _each(apply_sets(load_document(file), sets), wanted, lambda point: _grid(point, columns))


def csv_text(file: str, sets: Sequence[str], wanted: str | None) -> dict[str, str]:
    """One schedule as CSV of PyTorch's, by its name; what came from such a file stands where it stood there.

    Raises
    ------
    ScenarioError : there is no point of that name, or several and no name.
    UnsupportedPlan : there is no such CSV for it.
    """
    if schedule_csv.is_schedule(file):
        return {Path(file).name: schedule_csv.write(*_recorded(file, sets, wanted))}
    document = apply_sets(load_document(file), sets)
    if wanted is None and (points := len(read_points(document))) > 1:
        raise ScenarioError.of([Fault(f"there are {points} schedules", "--csv", file, suggestion="say which: --point")])
    return _each(document, wanted, _csv_text)


def _recorded(file: str, sets: Sequence[str], wanted: str | None) -> schedule_csv.Recorded:
    refuse_sets(file, sets, "a schedule in CSV")
    if wanted is not None:
        raise ScenarioError.of([Fault("has no influence on a schedule in CSV", "--point", file)])
    return schedule_csv.read(Path(file))


def _grid(point: Point, columns: int) -> str:
    work = compose(point.scenario, point.document).plan.work
    return grid(work, columns) if isinstance(work, Schedule) else "its order depends on time: run it"


def _csv_text(point: Point) -> str:
    if point.scenario.schedule.csv is not None:
        return schedule_csv.write(*read_csv(point.scenario, point.document))
    work = compose(point.scenario, point.document).plan.work
    if isinstance(work, Schedule):
        return schedule_csv.write(work)
    raise UnsupportedPlan("its order depends on time: PyTorch's CSV holds a fixed one")


def _each(document: Document, wanted: str | None, draw: Callable[[Point], str]) -> dict[str, str]:
    """What is drawn of each point, or of the one that is wanted, by name."""
    points = {point_name(point): point for point in read_points(document)}
    if wanted is not None and wanted not in points:
        raise ScenarioError.of([Fault(f"no point '{wanted}'", "--point", suggestion=nearest(wanted, points))])
    return {name: draw(point) for name, point in points.items() if wanted in (None, name)}


def catalogue(kind: str) -> dict[str, str]:
    """Name and description of everything shipped of one kind.

    Raises
    ------
    ScenarioError : there is no such kind.
    """
    if kind == "schedules":
        modules = {name: importlib.import_module(f"sim.planners.{name}") for name in PLANNERS}
        return {name: (module.__doc__ or "").split("\n")[0] for name, module in modules.items()}
    if kind not in KINDS:
        hint = nearest(kind, KINDS) or f"known: {', '.join(KINDS)}"
        raise ScenarioError.of([Fault(f"nothing of kind '{kind}' is shipped", suggestion=hint)])
    folder: Kind = "library" if kind == "scenarios" else kind  # type: ignore[assignment]  # one of KINDS
    return {name: _described(path) for name, path in shipped(folder).items()}


def _described(path: Path) -> str:
    """The first comment of a shipped file, or its source."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ") if first.startswith("#") else str(load_document(path).data.get("source", ""))


def starter() -> str:
    """A commented scenario to start from."""
    return (Path(__file__).parent / "starter.yaml").read_text(encoding="utf-8")


def differences(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every figure in which the points of two runs differ, a row each; a point that only one run has is a row too."""
    from analysis import diff

    ours, theirs = ({result["name"]: result for result in results} for results in (first, second))
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            here = "first" if name in ours else "second"
            rows.append(
                {"point": name, "figure": f"only in the {here} run", "first": None, "second": None, "ratio": None}
            )
            continue
        rows += [
            {"point": name, "figure": found.path, "first": found.a, "second": found.b, "ratio": found.ratio}
            for found in diff.compute(ours[name], theirs[name])
        ]
    return rows
