"""The real rail against plain training, and its end when a worker fails.

Synchronous schedules are compared with PyTorch's autograd and optimizer on the whole model and whole mini-batches;
asynchronous ones with a backward pass written out in numpy that keeps every version of the weights. Gradients and
weights agree to 1e-12 of their largest entry.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.base import load
from backends.torch import Outcome, run
from sim.binding import Binding
from sim.errors import BackendFailure, OutOfMemory, UnsupportedPlan
from sim.longest_path import times
from sim.op_table import Halves
from sim.ops import OpKind
from sim.plan import Plan
from sim.planners import (
    chimera,
    data_parallel,
    dualpipe_2018,
    dualpipe_2025,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    model_parallel,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    single,
    split_2018,
    zb_h1,
    zb_v,
)
from sim.schedule import Schedule
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

ROOT = Path(__file__).parents[2]
SEED = 7
LIMIT_S = 10.0

MlpPlan = Callable[..., tuple[Plan, Binding]]
Arrays = list[NDArray[np.float64]]
SGD, MOMENTUM = Training("sgd", learning_rate=0.1), Training("momentum", learning_rate=0.05, momentum=0.8)
ADAM, ADAMW = Training("adam", learning_rate=0.01), Training("adamw", learning_rate=0.01)


class Run(NamedTuple):
    """A plan and what came of it."""

    plan: Plan
    schedule: Schedule
    samples: int
    batch: int
    outcome: Outcome


def execute(rail: str, mlp_plan: MlpPlan, *how: Any) -> Run:
    plan, binding = mlp_plan(*how)
    schedule, batch = plan.work, int(binding.samples)
    assert isinstance(schedule, Schedule)
    samples = batch // (schedule.shape.micro_batches * schedule.shape.replicas)
    lanes = sum(lane.computes for lane in schedule.lanes) > len({lane.device for lane in schedule.lanes})
    if rail == "replay":
        from backends.torch.replay import replay

        trace = load("simulated").execute(plan, binding)
        outcome = Outcome(trace, replay(plan, binding, trace, SEED, arithmetic="float64", keep_gradients=True))
    else:
        outcome = run(plan, binding, SEED, arithmetic="float64", keep_gradients=True, oversubscribe=lanes)
    return Run(plan, schedule, samples, batch, outcome)


SYNCHRONOUS = {
    "gpipe": (gpipe.plan(2, 4, 3), "latest", "latency", MOMENTUM),
    "one_f_one_b": (one_f_one_b.plan(3, 4, 3), "latest", "in_order", SGD),
    "single": (single.plan(2), "latest", "in_order", MOMENTUM),
    "model_parallel": (model_parallel.plan(2, 2), "latest", "in_order", ADAM),
    "interleaved_1f1b": (interleaved_1f1b.plan(2, 4, 2), "latest", "in_order", MOMENTUM),
    "zb_h1": (zb_h1.plan(3, 4, 2), "latest", "in_order", MOMENTUM),
    "zb_v": (zb_v.plan(2, 4, 2), "latest", "in_order", SGD),
    "chimera": (chimera.plan(2, 4, 2), "latest", "in_order", MOMENTUM),
    "dualpipe_2025": (dualpipe_2025.plan(2, 4, 2), "latest", "in_order", ADAMW),
    "dualpipe_v": (dualpipe_v.plan(2, 4, 2), "latest", "in_order", MOMENTUM),
    "ring": (data_parallel.plan(2, 3), "latest", "in_order", MOMENTUM),
    "ring of 3, 3 buckets": (data_parallel.plan(3, 2, buckets=3), "latest", "in_order", SGD),
    "recomputation": (one_f_one_b.plan(2, 4, 2), "latest", "in_order", MOMENTUM, None, True),
    "recomputation, split backward": (zb_h1.plan(2, 4, 2), "latest", "in_order", MOMENTUM, None, True),
}
ASYNCHRONOUS = {
    "stash": (pipedream.plan(3, 1, 8), "stash", "in_order", MOMENTUM),
    "latest": (pipedream.plan(3, 1, 8), "latest", "latency", MOMENTUM),
    "stash, 2 micro-batches": (pipedream.plan(2, 2, 5), "stash", "latency", SGD),
    "stash, replicated": (pipedream.plan(2, 1, 8, (2, 1)), "stash", "in_order", MOMENTUM),
    "vertical_sync": (pipedream.plan(3, 1, 8), "vertical_sync", "in_order", MOMENTUM),
    "double_buffer": (pipedream_2bw.plan(2, 2, 6), "double_buffer", "in_order", ADAM),
    "spectrain": (pipedream.plan(3, 1, 12), "predict", "in_order", MOMENTUM, "spectrain"),
    "stash, recomputation": (pipedream.plan(3, 1, 8), "stash", "in_order", MOMENTUM, None, True),
    "pipeoptim": (pipedream.plan(3, 1, 12), "predict", "in_order", ADAM, "pipeoptim"),
    "xpipe": (pipedream.plan(3, 2, 8), "predict", "in_order", ADAM, "xpipe"),
    "pipemare": (pipedream.plan(3, 1, 12), "predict", "in_order", MOMENTUM, "pipemare"),
    "dualpipe_2018": (dualpipe_2018.plan(2, 1, 12), "predict", "in_order", MOMENTUM, "spectrain"),
}


QUICK = ("ring of 3, 3 buckets", "spectrain")
"""What the quick suite plays on real processes; all are replayed in one."""


MORE = ("spectrain", "pipeoptim")


def rails(names: Iterable[str]) -> list[Any]:
    """Every plan on either rail."""
    real = [pytest.param(("real", name), marks=[pytest.mark.slow] * (name not in QUICK)) for name in names]
    return [*(pytest.param(("replay", name)) for name in names), *real]


def rail_and_plan(param: tuple[str, str]) -> str:
    return "-".join(param)


@pytest.fixture(scope="module", params=rails(SYNCHRONOUS), ids=rail_and_plan)
def synchronous(request: pytest.FixtureRequest, mlp_plan: MlpPlan) -> Run:
    rail, name = request.param
    return execute(rail, mlp_plan, *SYNCHRONOUS[name])


@pytest.fixture(scope="module", params=rails(ASYNCHRONOUS), ids=rail_and_plan)
def asynchronous(request: pytest.FixtureRequest, mlp_plan: MlpPlan) -> Run:
    rail, name = request.param
    return execute(rail, mlp_plan, *ASYNCHRONOUS[name])


def assert_close(found: Iterable[Any], expected: Iterable[Any], floor: float = 0.0) -> None:
    found, expected = list(found), [np.asarray(array) for array in expected]
    largest = max(float(np.abs(array).max()) for array in expected)
    assert largest > 0
    largest = max(largest, floor)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.float64
        assert mine.shape == theirs.shape
        assert float(np.abs(mine - theirs).max()) <= 1e-12 * largest


# --- synchronous schedules: plain autograd


def test_synchronous_gradients_and_weights_are_those_of_serial_training(synchronous: Run) -> None:
    from backends.torch.data import initial, inputs, targets
    from backends.torch.weights import OPTIMIZERS

    plan, schedule, samples, _, outcome = synchronous
    shape, architecture = schedule.shape, plan.architecture
    assert architecture is not None
    model = initial(architecture, SEED, torch.float64)
    optimizer = OPTIMIZERS[plan.training.optimizer](model.parameters(), plan.training)
    stages = range(shape.stages)
    per_step = shape.micro_batches * shape.replicas
    for mini_batch in range(shape.mini_batches):
        batch = range(mini_batch * per_step, (mini_batch + 1) * per_step)
        x = torch.cat([inputs(architecture, SEED, j, samples, torch.float64) for j in batch])
        y = torch.cat([targets(architecture, SEED, j, samples) for j in batch])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for replica in range(shape.replicas):
            found = [array for stage in stages for array in _kept(outcome, stage, replica, mini_batch)]
            assert_close(found, [weight.grad for weight in model.parameters()])
        losses = outcome.done.losses
        mine = [losses[j // shape.replicas, j % shape.replicas] for j in batch]
        assert sum(mine) == pytest.approx(loss.item(), rel=1e-12)
        optimizer.step()
    for replica in range(shape.replicas):
        final = [array for stage in stages for array in _weights(outcome, stage, replica)]
        assert_close(final, [weight.detach() for weight in model.parameters()])


def _kept(outcome: Outcome, stage: int, replica: int, update: int) -> Any:
    """The gradients that were applied; where a stage has several copies, those of the first."""
    gradients = outcome.done.gradients
    return gradients.get((stage, replica, update)) or gradients[stage, 1, update]


def _weights(outcome: Outcome, stage: int, replica: int) -> Any:
    return outcome.done.weights.get((stage, replica)) or outcome.done.weights[stage, 1]


def test_synchronous_schedules_keep_one_copy_of_the_weights(synchronous: Run) -> None:
    assert set(synchronous.outcome.done.copies.values()) == {1}


# --- all schedules: numpy, all versions kept


def test_gradients_and_weights_are_those_of_the_version_rules(asynchronous: Run) -> None:
    from tests.backends.reference import train

    plan, _, samples, batch, outcome = asynchronous
    expected = train(plan, samples, batch, SEED)
    # Adam divides by a gradient's size plus 1e-8: what is rounding in a tiny one it makes 1e-10 of a learning rate.
    floor = 1.0 if plan.training.optimizer.startswith("adam") else 0.0
    for (stage, _, update), found in outcome.done.gradients.items():
        assert_close(found, expected.gradients[stage, update], floor)
    for (stage, _), weights in outcome.done.weights.items():
        assert_close(weights, expected.weights[stage], floor)


def test_asynchronous_versions_and_copies_follow_the_closed_form(asynchronous: Run) -> None:
    schedule, copies = asynchronous.schedule, asynchronous.outcome.done.copies
    stages, micro_batches, mini_batches, *_ = schedule.shape
    if schedule.weights not in ("stash", "latest") or micro_batches > 1 or schedule.shape.copies:
        pytest.skip("the closed form is that of weight stashing")
    stash = schedule.weights == "stash"
    for stage in range(stages):
        assert copies[stage, 0] == (stages - stage if stash else 1)
        for j in range(mini_batches):
            before = max(0, j - (stages - 1 - stage))
            assert versions_read(schedule, OpKind.FORWARD, stage, j) == before
            assert versions_read(schedule, OpKind.BACKWARD, stage, j) == (before if stash else j)


def versions_read(schedule: Schedule, kind: OpKind, stage: int, micro_batch: int) -> int:
    return int(schedule.ops["reads"][int(Halves(schedule.ops).find(kind, stage, micro_batch, 0))])


# --- times


def test_the_longest_path_of_the_measured_ops_bounds_the_run(asynchronous: Run) -> None:
    trace = asynchronous.outcome.trace
    _, end = times(asynchronous.schedule, (trace.end_s - trace.start_s).tolist())
    assert 0 < max(end) <= trace.makespan_s * (1 + 1e-12)  # a sum of differences may round up


def test_the_header_names_the_hardware(mlp_plan: MlpPlan) -> None:
    header = run(*mlp_plan(single.plan(1)), SEED).trace.header
    assert (header["backend"], header["seed"]) == ("torch", SEED)
    hardware = header["hardware"]
    assert hardware["cpu"]
    assert (hardware["torch"], hardware["transport"]) == (torch.__version__, "gloo")
    assert {link["kind"] for link in header["links"]} <= {"gloo"}


@pytest.mark.parametrize("name", ["stash", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_the_real_run_and_its_replay_agree_to_the_last_bit(name: str, mlp_plan: MlpPlan) -> None:
    from backends.torch.replay import replay

    plan, binding = mlp_plan(*ASYNCHRONOUS[name])
    real = run(plan, binding, SEED)
    again = replay(plan, binding, real.trace, SEED)
    assert real.done.weights.keys() == again.weights.keys()
    for place, weights in real.done.weights.items():
        for mine, theirs in zip(weights, again.weights[place], strict=True):
            assert mine.dtype == np.float32
            assert np.array_equal(mine, theirs)
    assert real.done.losses == again.losses


# --- the end of a run that fails


@pytest.fixture(scope="module")
def long(mlp_plan: MlpPlan) -> tuple[Plan, Binding]:
    """A run of more than ten thousand ops: far from its end when it is disturbed."""
    return mlp_plan(gpipe.plan(2, 8, 400))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def disturb(plan: Plan, binding: Binding, number: signal.Signals, device: str, **how: Any) -> BackendFailure:
    """Send a signal to a worker in the middle of a run; the failure, raised in time and with no process left."""
    seen: dict[str, int] = {}
    sent_s: list[float] = []

    def strike() -> None:
        sent_s.append(time.monotonic())
        os.kill(seen[device], number)

    def on_start(pids: Mapping[str, int]) -> None:
        seen.update(pids)
        threading.Timer(0.5, strike).start()

    with pytest.raises(BackendFailure) as caught:
        run(plan, binding, on_start=on_start, **how)
    assert time.monotonic() - sent_s[0] < LIMIT_S
    assert caught.value.exit_code == 1
    assert not [pid for pid in seen.values() if is_alive(pid)]
    assert not active_children()
    return caught.value


def test_a_killed_worker_ends_the_run(long: tuple[Plan, Binding]) -> None:
    failure = disturb(*long, signal.SIGKILL, "gpu1")
    assert re.fullmatch(r"gpu1 was killed \(SIGKILL\) (in|before) 1[FBU]\d+.*", str(failure))


def test_a_hanging_worker_ends_the_run(long: tuple[Plan, Binding]) -> None:
    failure = disturb(*long, signal.SIGSTOP, "gpu0", patience_s=2.0)
    op = r"(in|before) {}[FBU]\d+(, waiting for [^;]*)?"
    assert re.fullmatch(f"nothing moved for 2 s: gpu0 {op.format(0)}; gpu1 {op.format(1)}", str(failure))


def test_a_worker_that_raises_ends_the_run_with_its_traceback(mlp_plan: MlpPlan) -> None:
    plan, binding = mlp_plan(pipedream.plan(2, 1, 6), "stash")
    assert isinstance(plan.work, Schedule)
    ops = plan.work.ops.copy()
    ops["reads"][int(Halves(ops).find(OpKind.FORWARD, 0, 3, 0))] += 1
    seen: dict[str, int] = {}
    with pytest.raises(BackendFailure, match=r"\Agpu0 raised in 0F3:\nTraceback") as caught:
        run(replace(plan, work=replace(plan.work, ops=ops)), binding, on_start=seen.update)
    assert "BrokenInvariant: weights of version 2 are at hand, the schedule says 3" in str(caught.value)
    assert not [pid for pid in seen.values() if is_alive(pid)]


def test_a_worker_killed_while_it_is_set_up_ends_the_run(long: tuple[Plan, Binding]) -> None:
    def strike() -> None:
        while not (found := [child for child in active_children() if child.name == "twinrail gpu1"]):
            time.sleep(0.01)
        found[0].kill()

    killer = threading.Thread(target=strike)
    killer.start()
    with pytest.raises(BackendFailure, match=r"\Agpu1 was killed \(SIGKILL\) while it was set up\Z"):
        run(*long)
    killer.join()
    assert not active_children()


SCRIPT = """
import pickle, sys
from backends.torch import run

if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        plan, binding = pickle.load(file)
    run(plan, binding, on_start=lambda pids: print(*pids.values(), flush=True))
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "killed parent"])
def test_no_worker_outlives_its_parent(number: signal.Signals, long: tuple[Plan, Binding], tmp_path: Path) -> None:
    script, pickled = tmp_path / "script.py", tmp_path / "plan.pickle"
    script.write_text(SCRIPT)
    pickled.write_bytes(pickle.dumps(long))
    with subprocess.Popen(
        [sys.executable, script, pickled],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        send = os.killpg if number is signal.SIGINT else os.kill  # as a terminal does, to the whole group
        send(parent.pid, number)
        _, errors = parent.communicate(timeout=LIMIT_S)
    assert parent.returncode == -number
    assert errors.count("Traceback") == (number is signal.SIGINT)  # the parent's own KeyboardInterrupt
    deadline_s = time.monotonic() + LIMIT_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


# --- what it refuses


def altered(mlp_plan: MlpPlan, **changes: Any) -> tuple[Plan, Binding]:
    plan, binding = mlp_plan(gpipe.plan(2, 4))
    return replace(plan, **changes), binding


REFUSED: dict[str, tuple[Callable[[MlpPlan], tuple[Plan, Binding]], str]] = {
    "program": (
        lambda mlp_plan: altered(mlp_plan, work=data_parallel.plan(2, sync="parameter_server")),
        "depends on time: use backend simulated",
    ),
    "concurrent lanes": (
        lambda mlp_plan: mlp_plan(dualpipe_2018.plan(2, 1, 8)),
        "'gpu0' has 2 compute lanes, a process on the CPU has one: use --allow-oversubscribe",
    ),
    "what a forward saved": (lambda mlp_plan: mlp_plan(split_2018.plan(4, 1, 8)), "0SS0 has no kernel here"),
    "bf16": (lambda mlp_plan: altered(mlp_plan, training=Training(dtype="bf16")), "use fp32"),
    "no layers": (lambda mlp_plan: altered(mlp_plan, architecture=None), "of model 'mlp' only times are known"),
    "no transfers": (
        lambda mlp_plan: altered(mlp_plan, work=gpipe.plan(2, 4)),
        "0B0 waits for 1B0 on another device, and no transfer",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(make: Callable[[MlpPlan], tuple[Plan, Binding]], message: str, mlp_plan: MlpPlan) -> None:
    plan, binding = make(mlp_plan)
    with pytest.raises(UnsupportedPlan, match=message):
        load("torch").execute(plan, binding)


def test_refuses_fractions_of_samples(mlp_plan: MlpPlan) -> None:
    plan, binding = mlp_plan(gpipe.plan(2, 4))
    with pytest.raises(UnsupportedPlan, match="10 samples in 4 micro-batches are no whole samples each"):
        run(plan, replace(binding, samples=10.0))


def test_refuses_for_every_reason_at_once(mlp_plan: MlpPlan) -> None:
    plan, binding = altered(mlp_plan, architecture=None, training=Training("adam", "bf16"))
    with pytest.raises(UnsupportedPlan) as caught:
        run(plan, binding)
    assert len(str(caught.value).splitlines()) == 2


def test_without_pytorch_it_says_what_to_install(mlp_plan: MlpPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedPlan, match=r"pip install twinrail\[torch\]"):
        run(*mlp_plan(gpipe.plan(2, 4)))


def test_a_plan_that_does_not_fit_is_out_of_memory(mlp_plan: MlpPlan) -> None:
    plan, binding = mlp_plan(gpipe.plan(2, 4))
    with pytest.raises(OutOfMemory, match="gpu0 is out of memory"):
        run(plan, replace(binding, capacity_bytes=(1000, None)))


# --- the parts


def test_importing_the_backend_does_not_import_torch() -> None:
    code = "import sys, backends.torch, backends.base; backends.base.load('torch'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
