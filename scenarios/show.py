"""What there is to look at without running: schedules as grids, shipped files, a starter, differences of runs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.compose import compose
from scenarios.document import Document
from scenarios.load import Kind, load_document, shipped
from scenarios.run_folder import point_name, read_points
from sim.errors import Fault, ScenarioError, nearest
from sim.longest_path import grid
from sim.planners import PLANNERS
from sim.schedule import Schedule

KINDS = ("schedules", "models", "clusters", "devices", "scenarios")


def grids(document: Document, wanted: str | None, columns: int) -> dict[str, str]:
    """The grid of each point of a scenario, or of one of them.

    Raises
    ------
    ScenarioError : there is no point of that name.
    """
    points = {point_name(point): point for point in read_points(document)}
    if wanted is not None and wanted not in points:
        raise ScenarioError.of([Fault(f"no point '{wanted}'", "--point", suggestion=nearest(wanted, points))])
    drawn: dict[str, str] = {}
    for name, point in points.items():
        if wanted in (None, name):
            work = compose(point.scenario, point.document).plan.work
            drawn[name] = grid(work, columns) if isinstance(work, Schedule) else "its order depends on time: run it"
    return drawn


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
