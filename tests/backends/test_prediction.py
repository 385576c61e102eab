"""Predicted weights beside stale ones: where it can be proved, on a quadratic with momentum, and measured on a task.

On f(w) = h·w²/2 momentum SGD is linear: (w, v) moves by a matrix whose eigenvalues solve λ² − (1 + μ − ηh)λ + μ = 0.
They are real for ηh ≤ (1 − √μ)², and the larger one, r, is then at least √μ. Once it rules, v_{t+i} = rⁱ·v_t, so the
stale weights are off by η·v_t·Σrⁱ and those predicted by η·v_t·Σ(1 − rⁱ), i = 1…s: prediction is better if and only if
Σrⁱ > s/2, which r ≥ √0.9 guarantees for s = 1, 2, 3.

From v_0 = 0 on it is better at every step. With eigenvalues r > q > 0, v_t is as r^t − q^t, so v keeps its sign and
v_{t+1}/v_t falls towards r from above: v_{t+i} ≥ rⁱ·v_t. So |Σ(v_{t+i} − v_t)| < Σ v_{t+i}: on the one side because
v_t > 0, on the other because Σ v_{t+i} ≥ v_t·Σrⁱ > v_t·s/2. A quadratic in more dimensions is one in each of its axes,
and a root mean square does not see a rotation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import load
from scenarios.architecture import shipped_architecture
from sim.passes import weight_versions
from sim.planners import one_f_one_b
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_the_ratio_of_errors_on_a_quadratic_is_the_closed_form(ahead: int, share: float) -> None:
    from backends.torch.weights import VersionedWeights

    momentum, rate = 0.9, 0.05
    curvature = share * (1 - momentum**0.5) ** 2 / rate
    trace = 1 + momentum - rate * curvature
    r = (trace + (trace**2 - 4 * momentum) ** 0.5) / 2
    start = [torch.tensor([1.0], dtype=torch.float64)]
    weights = VersionedWeights(start, Training("momentum", learning_rate=rate, momentum=momentum), Counter())
    for _ in range(2000):  # until the larger eigenvalue rules
        weights.update([curvature * weights.live[0].clone()])
    stale, (predicted,) = weights.live[0].clone(), weights.ahead(weights.version, ahead)
    for _ in range(ahead):
        weights.update([curvature * weights.live[0].clone()])
    now = weights.live[0]
    powers = [r**i for i in range(1, ahead + 1)]
    ratio = float((predicted - now).abs() / (stale - now).abs())
    assert ratio == pytest.approx(sum(1 - power for power in powers) / sum(powers), rel=1e-6)
    assert ratio < 1


@given(
    shares=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=6),
    momentum=st.sampled_from([0.9, 0.95, 0.99]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_prediction_is_better_from_the_first_step_on_any_quadratic(
    shares: list[float], momentum: float, seed: int
) -> None:
    from backends.torch.weights import VersionedWeights

    rate, generator = 0.05, torch.Generator().manual_seed(seed)
    curvatures = torch.tensor(shares, dtype=torch.float64) * (1 - momentum**0.5) ** 2 / rate
    axes = torch.linalg.qr(torch.randn(len(shares), len(shares), dtype=torch.float64, generator=generator)).Q
    hessian = axes @ torch.diag(curvatures) @ axes.T
    start = [torch.randn(len(shares), dtype=torch.float64, generator=generator)]
    weights = VersionedWeights(start, Training("momentum", learning_rate=rate, momentum=momentum), Counter())
    path, guesses = [weights.live[0].clone()], [{s: weights.live[0].clone() for s in (1, 2, 3)}]
    for _ in range(60):
        weights.update([hessian @ weights.live[0]])
        path.append(weights.live[0].clone())
        guesses.append({s: weights.ahead(weights.version, s)[0] for s in (1, 2, 3)})
    for s in (1, 2, 3):
        stale = torch.stack([path[t + s] - path[t] for t in range(61 - s)])
        predicted = torch.stack([path[t + s] - guesses[t][s] for t in range(61 - s)])
        assert torch.equal(predicted[0], stale[0])  # nothing is known before the first update
        assert (predicted[1:].norm(dim=1) < stale[1:].norm(dim=1)).all()


@pytest.mark.parametrize(("optimizer", "rate"), [("momentum", 0.01), ("adam", 0.001)])
def test_prediction_is_better_than_staleness_on_a_task(optimizer: str, rate: float) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install twinrail[tasks]")
    from backends.torch.evaluate import prediction_errors

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    how = Training(optimizer, learning_rate=rate, task="digits")  # type: ignore[arg-type]
    found = prediction_errors(shipped_architecture("snn-digits"), how, batch=32, steps=60, seed=0)
    torch.set_num_threads(threads)
    assert [each.ahead for each in found] == [1, 2, 3]
    assert all(0 < each.predicted < each.stale for each in found)
    assert found[0].stale < found[1].stale < found[2].stale


def test_spectrain_with_no_distance_is_synchronous_training_to_the_last_bit(mlp_plan: Any) -> None:
    from backends.torch.replay import replay

    plan, binding = mlp_plan(one_f_one_b.plan(3, 4, 5), "latest", "in_order", Training("momentum"))
    predicting = replace(plan, work=weight_versions.apply(plan.work, "predict", ((0, 0),) * 3, "spectrain"))
    found, expected = (replay(each, binding, load("simulated").execute(each, binding)) for each in (predicting, plan))
    assert found.losses == expected.losses
    for stage, weights in expected.weights.items():
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found.weights[stage], weights, strict=True))


def test_no_distance_is_no_prediction() -> None:
    from backends.torch.weights import VersionedWeights

    weights = VersionedWeights([torch.randn(3, dtype=torch.float64)], Training("momentum"), Counter())
    weights.update([torch.ones(3, dtype=torch.float64)])
    assert torch.equal(weights.ahead(1, 0)[0], weights.live[0])
