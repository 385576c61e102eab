"""The table of parameter servers in ``validation.md``, from folders that ``twinrail validate`` wrote.

``twinrail validate scenarios/library/ps-limited-bandwidth.yaml --out FOLDER``, then ``python -m docs.tables_validation
FOLDER …``: once, on a machine that has little else to do. No test repeats it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.text import duration, significant
from docs.tables import fill, markdown
from scenarios.server_validation import verdict

PAGE = Path(__file__).parent / "validation.md"
NAME = "servers"


def servers(folders: Sequence[Path]) -> str:
    """A row for each group of points, a column for each number of workers."""
    cells = [cell for folder in folders for cell in json.loads((folder / "validation.json").read_text("utf-8"))]
    workers = sorted({cell["workers"] for cell in cells})
    groups = list(dict.fromkeys(cell["group"] for cell in cells))
    rows = []
    for group in groups:
        mine = {cell["workers"]: cell for cell in cells if cell["group"] == group}
        demands = next(iter(mine.values()))["demands"]
        busiest = duration(max(demands["downlink_s"] + demands["uplink_s"]))
        found = [_figures(mine[count]) if count in mine else "" for count in workers]
        rows.append([group, duration(demands["think_s"]), busiest, *found])
    return markdown(["points", "Z", "D", *map(str, workers)], rows) + f"\n\n{verdict(cells)}."


def _figures(cell: dict[str, Any]) -> str:
    errors = ", ".join(f"{100 * error:+.0f}" for error in cell["errors"].values())
    text = f"{significant(cell['measured_steps_per_s'])} ({errors})"
    return text if cell["valid"] else f"*{text}*"


def main() -> None:
    """Fill the page."""
    PAGE.write_text(fill(PAGE.read_text("utf-8"), {NAME: servers([*map(Path, sys.argv[1:])])}), "utf-8")


if __name__ == "__main__":
    main()
