"""Trainings in the order of simulated runs: what is recorded of them, and servers beside a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.base import load
from scenarios.compose import compose
from scenarios.load import apply_sets, parse_text
from scenarios.run_folder import read_points
from sim.binding import Binding
from sim.errors import UnsupportedPlan
from sim.plan import Plan
from sim.trace import Trace

pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install twinrail[tasks]")

UPDATES, RATE, SEED = 20, 0.003, 1
PIPELINE = f"""
name: small
model: {{name: snn-digits, batch_size: 16}}
cluster: {{devices: 4, device: p40, link: {{kind: in_order, latency: 10 us, bandwidth: 10 GB/s}}}}
training: {{optimizer: momentum, momentum: 0.9}}
schedule: {{name: one_f_one_b, stages: 4, micro_batches: 4, mini_batches: {UPDATES}}}
"""
SERVERS = f"""
name: small
model: {{name: snn-digits, batch_size: 4}}
cluster: {{workers: 4, servers: 2, device: p40, host: host, nic: 10 GB/s, link: {{kind: fair_share, latency: 10 us}}}}
training: {{optimizer: momentum, momentum: 0.9}}
jitter: {{compute: {{lognormal: 0.3}}}}
schedule: {{name: parameter_server, mini_batches: {UPDATES}, consistency: bsp}}
"""


def planned(text: str, *sets: str) -> tuple[Plan, Binding, Trace]:
    (point,) = read_points(apply_sets(parse_text(text, "small.yaml"), list(sets)))
    plan, binding = compose(point.scenario, point.document)
    return plan, binding, load("simulated").execute(plan, binding, SEED)


def learned(text: str, *sets: str) -> Any:
    from backends.torch.learn import learn

    return learn(*planned(text, *sets), "digits", RATE, SEED)


def test_synchronous_workers_learn_what_a_synchronous_pipeline_learns() -> None:
    pipeline, workers = learned(PIPELINE), learned(SERVERS)
    assert workers.losses == pytest.approx(pipeline.losses, rel=1e-4)
    assert workers.test_losses == pytest.approx(pipeline.test_losses, rel=1e-4)
    assert workers.seconds != pipeline.seconds


@pytest.mark.parametrize(
    ("text", "sets", "updates"),
    [
        (PIPELINE, (), UPDATES),
        (SERVERS, (), UPDATES),
        (SERVERS, ("schedule.consistency={backup: 1}",), UPDATES),
        (SERVERS, ("schedule.consistency=asp",), 4 * UPDATES),
        (SERVERS, ("schedule.consistency={ssp: 1}",), 4 * UPDATES),
    ],
)
def test_a_loss_for_each_update_and_tests_on_the_way(text: str, sets: tuple[str, ...], updates: int) -> None:
    found = learned(text, *sets)
    assert len(found.losses) == len(found.seconds) == updates
    assert found.seconds == sorted(found.seconds)
    assert len(found.test_losses) == len(found.test_accuracies) == 10
    assert found.test_seconds == sorted(found.test_seconds)
    assert found.test_seconds[-1] > found.seconds[-1]  # the last update comes after the last loss
    assert np.mean(found.losses[-5:]) < np.mean(found.losses[:5])


def test_the_last_test_is_of_the_final_weights() -> None:
    from backends.torch.evaluate import Exam
    from backends.torch.replay_servers import replay_servers

    plan, _, trace = planned(SERVERS)
    plan = replace(plan, training=replace(plan.training, learning_rate=RATE, task="digits"))
    assert plan.architecture is not None
    score = Exam(plan.architecture, "digits").score(replay_servers(plan, trace, 4, SEED))
    found = learned(SERVERS)
    assert (score.loss, score.accuracy) == (found.test_losses[-1], found.test_accuracies[-1])


def test_refuses_what_has_no_replay() -> None:
    with pytest.raises(UnsupportedPlan, match="parameter_server"):
        learned(PIPELINE, "schedule={name: data_parallel, sync: parameter_server, server: gpu}")
