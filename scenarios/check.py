"""Validate a file, told apart by its content: a trace (a zip archive), a schedule (CSV) or a scenario (YAML)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios import schedule_csv
from scenarios.compose import compose
from scenarios.load import apply_sets, load_document
from scenarios.run_folder import point_name, read_points
from sim.errors import Fault, ScenarioError
from sim.trace import Trace

_ZIP = b"PK\x03\x04"


def check_file(file: str, sets: Sequence[str]) -> dict[str, Any]:
    """What the file is and holds; every point of a scenario is composed, so its schedule is checked too.

    Raises
    ------
    TwinrailError : what is wrong with it.
    """
    if _starts_with(file, _ZIP):
        refuse_sets(file, sets, "a trace")
        trace = Trace.load(Path(file))
        return {"what": f"a trace of {trace.header['method']}: {len(trace.ops)} ops", "ops": len(trace.ops)}
    if schedule_csv.is_schedule(file):
        refuse_sets(file, sets, "a schedule in CSV")
        return _described(schedule_csv.read(Path(file)))
    points = read_points(document := apply_sets(load_document(file), sets))
    for point in points:
        compose(point.scenario, point.document)
    names = [point_name(point) for point in points]
    return {
        "what": f"a scenario of {len(points)} point{'s' * (len(points) > 1)}",
        "points": names,
        "name": document.data["name"],
    }


def refuse_sets(file: str, sets: Sequence[str], what: str) -> None:
    """Raise where there is a ``--set`` for a file that is no scenario."""
    if sets:
        raise ScenarioError.of([Fault(f"has no influence on {what}", "--set", file)])


def _described(recorded: schedule_csv.Recorded) -> dict[str, Any]:
    """What a schedule file holds."""
    shape, ranks = recorded.schedule.shape, len(recorded.layout)
    size = f"{ranks} ranks, {shape.stages} stages, {shape.micro_batches} micro-batches"
    return {
        "what": f"a schedule of {size}, in the {recorded.dialect} dialect of PyTorch",
        "dialect": recorded.dialect,
        "ranks": ranks,
        "stages": shape.stages,
        "micro_batches": shape.micro_batches,
    }


def _starts_with(file: str, magic: bytes) -> bool:
    path = Path(file)
    if not path.is_file():
        return False  # the loader says what is wrong with it
    with path.open("rb") as opened:
        return opened.read(len(magic)) == magic
