"""The tables of ``validation.md``, from folders that ``twinrail validate`` wrote.

``twinrail validate scenarios/library/cpu-validation.yaml --out FOLDER`` and the same of ``ps-limited-bandwidth.yaml``,
then ``python -m docs.tables_validation FOLDER …``: once, on a machine that has little else to do. A table of which no
folder is given stays as it is. No test repeats it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from analysis.compare import STEP_ERROR
from analysis.text import duration, percent, significant
from docs.tables import fill, markdown
from scenarios.load import load_document
from scenarios.server_validation import verdict

PAGE = Path(__file__).parent / "validation.md"
NAME = "servers"
PIPELINES = "pipelines"


def _cells(folders: Sequence[Path]) -> list[dict[str, Any]]:
    return [cell for folder in folders for cell in json.loads((folder / "validation.json").read_text("utf-8"))]


def pipelines(folders: Sequence[Path]) -> str:
    """A row for each point that is a schedule; the medians of the errors behind them."""
    rows, times, peaks = list[list[str]](), list[float](), list[float]()
    for cell in _cells(folders):
        metrics = {row["metric"]: row for row in cell["metrics"]}
        step = metrics["step time"]
        memory = [row for name, row in metrics.items() if name.startswith("peak memory")]
        worst = max(memory, key=lambda row: abs(row["error"]))
        times.append(abs(step["error"]))
        peaks += [abs(row["error"]) for row in memory]
        measured = f"{duration(step['measured'])} ({duration(step['low'])} – {duration(step['high'])})"
        sizes = ", ".join(f"{row['measured'] / 1e6:.1f}" for row in memory)
        predicted = duration(step["predicted"])
        rows.append([cell["name"], predicted, measured, _signed(step), sizes, _signed(worst)])
    heads = ["point", "predicted", "measured (least – most)", "error", "peaks counted (MB)", "worst error"]
    within = sum(error <= STEP_ERROR for error in times)
    found = (
        f"Step time: median error {100 * median(times):.1f} %, {within} of {len(times)} within {percent(STEP_ERROR)}. "
        f"Peak memory: median error {100 * median(peaks):.2f} %, worst {100 * max(peaks):.1f} %."
    )
    return f"{markdown(heads, rows)}\n\n{found}"


def _signed(row: dict[str, Any]) -> str:
    return f"{100 * row['error']:+.1f} %"


def servers(folders: Sequence[Path]) -> str:
    """A row for each group of points, a column for each number of workers."""
    cells = [cell for folder in folders for cell in _of_model(folder)]
    workers = sorted({cell["workers"] for cell in cells})
    groups = list(dict.fromkeys(cell["group"] for cell in cells))
    rows = []
    for group in groups:
        mine = {cell["workers"]: cell for cell in cells if cell["group"] == group}
        demands = next(iter(mine.values()))["demands"]
        busiest = duration(max(demands["downlink_s"] + demands["uplink_s"]))
        found = [_figures(mine[count]) if count in mine else "" for count in workers]
        rows.append([group, duration(demands["think_s"]), busiest, *found])
    return markdown(["model, batch, points", "Z", "D", *map(str, workers)], rows) + f"\n\n{verdict(cells)}."


def _of_model(folder: Path) -> list[dict[str, Any]]:
    """The cells of a folder, their groups named by the model too where all are of one: folders have one each."""
    scenario = load_document(str(folder / "scenario.yaml")).data
    swept = scenario["sweep"].get("grid", {})
    own = [str(scenario["model"][key]) for key in ("name", "batch_size") if f"model.{key}" not in swept]
    return [{**cell, "group": ", ".join([*own, cell["group"]])} for cell in _cells([folder])]


def _figures(cell: dict[str, Any]) -> str:
    errors = ", ".join(f"{100 * error:+.0f}" for error in cell["errors"].values())
    text = f"{significant(cell['measured_steps_per_s'])} ({errors})"
    return text if cell["valid"] else f"*{text}*"


def main() -> None:
    """Fill the page."""
    folders = [*map(Path, sys.argv[1:])]
    real = [folder for folder in folders if "metrics" in _cells([folder])[0]]
    texts = {PIPELINES: pipelines(real)} if real else {}
    if others := [folder for folder in folders if folder not in real]:
        texts[NAME] = servers(others)
    PAGE.write_text(fill(PAGE.read_text("utf-8"), texts), "utf-8")


if __name__ == "__main__":
    main()
