"""Read the results of a sweep: the rows of ``results.sqlite``, its swept parameters and its metrics, by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scenarios.sweep_row import Scalar
from scenarios.sweep_values import QUANTITIES
from sim.errors import Fault, ScenarioError, nearest

SWEPT = "results.sqlite"
"""The file that makes a run folder one of a sweep."""

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_KEPT_APART = ("key", "point", "name", "error")
_MORE_IS_BETTER = ("samples_per_s", "mfu", "steps_per_s")


class Selected(NamedTuple):
    """What a query gives."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Scalar, ...]]


@contextmanager
def damage_named(path: Path | str) -> Iterator[None]:
    """What SQLite finds wrong with a file, as a message.

    Raises
    ------
    ScenarioError : it is damaged, no database of a sweep, or cannot be read or written.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ScenarioError.of([Fault(f"cannot be read or written: {error}", file=str(path))]) from None
    except sqlite3.Error as error:
        raise ScenarioError.of([Fault(f"no results of a sweep, or damaged: {error}", file=str(path))]) from None


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


class Results:
    """The results of one sweep. Every method raises `ScenarioError` where the file is damaged (`damage_named`)."""

    def __init__(self, database: sqlite3.Connection, path: Path | str) -> None:
        self.path, self._database = path, database
        with damage_named(path):
            self.columns = [row[1] for row in database.execute("PRAGMA table_info(points)")]
            about = dict(database.execute("SELECT name, value FROM about"))
            self.parameters: list[str] = json.loads(about.get("parameters", "[]"))
            self.scenario = str(about.get("scenario", ""))

    @classmethod
    @contextmanager
    def opened(cls, where: Path) -> Iterator[Results]:
        """The results in a run folder or a file, which can only be read: no statement may write or open another file.

        Raises
        ------
        ScenarioError : there are none.
        """
        path = where / SWEPT if where.is_dir() else where
        if not path.is_file():
            raise ScenarioError.of([Fault("no results of a sweep: there is no such file", file=str(path))])
        with damage_named(path):
            database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            results = cls(database, path)
            if "key" not in results.columns:
                raise ScenarioError.of([Fault("no results of a sweep: it has no table of points", file=str(path))])
            database.set_authorizer(lambda action, *_: 0 if action in _READING else 1)
            yield results
        finally:
            database.close()

    @property
    def metrics(self) -> list[str]:
        """The columns that a result has, in its order."""
        return [name for name in self.columns if name not in (*self.parameters, *_KEPT_APART)]

    @property
    def swept(self) -> list[str]:
        """The swept parameters as they were written: without their columns in SI and the names of points."""
        twins = {f"{name}_{suffix}" for name in self.parameters for suffix in QUANTITIES}
        return [name for name in self.parameters if name not in twins and name != "name"]

    def column(self, name: str) -> str:
        """A parameter or metric by name; of a quantity that was swept the column in SI.

        Raises
        ------
        ScenarioError : there is none, with the nearest.
        """
        if name in self.parameters:
            return next((twin for suffix in QUANTITIES if (twin := f"{name}_{suffix}") in self.parameters), name)
        if name not in self.metrics:
            known = [*self.parameters, *self.metrics]
            short = {each.rsplit(".", 1)[-1]: each for each in self.parameters}
            if name in short:
                return self.column(short[name])
            hint = nearest(name, known) or f"known: {', '.join(known)}"
            raise ScenarioError.of(
                [Fault(f"there is no '{name}' in these results", file=str(self.path), suggestion=hint)]
            )
        return name

    def metric(self, name: str) -> str:
        """A metric by name.

        Raises
        ------
        ScenarioError : it is none, or no point has a figure of it.
        """
        if (found := self.column(name)) in self.parameters:
            hint = f"known: {', '.join(self.metrics)}"
            raise ScenarioError.of(
                [Fault(f"'{name}' was swept, it is no metric", file=str(self.path), suggestion=hint)]
            )
        if next(self.best(found, limit=1).rows, None) is None:
            raise ScenarioError.of([Fault(f"no point has a number for '{found}'", file=str(self.path))])
        return found

    def has(self, column: str) -> bool:
        """Whether some point has a value in a column."""
        found = self.rows([column], f"{quoted(column)} IS NOT NULL", limit=1) if column in self.columns else None
        return found is not None and next(found.rows, None) is not None

    def count(self) -> tuple[int, int]:
        """The points, and those that failed."""
        query = "SELECT count(*), count(error) FROM points"
        with damage_named(self.path):
            points, failed = self._database.execute(query).fetchone()
        return int(points), int(failed)

    def rows(self, columns: Sequence[str] = (), of: str = "", order: str = "point", limit: int = -1) -> Selected:
        """Rows in the order of the points, or of what ``order`` says; ``of``: of those for which that holds, in SQL."""
        names = ", ".join(map(quoted, columns)) or "*"
        where = f" WHERE {of}" if of else ""
        return self.select(f"SELECT {names} FROM points{where} ORDER BY {order} LIMIT {limit}")

    def dicts(self) -> Iterator[dict[str, Scalar]]:
        """Every row whole, in the order of the points."""
        columns, rows = self.rows()
        return (dict(zip(columns, row, strict=True)) for row in rows)

    def best(self, metric: str, limit: int = -1, columns: Sequence[str] = ()) -> Selected:
        """The points that have a metric, the best first: the most of a rate or of MFU, the least of anything else."""
        name = quoted(metric)
        order = f"{name} {'DESC' if more_is_better(metric) else 'ASC'}, point"
        return self.rows(columns, f"typeof({name}) IN ('integer', 'real')", order, limit)

    def select(self, sql: str) -> Selected:
        """What one query gives.

        Raises
        ------
        ScenarioError : it is no query, or would write.
        """
        try:
            cursor = self._database.execute(sql)
        except (sqlite3.Error, UnicodeError) as error:
            words = "it may only read" if "not authorized" in str(error) else str(error)
            raise ScenarioError.of([Fault(f"SQL: {words}", file=str(self.path))]) from None
        if cursor.description is None:
            raise ScenarioError.of([Fault("SQL: expected a query", file=str(self.path))])
        return Selected(tuple(column[0] for column in cursor.description), self._fetched(cursor))

    def _fetched(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Scalar, ...]]:
        """Rows of scalars: the bytes that a query may make, as hexadecimal digits."""
        with damage_named(self.path):
            for row in cursor:
                has_bytes = bytes in map(type, row)
                yield tuple(each.hex() if isinstance(each, bytes) else each for each in row) if has_bytes else row


def more_is_better(metric: str) -> bool:
    """Whether more of a metric is better: of rates and MFU it is, of times, bytes, bubbles and staleness it is not."""
    return metric.endswith(_MORE_IS_BETTER)
