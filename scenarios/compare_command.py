"""``twinrail compare``: two run folders of the same points, figure by figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis import compare, gantt
from analysis.compare import Comparison
from scenarios import validation
from scenarios.run_folder import file_name, read, to_json, trace_file, writing
from sim.errors import BadTraceFile, Fault, ScenarioError, nearest
from sim.trace import Trace

COLUMNS = ("metric", "first", "second", "error")


class Pair(NamedTuple):
    """A point in both folders, the first taken as the prediction of the second."""

    name: str
    first: Trace
    second: Trace
    rows: list[Comparison]

    @property
    def title(self) -> str:
        """Which backends they are of, and how far apart."""
        backends = [trace.header["backend"] for trace in (self.first, self.second)]
        return f"{self.name}: {backends[0]} against {backends[1]}, {compare.verdict(self.rows)}"


def pairs(first: Path, second: Path) -> list[Pair]:
    """Every point of two run folders.

    Raises
    ------
    ScenarioError : one is no run folder, or they hold different points.
    BadTraceFile : a trace is missing or damaged.
    """
    folders = [_traces(folder) for folder in (first, second)]
    _check(folders, (first, second))
    found = []
    for name, file in folders[0].items():
        mine, theirs = Trace.load(file), Trace.load(folders[1][name])
        counted = "torch" not in (mine.header["backend"], theirs.header["backend"])
        found.append(Pair(name, mine, theirs, compare.compute(mine, [theirs], buffers=counted)))
    return found


def _traces(folder: Path) -> dict[str, Path]:
    files = {str(each["name"]): trace_file(folder, n, str(each["name"])) for n, each in enumerate(read(folder), 1)}
    for name, file in files.items():
        if not file.is_file():
            raise BadTraceFile(f"{file}: the trace of '{name}' is not there")
    return files


def _check(folders: Sequence[dict[str, Path]], paths: Sequence[Path]) -> None:
    faults = []
    for (mine, theirs), path in zip((folders, folders[::-1]), paths[::-1], strict=True):
        faults += [
            Fault(f"has no point '{name}'", file=str(path), suggestion=nearest(name, [*theirs]))
            for name in mine
            if name not in theirs
        ]
    if faults:
        raise ScenarioError.of(faults)


def rows(pair: Pair) -> list[tuple[str, ...]]:
    """The figures of one point, for people."""
    return [(*row[:3], row[4]) for row in validation.rows(pair.rows)]


def as_json(found: Sequence[Pair]) -> list[dict[str, Any]]:
    """For ``--json`` and ``comparison.json``."""
    return [
        {
            "name": pair.name,
            "backends": [trace.header["backend"] for trace in (pair.first, pair.second)],
            "metrics": compare.as_json(pair.rows),
        }
        for pair in found
    ]


def write(folder: Path, found: Sequence[Pair], table: str) -> None:
    """The table, and the first above the second as a Gantt chart for each point.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with writing(folder):
        (folder / "comparison.json").write_text(to_json(as_json(found)), encoding="utf-8")
        (folder / "table.txt").write_text(table, encoding="utf-8")
        for number, pair in enumerate(found, 1):
            charts = {f"{pair.name}, first": pair.first, "second": pair.second}
            gantt.plot(charts, folder / f"{number:02d}-{file_name(pair.name)}.png")
