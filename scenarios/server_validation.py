"""``twinrail validate`` of parameter servers: run, capture, demands, prediction beside what was measured.

Workers and servers are processes in network namespaces whose links have the rates of the scenario. One worker alone is
captured at every server, and from what its packets say a step asks for, more workers are predicted, by simulation and
by theory. Then they run: points take turns, and every repeat begins at phases of its own, so that neither those nor
what the machine does meanwhile decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis import throughput_plot
from analysis.text import percent, significant
from scenarios import server_demands, server_testbed
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import apply_sets
from scenarios.points import Point
from scenarios.run_folder import file_name, point_name, to_json, write_scenario, writing
from scenarios.schema import parse
from scenarios.server_demands import Demands, Predicted
from scenarios.server_testbed import Run
from sim.errors import Fault, ScenarioError
from sim.planners import PLANNERS

SIMULATED_STEPS = 500
"""Steps of each worker in the simulation: long, since it stands for what short runs have in common."""

BUSY = 0.8
"""A run while the cores of the host were busier than this says nothing of its links."""

TYPICAL_ERROR, WORST_ERROR, STEADY = 0.08, 0.15, 0.05
"""What predictions may miss by: half of them, and any of a point whose repeats spread no more than the last."""

COLUMNS = ("point", "workers", "measured", "± spread", "simulated", "error", "theory", "error", "CPU busy", "")


class Alone(NamedTuple):
    """One worker by itself, for all points that differ from it in nothing else."""

    name: str
    demands: Demands
    busy: float


class Cell(NamedTuple):
    """One point: steps/s of all workers, predicted and in several runs."""

    name: str
    workers: int
    alone: Alone
    predicted: Predicted
    runs: tuple[Run, ...]

    @property
    def measured(self) -> float:
        """The median run."""
        return float(np.median([run.steps_per_s for run in self.runs]))

    @property
    def spread(self) -> float:
        """Half of what lies between the extremes, over the median."""
        rates = [run.steps_per_s for run in self.runs]
        return (max(rates) - min(rates)) / 2 / self.measured

    @property
    def busy(self) -> float:
        """How busy the host was: in the median run, or while one worker was captured."""
        return max(self.alone.busy, float(np.median([run.busy for run in self.runs])))

    @property
    def is_valid(self) -> bool:
        """Whether links decided, not the host."""
        return self.busy <= BUSY

    @property
    def errors(self) -> dict[str, float]:
        """Of each prediction, relative to what was measured."""
        rates = {"simulated": self.predicted.simulated, "theory": self.predicted.theory}
        return {name: rate / self.measured - 1 for name, rate in rates.items() if rate is not None}


def is_for(points: Sequence[Point]) -> bool:
    """Whether these points have parameter servers, and not another schedule.

    Raises
    ------
    ScenarioError : some have.
    """
    served = [point.scenario.schedule.name == "parameter_server" for point in points]
    if any(served) and not all(served):
        raise ScenarioError("some points have parameter servers and some have not: validate them apart")
    return all(served)


def steps(points: Sequence[Point], repeats: int) -> int:
    """How often ``advance`` is called."""
    return len({_key(point) for point in points}) + len(points) * (repeats + 1)


def validate(points: Sequence[Point], folder: Path, repeats: int, advance: Callable[[str], None]) -> list[Cell]:
    """Validate every point; captures are written to ``folder``.

    Raises
    ------
    ScenarioError, UnsupportedPlan : the scenario is wrong, or asks for what namespaces do not show.
    RunFailed : no rights to make namespaces, or a run failed.
    """
    composed = _compose(points)
    alone: dict[str, Alone] = {}
    for point in points:
        if _key(point) not in alone:
            alone[_key(point)] = _alone(point, folder)
            advance(f"{alone[_key(point)].name}: one worker")
    predicted = []
    for point in points:
        predicted.append(_predict(point, alone[_key(point)].demands))
        advance(f"{point_name(point)}: predicted")
    runs: list[list[Run]] = [[] for _ in points]
    for repeat in range(repeats):
        for point, made, done in zip(points, composed, runs, strict=True):
            done.append(server_testbed.run(made, point.scenario.seed + repeat))
            advance(f"{point_name(point)}: run {repeat + 1}")
    return [
        Cell(point_name(point), point.scenario.cluster.workers or 1, alone[_key(point)], rates, tuple(done))
        for point, rates, done in zip(points, predicted, runs, strict=True)
    ]


def _compose(points: Sequence[Point]) -> list[Composed]:
    faults: list[Fault] = []
    for point in points:
        fault, scenario = point.document.fault, point.scenario
        if scenario.cluster.workers is None:
            hint = "write cluster: {workers: 4, servers: 1, nic: {server: 200 Mbit/s}, link: {kind: fair_share}}"
            faults.append(fault("cluster", "namespaces are workers and servers around a switch", hint))
        if scenario.schedule.given.get("granularity") == "layer":
            message = "transfers beside computing hide what each takes: expected step"
            faults.append(fault("schedule.granularity", message))
    if faults:
        raise ScenarioError.of(list(dict.fromkeys(faults)))
    return [compose(point.scenario, point.document) for point in points]


def _with_one_worker(point: Point) -> Document:
    return apply_sets(point.document, ["cluster.workers=1"])


def _key(point: Point) -> str:
    """What points have in common that differ in their workers only."""
    data = _with_one_worker(point).data if point.scenario.cluster.workers else point.document.data
    return to_json({key: value for key, value in data.items() if key != "name"})


def _name(point: Point) -> str:
    """The name of a point without its workers."""
    overrides = {path: value for path, value in point.overrides.items() if path != "cluster.workers"}
    return point_name(point._replace(overrides=overrides))


def _alone(point: Point, folder: Path) -> Alone:
    document = _with_one_worker(point)
    scenario = parse(document, PLANNERS)
    captures = folder / "captures" / file_name(_name(point))
    captures.mkdir(parents=True, exist_ok=True)
    composed = compose(scenario, document)
    captured = server_testbed.capture(composed, scenario.seed, captures)
    return Alone(_name(point), server_demands.demands(captured, composed), captured.run.busy)


def _predict(point: Point, demands: Demands) -> Predicted:
    composed = compose(point.scenario, point.document, {"mini_batches": SIMULATED_STEPS})
    return server_demands.predict(composed, demands, point.scenario.seed)


def verdict(found: Sequence[Mapping[str, Any]]) -> str:
    """How good both predictions are, over all valid points; ``found`` as `as_json` gives them."""
    valid = [cell for cell in found if cell["valid"]]
    counted = f"{len(valid)} of {len(found)} points valid (host at most {percent(BUSY)} busy)"
    texts = [_quality(name, [cell for cell in valid if name in cell["errors"]]) for name in ("simulated", "theory")]
    return "; ".join([counted, *filter(None, texts)])


def _quality(name: str, cells: Sequence[Mapping[str, Any]]) -> str:
    if not cells:
        return ""
    typical = float(np.median([abs(cell["errors"][name]) for cell in cells]))
    steady = [abs(cell["errors"][name]) for cell in cells if cell["spread"] < STEADY]
    worst = max(steady, default=0.0)
    close = "within" if typical <= TYPICAL_ERROR and worst <= WORST_ERROR else "outside"
    text = f"{name}: median error {100 * typical:.1f} %, most {100 * worst:.1f} % of {len(steady)} steady points"
    return f"{text}, {close} {percent(TYPICAL_ERROR)} and {percent(WORST_ERROR)}"


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """The comparison for people: steps/s of all workers."""
    return [
        (
            cell.alone.name,
            str(cell.workers),
            significant(cell.measured),
            percent(cell.spread),
            significant(cell.predicted.simulated),
            _error(cell, "simulated"),
            "–" if cell.predicted.theory is None else significant(cell.predicted.theory),
            _error(cell, "theory"),
            percent(cell.busy),
            "" if cell.is_valid else "invalid",
        )
        for cell in cells
    ]


def _error(cell: Cell, name: str) -> str:
    return f"{100 * cell.errors[name]:+.1f} %" if name in cell.errors else "–"


def as_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """For ``--json`` and ``validation.json``."""
    return [
        {
            "name": cell.name,
            "group": cell.alone.name,
            "workers": cell.workers,
            "demands": cell.alone.demands._asdict(),
            "simulated_steps_per_s": cell.predicted.simulated,
            "theory_steps_per_s": cell.predicted.theory,
            "broken": cell.predicted.broken,
            "measured_steps_per_s": cell.measured,
            "runs_steps_per_s": [run.steps_per_s for run in cell.runs],
            "spread": cell.spread,
            "errors": cell.errors,
            "cpu_busy": cell.busy,
            "valid": cell.is_valid,
        }
        for cell in cells
    ]


def write(folder: Path, document: Document, cells: Sequence[Cell], table: str) -> None:
    """The scenario, the figures, raw traces of all runs, and throughput over workers as a plot.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    traces = folder / "traces"
    with writing(folder):
        traces.mkdir(exist_ok=True)
        write_scenario(folder, document)
        (folder / "validation.json").write_text(to_json(as_json(cells)), encoding="utf-8")
        (folder / "table.txt").write_text(table, encoding="utf-8")
        for number, cell in enumerate(cells, 1):
            for repeat, run in enumerate(cell.runs, 1):
                run.trace.save(traces / f"{number:03d}-{file_name(cell.name)}-{repeat}.npz")
        throughput_plot.plot(throughput_plot.curves(as_json(cells)), folder / "throughput.png")
