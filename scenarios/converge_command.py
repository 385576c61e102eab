"""``twinrail converge``: what methods learn on a cluster that is simulated, with arithmetic that is real.

The scenario fixes the task, the grid of learning rates and the seeds before the first run, the same for every method
(the points of its sweep). Each method is simulated once a seed, and trained in that order once a rate and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis import convergence, convergence_plot
from analysis.convergence import Band, Method, Run
from analysis.text import percent, significant
from backends.base import load
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import dump
from scenarios.points import Point
from scenarios.run_folder import point_name, to_json, writing
from scenarios.schema import Converge
from sim.errors import Fault, ScenarioError
from sim.program import Program

if TYPE_CHECKING:
    from backends.torch.evaluate import PredictionError
    from backends.torch.learn import Learned

COLUMNS = ("method", "rate", "final loss", "test accuracy", "time to target", "gap recovered")
PREDICTION_COLUMNS = ("updates ahead", "RMSE predicted", "RMSE stale", "ratio")


class Converged(NamedTuple):
    """Every method, and how well SpecTrain's prediction does in plain training on the same task."""

    methods: list[Method]
    prediction: list[PredictionError]


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


def converge(points: Sequence[Point], wanted: Converge, jobs: int, advance: Callable[[], None]) -> Converged:
    """Train every case, ``jobs`` at a time.

    Raises
    ------
    UnsupportedPlan : a plan without kernels, or a task that does not fit a model.
    """
    from joblib import Parallel, delayed

    from backends.torch.evaluate import prediction_errors

    every = cases(points, wanted)
    found: dict[str, dict[float, list[Run]]] = {point_name(point): {} for point in points}
    work = (delayed(_learn)(points[case.point], wanted.task, case.rate, case.seed) for case in every)
    for case, learned in zip(every, Parallel(jobs, return_as="generator")(work), strict=True):
        by_rate = found[point_name(points[case.point])]
        by_rate.setdefault(case.rate, []).append(
            Run(np.array(learned.seconds), np.array(learned.losses), learned.test_loss, learned.test_accuracy)
        )
        advance()
    methods = convergence.compute(found, wanted.target_loss, wanted.synchronous, wanted.vanilla)
    composed, training = compose(points[0].scenario, points[0].document), points[0].scenario.training
    rate = next((m.learning_rate for m in methods if m.name == wanted.synchronous), methods[0].learning_rate)
    plan = composed.plan
    assert plan.architecture is not None
    how = plan.training.__class__(training.optimizer, training.dtype, rate, training.momentum, wanted.task)
    errors = [] if training.optimizer == "sgd" else prediction_errors(plan.architecture, how, _batch(composed), 200, 0)
    return Converged(methods, errors)


def _batch(composed: Composed) -> int:
    return round(composed.binding.samples)


def _learn(point: Point, task: str, rate: float, seed: int) -> Learned:
    from backends.torch.learn import learn

    plan, binding = compose(point.scenario, point.document)
    own = seed if isinstance(plan.work, Program) else 0  # a schedule's order does not depend on it
    trace = load("simulated").execute(plan, binding, own)
    return learn(plan, binding, trace, task, rate, seed)


def rows(found: Converged) -> list[tuple[str, ...]]:
    """The methods, for people."""
    return [
        (
            method.name,
            f"{method.learning_rate:g}",
            _band(method.loss),
            _band(method.accuracy),
            "–" if np.isinf(method.seconds_to_target) else f"{significant(method.seconds_to_target)} s",
            "–" if method.recovered is None else _share(method.recovered),
        )
        for method in found.methods
    ]


def prediction_rows(found: Converged) -> list[tuple[str, ...]]:
    """How far predicted and stale weights are from those to come."""
    return [
        (
            str(each.ahead),
            significant(each.predicted),
            significant(each.stale),
            significant(each.predicted / each.stale),
        )
        for each in found.prediction
    ]


def _band(band: Band) -> str:
    return f"{significant(band.mean)} [{significant(band.low)}, {significant(band.high)}]"


def _share(band: Band) -> str:
    if np.isinf(band.low):
        return f"{percent(band.mean)} [no bounds]"
    return f"{percent(band.mean)} [{percent(band.low)}, {percent(band.high)}]"


def as_json(found: Converged) -> dict[str, Any]:
    """For ``--json`` and ``converge.json``; what is infinite is ``None``."""
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
            for method in found.methods
        ],
        "prediction": [each._asdict() for each in found.prediction],
    }


def _finite(band: Band) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in band._asdict().items()}


def write(folder: Path, document: Document, found: Converged, tables: Mapping[str, str]) -> None:
    """The scenario, figures, tables, every loss of the chosen runs, and the plots.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with writing(folder):
        (folder / "scenario.yaml").write_text(dump(document.data), encoding="utf-8")
        (folder / "converge.json").write_text(to_json(as_json(found)), encoding="utf-8")
        (folder / "table.txt").write_text("\n".join(tables.values()), encoding="utf-8")
        columns = {
            f"{method.name} {seed} {what}": getattr(run, what)
            for method in found.methods
            for seed, run in enumerate(method.runs)
            for what in ("seconds", "losses")
        }
        np.savez_compressed(folder / "losses.npz", **columns)
        convergence_plot.plot(found.methods, folder / "converge.png", str(document.data.get("name", "")))
