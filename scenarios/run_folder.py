"""Run scenarios and keep what came of them.

A run folder holds ``scenario.yaml`` (resolved: what was set is in it), ``result.json``, ``table.txt``, ``gantt.png``,
and for each point a trace ``traces/<number>-<point>.npz``, the same as Chrome trace events in ``.json`` and, where
PyTorch's allocator was simulated, as its memory snapshot in ``.pickle``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from analysis import chrome_trace, gantt, pytorch_snapshot, result, samples, steady
from backends import longest_path
from backends.base import load
from scenarios import long_run, price
from scenarios.compose import compose
from scenarios.document import Document
from scenarios.load import dump
from scenarios.planned import Planned
from scenarios.points import Point, parse_points
from scenarios.real_run import OPTIONS
from scenarios.results_read import SWEPT
from scenarios.text_file import saving
from scenarios.variation import jitter_of
from sim.binding import Binding
from sim.errors import Fault, ScenarioError
from sim.memory import snapshot
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.trace import Trace

_LONGEST = 80


class Outcome(NamedTuple):
    """One point that was run."""

    name: str
    trace: Trace
    result: dict[str, Any]


def read_points(document: Document) -> list[Point]:
    """Every point of a scenario, named apart.

    Raises
    ------
    ScenarioError : the scenario is wrong, or two points share a name.
    """
    points = parse_points(document, PLANNERS)
    seen: dict[str, int] = {}
    faults = []
    for index, point in enumerate(points):
        name = point_name(point)
        if name in seen:
            faults.append(doubled(document, index, name))
        seen[name] = index
    if faults:
        raise ScenarioError.of(faults)
    return points


def doubled(document: Document, index: int, name: str) -> Fault:
    """What is wrong where a point has the name of an earlier one."""
    message = f"two points are named '{name}'"
    return document.fault(("sweep", "points", index, "name"), message, "give each point a name")


def point_name(point: Point) -> str:
    """The name of a point: its own; or what a grid set in it; or its schedule's where whole sections were set."""
    own = point.overrides.get("name")
    if own is not None:
        return str(own)
    whole = any(isinstance(value, Mapping) for value in point.overrides.values())
    if not any("." in path for path in point.overrides) and (whole or not point.overrides):
        return point.scenario.schedule.method
    return ", ".join(f"{path.rsplit('.', 1)[-1]}={_words(value)}" for path, value in point.overrides.items())


def _words(value: Any) -> str:
    """A value of a grid; of a whole section what stands in it."""
    return " ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def run_point(point: Point, scenario: str, served: Mapping[str, Any] = {}, planned: Planned | None = None) -> Outcome:
    """Compose, execute, analyse; ``served`` are keywords of `backends.torch.run` for real parameter servers.

    ``planned``: see `scenarios.compose.compose`.
    """
    name, wanted = point_name(point), point.scenario
    refuse_idle(served, wanted.backend)
    if wanted.steady_state:
        run = long_run.play(wanted, point.document, lambda trace: result.compute(trace, scenario, name))
        return outcome_of(point, run.trace, run.result)
    plan, binding = compose(wanted, point.document, planned=planned)
    execute = _with_servers(served) if served else load(wanted.backend).execute
    trace = execute(plan, binding, wanted.seed)
    found = result.compute(trace, scenario, name)
    if wanted.samples and wanted.jitter:
        over = steady.compute(trace)
        groups, jitter = samples.watched(trace, over), jitter_of(wanted.jitter, point.document)
        latest_s = longest_path.BACKEND.sample(plan, binding, jitter, wanted.samples, groups, wanted.seed)
        found["samples"] = samples.compute(trace, over, latest_s)
    return outcome_of(point, trace, found)


def refuse_idle(served: Mapping[str, Any], backend: str) -> None:
    """Raise where something is said of a real run and none is made."""
    if served and backend != "torch":
        options = ", ".join(f"--{OPTIONS.get(name, name)}" for name in served)
        raise ScenarioError(f"{options} has no influence on backend {backend}: use --backend torch")


def outcome_of(point: Point, trace: Trace, found: Mapping[str, Any]) -> Outcome:
    """A run, with what its scenario adds to what was found in its trace: costs, and what differs from other points."""
    costs = price.costs(point.scenario, found)
    return Outcome(point_name(point), trace, {**found, **costs, "overrides": point.overrides})


def _with_servers(served: Mapping[str, Any]) -> Callable[[Plan, Binding, int], Trace]:
    from backends import torch

    return lambda plan, binding, seed: torch.run(plan, binding, seed, **served).trace


def refuse_over_sweep(folder: Path) -> None:
    """Raise where a run would stand among the results of a sweep."""
    if (folder / SWEPT).exists():
        hint = "use another --out DIR"
        raise ScenarioError.of([Fault("holds the results of a sweep", file=str(folder), suggestion=hint)])


def write(folder: Path, document: Document, outcomes: Sequence[Outcome], table: str) -> None:
    """Write a run folder, over an older one.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with writing(folder):
        write_scenario(folder, document)
        for number, outcome in enumerate(outcomes, 1):
            write_trace(folder, number, outcome.name, outcome.trace)
        traces = {outcome.name: outcome.trace for outcome in outcomes}
        write_summary(folder, [outcome.result for outcome in outcomes], table, traces)


def write_scenario(folder: Path, document: Document) -> None:
    """Write the resolved scenario into a run folder."""
    (folder / "scenario.yaml").write_text(dump(document.with_full_paths().data), encoding="utf-8")


def trace_file(folder: Path, number: int, name: str) -> Path:
    """Where the trace of a point is, the first being number 1."""
    return folder / "traces" / f"{number:02d}-{file_name(name)}.npz"


def write_trace(folder: Path, number: int, name: str, trace: Trace) -> None:
    """Write the trace of one point in all formats, its own last: where that is, all are."""
    path = trace_file(folder, number, name)
    path.parent.mkdir(exist_ok=True)
    events = json.dumps(chrome_trace.export(trace), separators=(",", ":"))
    path.with_name(f"{path.stem}.json").write_text(events, encoding="utf-8")
    if trace.header["allocator"]["name"] == "caching":
        snapshot.dump(path.with_name(f"{path.stem}.pickle"), pytorch_snapshot.export(trace))
    trace.save(path)


def write_summary(folder: Path, results: Sequence[dict[str, Any]], table: str, traces: Mapping[str, Trace]) -> None:
    """Write what tells of all points together."""
    (folder / "result.json").write_text(to_json(results), encoding="utf-8")
    (folder / "table.txt").write_text(table, encoding="utf-8")
    if traces:
        gantt.plot(traces, folder / "gantt.png")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make a folder and fill it; what the disk refuses is the user's fault to mend.

    Raises
    ------
    ScenarioError : it cannot be written.
    """
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def read(folder: Path) -> list[dict[str, Any]]:
    """The results of a run folder.

    Raises
    ------
    ScenarioError : it is no run folder.
    """
    file = folder / "result.json"
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise ScenarioError.of([Fault(f"no run folder: {reason}", file=str(file))]) from None
    if not isinstance(results, list) or not all(isinstance(each, Mapping) and "name" in each for each in results):
        raise ScenarioError.of([Fault("no results of twinrail", file=str(file))])
    return results


def file_name(name: str) -> str:
    """A point's name as a file name; a long one is cut, and ends in a hash of it all."""
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "point"
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[:_LONGEST]}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def to_json(value: object) -> str:
    """JSON for machines: the same value gives the same text."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
