"""The tables and charts of ``convergence.md``, from folders that ``twinrail converge`` wrote.

``twinrail converge scenarios/library/converge-digits.yaml --out FOLDER`` and so on, then ``python -m
docs.tables_convergence FOLDER …``. No test repeats the trainings, which take about twenty minutes of one core.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.text import duration, percent, significant
from docs.tables import fill, markdown
from scenarios.load import load_document

PAGE = Path(__file__).parent / "convergence.md"

Figures = dict[str, Any]


class Experiment(NamedTuple):
    """What one folder says."""

    scenario: Figures
    found: Figures

    @property
    def name(self) -> str:
        """Its task and its model."""
        return f"{self.scenario['converge']['task']} × {self.scenario['model']['name']}"


def read(folder: Path) -> Experiment:
    """A folder of ``twinrail converge``."""
    found = json.loads((folder / "converge.json").read_text("utf-8"))
    return Experiment(load_document(str(folder / "scenario.yaml")).data, found)


def shares(experiments: Sequence[Experiment]) -> str:
    """Tasks down, methods across: the gap, and the share of it that each method closes."""
    rows, names = [], list[str]()
    for each in experiments:
        ends = each.scenario["converge"]["synchronous"], each.scenario["converge"]["vanilla"]
        others = [method for method in each.found["methods"] if method["name"] not in ends]
        names = [method["name"] for method in others]
        rows.append([each.name, _band(each.found["gap"]), *(_share(each.found["gap"], other) for other in others)])
    return markdown(["task × model", "gap", *names], rows)


def _share(gap: Figures, method: Figures) -> str:
    share = method["gap_recovered"]
    if share is not None:
        return f"{percent(share['mean'])} [{percent(share['low'])}, {percent(share['high'])}]"
    return "no gap" if gap["mean"] is not None and (gap["low"] or 0) <= 0 else "diverged"


def scores(experiments: Sequence[Experiment]) -> str:
    """Every method at its best rate."""
    rows = [
        [
            each.name,
            method["name"],
            f"{method['learning_rate']:g}",
            _band(method["final_loss"]),
            _band(method["test_accuracy"]),
            "not reached" if method["seconds_to_target"] is None else duration(method["seconds_to_target"]),
        ]
        for each in experiments
        for method in each.found["methods"]
    ]
    return markdown(["task × model", "method", "rate", "final loss", "test accuracy", "time to target"], rows)


def prediction(experiments: Sequence[Experiment]) -> str:
    """RMSE of predicted and of stale weights, and their ratio."""
    rows = []
    for each in experiments:
        for ahead in each.found["prediction"]:
            distances = (f"{ahead[kind]:.3g}" for kind in ("predicted", "stale"))
            rows.append([each.name, str(ahead["ahead"]), *distances, _band(ahead["ratio"])])
    return markdown(["task × model", "s", "RMSE predicted", "RMSE stale", "ratio"], rows)


def _band(band: Figures) -> str:
    if band["mean"] is None:
        return "diverged"
    bounds = f" [{significant(band['low'])}, {significant(band['high'])}]" if band["low"] is not None else ""
    return f"{significant(band['mean'])}{bounds}"


TABLES = {"shares": shares, "scores": scores, "prediction": prediction}


def main(folders: Sequence[str]) -> None:
    """Fill the page, and put the charts beside it."""
    experiments = [read(Path(folder)) for folder in folders]
    texts = {f"converge-{name}": table(experiments) for name, table in TABLES.items()}
    PAGE.write_text(fill(PAGE.read_text("utf-8"), texts), "utf-8")
    for folder, experiment in zip(folders, experiments, strict=True):
        shutil.copyfile(Path(folder) / "converge.png", PAGE.with_name(f"{experiment.scenario['name']}.png"))


if __name__ == "__main__":
    main(sys.argv[1:])
