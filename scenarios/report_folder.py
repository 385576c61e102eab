"""What a folder of runs, a sweep or a validation holds, read with suspicion, as the points of a report."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from analysis.report.points import SHOWN, Sweep
from scenarios.results_read import Results
from scenarios.run_folder import file_name
from scenarios.text_file import read_text
from sim.errors import BadTraceFile, Fault, ScenarioError
from sim.trace import Trace

MOST_OPS = 400_000
"""Ops that the time lines of one page may have, together: those of the first points."""
MOST_BYTES = 1 << 28
_T = TypeVar("_T")


class _Part(BaseModel):
    """What the page reads of a file; more may stand there."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Named(_Part):
    name: str


class _Device(_Named):
    peak_memory_bytes: int
    peak_memory_op: str | None = None
    peak_reserved_bytes: int | None = None


class _Bubble(_Part):
    of_total: float | None


class _Side(_Part):
    max: int | None


_Counts = dict[Annotated[str, StringConstraints(pattern=r"^\d{1,9}$")], int]


class _Staleness(_Part):
    forward: _Side
    backward: _Side
    histogram: dict[str, _Counts]


class _Result(_Named):
    why: str
    steady: bool
    step_time_s: float
    makespan_s: float
    samples_per_s: float | None
    mfu: float | None
    bubble: _Bubble
    staleness: _Staleness
    devices: list[_Device]
    hosts: list[_Device]
    links: list[_Named]
    overrides: dict[str, Any] = {}
    steady_state: dict[str, Any] | None = None


class _Failed(_Named):
    error: str


class _Metric(_Part):
    metric: str
    unit: str
    predicted: float
    measured: float
    low: float
    high: float
    error: float | None


class _Validation(_Named):
    verdict: str
    metrics: list[_Metric]


class _Cell(_Named):
    group: str
    workers: int
    measured_steps_per_s: float
    runs_steps_per_s: list[float]
    spread: float
    simulated_steps_per_s: float
    theory_steps_per_s: float | None
    errors: dict[str, float]
    cpu_busy: float
    valid: bool


_RESULTS, _FAILED = TypeAdapter(list[_Result]), TypeAdapter(list[_Failed])
_VALIDATIONS, _CELLS = TypeAdapter(list[_Validation]), TypeAdapter(list[_Cell])


def results(folder: Path) -> list[dict[str, Any]]:
    """The results in ``result.json``; of a point that failed its name and error.

    Raises
    ------
    ScenarioError : it is not what `run_folder.write` writes.
    """
    file = folder / "result.json"
    content = _json(file)
    failed = isinstance(content, list) and [isinstance(each, dict) and "error" in each for each in content]
    if not failed or not any(failed):
        return [found.model_dump() for found in _checked(file, content, _RESULTS)]
    found = []
    for each, fell in zip(content, failed, strict=True):
        kind: TypeAdapter[Any] = _FAILED if fell else _RESULTS
        found += _checked(file, [each], kind)
    return [each.model_dump() for each in found]


def validations(folder: Path) -> list[dict[str, Any]]:
    """What ``validation.json`` says of each point: ``metrics`` of a pipeline, ``runs_steps_per_s`` of servers.

    Raises
    ------
    ScenarioError : it is not what `validation.write` or `server_validation.write` writes.
    """
    file = folder / "validation.json"
    content = _json(file)
    served = isinstance(content, list) and all(isinstance(each, dict) and "workers" in each for each in content)
    kind: TypeAdapter[Any] = _CELLS if served else _VALIDATIONS
    return [found.model_dump() for found in _checked(file, content, kind)]


def _checked(file: Path, content: Any, kind: TypeAdapter[_T]) -> _T:
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        faults = [
            Fault(each["msg"].lower(), ".".join(map(str, each["loc"])), str(file))
            for each in error.errors()[:MOST_FAULTS]
        ]
        raise ScenarioError.of(faults) from None


MOST_FAULTS = 20


def _json(file: Path) -> Any:
    text = read_text(file, "figures in JSON", MOST_BYTES)
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        raise ScenarioError.of([Fault("no JSON, or a damaged one", file=str(file))]) from None


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def stored_points(folder: Path) -> Sweep:
    """The points in a sweep's ``results.sqlite``: what was swept, a quantity in SI, and what a report shows.

    Raises
    ------
    ScenarioError : there is no such file, or it is damaged.
    """
    with Results.opened(folder) as base:
        axes = list(dict.fromkeys(base.column(name) for name in base.parameters if name != "name"))
        keys = ("name", *axes, *(column.key for column in SHOWN if column.key in base.columns))
        rows = [{key: _scalar(row[key]) for key in keys if key in row} for row in base.dicts()]
    return Sweep(rows, [axis for axis in axes if len({repr(row.get(axis)) for row in rows}) > 1])


def _scalar(value: Any) -> Any:
    """What JSON can hold; what is not finite is left out."""
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Traced(NamedTuple):
    """A trace of a folder: the number and the rest of its file's name."""

    number: int
    name: str
    file: Path


def traced(folder: Path, pattern: str = r"") -> list[Traced]:
    """The traces of a folder whose names end so, by number."""
    wanted = re.compile(rf"(\d+)-(.*){pattern}")
    found = [(wanted.fullmatch(file.stem), file) for file in (folder / "traces").glob("*.npz")]
    return sorted(Traced(int(match[1]), match[2], file) for match, file in found if match)


def traces_of(folder: Path, results: Sequence[Mapping[str, Any]]) -> dict[int, Path]:
    """The trace of each result that has one, by its place: of results whose files have one name, in their order."""
    left: dict[str, list[Path]] = {}
    for each in reversed(traced(folder)):
        left.setdefault(each.name, []).append(each.file)
    named = (
        (place, left.get(file_name(str(each["name"])))) for place, each in enumerate(results) if "error" not in each
    )
    return {place: files.pop() for place, files in named if files}


class Loader:
    """Loads traces until there are more ops than a page holds; counts those left out."""

    def __init__(self, most_ops: int = MOST_OPS) -> None:
        self._room = most_ops
        self.left_out = 0

    def load(self, files: Mapping[str, Path]) -> dict[str, Trace]:
        """The traces of one point, or nothing where they are too many.

        Raises
        ------
        BadTraceFile : one is damaged.
        """
        if self._room <= 0:
            self.left_out += 1
            return {}
        traces = {title: load(file) for title, file in files.items()}
        count = sum(len(trace.ops) for trace in traces.values())
        first = not self.left_out and self._room == MOST_OPS
        self._room -= count
        if self._room < 0 and not first:
            self.left_out += 1
            return {}
        return traces


def load(file: Path) -> Trace:
    """A trace whose header holds what a page shows.

    Raises
    ------
    BadTraceFile : it is damaged.
    """
    trace = Trace.load(file)
    header = trace.header
    limits = header.get("capacity_bytes", [])
    sound = (
        all(isinstance(name, str) for name in (*header["devices"], *header["hosts"]))
        and all(_sound(link) for link in header["links"])
        and isinstance(limits, list)
        and all(limit is None or _number(limit) for limit in limits)
    )
    if not sound:
        raise BadTraceFile(f"{file}: its header does not say what a report needs")
    return trace


def _sound(link: Mapping[str, Any]) -> bool:
    return isinstance(link["name"], str) and isinstance(link["kind"], str) and _number(link["bytes_per_s"])


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
