"""Runs whose durations vary, against closed forms: sums and maxima of distributions that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis import samples, steady
from backends.longest_path import AT_ONCE, BACKEND
from scenarios.load import parse_text
from scenarios.points import Point
from scenarios.run_folder import run_point
from scenarios.schema import parse
from sim.binding import Binding
from sim.errors import ScenarioError, UnsupportedPlan
from sim.jitter import Distribution, Jitter
from sim.model import Layer
from sim.plan import Plan
from sim.planners import data_parallel, gpipe, one_f_one_b, pipedream, single

Compose = Callable[..., tuple[Plan, Binding]]
LAYER = Layer("layer", 1.0, 1.0, 1.0, 8.0, 8.0, 8.0)


def everywhere(kind: Any, spread: float) -> Jitter:
    """One distribution for all ops."""
    return Jitter(Distribution(kind, spread), Distribution(kind, spread))


def makespans(plan: Plan, binding: Binding, jitter: Jitter, count: int, seed: int = 0) -> NDArray[np.float64]:
    """The makespan of every sample."""
    found: NDArray[np.float64] = BACKEND.sample(plan, binding, jitter, count, [], seed)[0]
    return found


def agrees(values: NDArray[np.float64], mean: float, deviation: float) -> None:
    """Mean and standard deviation within five standard errors of what they should be."""
    count = len(values)
    assert abs(values.mean() - mean) <= 5 * deviation / math.sqrt(count)
    assert abs(values.std() - deviation) <= 10 * deviation / math.sqrt(count)


@pytest.mark.parametrize(
    ("distribution", "deviation"),
    [
        (Distribution("lognormal", 0.05), 0.05),
        (Distribution("lognormal", 0.5), 0.5),
        (Distribution("uniform", 0.3), 0.3 / math.sqrt(3)),
    ],
)
def test_factors_have_mean_one_and_the_spread_asked_for(distribution: Distribution, deviation: float) -> None:
    factors = distribution.factors(np.random.default_rng(1), 40, 10_000)
    assert factors.shape == (40, 10_000)
    agrees(factors.ravel(), 1.0, deviation)
    assert (factors > 0).all()
    correlation = np.asarray(np.corrcoef(factors)) - np.eye(40)
    assert abs(correlation).max() < 0.06  # independent of each other


def test_uniform_factors_stay_within_their_width() -> None:
    factors = Distribution("uniform", 0.25).factors(np.random.default_rng(1), 1, 100_000)
    assert 0.75 <= factors.min() < 0.7501
    assert 1.2499 < factors.max() <= 1.25


def test_a_chain_adds_means_and_variances(compose: Compose) -> None:
    """A single GPU runs n ops one after another: 5 forwards of 1 s and 5 backwards of 2 s."""
    plan, binding = compose(single.plan(5), layers=[LAYER])
    found = makespans(plan, binding, everywhere("lognormal", 0.2), 20_000)
    agrees(found, 15.0, 0.2 * math.sqrt(5 * 1 + 5 * 4))


def test_whoever_waits_for_two_waits_for_the_later(compose: Compose, mesh: Any) -> None:
    """Two replicas run a backward of 2 s, meet in a ring that takes no time, and run an update of 1 s.

    The maximum of two times that are uniform within ±h of 1 has the mean 1 + h/3.
    """
    layer = Layer("layer", 0.0, 1.0, 1.0, 8.0, 8.0, 8.0)
    plan, binding = compose(data_parallel.plan(2), mesh(2), layers=[layer], update_s=1.0)
    found = makespans(plan, binding, everywhere("uniform", 0.3), 40_000)
    assert abs(found.mean() - (2 + 1) * (1 + 0.3 / 3)) < 5 * found.std() / 200


def test_only_what_moves_bytes_varies_where_told(compose: Compose, mesh: Any) -> None:
    """Two stages, one micro-batch: F, transfer, F, B, transfer, B; each transfer takes 8 s."""
    plan, binding = compose(gpipe.plan(2, 1), mesh(2, "in_order", bytes_per_s=1.0), layers=[LAYER])
    found = makespans(plan, binding, Jitter(communication=Distribution("uniform", 0.5)), 20_000)
    agrees(found, 2 * 3 + 2 * 8, 8 * 0.5 / math.sqrt(3) * math.sqrt(2))
    found = makespans(plan, binding, Jitter(compute=Distribution("lognormal", 0.1)), 20_000)
    agrees(found, 22.0, 0.1 * math.sqrt(2 * 1 + 2 * 4))


PLANS: dict[str, Any] = {
    "gpipe": gpipe.plan(3, 4, 3),
    "1f1b": one_f_one_b.plan(3, 4, 3),
    "pipedream": pipedream.plan(3, 1, 12),
    "ring": data_parallel.plan(3, 4, buckets=2),
    "one mini-batch": one_f_one_b.plan(2, 3),
}


@pytest.mark.parametrize("name", PLANS)
def test_without_spread_every_sample_is_the_run_itself(name: str, compose: Compose, mesh: Any) -> None:
    shape = PLANS[name].shape
    layers = [Layer("layer", 0.1, 0.2, 1 / 3, 1.0, 1.0, 3.0)] * max(shape.stages, 2)
    cluster = mesh(max(shape.stages, shape.replicas), bytes_per_s=7.0)
    buckets = 2 if name == "ring" else 1
    plan, binding = compose(PLANS[name], cluster, layers=layers, update_s=0.1, buckets=buckets)
    trace = BACKEND.execute(plan, binding)
    over = steady.compute(trace)
    latest_s = BACKEND.sample(plan, binding, everywhere("uniform", 0.0), 10, samples.watched(trace, over))
    found = samples.compute(trace, over, latest_s)
    assert (latest_s[0] == trace.makespan_s).all()
    for percent in ("p5", "p50", "p99"):
        assert found["makespan_s"][percent] == trace.makespan_s
        assert found["step_time_s"][percent] == pytest.approx(over.step_time_s, rel=1e-15)
    assert over.steady == (shape.mini_batches > 1)


def test_the_seed_decides(compose: Compose) -> None:
    plan, binding = compose(one_f_one_b.plan(3, 4), layers=[LAYER])
    first, again, other = (makespans(plan, binding, everywhere("lognormal", 0.1), 50, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    long = makespans(plan, binding, everywhere("lognormal", 0.1), 2 * AT_ONCE + 7, 1)
    longer = makespans(plan, binding, everywhere("lognormal", 0.1), 3 * AT_ONCE, 1)
    assert len(long) == 2 * AT_ONCE + 7
    assert (long[: 2 * AT_ONCE] == longer[: 2 * AT_ONCE]).all()
    assert len(np.unique(longer)) == 3 * AT_ONCE  # no block draws what another drew


def test_a_pipeline_that_varies_is_slower_on_average(compose: Compose) -> None:
    """The mean of a maximum is above the maximum of the means (Jensen)."""
    plan, binding = compose(one_f_one_b.plan(4, 8), layers=[LAYER])
    found = makespans(plan, binding, everywhere("lognormal", 0.3), 2000)
    assert found.mean() > BACKEND.execute(plan, binding).makespan_s + 5 * found.std() / math.sqrt(2000)


def test_statistics_of_a_known_column(compose: Compose) -> None:
    trace = BACKEND.execute(*compose(single.plan(1), layers=[LAYER]))
    over = steady.compute(trace)
    found = samples.compute(trace, over, np.arange(1.0, 102.0)[None])
    assert (found["count"], over.steady) == (101, False)
    summary = found["makespan_s"]
    assert [summary[name] for name in ("mean", "p5", "p50", "p95", "p99")] == [51, 6, 51, 96, 100]
    half = 1.660234 * np.arange(101).std(ddof=1) / math.sqrt(101)  # Student's t of 100 degrees of freedom
    assert summary["band"] == pytest.approx([51 - half, 51 + half], rel=1e-6)
    assert found["step_time_s"] == summary


@pytest.mark.parametrize(("freedom", "quantile"), [(9, 1.833113), (19, 1.729133), (99, 1.660391), (10**6, 1.644855)])
def test_quantiles_of_student(freedom: int, quantile: float) -> None:
    """Against the tables."""
    assert samples._student_95(freedom) == pytest.approx(quantile, abs=2e-4)


def test_the_band_holds_the_mean_as_often_as_it_says(compose: Compose) -> None:
    """90 % of the bands of 400 batches of samples hold the mean of the distribution (within 5 standard errors)."""
    plan, binding = compose(single.plan(5), layers=[LAYER])
    trace = BACKEND.execute(plan, binding)
    over = steady.compute(trace)
    groups = samples.watched(trace, over)
    held = 0
    for seed in range(400):
        latest_s = BACKEND.sample(plan, binding, everywhere("lognormal", 0.2), 25, groups, seed)
        low, high = samples.compute(trace, over, latest_s)["makespan_s"]["band"]
        held += low <= 15.0 <= high
    assert abs(held / 400 - 0.9) <= 5 * math.sqrt(0.9 * 0.1 / 400)


def test_what_depends_on_time_is_refused(compose: Compose, mesh: Any) -> None:
    plan, binding = compose(gpipe.plan(2, 2), mesh(2, "fair_share", bytes_per_s=1.0), layers=[LAYER])
    with pytest.raises(UnsupportedPlan, match="fair_share: use backend simulated"):
        makespans(plan, binding, everywhere("uniform", 0.1), 10)
    program = data_parallel.plan(2, sync="parameter_server")
    plan, binding = compose(program, mesh(2, host=True), layers=[LAYER], server=2)
    with pytest.raises(UnsupportedPlan, match="depends on time: use backend simulated"):
        makespans(plan, binding, everywhere("uniform", 0.1), 10)


SCENARIO = """name: jitter
model: {uniform: {forward: 1 s, backward: 2 s, activation: 1 GB, parameters: 8 B}, batch_size: 8}
cluster: {devices: 3, link: {kind: in_order, bandwidth: 10 GB/s}}
schedule: {name: one_f_one_b, stages: 3, micro_batches: 4, mini_batches: 3}
backend: longest_path
seed: 3
"""


def outcome(more: str) -> Any:
    """Run `SCENARIO` with ``more`` lines."""
    document = parse_text(SCENARIO + more, "jitter.yaml")
    return run_point(Point({}, document, parse(document)), "jitter")


def test_a_scenario_with_samples_is_the_run_and_its_samples() -> None:
    plain = outcome("")
    varied = outcome("samples: 500\njitter: {compute: {lognormal: 0.2}, communication: {uniform: 0.5}}\n")
    found = varied.result.pop("samples")
    assert varied.result == plain.result
    assert (varied.trace.end_s == plain.trace.end_s).all()
    assert list(found) == ["count", "step_time_s", "makespan_s"]
    assert list(found["step_time_s"]) == ["mean", "p5", "p50", "p95", "p99", "band"]
    for name in ("step_time_s", "makespan_s"):
        low, high = found[name]["band"]
        assert low < found[name]["mean"] < high
        assert plain.result[name] < low
        assert found[name]["p5"] < found[name]["p50"] < found[name]["p95"] < found[name]["p99"]


def test_each_way_to_write_jitter_is_read() -> None:
    every = outcome("samples: 20\njitter: {uniform: 0.5}\n").result["samples"]
    both = outcome("samples: 20\njitter: {compute: {uniform: 0.5}, communication: {uniform: 0.5}}\n").result["samples"]
    one = outcome("samples: 20\njitter: {compute: {uniform: 0.5}}\n").result["samples"]
    assert every == both
    assert one != every


FAULTS = {
    "samples: 100\n": "7: samples: 'samples' belongs with jitter, which is not given",
    "jitter: {lognormal: 0.1}\n": "7: jitter: 'jitter' belongs with samples, which is not given",
    "samples: 9\njitter: {lognormal: 0.1}\n": "7: samples: must be at least 10, got 9",
    "samples: 100\njitter: {}\n": "8: jitter: expected lognormal or uniform for every op, or a distribution under",
    "samples: 100\njitter: {lognormal: 0.1, uniform: 0.2}\n": "got lognormal and uniform",
    "samples: 100\njitter: {lognormal: 0.1, compute: {uniform: 0.2}}\n": "got lognormal and compute",
    "samples: 100\njitter: {compute: {}}\n": "8: jitter.compute: expected exactly one of lognormal, uniform, ",
    "samples: 100\njitter: {uniform: 1.5}\n": "8: jitter.uniform: must be at most 1.0, got 1.5",
    "samples: 100\njitter: {lognormal: 0}\n": "8: jitter.lognormal: must be above 0.0, got 0",
    "samples: 100\njitter: {logormal: 0.1}\n": "8: jitter.logormal: unknown key 'logormal' (did you mean 'lognormal'?)",
    "samples: 100\njitter: {normal: 0.1}\n": "8: jitter.normal: unknown key 'normal'",
    "samples: 100\njitter: 5 %\n": "8: jitter: expected keys and values",
}


@pytest.mark.parametrize("more", FAULTS)
def test_a_fault_names_its_place(more: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        outcome(more)
    assert FAULTS[more] in str(caught.value)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("backend", ["simulated", "torch"])
def test_other_backends_play_one_run(backend: str) -> None:
    text = SCENARIO.replace("longest_path", backend) + "samples: 100\njitter: {lognormal: 0.1}\n"
    with pytest.raises(ScenarioError, match=f"samples: backend {backend} plays one run at a time"):
        parse(parse_text(text, "jitter.yaml"))
