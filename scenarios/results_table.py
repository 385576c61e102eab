"""The results of a sweep in SQLite: one row a point, one transaction a row.

``results.sqlite`` has a table ``points`` (``key``, ``point``: its number in the sweep, ``name``, each swept parameter,
each scalar of the result, ``error``), a table ``about`` (``twinrail``: the version, ``scenario``, ``parameters``: the
swept columns), and where the run folder keeps traces, a table ``results`` (``key``, ``result`` as JSON).

While a sweep runs the database is in WAL mode with ``synchronous=NORMAL``: a row that is committed survives a kill of
the process at any moment. Once the sweep has ended it is one plain file, which a reader may open in a read-only folder.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import sim
from scenarios.results_read import Results, damage_named, quoted
from scenarios.sweep_row import Scalar
from scenarios.sweep_work import Done
from sim.errors import Fault, ScenarioError

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS points (key TEXT PRIMARY KEY, point INTEGER NOT NULL, name TEXT, error TEXT)",
    "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)",
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one sweep; the lock goes with the process, however that ends.

    Raises
    ------
    ScenarioError : another sweep holds it.
    """
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ScenarioError.of([Fault("another sweep writes there", "--out", str(folder))]) from None
        yield
    finally:
        os.close(descriptor)


class Finished(NamedTuple):
    """A point that has a row."""

    key: str
    number: int
    name: str
    error: str | None


class ResultsTable:
    """The rows of a sweep that runs. Without ``path`` they are kept in memory.

    Raises
    ------
    ScenarioError : of every method: see `damage_named`.
    """

    def __init__(self, path: Path | None, scenario: str, fresh: bool) -> None:
        self.path = ":memory:" if path is None else path
        if path is not None and fresh:
            for suffix in ("", "-wal", "-shm", "-journal"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        with damage_named(self.path):
            self._database = sqlite3.connect(self.path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            for statement in _SCHEMA:
                self._database.execute(statement)
            about = self._database.execute("SELECT name, value FROM about WHERE name = 'parameters'").fetchone()
            self._parameters: dict[str, None] = dict.fromkeys(json.loads(about[1]) if about else ())
            self._columns = {row[1].lower() for row in self._database.execute("PRAGMA table_info(points)")}
            self._tell(twinrail=sim.VERSION, scenario=scenario)

    @property
    def reader(self) -> Results:
        """The rows so far."""
        return Results(self._database, self.path)

    def finished(self) -> Iterator[Finished]:
        """The points that have a row."""
        with damage_named(self.path):
            yield from map(Finished._make, self._database.execute("SELECT key, point, name, error FROM points"))

    def keep(self, numbers: Mapping[str, int]) -> int:
        """Keep the rows of these keys, under these numbers; the others are removed. How many these were."""
        with self._transaction():
            others = [(row.key,) for row in self.finished() if row.key not in numbers]
            for table in ("points", "results"):
                self._database.executemany(f"DELETE FROM {table} WHERE key = ?", others)
            self._database.executemany(
                "UPDATE points SET point = ?1 WHERE key = ?2 AND point <> ?1",
                ((number, key) for key, number in numbers.items()),
            )
        return len(others)

    def add(self, key: str, done: Done) -> None:
        """Write the row of one point, whole."""
        row: dict[str, Scalar] = {"key": key, "point": done.number, **done.parameters}
        taken = {name.lower() for name in row}
        row |= {name: value for name, value in done.figures.items() if name.lower() not in taken} | {
            "error": done.error
        }
        with self._transaction():
            self._widen(row, done.parameters)
            names = ", ".join(map(quoted, row))
            marks = ", ".join("?" * len(row))
            self._database.execute(f"INSERT OR REPLACE INTO points ({names}) VALUES ({marks})", [*row.values()])
            if done.result is not None:
                text = json.dumps(done.result, ensure_ascii=False, allow_nan=False)
                self._database.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, text))

    def _widen(self, row: Iterable[str], parameters: Iterable[str]) -> None:
        """Add the columns that earlier rows did not have."""
        for name in row:
            if name.lower() not in self._columns:
                self._database.execute(f"ALTER TABLE points ADD COLUMN {quoted(name)}")
                self._columns.add(name.lower())
        if any(name not in self._parameters for name in parameters):
            self._parameters |= dict.fromkeys(parameters)
            self._tell(parameters=json.dumps([*self._parameters]))

    def _tell(self, **about: str) -> None:
        self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about.items())

    def results(self) -> list[dict[str, Any]]:
        """Of every point in order the whole result where it was kept; of one that failed its name and error."""
        with damage_named(self.path):
            query = "SELECT name, error, result FROM points LEFT JOIN results USING (key) ORDER BY point"
            rows = self._database.execute(query)
            return [{"name": name, "error": error} if text is None else json.loads(text) for name, error, text in rows]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with damage_named(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def close(self) -> None:
        """Make it one plain file, unless somebody reads it just now."""
        with suppress(sqlite3.Error):
            self._database.execute("PRAGMA journal_mode=DELETE")
        self._database.close()
