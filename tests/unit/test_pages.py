"""The pages say what the code says: their tables are computed anew, their formulas and names are checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from analysis.factors import Factor
from docs import tables
from scenarios.document import Document
from scenarios.load import load_document, parse_text, shipped
from scenarios.points import parse_points
from scenarios.run_folder import run_point
from sim.planners import PLANNERS

DOCS = Path(__file__).parents[2] / "docs"
PIPELINES = (DOCS / "pipelines.md").read_text("utf-8")


def results(document: Document) -> dict[str, Any]:
    outcomes = [run_point(point, "page") for point in parse_points(document, PLANNERS)]
    return {outcome.name: outcome.result for outcome in outcomes}


@pytest.mark.parametrize("name", tables.QUICK)
def test_quick_tables_are_up_to_date(name: str) -> None:
    assert tables.fill(PIPELINES, {name: tables.QUICK[name]()}) == PIPELINES, "run python -m docs.tables"


@pytest.mark.slow
def test_tables_of_the_region_are_up_to_date() -> None:
    texts = {name: table() for name, table in tables.SLOW.items()}
    assert tables.fill(PIPELINES, texts) == PIPELINES, "run python -m docs.tables region"


def test_every_table_has_its_place() -> None:
    begins, ends = (re.findall(rf"^<!-- {slash}([\w-]+) -->$", PIPELINES, re.MULTILINE) for slash in ("", "/"))
    assert begins == ends
    assert sorted(begins) == sorted(tables.TABLES)
    assert all(re.search(rf"<!-- {name} -->\n\n\|?.+\n\n<!-- /{name} -->", PIPELINES, re.DOTALL) for name in begins)


def test_what_the_page_names_exists() -> None:
    for scenario in re.findall(r"scenarios/[\w/.-]+\.yaml", PIPELINES):
        assert (DOCS.parent / scenario).is_file()
    schedules = set(re.findall(r"`([a-z]+_[a-z0-9_]+|gpipe|chimera|pipedream)`", PIPELINES))
    known = {*PLANNERS, "of_total", "of_ideal", "longest_stage_span", "vertical_sync", "double_buffer"}
    assert schedules <= known


def test_the_factor_over_a_server_in_closed_form() -> None:
    """1 + (2Rw/b + RA + U)N/c, for the SNN, whose stages are even: P40s at 12 GB/s, a host of 153.6 GB/s at 75 %."""
    found = results(load_document(shipped("library")["comparison-2018-snn"]))
    speed = {name: result["samples_per_s"] for name, result in found.items()}
    parameters, host_bytes_per_s = 136_400_906, 153.6e9 * 0.75
    moved_s = 2 * 4 * 4 * parameters / 12e9
    served_s = (4 * 12 + 20) * parameters / host_bytes_per_s  # four sums and an update with momentum
    closed_form = 1 + (moved_s + served_s) * 4 * speed["single GPU"] / 128
    assert speed["SpecTrain alternating"] / speed["DP server"] == pytest.approx(closed_form, rel=0.05)


@pytest.mark.parametrize(("micro_batches", "loses"), [(2, 2.5), (3, 2.0)])
def test_what_a_flush_loses(micro_batches: int, loses: float) -> None:
    """(T + N - 1)/T of a synchronous over an asynchronous pipeline, four equal stages."""
    text = """\
name: flush
model: {uniform: {forward: 1 s, backward: 2 s, activation: 1 B, parameters: 1 B}, batch_size: 6}
cluster: {devices: 4, link: {kind: latency}}
schedule: {name: single}
sweep:
  points:
"""
    for name, size, batches in (("gpipe", micro_batches, 3), ("pipedream", micro_batches, 24)):
        keys = f"stages: 4, micro_batches: {size}, mini_batches: {batches}"
        text += f"    - {{name: {name}, schedule: {{name: {name}, {keys}}}}}\n"
    found = results(parse_text(text, "flush"))
    assert found["pipedream"]["samples_per_s"] / found["gpipe"]["samples_per_s"] == pytest.approx(loses, rel=1e-9)


FACTORS = [
    Factor("vgg16", "PS", "3 GB/s", 16, 4.0),
    Factor("vgg16", "PS", "3 GB/s", 32, 2.0),
    Factor("vgg16", "ring", "3 GB/s", 16, 4.0),
    Factor("snn", "PS", "3 GB/s", 16, 9.0),
    Factor("snn", "ring", "3 GB/s", 16, 9.0),
    Factor("lstm", "PS", "12 GB/s", 16, 1.0),
    Factor("rnn", "PS", "3 GB/s", 16, 1.0),
]


def test_where_a_figure_lies_as_text() -> None:
    text = tables.figure_of("3x", FACTORS, 3.0)
    assert text.splitlines() == [
        "**3x.**",
        "",
        "Everywhere above: vgg16 over ring; snn over all.",
        "",
        "Everywhere below: lstm, rnn over PS.",
        "",
        "| model | 3 GB/s | 12 GB/s | baseline |",
        "| --- | ---: | ---: | ---: |",
        "| vgg16 | 16–32 | – | PS |",
    ]


def test_a_page_out_of_date_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "tables.py"))
    monkeypatch.setitem(tables.TABLES, "distances", lambda: "| new |")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- distances -->\nold\n<!-- /distances -->\nbehind\n<!-- headlines -->\n")
    assert tables.main(["distances", "--check"]) == 1
    assert "old" in page.read_text()
    assert tables.main(["distances"]) == 0
    assert page.read_text() == (
        "before\n<!-- distances -->\n\n| new |\n\n<!-- /distances -->\nbehind\n<!-- headlines -->\n"
    )
    assert tables.main(["distances", "--check"]) == 0
