"""Processes that torchrun starts: the same run as with processes of our own, and an end to all when one dies."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.points import parse_points
from sim.planners import PLANNERS

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

ROOT = Path(__file__).parents[2]
SEED = 5
TEXT = """
name: small
model: {name: mlp, batch_size: 16}
cluster: {devices: 2, device: host-socket, link: {kind: in_order, latency: 50 us, bandwidth: 2 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 3}
"""

RUN = """
import pickle, sys
from pathlib import Path
from backends.torch import run

plan, binding = pickle.loads(Path("plan.pickle").read_bytes())
outcome = run(plan, binding, {seed})
Path("outcome.pickle").write_bytes(pickle.dumps(outcome))
"""

DIES = """
import os, signal
from backends.torch import kernels

compute = kernels.Kernels.compute
def die(self, op):
    if os.environ["RANK"] == "1":
        {end}
    return compute(self, op)
kernels.Kernels.compute = die
"""

OFFSETS = """
import os, pickle, time
from pathlib import Path
import torch.distributed as dist
from backends.torch.ranks import clock_offsets

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
found = clock_offsets(lambda: time.monotonic() + 100.0 * rank)
if rank == 0:
    Path("outcome.pickle").write_bytes(pickle.dumps(found))
"""


def composed() -> Any:
    (point,) = parse_points(parse_text(TEXT, "small.yaml"), PLANNERS)
    return compose(point.scenario, point.document)


def torchrun(script: str, folder: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script on several ranks in a folder that has the plan."""
    (folder / "plan.pickle").write_bytes(pickle.dumps(composed()))
    (folder / "script.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{script}")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "script.py"]
    return subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_run_under_torchrun_is_the_run_of_our_own_processes(tmp_path: Path) -> None:
    from backends.torch import run

    done = torchrun(RUN.format(seed=SEED), tmp_path)
    assert done.returncode == 0, done.stderr
    plan, binding = composed()
    theirs, ours = pickle.loads((tmp_path / "outcome.pickle").read_bytes()), run(plan, binding, SEED)
    assert theirs.done.losses == ours.done.losses
    for place, weights in ours.done.weights.items():
        assert all(np.array_equal(mine, other) for mine, other in zip(weights, theirs.done.weights[place], strict=True))
    assert (theirs.trace.ops == ours.trace.ops).all()
    assert (theirs.trace.start_s >= 0).all()
    assert (theirs.trace.end_s >= theirs.trace.start_s).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("raise ArithmeticError('on purpose')", "gpu1 raised in 1F0:\nTraceback"),
    ],
)
def test_one_that_dies_ends_all(end: str, says: str, tmp_path: Path) -> None:
    done = torchrun(DIES.format(end=end) + RUN.format(seed=SEED), tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert not (tmp_path / "outcome.pickle").exists()


@pytest.mark.slow
def test_a_process_too_many_is_refused(tmp_path: Path) -> None:
    done = torchrun(RUN.format(seed=SEED), tmp_path, processes=3)
    assert "torchrun has started 3 processes, the plan has 2 devices" in done.stderr
    assert done.returncode == 1


def test_clocks_that_are_apart_are_found_out(tmp_path: Path) -> None:
    """They are 100 s apart; an exchange takes much less than a second, and no estimate is further off than that."""
    done = torchrun(OFFSETS, tmp_path, processes=3)
    assert done.returncode == 0, done.stderr
    offsets = pickle.loads((tmp_path / "outcome.pickle").read_bytes())
    assert offsets == pytest.approx([0.0, 100.0, 200.0], abs=0.5)


@pytest.mark.parametrize(
    ("gpus", "ranks", "here", "chosen"),
    [(2, 2, None, "nccl"), (1, 2, None, "gloo"), (0, 1, None, "gloo"), (2, 4, "2", "nccl"), (2, 8, "4", "gloo")],
)
def test_nccl_where_each_rank_has_a_gpu_of_its_own(
    gpus: int, ranks: int, here: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backends.torch.fingerprint import transport_of

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert transport_of("cuda", ranks) == chosen
    assert transport_of("cpu", ranks) == "gloo"


def test_a_message_arrives_no_sooner_than_it_is_sent() -> None:
    """Though the clock of the receiver is estimated to be behind; the next one leaves when it has arrived."""
    from backends.torch.backend import _hold_channels

    schedule = composed().plan.work
    lane = next(row for where, row in zip(schedule.lanes, schedule.order, strict=True) if not where.computes)
    start_s, end_s = np.zeros(len(schedule)), np.zeros(len(schedule))
    start_s[lane[:3]], end_s[lane[:3]] = (1.0, 2.0, 3.0), (0.9, 2.5, 2.9)
    _hold_channels(schedule, start_s, end_s)
    assert end_s[lane[:3]].tolist() == [1.0, 2.5, 3.0]
    assert start_s[lane[:3]].tolist() == [1.0, 2.0, 3.0]
