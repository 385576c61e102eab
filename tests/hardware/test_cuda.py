"""What needs a GPU. Skipped, and said so, where there is none."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.planners import chimera, data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream, zb_h1
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

SEED, MOMENTUM = 7, Training("momentum", learning_rate=0.05, momentum=0.8)
PLANS: dict[str, tuple[Any, ...]] = {
    "gpipe": (gpipe.plan(2, 4, 3), "latest", "in_order", MOMENTUM),
    "one_f_one_b": (one_f_one_b.plan(4, 4, 2), "latest", "in_order", MOMENTUM),
    "zb_h1": (zb_h1.plan(3, 4, 2), "latest", "in_order", MOMENTUM),
    "chimera": (chimera.plan(2, 4, 2), "latest", "in_order", MOMENTUM),
    "ring": (data_parallel.plan(2, 3, buckets=3), "latest", "in_order", MOMENTUM),
    "stash": (pipedream.plan(3, 1, 8), "stash", "in_order", MOMENTUM),
    "spectrain": (pipedream.plan(3, 1, 12), "predict", "in_order", MOMENTUM, "spectrain"),
    "dualpipe_2018, two streams": (dualpipe_2018.plan(2, 1, 12), "predict", "in_order", MOMENTUM, "spectrain"),
    "recomputation": (one_f_one_b.plan(2, 4, 2), "latest", "in_order", MOMENTUM, None, True),
}


@pytest.mark.parametrize("name", PLANS)
def test_gradients(name: str, mlp_plan: Any) -> None:
    from backends.torch import run
    from tests.backends.reference import train

    plan, binding = mlp_plan(*PLANS[name])
    shape, batch = plan.work.shape, int(binding.samples)
    expected = train(plan, batch // (shape.micro_batches * shape.replicas), batch, SEED)
    outcome = run(plan, binding, SEED, arithmetic="float64", accelerator="cuda", keep_gradients=True)
    assert "accelerator" in outcome.trace.header["hardware"]
    for (stage, _, update), found in outcome.done.gradients.items():
        for mine, theirs in zip(found, expected.gradients[stage, update], strict=True):
            largest = max(float(np.abs(array).max()) for array in expected.gradients[stage, update])
            assert float(np.abs(mine - theirs).max()) <= 1e-12 * largest
    for lane, ops in zip(plan.work.lanes, plan.work.order, strict=True):
        starts = outcome.trace.start_s[ops]
        assert (np.diff(starts) >= 0).all(), f"{lane} ran in another order than the schedule's"


def test_streams(mlp_plan: Any) -> None:
    from backends.torch import run

    plan, binding = mlp_plan(*PLANS["dualpipe_2018, two streams"])
    trace = run(plan, binding, SEED, accelerator="cuda").trace
    lanes = [lane.stream for lane in trace.lanes if lane.computes and lane.device == 0]
    assert lanes == ["backward", "forward"]


@pytest.mark.parametrize("model", ["alexnet", "vgg16"])
def test_memory(model: str, tmp_path: Path) -> None:
    from backends.torch.data import initial
    from scenarios import checkpoint_command, memory_command
    from scenarios.architecture import shipped_architecture

    torch.cuda.memory.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=10**6)
    layers = initial(shipped_architecture(model), 0, torch.float32).cuda()
    torch.nn.functional.cross_entropy(
        layers(torch.randn(16, 3, 224, 224, device="cuda")), torch.zeros(16, dtype=torch.int64, device="cuda")
    ).backward()
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps(torch.cuda.memory._snapshot()))
    torch.cuda.memory._record_memory_history(enabled=None)
    del layers
    assert memory_command.agrees(memory_command.replay_file(snapshot, {}, (), None, compare=False))

    options = {"model": model, "objective": "non_reentrant", "batch": 16, "platform": "cuda", "measure": True}
    names = ("sizes", "budget", "shape", "ends", "granularity", "optimizer", "device", "offload", "out")
    found = checkpoint_command.solve({**dict.fromkeys(names), **options, "nested": False})
    assert found["measured_bytes"] == pytest.approx(found["peak_bytes"], rel=0.01)


def test_validate(tmp_path: Path) -> None:
    from scenarios import measured, profile_command

    options = {"batch": 32, "optimizer": "momentum", "repeats": 5, "link": False, "analytic": False, "input": None}
    found = profile_command.profile("vgg16-cifar", {**options, "device": "cuda"})
    profile_command.write(tmp_path / "profile.yaml", found)
    assert "gpu" in measured.read(tmp_path / "profile.yaml").machine
