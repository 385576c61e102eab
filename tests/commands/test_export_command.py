"""``twinrail export``: a trace of a run folder for other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from analysis import chrome_trace, perfetto
from scenarios.command_line import app
from sim.planners import gpipe
from sim.trace import Trace


@pytest.fixture
def saved(tmp_path: Path, simulate: Callable[..., Trace]) -> Path:
    simulate(gpipe.plan(2, 3)).save(tmp_path / "run.npz")
    return tmp_path / "run.npz"


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_each_format_holds_what_its_module_makes(saved: Path, tmp_path: Path) -> None:
    trace = Trace.load(saved)
    assert export(saved, "--out", tmp_path / "run.pftrace").exit_code == 0
    assert (tmp_path / "run.pftrace").read_bytes() == perfetto.export(trace)
    assert export(saved, "--to", "chrome", "--out", tmp_path / "run.json").exit_code == 0
    assert json.loads((tmp_path / "run.json").read_text()) == chrome_trace.export(trace)
    told = export(saved, "--to", "hta", "--out", tmp_path / "ranks", "--json")
    assert json.loads(told.stdout)["files"] == [str(tmp_path / "ranks" / f"rank{rank}.json") for rank in (0, 1)]
    assert json.loads((tmp_path / "ranks" / "rank1.json").read_text())["distributedInfo"]["rank"] == 1


def test_bad_input_is_told(saved: Path, tmp_path: Path) -> None:
    wrong = export(saved, "--to", "perfeto", "--out", tmp_path / "x")
    assert (wrong.exit_code, "did you mean 'perfetto'" in wrong.stderr or "perfetto" in wrong.stderr) == (2, True)
    assert export(tmp_path / "none.npz", "--out", tmp_path / "x").exit_code == 2
    (tmp_path / "file").write_text("")
    assert "cannot write there" in export(saved, "--out", tmp_path / "file" / "x").stderr
