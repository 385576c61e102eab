"""The page on convergence: its tables from figures made up, its places, and what it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docs import tables_convergence
from docs.tables_convergence import TABLES, Experiment
from scenarios.load import shipped

PAGE = tables_convergence.PAGE.read_text("utf-8")


def band(mean: float | None, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"mean": mean, "low": low, "high": high}


def experiment(gap: dict[str, float | None], **shares: dict[str, float | None] | None) -> Experiment:
    scenario = {
        "converge": {"task": "digits", "synchronous": "sync", "vanilla": "stale"},
        "model": {"name": "snn-digits"},
    }
    methods: list[dict[str, Any]] = [
        {
            "name": name,
            "learning_rate": 0.01,
            "final_loss": band(0.5, 0.4, 0.6),
            "test_accuracy": band(0.9, 0.85, 0.95),
            "seconds_to_target": None,
            "gap_recovered": share,
        }
        for name, share in {"sync": None, "stale": None, **shares}.items()
    ]
    prediction = [{"ahead": 1, "predicted": 1e-4, "stale": 2e-4, "ratio": band(0.5, 0.4, 0.6)}]
    return Experiment(scenario, {"methods": methods, "gap": gap, "prediction": prediction})


def test_shares_stand_beside_the_gap() -> None:
    shown = experiment(band(0.2, 0.1, 0.3), ours=band(0.8, 0.7, 0.9), theirs=None)
    assert tables_convergence.shares([shown]).splitlines()[-1] == (
        "| digits × snn-digits | 0.200 [0.100, 0.300] | 80 % [70 %, 90 %] | diverged |"
    )


def test_without_a_gap_there_is_no_share() -> None:
    assert "no gap" in tables_convergence.shares([experiment(band(0.2, -0.1, 0.5), ours=None)])
    assert "no gap" not in tables_convergence.shares([experiment(band(None), ours=None)])


def test_every_table_has_its_place_and_is_filled() -> None:
    for name in TABLES:
        assert re.search(rf"<!-- converge-{name} -->\n\n\|.+\|\n\n<!-- /converge-{name} -->", PAGE, re.DOTALL)


def test_what_the_page_shows_exists() -> None:
    charts = re.findall(r"!\[[^]]+\]\(([\w-]+)\.png\)", PAGE)
    assert sorted(charts) == sorted(name for name in shipped("library") if name.startswith("converge-"))
    assert all(Path(tables_convergence.PAGE).with_name(f"{chart}.png").is_file() for chart in charts)
