"""The profiler: what can be known of it without trusting a clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import measured, profile_command
from scenarios.architecture import shipped_architecture
from scenarios.profiles import shipped_table
from sim.errors import ScenarioError
from sim.ops import OpKind
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
    from backends.torch.job import ONE_STEP
    from backends.torch.profiler import _Bench, _Step

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    bench = _Bench(layers, torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), Training(), "cpu", (0, 2, ONE_STEP))
    step = _Step(
        [(1.0, 0.0, 2.0), (1.0, 2.0, 0.0), (2.0, 2.0, 2.0)],
        {OpKind.FORWARD: 2.0, OpKind.BACKWARD: 16.0, OpKind.UPDATE: 0.5},
        overlapped_s=12.0,
    )
    found = bench.profile([step, step])
    assert [layer.forward.median_s for layer in found.layers] == [0.5, 0.5, 1.0]
    assert [layer.backward_input.median_s for layer in found.layers] == [0.0, 4.0, 4.0]
    assert [layer.backward_weight.median_s for layer in found.layers] == [4.0, 0.0, 4.0]
    assert found.update.median_s == 0.5
    assert found.overlap_gain == 18.0 / 12.0
    for overlapped_s, gain in ((20.0, 1.0), (8.0, 2.0)):  # no less than one after the other, no more than twice
        assert bench.profile([step._replace(overlapped_s=overlapped_s)]).overlap_gain == gain
    halves = {OpKind.BACKWARD_INPUT: 8.0, OpKind.BACKWARD_WEIGHT: 2.0}  # of a stage whose backward is split
    split = bench.profile([step._replace(whole_s={OpKind.FORWARD: 4.0, OpKind.UPDATE: 0.5, **halves})])
    assert [layer.forward.median_s for layer in split.layers] == [1.0, 1.0, 2.0]
    assert [layer.backward_input.median_s for layer in split.layers] == [0.0, 4.0, 4.0]
    assert [layer.backward_weight.median_s for layer in split.layers] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("part", [(0, 1), (2, 3), (4, 4)])
def test_a_part_runs_its_ops_in_their_order(part: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what arrives and what comes back, and as the whole model would: gradients reach the weights."""
    from backends.torch.job import Order
    from backends.torch.profiler import profile
    from backends.torch.stage import Stage

    kinds = (OpKind.FORWARD, OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
    order: Order = (*((kind, number, 0) for kind, number in zip(kinds, (0, 1, 0, 0), strict=True)),)
    order += ((OpKind.BACKWARD_INPUT, 1, 0), (OpKind.BACKWARD_WEIGHT, 1, 0), (OpKind.UPDATE, 0, 0))
    applied: list[list[float]] = []
    update = Stage.update

    def noted(self: Stage, number: int) -> list[torch.Tensor]:
        gradients = update(self, number)
        applied.append([float(gradient.abs().sum()) for gradient in gradients])
        return gradients

    monkeypatch.setattr(Stage, "update", noted)
    widths = (torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    model = torch.nn.Sequential(*widths)
    found = profile(model, torch.randn(8, 4), torch.arange(8) % 3, Training(), 2, 1, part=(*part, order))
    assert len(found.layers) == part[1] - part[0] + 1
    assert len(applied) == 3
    assert all(size > 0 for gradients in applied for size in gradients)
    assert all(len(gradients) == 2 for gradients in applied)


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
