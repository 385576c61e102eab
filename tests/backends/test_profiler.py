"""The profiler: what can be known of it without trusting a clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import measured, profile_command
from scenarios.architecture import shipped_architecture
from scenarios.profiles import shipped_table
from sim.errors import ScenarioError
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

OPTIONS = {
    "batch": 4,
    "optimizer": "momentum",
    "device": "cpu",
    "repeats": 2,
    "link": False,
    "analytic": False,
    "input": None,
}


def test_sizes_of_a_chain_worked_out_by_hand() -> None:
    from backends.torch.profiler import sizes

    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    found = sizes(layers, torch.zeros(5, 8))
    relu = 5 * 16 * 4  # kept by the ReLU first, then by the layer behind it; inputs and weights do not count
    assert found == [(5 * 16 * 4, 0, (8 * 16 + 16) * 4), (relu, relu, 0), (5 * 4 * 4, 0, (16 * 4 + 4) * 4)]


def test_layers_add_up_to_the_whole_and_a_view_costs_next_to_nothing() -> None:
    from backends.torch.profiler import _Bench, _Step

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    bench = _Bench(layers, torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), Training(), "cpu")
    step = _Step(
        [(1.0, 0.0, 2.0), (1.0, 2.0, 0.0), (2.0, 2.0, 2.0)],
        forward_s=2.0,
        backward_s=16.0,
        update_s=0.5,
        overlapped_s=12.0,
    )
    found = bench.profile([step, step])
    assert [layer.forward.median_s for layer in found.layers] == [0.5, 0.5, 1.0]
    assert [tuple(seconds.median_s for seconds in layer) for layer in found.split] == step.layers
    assert [layer.backward_input.median_s for layer in found.layers] == [0.0, 4.0, 4.0]
    assert [layer.backward_weight.median_s for layer in found.layers] == [4.0, 0.0, 4.0]
    assert found.update.median_s == 0.5
    assert found.overlap_gain == 18.0 / 12.0
    for overlapped_s, gain in ((20.0, 1.0), (8.0, 2.0)):  # no less than one after the other, no more than twice
        assert bench.profile([step._replace(overlapped_s=overlapped_s)]).overlap_gain == gain


def test_the_line_of_a_link_is_recovered() -> None:
    from backends.torch.ping_pong import SIZES, fit

    link = fit({size: 2e-5 + size / 3e9 for size in SIZES})
    assert link.latency_s == pytest.approx(2e-5, rel=1e-9)
    assert link.bytes_per_s == pytest.approx(3e9, rel=1e-9)


def test_a_profile_is_a_file_that_a_scenario_reads(tmp_path: Path) -> None:
    found = profile_command.profile("mlp", OPTIONS)
    profile_command.write(tmp_path / "mlp.yaml", found)
    file = measured.read(tmp_path / "mlp.yaml")
    assert (file.model, file.batch, file.optimizer) == ("mlp", 4, "momentum")
    assert [layer.name for layer in file.layers] == [work.name for work in shipped_table("mlp").layers]
    assert len(file.layers) == len(shipped_architecture("mlp").entries)
    assert all(layer.forward > 0 for layer in file.layers)
    assert file.overlap_gain is not None
    assert 1 <= file.overlap_gain <= 2
    assert measured.other_machine(file, file.machine) is None
    assert "cpu" in str(measured.other_machine(file, {**file.machine, "cpu": "another"}))


def test_what_does_not_fit_is_refused_all_at_once() -> None:
    options = {**OPTIONS, "batch": 0, "optimizer": "adan", "device": "tpu", "input": "8"}
    with pytest.raises(ScenarioError) as caught:
        profile_command.profile("vgg166", options)
    message = str(caught.value)
    for part in ("no model 'vgg166'", "vgg16", "--batch", "--optimizer", "adam", "--device", "--input"):
        assert part in message


def test_analytic_figures_are_those_of_the_layer_table() -> None:
    found = profile_command.profile("vgg16", {**OPTIONS, "analytic": True})
    flops = sum(layer["flops"] for layer in found["layers"])
    assert flops == 4 * sum(work.forward_flops for work in shipped_table("vgg16").layers)
    assert sum(layer["parameter_bytes"] for layer in found["layers"]) == 4 * 138_357_544


def test_a_module_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    found = profile_command.profile("mine:net", {**OPTIONS, "input": "6"})
    profile_command.write(tmp_path / "mine.yaml", found)
    file = measured.read_model(tmp_path / "mine.yaml")
    assert [layer.parameters for layer in file.layers] == [84, 0, 32]
    assert (file.name, file.batch, file.input) == ("mine:net", 4, 4 * 6 * 4)
    with pytest.raises(ScenarioError, match="mine:nett"):
        profile_command.profile("mine:nett", {**OPTIONS, "input": "6"})
