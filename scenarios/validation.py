"""``twinrail validate``: profile, simulate, execute, compare, in one folder.

The scenario says what to do; how long its layers and messages take on this machine is measured, with as many processes
at work at once as the run has, and put in place of its figures: once of all layers, which says where to cut, then of
the stages, each in the order of its ops. Each repeat measures right before it runs what was
measured, so that what the machine does meanwhile touches both; what is predicted comes of the medians over repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis import compare, gantt
from analysis.compare import Comparison, Peaks
from analysis.text import percent, significant
from backends.base import load
from scenarios import schema
from scenarios.bench import Bench, Subject, subject_of
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import apply_sets
from scenarios.points import Point
from scenarios.run_folder import file_name, point_name, to_json, write_scenario, writing
from sim.errors import Fault, ScenarioError
from sim.planners import PLANNERS
from sim.trace import Trace

if TYPE_CHECKING:
    from backends.torch import Outcome

COLUMNS = ("metric", "predicted", "measured", "± spread", "error")


class Validation(NamedTuple):
    """One point: the prediction, the runs, and every figure of both."""

    name: str
    predicted: Trace
    measured: tuple[Trace, ...]
    rows: list[Comparison]

    @property
    def verdict(self) -> str:
        """In one line."""
        return compare.verdict(self.rows)


class _Case(NamedTuple):
    """A point as it runs: its subject on this machine, and its plan, whose stages are cut once and for all."""

    point: Point
    subject: Subject
    composed: Composed
    cuts: str


def validate(
    points: Sequence[Point], folder: Path, repeats: int, real: Mapping[str, Any], advance: Callable[[str], None]
) -> list[Validation]:
    """Validate every point; profiles are written to ``folder``. ``real``: keywords of `backends.torch.run`.

    Raises
    ------
    ScenarioError : the scenario is wrong, or has nothing that can be executed here.
    """
    _check(points)
    bench = Bench(folder, real.get("accelerator", "cpu"))
    uncut = [_subject(compose(point.scenario, point.document), point).uncut for point in points]
    for subject in dict.fromkeys(uncut):
        bench.measure(subject)
        advance(f"{subject.model}: where to cut")
    cases = [_case(point, subject, bench) for point, subject in zip(points, uncut, strict=True)]
    runs: list[list[Trace]] = [[] for _ in points]
    for repeat in range(1, repeats + 1):
        for subject in dict.fromkeys(case.subject for case in cases):
            bench.measure(subject)
            advance(f"{subject.model}: profile {repeat}")
            for case, traces in zip(cases, runs, strict=True):
                if case.subject == subject:
                    traces.append(_execute(case, real).trace)
                    advance(f"{point_name(case.point)}: run {repeat}")
    found = []
    for case, traces in zip(cases, runs, strict=True):
        found.append(_compared(case, traces, bench, real))
        advance(f"{point_name(case.point)}: memory")
    return found


def steps(points: Sequence[Point], repeats: int) -> int:
    """How often ``advance`` is called at most."""
    return len(points) * (2 * repeats + 2)


def _subject(composed: Composed, point: Point) -> Subject:
    return subject_of(composed, str(point.scenario.model.name))


def _case(point: Point, uncut: Subject, bench: Bench) -> _Case:
    composed = _with(point.document, bench.figures(uncut))
    cuts = [first for first, _ in composed.plan.partition[1:]]
    return _Case(point, _subject(composed, point), composed, f"{{cuts: {cuts}}}" if cuts else "")


def _compared(case: _Case, traces: Sequence[Trace], bench: Bench, real: Mapping[str, Any]) -> Validation:
    """Predict with what was measured all along, and count the memory of one more run."""
    from backends.torch.predicted_peak import predicted_peaks

    figures = {**bench.figures(case.subject), **({"partition": case.cuts} if case.cuts else {})}
    plan, binding = _with(case.point.document, figures)
    predicted = load("simulated").execute(plan, binding, case.point.scenario.seed)
    counted = _execute(case, {**real, "count_memory": True}).done.peaks
    peaks = {
        binding.devices[device]: Peaks(played, counted[device])
        for device, played in predicted_peaks(plan, binding, predicted).items()
    }
    return Validation(point_name(case.point), predicted, tuple(traces), compare.compute(predicted, traces, peaks))


def _execute(case: _Case, real: Mapping[str, Any]) -> Outcome:
    from backends import torch

    seed = case.point.scenario.seed
    return torch.run(*case.composed, seed, **real)


def _check(points: Sequence[Point]) -> None:
    faults: list[Fault] = []
    for point in points:
        model = point.scenario.model
        if model.name is None:
            faults.append(point.document.fault(("model",), "only a shipped model can be executed", "give model.name"))
        if point.scenario.cluster.devices is None:
            hint = "write cluster: {devices: 2, link: {kind: in_order, latency: 50 us, bandwidth: 2 GB/s}}"
            faults.append(point.document.fault(("cluster",), "this machine has equal devices and links", hint))
    if faults:
        raise ScenarioError.of(faults)


def _with(document: Document, figures: Mapping[str, str]) -> Composed:
    document = apply_sets(document, [f"{path}={value}" for path, value in figures.items()])
    return compose(schema.parse(document, PLANNERS), document)


def rows(compared: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The figures of one point, for people."""
    return [
        (
            row.metric if row.unit in ("s", "B") else f"{row.metric} ({row.unit})",
            f"{significant(row.predicted)} {row.unit}" if row.unit in ("s", "B") else significant(row.predicted),
            f"{significant(row.measured)} {row.unit}" if row.unit in ("s", "B") else significant(row.measured),
            "–" if row.spread is None else percent(row.spread),
            _error(row),
        )
        for row in compared
    ]


def _error(row: Comparison) -> str:
    if row.error is None:
        return "–"
    return f"{row.error:+.3f}" if row.unit in compare.ABSOLUTE else f"{100 * row.error:+.1f} %"


def as_json(found: Sequence[Validation]) -> list[dict[str, Any]]:
    """For ``--json`` and ``validation.json``."""
    return [{"name": each.name, "verdict": each.verdict, "metrics": compare.as_json(each.rows)} for each in found]


def write(folder: Path, document: Document, found: Sequence[Validation], tables: Mapping[str, str]) -> None:
    """The scenario, the figures, raw traces of both rails, and predicted above measured as a Gantt chart.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    traces = folder / "traces"
    with writing(folder):
        traces.mkdir(exist_ok=True)
        write_scenario(folder, document)
        (folder / "validation.json").write_text(to_json(as_json(found)), encoding="utf-8")
        for number, each in enumerate(found, 1):
            stem = f"{number:02d}-{file_name(each.name)}"
            (folder / f"{stem}.txt").write_text(f"{each.verdict}\n{tables[each.name]}", encoding="utf-8")
            each.predicted.save(traces / f"{stem}-predicted.npz")
            for repeat, trace in enumerate(each.measured, 1):
                trace.save(traces / f"{stem}-measured-{repeat}.npz")
            middle = sorted(each.measured, key=lambda trace: trace.makespan_s)[len(each.measured) // 2]
            gantt.plot({f"{each.name}, predicted": each.predicted, "measured": middle}, folder / f"{stem}.png")
