"""Replay of parameter servers against plain training and a serial reference in numpy that keeps every version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.base import load
from scenarios.compose import compose
from scenarios.load import apply_sets, parse_text
from scenarios.points import parse_points
from sim.ops import OpKind
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.trace import Trace

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

SAMPLES, SEED, RATE, MOMENTUM = 8, 3, 0.05, 0.8
TEXT = f"""
name: small
model: {{name: mlp, batch_size: {SAMPLES}}}
cluster: {{workers: 3, servers: 1, device: p40, host: host, nic: 1 Gbit/s, link: {{kind: fair_share, latency: 50 us}}}}
training: {{optimizer: momentum, learning_rate: {RATE}, momentum: {MOMENTUM}}}
schedule: {{name: parameter_server, mini_batches: 6, consistency: asp}}
parameter_servers: {{sharding: greedy}}
"""


def simulated(*sets: str) -> tuple[Plan, Trace]:
    document = apply_sets(parse_text(TEXT, "small.yaml"), list(sets))
    (point,) = parse_points(document, PLANNERS)
    plan, binding = compose(point.scenario, point.document)
    return plan, load("simulated").execute(plan, binding, 0)


def replayed(plan: Plan, trace: Trace) -> Any:
    from backends.torch.replay_servers import replay_servers

    return replay_servers(plan, trace, SAMPLES, SEED, arithmetic="float64")


def plain(plan: Plan, workers: int, steps: int) -> list[Any]:
    """Training on the batches of all workers together."""
    from backends.torch.data import initial, inputs, targets

    assert plan.architecture is not None
    model = initial(plan.architecture, SEED, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for step in range(steps):
        numbers = range(step * workers, (step + 1) * workers)
        x = torch.cat([inputs(plan.architecture, SEED, number, SAMPLES, torch.float64) for number in numbers])
        y = torch.cat([targets(plan.architecture, SEED, number, SAMPLES) for number in numbers])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [weight.detach().numpy() for weight in model.parameters()]


def assert_close(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert float(np.abs(mine - theirs).max()) <= 1e-12 * float(np.abs(theirs).max())


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("granularity", ["step", "layer"])
def test_one_worker_trains_as_if_alone(servers: int, granularity: str) -> None:
    plan, trace = simulated("cluster.workers=1", f"cluster.servers={servers}", f"schedule.granularity={granularity}")
    assert_close(replayed(plan, trace).weights[0, 0], plain(plan, 1, 6))


@pytest.mark.parametrize("model", ["residual-lstm-sources", "transformer-sources"])
def test_layers_that_pytorch_cuts_into_other_tensors_are_trained_whole(model: str) -> None:
    sets = f"model.name={model}", "cluster.workers=1", "cluster.servers=2", "schedule.granularity=layer"
    plan, trace = simulated(*sets)
    assert_close(replayed(plan, trace).weights[0, 0], plain(plan, 1, 6))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("granularity", ["step", "layer"])
def test_synchronous_workers_train_on_all_their_batches_at_once(servers: int, granularity: str) -> None:
    sets = "schedule.consistency=bsp", f"cluster.servers={servers}", f"schedule.granularity={granularity}"
    plan, trace = simulated(*sets)
    assert_close(replayed(plan, trace).weights[0, 0], plain(plan, 3, 6))


@pytest.mark.parametrize("consistency", ["asp", "{ssp: 1}"])
def test_asynchronous_workers_follow_the_version_rules(consistency: str) -> None:
    from backends.torch.data import initial, inputs, targets
    from tests.backends.reference import backward, forward, loss_gradient

    plan, trace = simulated(f"schedule.consistency={consistency}")
    assert plan.architecture is not None
    layers = 0, len(plan.architecture.entries) - 1
    versions = [[weight.detach().numpy() for weight in initial(plan.architecture, SEED, torch.float64).parameters()]]
    velocity = [np.zeros_like(weight) for weight in versions[0]]
    ops = trace.ops
    read = {(row["replica"], row["micro_batch"]): row["reads"] for row in ops[ops["kind"] == OpKind.PULL]}
    updates = ops[ops["kind"] == OpKind.UPDATE]
    stale = 0
    for row in updates[np.argsort(updates["writes"])]:
        worker, step = int(row["replica"]), int(row["micro_batch"])
        version = int(read[worker, step])
        stale += version < row["writes"] - 1
        number = step * 3 + worker
        x = inputs(plan.architecture, SEED, number, SAMPLES, torch.float64).numpy()
        y = targets(plan.architecture, SEED, number, SAMPLES).numpy()
        passing = forward(layers, versions[version], x)
        gradients, _ = backward(layers, versions[version], passing, loss_gradient(passing[-1], y, SAMPLES))
        velocity = [MOMENTUM * old + new for old, new in zip(velocity, gradients, strict=True)]
        versions.append([weight - RATE * step for weight, step in zip(versions[-1], velocity, strict=True)])
    assert stale > 0
    assert_close(replayed(plan, trace).weights[0, 0], versions[-1])
