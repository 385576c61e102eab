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
from ruamel.yaml import YAML

from backends.base import load
from backends.torch import Outcome, models, run
from scenarios.layer_table import layer_table
from sim.binding import Binding
from sim.errors import BackendFailure, OutOfMemory, UnsupportedPlan
from sim.longest_path import times
from sim.ops import OpKind
from sim.plan import Plan
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream, single
from sim.schedule import Halves, Schedule
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

ROOT = Path(__file__).parents[2]
SEED = 7
LIMIT_S = 10.0

MlpPlan = Callable[..., tuple[Plan, Binding]]
Arrays = list[NDArray[np.float64]]
SGD, MOMENTUM = Training("sgd", learning_rate=0.1), Training("momentum", learning_rate=0.05, momentum=0.8)


class Run(NamedTuple):
    """A plan and what came of it."""

    plan: Plan
    schedule: Schedule
    samples: int
    outcome: Outcome


def execute(mlp_plan: MlpPlan, *how: Any) -> Run:
    plan, binding = mlp_plan(*how)
    assert isinstance(plan.work, Schedule)
    samples = int(binding.samples) // plan.work.shape.micro_batches
    return Run(plan, plan.work, samples, run(plan, binding, SEED, keep_gradients=True))


SYNCHRONOUS = {
    "gpipe": (gpipe.plan(2, 4, 3), "latest", "latency", MOMENTUM),
    "one_f_one_b": (one_f_one_b.plan(3, 4, 3), "latest", "in_order", SGD),
    "single": (single.plan(2), "latest", "in_order", MOMENTUM),
}
ASYNCHRONOUS = {
    "stash": (pipedream.plan(3, 1, 8), "stash", "in_order", MOMENTUM),
    "latest": (pipedream.plan(3, 1, 8), "latest", "latency", MOMENTUM),
    "stash, 2 micro-batches": (pipedream.plan(2, 2, 5), "stash", "latency", SGD),
}


@pytest.fixture(scope="module", params=SYNCHRONOUS)
def synchronous(request: pytest.FixtureRequest, mlp_plan: MlpPlan) -> Run:
    return execute(mlp_plan, *SYNCHRONOUS[request.param])


@pytest.fixture(scope="module", params=ASYNCHRONOUS)
def asynchronous(request: pytest.FixtureRequest, mlp_plan: MlpPlan) -> Run:
    return execute(mlp_plan, *ASYNCHRONOUS[request.param])


def assert_close(found: Iterable[Any], expected: Iterable[Any]) -> None:
    found, expected = list(found), [np.asarray(array) for array in expected]
    largest = max(float(np.abs(array).max()) for array in expected)
    assert largest > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.float64
        assert mine.shape == theirs.shape
        assert float(np.abs(mine - theirs).max()) <= 1e-12 * largest


def all_stages(outcome: Outcome, mini_batch: int) -> Arrays:
    """The gradients of a mini-batch in layer order."""
    return [array for stage in sorted(outcome.weights) for array in outcome.gradients[stage, mini_batch]]


# --- synchronous schedules: plain autograd


def test_synchronous_gradients_and_weights_are_those_of_serial_training(synchronous: Run) -> None:
    from backends.torch.data import initial, inputs, targets

    plan, schedule, samples, outcome = synchronous
    model, shape = initial("mlp", SEED), schedule.shape
    momentum = plan.training.momentum if plan.training.optimizer == "momentum" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), plan.training.learning_rate, momentum)
    for mini_batch in range(shape.mini_batches):
        batch = range(mini_batch * shape.micro_batches, (mini_batch + 1) * shape.micro_batches)
        x = torch.cat([inputs(SEED, j, samples, (64,)) for j in batch])
        y = torch.cat([targets(SEED, j, samples, 10) for j in batch])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        assert_close(all_stages(outcome, mini_batch), [weight.grad for weight in model.parameters()])
        optimizer.step()
    final = [array for stage in range(shape.stages) for array in outcome.weights[stage]]
    assert_close(final, [weight.detach() for weight in model.parameters()])


def test_synchronous_schedules_keep_one_copy_of_the_weights(synchronous: Run) -> None:
    assert set(synchronous.outcome.copies.values()) == {1}


# --- asynchronous schedules: numpy, all versions kept


def split(arrays: Arrays, plan: Plan) -> list[Arrays]:
    """Weights of the whole net (a weight and a bias for every even layer) by stage."""
    return [
        [array for layer in range(first, last + 1) if layer % 2 == 0 for array in arrays[layer : layer + 2]]
        for first, last in plan.partition
    ]


def forward(stage: tuple[int, int], weights: Arrays, x: NDArray[np.float64]) -> Arrays:
    """The input of every layer of a stage, and its output."""
    passing, mine = [x], iter(weights)
    for layer in range(stage[0], stage[1] + 1):
        x = x @ next(mine).T + next(mine) if layer % 2 == 0 else np.maximum(x, 0)
        passing.append(x)
    return passing


def backward(
    stage: tuple[int, int], weights: Arrays, passing: Arrays, dy: NDArray[np.float64]
) -> tuple[Arrays, NDArray[np.float64]]:
    """Gradients of the weights and of the input, from what forward saw and the weights at hand now."""
    found: Arrays = []
    matrices = list(weights[::2])
    for layer in range(stage[1], stage[0] - 1, -1):
        x = passing[layer - stage[0]]
        if layer % 2:
            dy = dy * (x > 0)
        else:
            found[:0] = [dy.T @ x, dy.sum(0)]
            dy = dy @ matrices.pop()
    return found, dy


def loss_gradient(scores: NDArray[np.float64], classes: NDArray[np.int64], samples: int) -> NDArray[np.float64]:
    """Of the summed cross-entropy over ``samples``: softmax minus one-hot."""
    odds = np.exp(scores - scores.max(1, keepdims=True))
    result: NDArray[np.float64] = odds / odds.sum(1, keepdims=True)
    result[np.arange(len(classes)), classes] -= 1
    return result / samples


def versions_read(schedule: Schedule, kind: OpKind, stage: int, micro_batch: int) -> int:
    return int(schedule.ops["reads"][int(Halves(schedule.ops).find(kind, stage, micro_batch, 0))])


def pass_through(
    run: Run, versions: list[list[Arrays]], micro_batch: int, x: NDArray[np.float64], classes: NDArray[np.int64]
) -> list[Arrays]:
    """The gradients of one micro-batch by stage, each pass on the version of the weights that the schedule says."""
    plan, schedule, samples, _ = run
    saved: list[Arrays] = []
    for stage, layers in enumerate(plan.partition):
        version = versions_read(schedule, OpKind.FORWARD, stage, micro_batch)
        saved.append(forward(layers, versions[stage][version], x))
        x = saved[-1][-1]
    dy = loss_gradient(x, classes, samples * schedule.shape.micro_batches)
    gradients: list[Arrays] = []
    for stage in reversed(range(schedule.shape.stages)):
        version = versions_read(schedule, OpKind.BACKWARD, stage, micro_batch)
        found, dy = backward(plan.partition[stage], versions[stage][version], saved[stage], dy)
        gradients.insert(0, found)
    return gradients


def test_asynchronous_gradients_and_weights_are_those_of_the_version_rules(asynchronous: Run) -> None:
    from backends.torch.data import initial, inputs, targets

    plan, schedule, samples, outcome = asynchronous
    shape, training = schedule.shape, plan.training
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    whole = [weight.detach().numpy().copy() for weight in initial("mlp", SEED).parameters()]
    versions = [[weights] for weights in split(whole, plan)]
    velocity = [[np.zeros_like(array) for array in stage[0]] for stage in versions]
    for mini_batch in range(shape.mini_batches):
        total = [[np.zeros_like(array) for array in stage[0]] for stage in versions]
        for j in range(mini_batch * shape.micro_batches, (mini_batch + 1) * shape.micro_batches):
            x, y = inputs(SEED, j, samples, (64,)).numpy(), targets(SEED, j, samples, 10).numpy()
            for sums, found in zip(total, pass_through(asynchronous, versions, j, x, y), strict=True):
                for part, gradient in zip(sums, found, strict=True):
                    part += gradient
        assert_close(all_stages(outcome, mini_batch), [array for stage in total for array in stage])
        for stage, gradients in enumerate(total):
            velocity[stage] = [g + momentum * buffer for g, buffer in zip(gradients, velocity[stage], strict=True)]
            versions[stage].append(
                [w - training.learning_rate * v for w, v in zip(versions[stage][-1], velocity[stage], strict=True)]
            )
    for stage in range(shape.stages):
        assert_close(outcome.weights[stage], versions[stage][-1])


def test_asynchronous_versions_and_copies_follow_the_closed_form(asynchronous: Run) -> None:
    schedule, copies = asynchronous.schedule, asynchronous.outcome.copies
    stages, micro_batches, mini_batches, *_ = schedule.shape
    stash = schedule.weights == "stash"
    for stage in range(stages) if micro_batches == 1 else ():
        assert copies[stage] == (stages - stage if stash else 1)
        for j in range(mini_batches):
            before = max(0, j - (stages - 1 - stage))
            assert versions_read(schedule, OpKind.FORWARD, stage, j) == before
            assert versions_read(schedule, OpKind.BACKWARD, stage, j) == (before if stash else j)


# --- times


def test_the_longest_path_of_the_measured_ops_bounds_the_run(asynchronous: Run) -> None:
    trace = asynchronous.outcome.trace
    _, end = times(asynchronous.schedule, (trace.end_s - trace.start_s).tolist())
    assert 0 < max(end) <= trace.makespan_s * (1 + 1e-12)  # a sum of differences may round up


def test_the_header_names_the_hardware(synchronous: Run) -> None:
    header = synchronous.outcome.trace.header
    assert (header["backend"], header["seed"]) == ("torch", SEED)
    hardware = header["hardware"]
    assert hardware["cpu"]
    assert (hardware["torch"], hardware["transport"]) == (torch.__version__, "gloo")
    assert {link["kind"] for link in header["links"]} <= {"gloo"}


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
    "replicas": (lambda mlp_plan: altered(mlp_plan, work=data_parallel.plan(2)), "2 replicas"),
    "collective": (lambda mlp_plan: altered(mlp_plan, work=data_parallel.plan(2)), "0AR0 has no kernel here"),
    "concurrent lanes": (
        lambda mlp_plan: mlp_plan(dualpipe_2018.plan(2, 1, 8)),
        "'gpu0' has 2 compute lanes, a worker has one: use backend simulated",
    ),
    "prediction": (
        lambda mlp_plan: altered(
            mlp_plan, work=replace(mlp_plan(gpipe.plan(2, 4))[0].work, weights="predict", distances=((1, 0), (0, 0)))
        ),
        "use weights latest or stash",
    ),
    "adam": (lambda mlp_plan: altered(mlp_plan, training=Training("adam")), "use sgd or momentum"),
    "adamw": (lambda mlp_plan: altered(mlp_plan, training=Training("adamw")), "use sgd or momentum"),
    "bf16": (lambda mlp_plan: altered(mlp_plan, training=Training(dtype="bf16")), "use fp32"),
    "unknown model": (lambda mlp_plan: altered(mlp_plan, model="mpl"), r"there are mlp \(did you mean 'mlp'\?\)"),
    "other layers": (
        lambda mlp_plan: altered(mlp_plan, partition=((0, 3), (4, 7))),
        "cuts 8 layers, the module 'mlp' has 9",
    ),
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
    plan, binding = altered(mlp_plan, model="uniform", training=Training("adam", "bf16"))
    with pytest.raises(UnsupportedPlan) as caught:
        run(plan, binding)
    assert len(str(caught.value).splitlines()) == 3


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


def test_the_module_is_the_one_of_the_model_file() -> None:
    table = layer_table(YAML(typ="safe").load(ROOT / "scenarios/models/mlp.yaml"))
    model = models.load("mlp")
    layers = list(model.build())
    assert len(layers) == len(table.layers) == model.layers
    passing = torch.zeros(1, *model.sample)
    assert passing.numel() == table.input_elements
    for layer, work in zip(layers, table.layers, strict=True):
        passing = layer(passing)
        assert passing.numel() == work.output_elements
        assert sum(weight.numel() for weight in layer.parameters()) == work.parameter_elements
    assert passing.numel() == model.classes
