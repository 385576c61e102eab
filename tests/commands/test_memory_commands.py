"""Allocators from the command line: run, the run folder's snapshots, and PyTorch's message at exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from scenarios.command_line import app

SCENARIO = """\
name: allocators
model: {name: alexnet, batch_size: 256}
cluster: {devices: 2, device: k80, link: {kind: in_order, bandwidth: 1 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4}
memory: {allocator: caching}
"""


def twinrail(*arguments: str, given: str = SCENARIO) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


def test_a_run_its_snapshot_and_the_replay_of_it(tmp_path: Path) -> None:
    run = twinrail("run", "-", "--out", str(tmp_path), "--json")
    assert run.exit_code == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    assert found["allocator"] == {"name": "caching", "settings": ""}
    (trace,), (recorded,) = (list((tmp_path / "traces").glob(f"*.{end}")) for end in ("npz", "pickle"))
    written = tmp_path / "again.pickle"
    assert twinrail("memory", "snapshot", str(trace), "--out", str(written)).exit_code == 0
    assert written.read_bytes() == recorded.read_bytes()
    for number, device in enumerate(found["devices"]):
        replay = twinrail("memory", "replay", str(written), "--device", str(number), "--json")
        assert replay.exit_code == 0, replay.stdout
        replayed = json.loads(replay.stdout)
        assert replayed["peak_allocated_bytes"] == device["peak_memory_bytes"]
        assert replayed["peak_reserved_bytes"] == device["peak_reserved_bytes"] > device["peak_memory_bytes"]


def test_out_of_memory_in_pytorchs_words() -> None:
    result = twinrail("run", "-", "--set", "memory.capacity=700 MB", "--json")
    assert result.exit_code == 1
    assert "is out of memory" in result.stderr
    assert "CUDA out of memory. Tried to allocate" in result.stderr


def test_what_cannot_be_written_or_is_no_such_run(tmp_path: Path) -> None:
    twinrail("run", "-", "--set", "memory.allocator=counting", "--out", str(tmp_path))
    (trace,) = (tmp_path / "traces").glob("*.npz")
    refused = twinrail("memory", "snapshot", str(trace), "--out", str(tmp_path / "no.pickle"))
    assert (refused.exit_code, "memory.allocator: caching" in refused.stderr) == (2, True)
    missing = twinrail("memory", "snapshot", str(tmp_path / "none.npz"))
    assert (missing.exit_code, "no such file" in missing.stderr) == (2, True)
