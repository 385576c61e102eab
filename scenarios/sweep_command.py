"""``twinrail sweep``: every point of a scenario's sweep, each a row of ``results.sqlite``.

First all points are checked, one after another, and only their faults and keys are kept; then they are made again and
run, as many at a time as the workers take. So memory does not grow with their number. Beside ``scenario.yaml`` and
``results.sqlite`` the folder of a sweep of up to `KEPT` points has what a run folder has: ``traces``, ``result.json``,
``table.txt`` and ``gantt.png``.

A point has a row once it has ended, well or with an ``error``; ``--resume`` runs those that have none. A point that was
changed in any value, or whose row is of another version of Twinrail, has another key: it is run, and rows that no
longer belong to the sweep are removed. Samples that are equal in every value share a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import sim
from scenarios import run_folder
from scenarios.document import Document
from scenarios.points import Expansion, each_point, sound_sweep
from scenarios.results_read import SWEPT
from scenarios.results_table import Finished, ResultsTable, locked
from scenarios.run_folder import doubled, point_name, trace_file, write_scenario, write_trace, writing
from scenarios.strict import in_order
from scenarios.sweep_engines import Engine, run_tasks
from scenarios.sweep_row import key_of
from scenarios.sweep_work import Task
from sim.errors import Fault, ScenarioError
from sim.planners import PLANNERS
from sim.trace import Trace

KEPT = 32
"""Up to so many points the run folder keeps traces and whole results."""
SUMMARY = ("result.json", "table.txt", "gantt.png")
"""Files that tell of all its points together."""
MOST_AT_ONCE, TASK_S = 256, 0.5
"""Points of a task, and how long it should take: what a kill can cost of work that was not finished."""


class Options(NamedTuple):
    """How to run a sweep. ``served``: keywords of `backends.torch.run`."""

    engine: Engine = "local"
    jobs: int = 1
    address: str | None = None
    resume: bool = False
    fail_fast: bool = False
    served: Mapping[str, Any] = {}


def options(
    engine: Engine, jobs: int | None, address: str | None, resume: bool, fail_fast: bool, served: Mapping[str, Any]
) -> Options:
    """How to run a sweep, as it was asked for.

    Raises
    ------
    ScenarioError : one of them has no influence.
    """
    if address is not None and engine == "local":
        raise ScenarioError("--address has no influence on --engine local: use --engine dask or ray")
    if address is not None and jobs is not None:
        raise ScenarioError("--jobs has no influence with --address: a cluster has as many workers as it has")
    return Options(engine, jobs or 1, address, resume, fail_fast, served)


def refuse_measuring_side_by_side(surveyed: Survey, options: Options) -> None:
    """Raise where real runs would disturb each other's times, or what is said of them says nothing."""
    backend = surveyed.expansion.base.data.get("backend", "simulated")
    if backend == "torch" and (options.engine != "local" or options.jobs > 1):
        raise ScenarioError("backend torch measures: it runs one point at a time, here, with --engine local --jobs 1")
    run_folder.refuse_idle(options.served, backend)


class Survey(NamedTuple):
    """Every point of a sweep, in order: its number by its key. Samples that are equal have one key and one number."""

    expansion: Expansion
    numbers: dict[str, int]

    @property
    def keep(self) -> bool:
        """Whether the run folder keeps traces and whole results."""
        return len(self.numbers) <= KEPT


class Swept(NamedTuple):
    """What came of a sweep: points in all, run now, failed in all; rows that were removed; and the first errors."""

    points: int
    ran: int
    failed: int
    removed: int
    errors: Sequence[str]


def survey(document: Document, served: Mapping[str, Any], tell: Callable[[int], None]) -> Survey:
    """Check every point of a sweep, keeping no more of each than its key; ``tell`` is told how many are.

    Raises
    ------
    ScenarioError : the faults of all points, each once; two points of one name.
    """
    expansion = sound_sweep(document, PLANNERS)
    numbers, names, faults = dict[str, int](), set[str](), list[Fault]()
    try:
        for number, point in each_point(expansion, PLANNERS):
            name = point_name(point)
            if not expansion.drawn:
                if name in names:
                    faults.append(doubled(document, number, name))
                names.add(name)
            numbers.setdefault(key_of(point.scenario, point.document, name, served), number)
            tell(number + 1)
    except ScenarioError as error:
        faults += error.faults
    if faults:
        raise ScenarioError.of(in_order(faults))
    return Survey(expansion, numbers)


class _Pace:
    """How many points to give out at a time, by how long the last ones took."""

    def __init__(self) -> None:
        self.points = 1

    def told(self, points: int, seconds: float) -> None:
        """Some points took so long together."""
        fitting = int(TASK_S * points / max(seconds, 1e-6))
        self.points = max(1, min(fitting, 4 * self.points, MOST_AT_ONCE))


@contextmanager
def table_of(document: Document, folder: Path | None, resume: bool) -> Iterator[ResultsTable]:
    """The table of a run folder, which is locked as long as it is open; without a folder one in memory.

    Raises
    ------
    ScenarioError : the folder cannot be written, another sweep writes there, or its table is damaged.
    """
    with ExitStack() as stack:
        if folder is not None:
            with writing(folder):
                stack.enter_context(locked(folder))
                write_scenario(folder, document)
        path = None if folder is None else folder / SWEPT
        yield stack.enter_context(closing(ResultsTable(path, document.name, fresh=not resume)))


def run(
    document: Document,
    surveyed: Survey,
    table: ResultsTable,
    folder: Path | None,
    options: Options,
    tell: Callable[[int], None],
) -> Swept:
    """Run the points that have no row yet, telling ``tell`` how many have ended.

    Raises
    ------
    ScenarioError : the engine cannot be had. BackendFailure : a worker died.
    """
    rows = [row for row in table.finished() if _holds(row, surveyed, folder)]
    finished = {row.key for row in rows}
    if folder is not None:
        _clear(folder, {trace_file(folder, row.number + 1, row.name) for row in rows if surveyed.keep})
    removed = table.keep({key: surveyed.numbers[key] for key in finished})
    keys = {number: key for key, number in surveyed.numbers.items() if key not in finished}
    pace, ended = _Pace(), len(finished)
    tell(ended)
    tasks = _tasks(document, surveyed, keys, options.served, pace)
    with closing(run_tasks(tasks, options.engine, options.jobs, options.address)) as coming:
        for group, seconds in coming:
            pace.told(len(group), seconds)
            for done in group:
                if folder is not None and done.trace is not None:
                    with writing(folder):
                        write_trace(folder, done.number + 1, done.name, done.trace)
                table.add(keys[done.number], done)
                ended += 1
                tell(ended)
                if done.error is not None and options.fail_fast:
                    return _swept(table, ended - len(finished), removed)
    return _swept(table, ended - len(finished), removed)


def _holds(row: Finished, surveyed: Survey, folder: Path | None) -> bool:
    """Whether a row stands for a point of the sweep, with its trace where traces are kept."""
    if surveyed.numbers.get(row.key) is None or not surveyed.keep or row.error is not None:
        return row.key in surveyed.numbers
    number = surveyed.numbers[row.key]
    return folder is not None and number == row.number and trace_file(folder, number + 1, row.name).exists()


def _clear(folder: Path, kept: Set[Path]) -> None:
    """Remove what an older sweep left there: its summary, and traces but those that are ``kept``."""
    traces = (file for file in (folder / "traces").glob("[0-9]*-*") if file.suffix in (".npz", ".json", ".pickle"))
    with writing(folder):
        for file in (*(folder / name for name in SUMMARY), *traces):
            if file.with_suffix(".npz") not in kept:
                file.unlink(missing_ok=True)


def _tasks(
    document: Document, surveyed: Survey, keys: Mapping[int, str], served: Mapping[str, Any], pace: _Pace
) -> Iterator[Task]:
    """The points that ``keys`` numbers, made again, in tasks of the size that suits the pace."""
    todo = ((number, changes) for number, changes in enumerate(surveyed.expansion.changes()) if number in keys)
    while points := tuple(islice(todo, pace.points)):
        yield Task(surveyed.expansion.base, document.name, points, surveyed.keep, served, sim.VERSION)


def _swept(table: ResultsTable, ran: int, removed: int) -> Swept:
    results = table.reader
    points, failed = results.count()
    errors = [f"{name}: {error}" for name, error in results.rows(("name", "error"), "error IS NOT NULL", limit=3).rows]
    return Swept(points, ran, failed, removed, errors)


def write_summary(folder: Path, table: ResultsTable, text: str) -> None:
    """Write what tells of all points of a small sweep together, from the traces that are there."""
    rows = sorted((row for row in table.finished() if row.error is None), key=lambda row: row.number)
    traces = {row.name: Trace.load(trace_file(folder, row.number + 1, row.name)) for row in rows}
    with writing(folder):
        run_folder.write_summary(folder, table.results(), text, traces)
