"""Measured throughput against workers (SERIES.csv), and steps of one worker (STEPS.csv), read without trust.

A line of names, then a reading a line; lines that begin with # are comments. Columns that are not figures, and the
figures that describe a model (`ATTRIBUTES`), are group keys: rows that agree in all of them are one series.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.queueing.fit import LEAST_READINGS, Series
from analysis.queueing.network import Floats
from scenarios.quantities import printable, shown
from scenarios.text_file import read_text
from sim.errors import Fault, ScenarioError, nearest

MOST_WORKERS = 512
ATTRIBUTES = {"model_mb": 1e6, "model_bytes": 1.0, "tensors": 1.0, "batch": 1.0, "servers": 1.0}
"""Group keys that are numbers above 0, with their unit."""
PHASES = {"download_s": True, "compute_s": False, "upload_s": True, "apply_s": True}
"""Phases of a step, and whether the workers share the server in them."""

_SPREAD = "cv"
_READING = ("workers", "steps_per_s")
_STEP = ("download_s", "compute_s", "upload_s")
_MAX_BYTES = 8 << 20
_MAX_FAULTS = 20
_MOST = 1e12
"""Larger figures are damage, and sums of their squares would lose the others."""
_COMMENT = re.compile("^#.*$", re.MULTILINE)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Keys = tuple[tuple[str, str], ...]
"""Names and values of the group keys, in the order of the columns."""


@dataclass(frozen=True)
class Group:
    """A series and what tells it apart; ``line`` is that of its first reading."""

    keys: Keys
    series: Series
    line: int

    @property
    def attributes(self) -> dict[str, float]:
        """The keys that are numbers, ``model_mb`` as ``model_bytes``."""
        found = {name: float(text) * ATTRIBUTES[name] for name, text in self.keys if name in ATTRIBUTES}
        return {"model_bytes" if name == "model_mb" else name: value for name, value in found.items()}


def read_series(path: Path, upto: int | None) -> list[Group]:
    """The series of a file, readings in order of workers, groups in the file's order.

    Raises
    ------
    ScenarioError : every fault, with its line; fewer than `LEAST_READINGS` readings of at most ``upto`` workers.
    """
    table = _Table(path, "a series in CSV", _READING, (_SPREAD,))
    readings: dict[Keys, dict[int, tuple[float, int]]] = {}
    for row in table.rows:
        workers, steps_per_s = table.workers(row), table.figure(row, "steps_per_s", above_zero=True)
        keys = table.keys(row)
        if workers is None or steps_per_s is None or keys is None:
            continue
        group = readings.setdefault(keys, {})
        if workers in group:
            table.fault(row.line, f"workers: {workers} again, as on line {group[workers][1]} ({_text(keys)})")
        else:
            group[workers] = steps_per_s, row.line
    groups = [_group(keys, found) for keys, found in readings.items()]
    table.refuse()
    table.check_sizes(groups, upto)
    table.refuse()
    return groups


def _group(keys: Keys, found: Mapping[int, tuple[float, int]]) -> Group:
    workers = tuple(sorted(found))
    return Group(
        keys, Series(workers, tuple(found[count][0] for count in workers)), min(line for _, line in found.values())
    )


def read_steps(path: Path, groups: Sequence[Group]) -> dict[Keys, Floats]:
    """Of each group the recorded steps of one worker, shape [steps, phases] in the order of `PHASES`.

    The keys of STEPS.csv may be some of those of the series; every group must find its steps.

    Raises
    ------
    ScenarioError : every fault, with its line.
    """
    table = _Table(path, "steps in CSV", _STEP, ("apply_s",))
    known = [name for name, _ in groups[0].keys]
    for name in table.key_names:
        if name not in known:
            table.fault(table.header_line, f"'{printable(name)}' is no column of the series", nearest(name, known))
    steps: dict[frozenset[tuple[str, str]], list[list[float]]] = {}
    for row in table.rows:
        seconds = [0.0 if name == "apply_s" and name not in table.names else table.figure(row, name) for name in PHASES]
        keys = table.keys(row)
        if keys is None or None in seconds:
            continue
        if not sum(filter(None, seconds)):
            table.fault(row.line, "a step that takes no time")
        steps.setdefault(frozenset(keys), []).append([second or 0.0 for second in seconds])
    names = set(table.key_names)
    of_group = {group.keys: frozenset(key for key in group.keys if key[0] in names) for group in groups}
    for keys, wanted in of_group.items():
        if wanted not in steps:
            table.fault(None, f"no step of {_text(keys)}")
    table.refuse()
    return {keys: np.array(steps[wanted]) for keys, wanted in of_group.items()}


def _text(keys: Keys) -> str:
    return printable(", ".join(f"{name} {text}" for name, text in keys)) or "the only group"


@dataclass(frozen=True)
class _Row:
    cells: Mapping[str, str]
    line: int


class _Table:
    """Rows of named cells, and all that is wrong with them."""

    def __init__(self, path: Path, what: str, required: Sequence[str], optional: Sequence[str]) -> None:
        self.file = printable(str(path))
        self.faults: list[Fault] = []
        self.rows: list[_Row] = []
        self.names: list[str] = []
        self.header_line = 0
        text = read_text(path, what, _MAX_BYTES)
        self._parse(_COMMENT.sub("", text))
        self._check_names(required, optional, what)
        self.key_names = [name for name in self.names if name not in (*required, *optional)]

    def fault(self, line: int | None, message: str, hint: str | None = None) -> None:
        if len(self.faults) <= _MAX_FAULTS:  # there may be one in every cell
            self.faults.append(Fault(message, file=self.file, line=line, suggestion=hint))

    def refuse(self) -> None:
        """Raise if there are faults."""
        if len(self.faults) > _MAX_FAULTS:
            self.faults[_MAX_FAULTS:] = [Fault("and more faults", file=self.file)]
        if self.faults:
            raise ScenarioError.of(sorted(self.faults, key=lambda fault: fault.line or math.inf))

    def _parse(self, text: str) -> None:
        reader = csv.reader(io.StringIO(text), strict=True, skipinitialspace=True)
        try:
            for cells in reader:
                self._add([cell.strip() for cell in cells], reader.line_num)
        except csv.Error as error:
            self.fault(reader.line_num, f"no CSV: {error}")

    def _add(self, cells: list[str], line: int) -> None:
        if not any(cells):
            return
        if not self.names:
            self.names, self.header_line = cells, line
        elif len(cells) == len(self.names):
            self.rows.append(_Row(dict(zip(self.names, cells, strict=True)), line))
        else:
            self.fault(line, f"{len(cells)} cells under {len(self.names)} names")

    def _check_names(self, required: Sequence[str], optional: Sequence[str], what: str) -> None:
        """Faults of the header end the reading: no row can be understood without it."""
        of_rows, self.faults = self.faults, []
        for name in required:
            if name not in self.names:
                others = [other for other in self.names if other not in (*required, *optional)]
                self.fault(self.header_line or None, f"no column '{name}': expected {what}", _renamed(name, others))
        for name in dict.fromkeys(self.names):
            if self.names.count(name) > 1 or not name:
                self.fault(self.header_line, f"column {shown(name)} twice" if name else "a column without a name")
        if {"model_mb", "model_bytes"} <= {*self.names}:
            self.fault(self.header_line, "model_mb and model_bytes: expected one of them")
        if not (self.rows or of_rows or self.faults):
            self.fault(None, f"no readings: expected {what}")
        self.refuse()
        self.faults = of_rows

    def keys(self, row: _Row) -> Keys | None:
        """The group of a row; numbers that are none are faults."""
        attributes = [self.figure(row, name, above_zero=True) for name in self.key_names if name in ATTRIBUTES]
        return None if None in attributes else tuple((name, row.cells[name]) for name in self.key_names)

    def workers(self, row: _Row) -> int | None:
        text = row.cells["workers"]
        if _WHOLE.fullmatch(text) and 1 <= int(text) <= MOST_WORKERS:
            return int(text)
        self.fault(row.line, f"workers: expected a whole number from 1 to {MOST_WORKERS}, got {shown(text)}")
        return None

    def figure(self, row: _Row, name: str, above_zero: bool = False) -> float | None:
        """A number of at least 0, or above."""
        text = row.cells[name]
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if 0 <= value <= _MOST and (value >= 1 / _MOST or not above_zero):
            return value
        bound = f"above 0 and at most {_MOST:g}" if above_zero else f"from 0 to {_MOST:g}"
        self.fault(row.line, f"{name}: expected a number {bound}, got {shown(text)}")
        return None

    def check_sizes(self, groups: Sequence[Group], upto: int | None) -> None:
        """Whether ``upto`` leaves every series enough to fit."""
        most = max(group.series.workers[-1] for group in groups)
        if upto is not None and upto > most:
            self.fault(None, f"--upto {upto} is beyond the data: it ends at {most} workers")
            return
        for group in groups:
            kept = len(group.series.upto(upto or most).workers)
            if kept < LEAST_READINGS:
                limit = f" up to {upto} workers" if upto is not None else ""
                self.fault(
                    group.line,
                    f"{kept} reading{'s' * (kept != 1)}{limit} of {_text(group.keys)}: expected at least "
                    f"{LEAST_READINGS}",
                    "all columns but workers, steps_per_s and cv tell series apart" if group.keys else None,
                )


def _renamed(name: str, others: Sequence[str]) -> str | None:
    """The column that was probably meant."""
    match = next((other for other in others if nearest(name, [other.lower()])), None)
    return f"did you mean '{printable(match)}' by it?" if match else None
