"""``twinrail validate``: profile, simulate, execute, compare, in one folder.

The scenario says what to do; how long its layers and messages take on this machine is measured first, with as many
processes at work at once as the run will have, and put in place of its figures. Then it is simulated once and executed
several times, points taking turns, so that what the machine does meanwhile touches all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis import compare, gantt
from analysis.compare import Comparison
from analysis.text import percent, significant
from backends.base import load
from scenarios import measured, profile_command, schema
from scenarios.architecture import shipped_architecture
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import apply_sets, dump
from scenarios.points import Point
from scenarios.profiles import shipped_table
from scenarios.run_folder import file_name, point_name, to_json, writing
from sim.errors import Fault, ScenarioError, UnsupportedPlan
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.trace import Trace
from sim.training import Training

if TYPE_CHECKING:
    from backends.torch import Outcome

STEP_ERROR, MEMORY_ERROR = 0.08, 0.01
"""What a prediction may miss by: of the step time, and of the peak of live memory."""

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
        step = compare.headline(self.rows)
        close = step.error is not None and abs(step.error) <= STEP_ERROR
        return f"step time predicted {_error(step)} {'within' if close else 'outside'} {percent(STEP_ERROR)}"


def validate(
    points: Sequence[Point], folder: Path, repeats: int, oversubscribe: bool, advance: Callable[[str], None]
) -> list[Validation]:
    """Validate every point; profiles are written to ``folder``.

    Raises
    ------
    ScenarioError : the scenario is wrong, or has nothing that can be executed here.
    """
    _check(points)
    prepared = [_prepared(point, folder, advance) for point in points]
    runs: list[list[Trace]] = [[] for _ in points]
    peaks: list[Mapping[str, int]] = []
    for number, (point, (plan, binding)) in enumerate(zip(points, prepared, strict=True)):
        outcome = _execute(point, Composed(plan, binding), oversubscribe, count_memory=True)
        peaks.append({binding.devices[device]: peak for device, peak in outcome.done.peaks.items()})
        advance(f"{point_name(points[number])}: memory")
    for repeat in range(repeats):
        for point, composed, traces in zip(points, prepared, runs, strict=True):
            traces.append(_execute(point, composed, oversubscribe).trace)
            advance(f"{point_name(point)}: run {repeat + 1}")
    found = []
    for point, composed, traces, peak in zip(points, prepared, runs, peaks, strict=True):
        predicted = load("simulated").execute(*composed, point.scenario.seed)
        found.append(Validation(point_name(point), predicted, tuple(traces), compare.compute(predicted, traces, peak)))
    return found


def steps(points: Sequence[Point], repeats: int) -> int:
    """How often ``advance`` is called."""
    return len(points) * (repeats + 2)


def _execute(point: Point, composed: Composed, oversubscribe: bool, count_memory: bool = False) -> Outcome:
    from backends import torch

    seed = point.scenario.seed
    return torch.run(*composed, seed, oversubscribe=oversubscribe, count_memory=count_memory)


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


def _prepared(point: Point, folder: Path, advance: Callable[[str], None]) -> Composed:
    """A point with the figures of this machine in place of its own."""
    from backends.torch.fingerprint import fingerprint

    scenario = point.scenario
    plan, binding = compose(scenario, point.document)
    if not isinstance(plan.work, Schedule):
        raise UnsupportedPlan(f"'{plan.method}' is no static schedule: see docs/validation.md for parameter servers")
    samples = int(binding.samples) // (plan.work.shape.micro_batches * plan.work.shape.replicas)
    processes = len({lane.device for lane in plan.work.lanes})
    name = f"{scenario.model.name}-{samples}-{processes}.yaml"
    file = folder / name
    if not file.exists() or measured.other_machine(measured.read(file), fingerprint()):
        _measure(str(scenario.model.name), samples, processes, scenario.training, file)
    advance(f"{point_name(point)}: profile")
    link = measured.read(file).link
    assert link is not None
    figures = {"model.measured": str(file.resolve())}
    figures |= {"cluster.link.latency": f"{link.latency} s", "cluster.link.bandwidth": f"{link.bandwidth} B/s"}
    return _with(point.document, figures)


def _with(document: Document, figures: Mapping[str, str]) -> Composed:
    document = apply_sets(document, [f"{path}={value}" for path, value in figures.items()])
    return compose(schema.parse(document, PLANNERS), document)


def _measure(model: str, samples: int, processes: int, training: schema.Training, file: Path) -> None:
    from backends.torch import ping_pong
    from backends.torch.profiler import profile_together

    how = Training(training.optimizer)
    found = profile_together(shipped_architecture(model), samples, how, processes)
    link = ping_pong.measure()
    content = profile_command.content(model, samples, how, found, shipped_table(model))
    content["link"] = {"latency": f"{link.latency_s:.6g} s", "bandwidth": f"{link.bytes_per_s:.6g} B/s"}
    measured.write(file, content)


def rows(validation: Validation) -> list[tuple[str, ...]]:
    """The comparison of one point, for people."""
    return [
        (
            row.metric if row.unit in ("s", "B") else f"{row.metric} ({row.unit})",
            f"{significant(row.predicted)} {row.unit}" if row.unit in ("s", "B") else significant(row.predicted),
            f"{significant(row.measured)} {row.unit}" if row.unit in ("s", "B") else significant(row.measured),
            "–" if row.spread is None else percent(row.spread),
            _error(row),
        )
        for row in validation.rows
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
        (folder / "scenario.yaml").write_text(dump(document.data), encoding="utf-8")
        (folder / "validation.json").write_text(to_json(as_json(found)), encoding="utf-8")
        for number, each in enumerate(found, 1):
            stem = f"{number:02d}-{file_name(each.name)}"
            (folder / f"{stem}.txt").write_text(f"{each.verdict}\n{tables[each.name]}", encoding="utf-8")
            each.predicted.save(traces / f"{stem}-predicted.npz")
            for repeat, trace in enumerate(each.measured, 1):
                trace.save(traces / f"{stem}-measured-{repeat}.npz")
            middle = sorted(each.measured, key=lambda trace: trace.makespan_s)[len(each.measured) // 2]
            gantt.plot({f"{each.name}, predicted": each.predicted, "measured": middle}, folder / f"{stem}.png")
