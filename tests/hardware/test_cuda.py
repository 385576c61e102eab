"""What needs a GPU. Skipped, and said so, where there is none."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scenarios import measured
from scenarios.checkpoint_subject import of_model
from scenarios.command_line import app
from sim.checkpointing import pytorch, solvers
from sim.checkpointing.plan import of_checkpoints
from sim.checkpointing.program import front
from sim.memory.caching import Caching
from sim.planners import chimera, data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream, zb_h1
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

ROOT = Path(__file__).parents[2]
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
    lanes = zip(trace.lanes, trace.order, strict=True)
    ops = {lane.stream: order for lane, order in lanes if lane.computes and lane.device == 0}
    assert sorted(ops) == ["backward", "forward"]
    spans = [(trace.start_s[row], trace.end_s[row]) for row in ops.values()]
    (start, end), (other_start, other_end) = spans
    together = np.minimum(end[:, None], other_end) > np.maximum(start[:, None], other_start)
    assert together.any(), "no forward ran while a backward did"


@pytest.mark.parametrize("model", ["alexnet", "vgg16"])
def test_memory(model: str, tmp_path: Path) -> None:
    from backends.torch.data import initial
    from scenarios import memory_command
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
    assert memory_command.agrees(memory_command.replay_file(snapshot, {}, (), None, compared=False))


PINNED = """
import json, sys
import torch
from backends.torch.peak import measure
from scenarios.checkpoint_subject import of_model

torch.backends.cudnn.enabled = False  # convolutions unfold a sample at a time, which shapes tell
subject = of_model(sys.argv[1], 16, platform="cuda")
found = measure(subject.vertices, subject.batch, tuple(json.loads(sys.argv[2])))
print(json.dumps([found.bytes, found.reserved_bytes]))
"""


@pytest.mark.parametrize("checkpoints", ["all", "sqrt_n", "optimal"])
@pytest.mark.parametrize("model", ["alexnet", "vgg16"])
def test_memory_predicted_from_the_model(model: str, checkpoints: str) -> None:
    """A process of its own, so that its allocator starts empty."""
    from backends.torch.peak import count
    from backends.torch.workspaces import columns

    subject = of_model(model, 16, platform="cuda")
    assert subject.seconds is not None
    assert subject.vertices is not None
    plan: Any = {
        "all": lambda: tuple(range(1, len(subject.names) + 1)),
        "sqrt_n": lambda: of_checkpoints(solvers.sqrt_segments(subject.sizes)),
        "optimal": lambda: front(pytorch.program("non_reentrant", subject.chain), subject.seconds)[0].plan,
    }[checkpoints]()
    allocator = Caching()
    assert count(subject.vertices, subject.batch, plan, workspace=columns).replay(allocator) is None
    command = [sys.executable, "-c", PINNED, model, json.dumps(plan)]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    run = subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    allocated, reserved = json.loads(run.stdout)
    assert allocator.stats()["allocated_bytes.all.peak"] == pytest.approx(allocated, rel=0.01)
    assert allocator.stats()["reserved_bytes.all.peak"] == pytest.approx(reserved, rel=0.03)


SCENARIO = """
name: two ranks
model: {name: vgg16-cifar, batch_size: 64}
cluster: {devices: 2, device: host-socket, link: {kind: in_order, latency: 50 us, bandwidth: 2 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 4}
"""


def test_validate(tmp_path: Path) -> None:
    """Profiles, messages and runs of ranks on CUDA; what they take is no cluster's where they share a GPU."""
    options = ["--device", "cuda", "--repeats", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, ["validate", "-", *options], input=SCENARIO)
    assert result.exit_code == 0, result.stderr
    (point,) = json.loads(result.stdout)
    memory = [row for row in point["metrics"] if row["metric"].startswith("peak memory")]
    assert len(memory) == 2
    for row in memory:
        assert row["predicted"] == pytest.approx(row["measured"], rel=0.01)
    whole, staged = tmp_path.glob("profile-*.yaml")
    assert all("gpu" in measured.read(profile).machine for profile in (whole, staged))
