"""``twinrail packets``: synthesize, read, capture, and what they say when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from analysis.packets import synthesis
from analysis.packets.synthesis import Transfer
from scenarios import packets_command
from scenarios.command_line import app

SCENARIO = """\
name: two servers
model:
  uniform: {forward: 60 ms, backward: 140 ms, activation: 0 B, parameters: 10 MB}
  batch_size: 8
cluster: {workers: 3, servers: 2, nic: {server: 100 MB/s, worker: 1 GB/s}, link: {latency: 50 us}}
parameter_servers: {sharding: even, apply: {bandwidth: 2 GB/s}}
schedule: {name: parameter_server, mini_batches: 60}
jitter: {compute: {lognormal: 0.3}}
"""
SERVERS = ["--server=10.2.0.1:2222", "--server=10.2.0.2:2222"]


def twinrail(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["packets", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("packets") / "scenario.yaml"
    file.write_text(SCENARIO)
    return file


@pytest.fixture(scope="module")
def capture(scenario: Path) -> Path:
    out = scenario.with_name("run.pcap")
    found = json.loads(twinrail("synthesize", str(scenario), f"--out={out}", "--segment=30000", "--json").stdout)
    assert (found["workers"], found["servers"]) == (3, ["10.2.0.1:2222", "10.2.0.2:2222"])
    assert found["read_with"] == f"twinrail packets read {out} {' '.join(SERVERS)}"
    return out


def read(capture: Path, *more: str) -> dict[str, Any]:
    return dict(json.loads(twinrail("read", str(capture), *SERVERS, "--json", *more).stdout))


def test_the_contract(capture: Path) -> None:
    found = read(capture, "--model-bytes=10000000")
    wanted = {"address", "steps", "download_s", "compute_s", "upload_s", "bytes_down", "bytes_up", "overlap_s"}
    assert {"workers", "servers", "retransmitted_bytes", "unreadable_records"} <= found.keys()
    assert [worker.keys() & wanted for worker in found["workers"]] == [wanted] * 3
    assert [worker["steps"] for worker in found["workers"]] == [60] * 3
    assert found["think_time_s"]["mean"] == pytest.approx(0.2, rel=0.08)
    assert (found["retransmitted_bytes"], found["unreadable_records"], found["notes"]) == (0, 0, [])


def test_same_input_same_bytes(scenario: Path, capture: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pcap"
    twinrail("synthesize", str(scenario), f"--out={again}", "--segment=30000")
    assert again.read_bytes() == capture.read_bytes()
    first, second = (twinrail("read", str(capture), *SERVERS, "--json").stdout for _ in range(2))
    assert first == second


def test_tables_for_people(capture: Path) -> None:
    text = twinrail("read", str(capture), *SERVERS).stdout
    assert "10.1.0.3" in text
    assert text.count("10.2.0.2:2222") == 1
    assert "downlink demand" in text
    assert text.count("50.0 ms ± 0.0 %") == 4  # 5 MB at 100 MB/s
    assert "a step moves 10.0 MB down and 10.0 MB up" in text
    assert "0 unreadable records" in text


def test_the_scenario_of_a_capture_runs_as_the_capture_did(capture: Path, tmp_path: Path) -> None:
    out, yaml = tmp_path / "out", tmp_path / "back.yaml"
    found = read(capture, f"--out={out}", f"--yaml={yaml}")
    assert json.loads((out / "result.json").read_text()) == found
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    run = CliRunner().invoke(app, ["run", str(yaml), "--json"], catch_exceptions=False)
    assert json.loads(run.stdout)["samples_per_s"] == pytest.approx(found["steps_per_s"], rel=0.05)


def test_a_damaged_file_is_read_as_far_as_it_goes(capture: Path, tmp_path: Path) -> None:
    data = bytearray(capture.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = b"\xff" * 40
    damaged = tmp_path / "damaged.pcap"
    damaged.write_bytes(data[:-9])
    result = twinrail("read", str(damaged), *SERVERS)
    assert result.exit_code == 0
    assert "2 unreadable records" in result.stdout
    assert "the file ends within the last one" in result.stdout
    damaged.write_bytes(b"no capture")
    result = twinrail("read", str(damaged), *SERVERS)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{damaged}: no capture" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["--server: which ends are servers?"]),
        (
            ["--server=x:y", "--model-bytes=0", "--compute=5", "--yaml=a.txt"],
            ["--server", "--model-bytes", "--compute", "--yaml"],
        ),
        (["--server=10.9.9.9:1"], ["nothing to or from a server", "most is sent by 10."]),
    ],
)
def test_every_fault_at_once(capture: Path, arguments: list[str], expected: list[str]) -> None:
    result = twinrail("read", str(capture), *arguments)
    assert result.exit_code == 2
    for text in expected:
        assert text in result.stderr


def test_nothing_to_draw(tmp_path: Path) -> None:
    one_way = [Transfer(0, 0, False, [step, step + 0.2], [0, 10**6]) for step in range(1, 5)]
    file = tmp_path / "one-way.pcap"
    synthesis.write(synthesis.synthesize(one_way), file)
    assert "no complete step" in twinrail("read", str(file), SERVERS[0]).stdout
    for option, expected in ((f"--out={tmp_path}", "nothing to draw"), (f"--yaml={tmp_path}/x.yaml", "no scenario")):
        result = twinrail("read", str(file), SERVERS[0], option)
        assert (result.exit_code, expected in result.stderr) == (2, True)


def test_files_that_are_not_there(tmp_path: Path, capture: Path) -> None:
    result = twinrail("read", str(capture.with_name("rum.pcap")), *SERVERS)
    assert result.exit_code == 2
    assert "did you mean 'run.pcap'?" in result.stderr
    assert "cannot be read" in twinrail("read", str(tmp_path), *SERVERS).stderr
    file = tmp_path / "file"
    file.touch()
    assert "cannot write there" in twinrail("read", str(capture), *SERVERS, f"--out={file}").stderr


def test_commands_to_capture(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(twinrail("capture", str(scenario), "--port=5000", "--json").stdout)
    assert list(found) == ["worker0", "worker1", "worker2", "server0", "server1"]
    assert found["server1"][:3] == ["tcpdump", "-i", "any"]
    assert found["server1"][-3:] == ["-w", "server1.pcap", "tcp port 5000"]
    assert found["server1"][found["server1"].index("-s") + 1] == "128"
    assert "--time-stamp-precision=nano" in found["server1"]
    text = twinrail("capture", str(scenario), "--node=server0", "--interface=eth0").stdout
    assert text.startswith("server0: tcpdump -i eth0 ")
    assert text.endswith("'tcp port 2222'\n")
    monkeypatch.setattr(packets_command.shutil, "which", lambda name: None)
    missing = twinrail("capture", str(scenario), "--node=server0", "--run")
    assert (missing.exit_code, "not installed" in missing.stderr) == (1, True)
    for arguments, expected in ((["--run"], "--node NAME"), (["--node=serve0"], "did you mean 'server0'?")):
        wrong = twinrail("capture", str(scenario), *arguments)
        assert (wrong.exit_code, expected in wrong.stderr) == (2, True)


def test_a_capture_that_runs(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "tcpdump"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.arguments"\nexit ${STATUS:-0}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert twinrail("capture", str(scenario), "--node=worker1", "--run").exit_code == 0
    assert (tmp_path / "tcpdump.arguments").read_text().splitlines()[-1] == "tcp port 2222"
    monkeypatch.setenv("STATUS", "1")
    failed = twinrail("capture", str(scenario), "--node=worker1", "--run")
    assert (failed.exit_code, "ended with status 1" in failed.stderr) == (1, True)


def test_what_cannot_be_synthesized(scenario: Path, tmp_path: Path) -> None:
    ring = tmp_path / "ring.yaml"
    ring.write_text(
        SCENARIO.replace("{name: parameter_server, mini_batches: 60}", "{name: data_parallel}")
        .replace("parameter_servers: {sharding: even, apply: {bandwidth: 2 GB/s}}\n", "")
        .replace("jitter: {compute: {lognormal: 0.3}}\n", "")
    )
    out = f"--out={tmp_path / 'x.pcap'}"
    result = twinrail("synthesize", str(ring), out)
    assert (result.exit_code, "nothing to capture" in result.stderr) == (2, True)
    sweep = "--set=sweep={grid: {cluster.workers: [1, 2]}}"
    assert "sweep of 2 points" in twinrail("synthesize", str(scenario), out, sweep).stderr
    wrong = twinrail("synthesize", str(scenario), f"--out={tmp_path / 'x.txt'}", "--segment=5")
    assert all(text in wrong.stderr for text in ("--out", ".pcap", "--segment"))
    assert not (tmp_path / "x.pcap").exists()
