"""Commands that set this machine beside the simulation, as far as no clock decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scenarios import measured
from scenarios.command_line import app
from scenarios.profiles import shipped_table

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

SCENARIO = """\
name: small
model: {name: mlp, batch_size: 16MEASURED}
cluster: {devices: 2, device: host-socket, link: {kind: in_order, latency: 50 us, bandwidth: 2 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 3}
"""
PLAIN = SCENARIO.replace("MEASURED", "")


def twinrail(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


def profile(path: Path, machine: dict[str, str]) -> Path:
    """A profile file of the small net, every pass of every layer 1 ms."""
    passes = dict.fromkeys(("forward", "backward_input", "backward_weight"), "1 ms")
    layers = [{"name": work.name, **passes} for work in shipped_table("mlp").layers]
    about = {"model": "mlp", "batch": 4, "dtype": "fp32", "optimizer": "sgd", "update": "1 ms", "machine": machine}
    measured.write(path, {**about, "layers": layers})
    return path


def test_a_profile_of_another_machine_is_warned_of(tmp_path: Path) -> None:
    from backends.torch.fingerprint import fingerprint

    for machine, warned in ((fingerprint(), False), ({**fingerprint(), "cores": "1000"}, True)):
        file = profile(tmp_path / "mlp.yaml", machine)
        scenario = SCENARIO.replace("MEASURED", f", measured: {file}")
        result = twinrail("run", "-", "--json", "--set", "training.optimizer=sgd", given=scenario)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["makespan_s"] > 0
        assert ("warning: the profile of mlp is from another machine: cores 1000" in result.stderr) == warned


def test_oversubscribing_needs_a_real_run() -> None:
    result = twinrail("run", "-", "--allow-oversubscribe", "--json", given=PLAIN)
    assert result.exit_code == 2
    assert "--allow-oversubscribe has no influence on backend simulated" in result.stderr


@pytest.mark.parametrize(
    ("command", "device", "says"),
    [
        (("run", "--json"), "cpu", "--device has no influence on backend simulated"),
        (("run", "--json", "--backend", "torch"), "tpu", "--device: expected cpu or cuda, got tpu"),
        (("validate",), "tpu", "--device: expected cpu or cuda, got tpu"),
    ],
)
def test_a_device_that_is_none_or_idle(command: tuple[str, ...], device: str, says: str) -> None:
    name, *options = command
    result = twinrail(name, "-", *options, "--device", device, given=PLAIN)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_here() -> None:
    result = twinrail("run", "-", "--json", "--backend", "torch", "--device", "cuda", given=PLAIN)
    assert result.exit_code == 2
    assert "--device: there is no CUDA device here" in result.stderr


@pytest.mark.slow
def test_lanes_that_share_a_core_run_where_that_is_allowed() -> None:
    """Forward and backward of the 2018 method have a lane each."""
    given = PLAIN.replace("one_f_one_b", "dualpipe_2018").replace(
        ", micro_batches: 4, mini_batches: 3", ", mini_batches: 6"
    )
    refused = twinrail("run", "-", "--backend", "torch", "--json", given=given)
    assert refused.exit_code != 0
    assert "--allow-oversubscribe" in refused.stderr
    result = twinrail("run", "-", "--backend", "torch", "--allow-oversubscribe", "--json", given=given)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["backend"] == "torch"


@pytest.mark.slow
def test_validate_leaves_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "validation"
    result = twinrail("validate", "-", "--repeats", "1", "--out", str(folder), given=PLAIN)
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads((folder / "validation.json").read_text("utf-8"))
    metrics = {row["metric"]: row for row in found["metrics"]}
    assert {
        "step time",
        "mean F",
        "busy gpu0",
        "bubble of total",
        "staleness forward",
        "peak memory gpu1",
    } <= metrics.keys()
    assert metrics["staleness forward"]["measured"] == 0
    assert found["verdict"].startswith("step time predicted")
    names = {file.name for file in folder.rglob("*") if file.is_file()}
    assert {
        "profile-1-mlp-4.yaml",
        "profile-2-mlp-4.yaml",
        "scenario.yaml",
        "01-one_f_one_b.png",
        "01-one_f_one_b.txt",
    } <= names
    assert {"01-one_f_one_b-predicted.npz", "01-one_f_one_b-measured-1.npz"} <= names
    assert measured.read(folder / "profile-2-mlp-4.yaml").link is not None
