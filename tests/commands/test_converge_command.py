"""``twinrail converge`` as a user meets it: pipelines and servers in one table, and a run that was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scenarios import converge_command
from scenarios.command_line import app
from scenarios.load import load_document, shipped
from scenarios.run_folder import read_points

pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install twinrail[tasks]")

SMALL = """\
name: small
model: {name: snn-digits, batch_size: 16}
cluster: {devices: 2, device: p40, link: {kind: in_order, latency: 10 us, bandwidth: 10 GB/s}}
schedule: {name: pipedream, stages: 2, mini_batches: 24}
converge:
  task: digits
  learning_rates: [0.003, 0.01]
  seeds: 2
  target_loss: 2.4
  synchronous: synchronous
  vanilla: vanilla
sweep:
  points:
    - {name: synchronous, schedule: {name: one_f_one_b, stages: 2, micro_batches: 2, mini_batches: 24}}
    - {name: vanilla, schedule: {name: pipedream, stages: 2, mini_batches: 24, weights: latest}}
    - name: servers
      cluster: {workers: 2, servers: 1, device: p40, host: host, nic: 10 GB/s, link: {kind: fair_share}}
      schedule: {name: parameter_server, mini_batches: 12, consistency: asp}
"""


def converge(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["converge", "-", *arguments], input=SMALL)


def test_pipelines_and_servers_stand_in_one_table(tmp_path: Path) -> None:
    result = converge("--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [method["name"] for method in found["methods"]] == ["synchronous", "vanilla", "servers"]
    assert all(0 < method["seconds_to_target"] < 1 for method in found["methods"])
    assert found["gap"].keys() == {"mean", "low", "high"}
    assert [each["ahead"] for each in found["prediction"]] == [1, 2, 3]
    assert json.loads((tmp_path / "converge.json").read_text()) == found
    names = {"scenario.yaml", "converge.json", "table.txt", "losses.npz", "converge.png"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_a_run_that_was_stopped_goes_on_and_ends_as_if_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped, trained = tmp_path / "whole", tmp_path / "stopped", list[float]()
    train = converge_command._train

    def failing(*case: object) -> object:
        if len(trained) == 5:
            raise KeyboardInterrupt
        trained.append(1)
        return train(*case)  # type: ignore[arg-type]

    assert converge("--out", str(whole)).exit_code == 0
    monkeypatch.setattr(converge_command, "_train", failing)
    assert converge("--out", str(stopped)).exit_code != 0
    assert len(list((stopped / "unfinished").iterdir())) == 5
    monkeypatch.setattr(converge_command, "_train", lambda *case: trained.append(0) or train(*case))
    assert converge("--out", str(stopped)).exit_code == 0
    assert trained.count(0) == 12 - 5
    for file in whole.iterdir():
        assert (stopped / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("converge.vanilla=vanila", "no point is named 'vanila'"),
        ("converge.task=digit", "no task 'digit'"),
        ("training.optimizer=adam", "a server applies sgd or momentum only"),
        ("converge=null", "no section 'converge'"),
    ],
)
def test_refuses(change: str, says: str) -> None:
    result = converge("--json", "--set", change)
    assert result.exit_code in (1, 2)
    assert says in result.stderr


@pytest.mark.parametrize("name", [name for name in shipped("library") if name.startswith("converge-")])
def test_shipped_experiments_are_fair(name: str) -> None:
    """Every method sees the same samples, in as many updates of the same batch."""
    points = read_points(load_document(shipped("library")[name]))
    wanted = converge_command.check(points)
    assert wanted.seeds >= 5
    seen = set()
    for point in points:
        batch, schedule = int(point.scenario.model.batch_size), point.scenario.schedule
        workers = 4 if schedule.name == "parameter_server" else 1
        together = workers if schedule.consistency == ("bsp", 0) else 1
        assert schedule.mini_batches is not None
        seen.add((batch * together, schedule.mini_batches * workers // together))
    assert len(seen) == 1
