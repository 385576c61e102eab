"""Sweeps in a process of their own: killed at any moment and resumed, and on other engines."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import rows

ROOT = Path(__file__).parents[2]
CODE = "from scenarios.command_line import main; main()"
KILLS = 20
SCENARIO = """\
name: drill
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 8 MB}, batch_size: 64}
cluster: {devices: 4, device: a100, link: {kind: %s, bandwidth: 10 GB/s, latency: 5 us}}
schedule: {name: gpipe, stages: 4, micro_batches: 8, mini_batches: %d}
sweep:
  latin_hypercube:
    samples: %d
    axes:
      cluster.link.bandwidth: {log_uniform: [1 GB/s, 100 GB/s]}
      schedule.name: [gpipe, one_f_one_b]
      schedule.micro_batches: {uniform: [1, 8]}
"""


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CODE, "sweep", str(folder / "scenario.yaml"), "--out", str(folder), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def finish(folder: Path, *more: str) -> None:
    running = start(folder, *more)
    _, errors = running.communicate(timeout=280)
    assert running.returncode == 0, errors.decode()


def scenario(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "scenario.yaml").write_text(text)
    return folder


@pytest.mark.slow
def test_kills_lose_no_finished_point(tmp_path: Path) -> None:
    text, moments = SCENARIO % ("fair_share", 4, 500), random.Random(7)
    whole, drilled = scenario(tmp_path / "whole", text), scenario(tmp_path / "drilled", text)
    finish(whole)
    known: dict[str, dict[str, Any]] = {}
    for number in range(KILLS):
        running = start(drilled, "--resume", *(["--jobs", "2"] if number % 2 else []))
        begun = time.monotonic()
        while running.poll() is None and not _grown(drilled, len(known)) and time.monotonic() - begun < 60:
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 0.3))
        running.send_signal(signal.SIGKILL)
        running.communicate()
        now = {row["key"]: row for row in rows(drilled)}
        assert known.items() <= now.items()
        known = now
    assert 0 < len(known) < 500, "the drill must meet sweeps at work"
    finish(drilled, "--resume")
    assert rows(drilled) == rows(whole)
    assert len({row["key"] for row in rows(drilled)}) == 500


def _grown(folder: Path, rows: int) -> bool:
    """Whether the sweep has written a row beyond those there were."""
    try:
        database = sqlite3.connect(f"file:{folder / 'results.sqlite'}?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM points").fetchone()[0]) > rows
        finally:
            database.close()
    except sqlite3.Error:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_other_engines_give_identical_rows(tmp_path: Path, engine: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: it comes with the extra 'engines'")
    text = SCENARIO % ("in_order", 1, 60)
    here, there = scenario(tmp_path / "here", text), scenario(tmp_path / "there", text)
    finish(here)
    finish(there, "--engine", engine, "--jobs", "2")
    assert rows(here) == rows(there)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_an_address_where_nobody_answers(tmp_path: Path, engine: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: it comes with the extra 'engines'")
    folder = scenario(tmp_path / "x", SCENARIO % ("in_order", 1, 4))
    running = start(folder, "--engine", engine, "--address", "127.0.0.1:9")
    _, errors = running.communicate(timeout=120)
    assert (running.returncode, "answers there" in errors.decode()) == (2, True), errors.decode()


@pytest.mark.slow
def test_a_dask_cluster_by_address(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="it comes with the extra 'engines'")
    text = SCENARIO % ("in_order", 1, 40)
    here, there = scenario(tmp_path / "here", text), scenario(tmp_path / "there", text)
    finish(here)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        finish(there, "--engine", "dask", "--address", cluster.scheduler_address)
    assert rows(here) == rows(there)
