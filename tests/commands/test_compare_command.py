"""``twinrail compare``: two run folders of which it is known how they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scenarios.command_line import app

TEXT = """\
name: two points
model: {{batch_size: 8, uniform: {{forward: {0} ms, backward: {1} ms, activation: 1 MB, parameters: 4 MB}}}}
cluster: {{devices: 2, link: {{kind: latency, latency: 0 s}}}}
schedule: {{name: gpipe, stages: 2, micro_batches: 4, mini_batches: 3}}
sweep:
  points:
    - {{name: fill, schedule: {{name: gpipe, stages: 2, micro_batches: 4, mini_batches: 3}}}}
    - {{name: {2}, schedule: {{name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 3}}}}
"""


def twinrail(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """A run, one in which everything takes a quarter longer, and one of other points."""
    made = []
    for name, figures in (("a", (10, 20, "flush")), ("b", (12.5, 25, "flush")), ("c", (10, 20, "flash"))):
        text = TEXT.format(*figures)
        assert twinrail("sweep", "-", "--out", str(tmp_path / name), given=text).exit_code == 0
        made.append(str(tmp_path / name))
    return made


def test_a_run_against_one_a_quarter_slower(folders: list[str]) -> None:
    result = twinrail("compare", *folders[:2], "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [point["name"] for point in found] == ["fill", "flush"]
    for point in found:
        assert point["backends"] == ["simulated", "simulated"]
        errors = {row["metric"]: row["error"] for row in point["metrics"] if row["error"] is not None}
        assert errors["step time"] == pytest.approx(-0.2)
        assert errors["mean B"] == pytest.approx(-0.2)
        assert errors["bubble of total"] == pytest.approx(0.0)
        assert errors["peak memory gpu0"] == 0


def test_the_folder_holds_what_was_printed(folders: list[str], tmp_path: Path) -> None:
    result = twinrail("compare", *folders[:2], "--out", str(tmp_path / "both"))
    assert result.exit_code == 0, result.stderr
    names = sorted(file.name for file in (tmp_path / "both").iterdir())
    assert names == ["01-fill.png", "02-flush.png", "comparison.json", "table.txt"]
    assert (tmp_path / "both" / "table.txt").read_text("utf-8") == result.stdout
    assert "-20.0 %" in result.stdout


def test_other_points_are_refused_and_named(folders: list[str], tmp_path: Path) -> None:
    result = twinrail("compare", folders[0], folders[2])
    assert result.exit_code == 2
    for part in (f"{folders[2]}: has no point 'flush'", f"{folders[0]}: has no point 'flash'"):
        assert part in result.stderr.replace("\n", "")
    result = twinrail("compare", folders[0], str(tmp_path))
    assert result.exit_code == 2
    assert "no run folder" in result.stderr


def test_a_trace_that_is_gone(folders: list[str]) -> None:
    for file in (Path(folders[1]) / "traces").glob("02-*.npz"):
        file.unlink()
    result = twinrail("compare", *folders[:2])
    assert result.exit_code != 0
    assert "the trace of 'flush' is not there" in result.stderr.replace("\n", " ")
