"""``twinrail converge``: what methods learn on a cluster that is simulated, with arithmetic that is real.

The scenario fixes the task, the grid of learning rates and the seeds before the first run, the same for every method
(the points of its sweep). Each method is trained once a rate and seed, in the order of a simulated run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis import convergence, convergence_plot
from analysis.convergence import Band, Column, Compared, Method, Run
from analysis.text import duration, percent, significant
from backends.base import load
from scenarios import unfinished
from scenarios.compose import compose
from scenarios.document import Document
from scenarios.points import Point
from scenarios.run_folder import point_name, to_json, write_scenario, writing
from scenarios.schema import Converge
from sim.errors import Fault, ScenarioError
from sim.program import Program

COLUMNS = ("method", "rate", "final loss", "test accuracy", "time to target", "gap recovered")
PREDICTION_COLUMNS = ("updates ahead", "RMSE predicted", "RMSE stale", "ratio")
PREDICTED_UPDATES = 200
"""Of plain training, over which predictions are compared with what came."""
SERVED = ("sgd", "momentum")
"""What parameter servers apply."""


class Prediction(NamedTuple):
    """How far weights are from those that come so many updates later, and the ratio of the two distances.

    Distances are root mean squares over parameters, updates and seeds; the band of the ratio is over seeds.
    """

    ahead: int
    predicted: float
    stale: float
    ratio: Band


class Converged(NamedTuple):
    """Every method, and how well SpecTrain's prediction does in plain training on the same task."""

    compared: Compared
    prediction: list[Prediction]


class _Case(NamedTuple):
    """One training to do."""

    point: int
    rate: float
    seed: int


def check(points: Sequence[Point]) -> Converge:
    """The experiment of a scenario.

    Raises
    ------
    ScenarioError : there is none, or what it names does not exist.
    """
    wanted = points[0].scenario.converge
    if wanted is None:
        raise ScenarioError("this scenario has no section 'converge': see scenarios/library/converge-digits.yaml")
    names, document = [point_name(point) for point in points], points[0].document
    faults: list[Fault] = []
    for key in ("synchronous", "vanilla"):
        name = getattr(wanted, key)
        if name is not None and name not in names:
            faults.append(
                document.fault(("converge", key), f"no point is named '{name}'", f"one of {', '.join(names)}")
            )
    faults += [
        point.document.fault(("model",), "only a shipped model can be trained", "give model.name")
        for point in points
        if point.scenario.model.name is None
    ]
    faults += [
        point.document.fault(("training", "optimizer"), f"a server applies {' or '.join(SERVED)} only")
        for point in points
        if point.scenario.schedule.name == "parameter_server" and point.scenario.training.optimizer not in SERVED
    ]
    if faults:
        raise ScenarioError.of(faults)
    return wanted


def cases(points: Sequence[Point], wanted: Converge) -> list[_Case]:
    """Every training."""
    return [
        _Case(point, rate, seed)
        for point in range(len(points))
        for rate in wanted.learning_rates
        for seed in range(wanted.seeds)
    ]


def converge(
    points: Sequence[Point], wanted: Converge, jobs: int, advance: Callable[[], None], folder: Path | None = None
) -> Converged:
    """Train every case, ``jobs`` at a time; what ``folder`` has of a run that was stopped is not done again.

    Raises
    ------
    UnsupportedPlan : a plan without kernels, or a task that does not fit a model.
    """
    from joblib import Parallel, delayed

    every = cases(points, wanted)
    found: dict[str, dict[float, list[Run]]] = {point_name(point): {} for point in points}
    work = (delayed(_trained)(points[case.point], wanted.task, case.rate, case.seed, folder) for case in every)
    for case, run in zip(every, Parallel(jobs, return_as="generator")(work), strict=True):
        found[point_name(points[case.point])].setdefault(case.rate, []).append(run)
        advance()
    compared = convergence.compute(found, wanted.target_loss, wanted.synchronous, wanted.vanilla)
    rates = {method.name: method.learning_rate for method in compared.methods}
    rate = rates.get(wanted.synchronous or "", compared.methods[0].learning_rate)
    return Converged(compared, _predictions(points[0], wanted, rate))


def _trained(point: Point, task: str, rate: float, seed: int, folder: Path | None) -> Run:
    if folder is None:
        return _train(point, task, rate, seed)
    return unfinished.once(folder, (point.document.data, task, rate, seed), lambda: _train(point, task, rate, seed))


def _train(point: Point, task: str, rate: float, seed: int) -> Run:
    from backends.torch.learn import learn

    plan, binding = compose(point.scenario, point.document)
    own = seed if isinstance(plan.work, Program) else 0  # a schedule's order does not depend on it
    trace = load("simulated").execute(plan, binding, own)
    return Run(*map(np.array, learn(plan, binding, trace, task, rate, seed)))


def _predictions(point: Point, wanted: Converge, rate: float) -> list[Prediction]:
    """None where the optimizer has nothing to predict from."""
    from backends.torch.evaluate import prediction_errors

    plan, binding = compose(point.scenario, point.document)
    if plan.training.optimizer == "sgd":
        return []
    assert plan.architecture is not None
    how = replace(plan.training, learning_rate=rate, task=wanted.task)
    batch = round(binding.samples)
    by_seed = [
        prediction_errors(plan.architecture, how, batch, PREDICTED_UPDATES, seed) for seed in range(wanted.seeds)
    ]
    found = []
    for each in zip(*by_seed, strict=True):
        predicted, stale = np.array([error.predicted for error in each]), np.array([error.stale for error in each])
        ratio = convergence.band(predicted / stale)
        found.append(Prediction(each[0].ahead, _root_mean_square(predicted), _root_mean_square(stale), ratio))
    return found


def _root_mean_square(values: Column) -> float:
    return float(np.sqrt(np.square(values).mean()))


def rows(found: Compared) -> list[tuple[str, ...]]:
    """The methods, for people."""
    return [
        (
            method.name,
            f"{method.learning_rate:g}",
            _band(method.loss),
            _band(method.accuracy),
            "–" if np.isinf(method.seconds_to_target) else duration(method.seconds_to_target),
            _recovered(found, method),
        )
        for method in found.methods
    ]


def _recovered(found: Compared, method: Method) -> str:
    if method.recovered is not None:
        band = method.recovered
        return f"{percent(band.mean)} [{percent(band.low)}, {percent(band.high)}]"
    if found.gap is None or method.name in (found.synchronous, found.vanilla):
        return "–"
    return "no gap shown" if np.isfinite(found.gap.mean) and not found.has_gap else "diverged"


def gap_text(found: Compared) -> str:
    """One line on the gap that shares are of."""
    if found.gap is None:
        return ""
    shown = "" if found.has_gap else ": its band reaches 0, so there is no share of it"
    return f"gap of final loss, {found.vanilla} − {found.synchronous}: {_band(found.gap)}{shown}\n"


def prediction_rows(found: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """How far predicted and stale weights are from those to come."""
    return [
        (str(each.ahead), significant(each.predicted), significant(each.stale), _band(each.ratio)) for each in found
    ]


def _band(band: Band) -> str:
    if not np.isfinite(band.mean):
        return "diverged"
    bounds = f" [{significant(band.low)}, {significant(band.high)}]" if np.isfinite(band.low) else ""
    return f"{significant(band.mean)}{bounds}"


def as_json(found: Converged) -> dict[str, Any]:
    """For ``--json`` and ``converge.json``; what is infinite is ``None``."""
    gap = found.compared.gap
    return {
        "methods": [
            {
                "name": method.name,
                "learning_rate": method.learning_rate,
                "final_loss": _finite(method.loss),
                "test_accuracy": _finite(method.accuracy),
                "seconds_to_target": None if np.isinf(method.seconds_to_target) else method.seconds_to_target,
                "gap_recovered": None if method.recovered is None else _finite(method.recovered),
            }
            for method in found.compared.methods
        ],
        "gap": None if gap is None else _finite(gap),
        "prediction": [{**each._asdict(), "ratio": _finite(each.ratio)} for each in found.prediction],
    }


def _finite(band: Band) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in band._asdict().items()}


def write(folder: Path, document: Document, found: Converged, table: str) -> None:
    """The scenario, figures, tables, every loss and test of the chosen runs, and the plots.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with writing(folder):
        write_scenario(folder, document)
        (folder / "converge.json").write_text(to_json(as_json(found)), encoding="utf-8")
        (folder / "table.txt").write_text(table, encoding="utf-8")
        columns = {
            f"{method.name} {seed} {what}": getattr(run, what)
            for method in found.compared.methods
            for seed, run in enumerate(method.runs)
            for what in Run._fields
        }
        np.savez_compressed(folder / "losses.npz", **columns)
        convergence_plot.plot(found.compared.methods, folder / "converge.png", document.name)
        unfinished.forget(folder)
