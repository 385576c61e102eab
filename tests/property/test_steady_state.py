"""A long run told from short ones is that run: on random scenarios, and where the period is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.points import Point
from scenarios.run_folder import run_point
from scenarios.schema import parse
from sim.errors import ScenarioError, UnsupportedPlan
from sim.schedule import Schedule
from sim.steady_state import Axis, find, period_of
from sim.trace import Trace

Result = dict[str, Any]


def point(text: str) -> Point:
    """A scenario as the one point it is."""
    document = parse_text(text, "long.yaml")
    return Point({}, document, parse(document))


def run(text: str) -> Result:
    """The result of a scenario."""
    return run_point(point(text), "long").result


def differences(told: Any, ran: Any, path: str = "") -> Iterator[str]:
    """Where two results differ: numbers by more than 1e-9."""
    if isinstance(ran, dict) and isinstance(told, dict) and ran.keys() == told.keys():
        for key in ran:
            yield from differences(told[key], ran[key], f"{path}.{key}")
    elif isinstance(ran, list) and isinstance(told, list) and len(ran) == len(told):
        for index, pair in enumerate(zip(told, ran, strict=True)):
            yield from differences(*pair, f"{path}.{index}")
    elif isinstance(ran, float) and isinstance(told, float):
        if not math.isclose(told, ran, rel_tol=1e-9, abs_tol=1e-9):
            yield f"{path}: {told} told, {ran} ran"
    elif told != ran:
        yield f"{path}: {told} told, {ran} ran"


def tell(text: str) -> Result:
    """What is said of the steady state, once the rest is proved equal to the whole run."""
    told = run(text + "steady_state: detect\n")
    said: Result = told.pop("steady_state")
    assert list(differences(told, run(text))) == []
    return said


# --- random scenarios

TICKS = st.integers(1, 64).map(lambda ticks: ticks / 64) | st.sampled_from([0.5, 1.0])
"""Seconds whose sums are exact, so that ops which end at once do so in a long run as well."""


KINDS = st.sampled_from(["latency", "in_order", "fair_share", "fifo"])
GAINS = st.sampled_from(["", ", concurrency: {shared: 1.5}", ", concurrency: {shared: 2.0}"])


@st.composite
def schedules(draw: st.DrawFn, stages: int) -> dict[str, Any]:
    """A schedule of many mini-batches, or of many micro-batches."""
    name = draw(
        st.sampled_from(["one_f_one_b", "gpipe", "pipedream", "dualpipe_2018", "model_parallel", "data_parallel"])
    )
    if name == "data_parallel":
        return {"name": name, "mini_batches": 40, "buckets": draw(st.sampled_from([1, 2]))}
    if name == "model_parallel":
        return {"name": name, "stages": stages, "mini_batches": 40}
    if name in ("one_f_one_b", "gpipe") and draw(st.booleans()):
        return {"name": name, "stages": stages, "micro_batches": 64, "mini_batches": draw(st.sampled_from([1, 3]))}
    counts = {"micro_batches": draw(st.sampled_from([1, 2, 4])), "mini_batches": draw(st.sampled_from([40, 64]))}
    return {"name": name, "stages": stages, **counts}


@st.composite
def clusters(draw: st.DrawFn, count: int) -> str:
    """Devices behind a switch, or each joined to each."""
    gpus = [f"gpu{index}" for index in range(count)]
    ends = [(a, b) for index, a in enumerate(gpus) for b in gpus[:index]]
    nodes = [f"{{name: {gpu}, kind: gpu{draw(GAINS)}}}" for gpu in gpus]
    if draw(st.booleans()):
        ends, nodes = [(gpu, "switch") for gpu in gpus], [*nodes, "{name: switch, kind: switch}"]
    latency, bandwidth = draw(st.sampled_from(["0 s", "0.125 s"])), draw(st.sampled_from(["16 MB/s", "64 MB/s"]))
    link = f"kind: {draw(KINDS)}, latency: {latency}, bandwidth: {bandwidth}"
    links = [f"{{between: [{a}, {b}], {link}}}" for a, b in ends]
    return f"{{nodes: [{', '.join(nodes)}], links: [{', '.join(links)}]}}"


@st.composite
def scenarios(draw: st.DrawFn) -> str:
    """A pipeline or a ring with layers, links and devices of any kind."""
    stages = draw(st.integers(1, 4))
    layer = st.tuples(TICKS, TICKS, st.sampled_from([1, 4]), st.sampled_from([0, 8])).map(
        lambda drawn: "{{name: layer, forward: {} s, backward: {} s, output: {} MB, parameters: {} MB}}".format(*drawn)
    )
    layers = draw(st.lists(layer, min_size=max(stages, 2), max_size=max(stages, 2)))
    return f"""
name: random
model: {{batch_size: 16, measured_batch: 16, input: 1 MB, layers: [{", ".join(layers)}]}}
cluster: {draw(clusters(max(stages, 2)))}
schedule: {{{", ".join(f"{key}: {value}" for key, value in draw(schedules(stages)).items())}}}
backend: {draw(st.sampled_from(["simulated", "longest_path"]))}
"""


@given(scenarios())
@settings(max_examples=50)
def test_a_long_run_is_told_to_nine_digits(text: str) -> None:
    try:
        said = tell(text)
    except UnsupportedPlan:
        assume(False)
    if said["extrapolated_from"] is None:
        assert said["reason"]
    else:
        assert said["period_s"] > 0


# --- known cases

UNIFORM = """
name: uniform
model:
  uniform: {{forward: {forward} s, backward: {backward} s, activation: 1 GB, parameters: 8 B}}
  batch_size: {micro_batches}
cluster: {{devices: {stages}, link: {{kind: {kind}, bandwidth: 10 GB/s}}}}
schedule: {{name: {name}, stages: {stages}, micro_batches: {micro_batches}, mini_batches: {mini_batches}}}
backend: {backend}
"""


def uniform(name: str, stages: int, micro_batches: int, mini_batches: int, **others: Any) -> str:
    """Equal stages whose transfers take 0.1 s."""
    known = {"forward": 1.0, "backward": 2.0, "kind": "in_order", "backend": "longest_path"}
    counts = {"stages": stages, "micro_batches": micro_batches, "mini_batches": mini_batches}
    return UNIFORM.format(name=name, **counts, **{**known, **others})


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (0.5, 0.5), (0.03125, 0.0625)])
def test_the_period_is_the_largest_cycle_ratio(stages: int, forward: float, backward: float) -> None:
    """Asynchronous 1F1B, a mini-batch a micro-batch: a stage takes F + B; N of them make one round trip together."""
    text = uniform("pipedream", stages, 1, 400, forward=forward, backward=backward)
    said = tell(text)
    round_trip = stages * (forward + backward) + 2 * (stages - 1) * 0.1
    wanted = max(forward + backward, round_trip / stages)
    assert said["period_s"] / said["period_mini_batches"] == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize("name", ["one_f_one_b", "gpipe"])
def test_a_flush_repeats_from_the_second_mini_batch(name: str) -> None:
    """(m + N − 1)(F + B) and, where N > 1, the transfers that a flush cannot hide."""
    said = tell(uniform(name, 4, 8, 30, kind="latency", backend="simulated"))
    assert said["period_mini_batches"] == 1
    assert said["extrapolated_from"] == {"mini_batches": 2, "micro_batches": 8}
    assert said["period_s"] >= (8 + 4 - 1) * 3.0


@pytest.mark.parametrize("mini_batches", [1, 3])
def test_many_micro_batches_repeat_within_each_mini_batch(mini_batches: int) -> None:
    """1F1B in steady state keeps N micro-batches in flight: the round trip of N of them, as above."""
    said = tell(uniform("one_f_one_b", 3, 240, mini_batches))
    assert said["extrapolated_from"]["mini_batches"] == mini_batches
    assert said["extrapolated_from"]["micro_batches"] <= 60
    assert said["period_s"] / said["period_micro_batches"] == pytest.approx((3 * 3 + 4 * 0.1) / 3, rel=1e-11)


@pytest.mark.parametrize("kind", ["fifo", "fair_share"])
def test_contention_repeats_as_well(kind: str) -> None:
    said = tell(uniform("pipedream", 4, 2, 200, kind=kind, backend="simulated"))
    assert said["extrapolated_from"]["mini_batches"] <= 50


def test_what_is_kept_is_the_short_run() -> None:
    outcome = run_point(point(uniform("one_f_one_b", 2, 4, 1000) + "steady_state: detect\n"), "long")
    assert outcome.trace.shape.mini_batches == outcome.result["steady_state"]["extrapolated_from"]["mini_batches"] == 2
    assert outcome.result["makespan_s"] == pytest.approx(1000 * outcome.trace.makespan_s / 2, rel=1e-12)


def test_batches_keep_their_size_when_there_are_fewer() -> None:
    """5 samples in 200 micro-batches are 5/200 of a sample each, be there 200 or 20."""
    text = uniform("one_f_one_b", 2, 200, 1).replace("batch_size: 200", "batch_size: 5")
    assert tell(text)["extrapolated_from"]["micro_batches"] < 200
    assert run(text)["samples_per_s"] == pytest.approx(run(text + "steady_state: detect\n")["samples_per_s"], rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [uniform("gpipe", 3, 200, 1), uniform("one_f_one_b", 3, 4, 1), uniform("one_f_one_b", 3, 4, 7)],
    ids=["phases that grow apart", "nothing long", "not long enough"],
)
def test_what_does_not_repeat_is_run_and_says_so(text: str) -> None:
    assert tell(text) == {
        "extrapolated_from": None,
        "reason": "no run that is short enough repeats itself: this is the whole run",
    }


# --- refusals

SERVER = """
name: server
model: {uniform: {forward: 1 s, backward: 2 s, activation: 1 GB, parameters: 8 B}, batch_size: 4}
cluster: {preset: pcie3-switch-4gpu}
schedule: {name: data_parallel, sync: parameter_server, mini_batches: 100}
steady_state: detect
"""


def test_an_order_that_depends_on_time_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="steady_state: the order of 'data_parallel' depends on time"):
        run(SERVER)


def test_times_that_are_random_or_measured_are_refused() -> None:
    text = uniform("one_f_one_b", 2, 4, 100) + "steady_state: detect\n"
    with pytest.raises(ScenarioError, match="steady_state: times that vary do not repeat"):
        run(text + "samples: 100\njitter: {lognormal: 0.1}\n")
    with pytest.raises(ScenarioError, match="steady_state: backend torch measures"):
        run(text.replace("longest_path", "torch"))
    with pytest.raises(ScenarioError, match="steady_state: expected detect, got 'yes'"):
        run(uniform("one_f_one_b", 2, 4, 100) + "steady_state: 'yes'\n")


def test_what_a_backend_refuses_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="use backend simulated"):
        run(uniform("one_f_one_b", 2, 4, 100, kind="fifo") + "steady_state: detect\n")


# --- the proof


def executed(text: str, axis: Axis, units: int) -> tuple[Schedule, Trace]:
    """The run of a scenario with other counts."""
    here = point(text)
    plan, binding = compose(here.scenario, here.document, {axis: units})
    assert isinstance(plan.work, Schedule)
    return plan.work, load(here.scenario.backend).execute(plan, binding)


def test_two_runs_must_overlap_by_what_ops_reach() -> None:
    """PipeDream on 3 stages whose transfers take no time: the period is one mini-batch.

    The first 3 fill the pipeline. On stage 0 a forward follows the update 3 mini-batches behind, and a backward the
    forward 2 ahead. So 3 + 3 + 2 mini-batches and one more show it.
    """
    text = uniform("pipedream", 3, 1, 100, kind="latency").replace("activation: 1 GB", "activation: 0 B")
    runs = [executed(text, "mini_batches", units) for units in range(1, 24)]
    found = [find(short, long, plan, "mini_batches") for (_, short), (plan, long) in pairwise(runs)]
    first = next(index for index, each in enumerate(found) if each is not None)
    assert runs[first + 1][1].shape.mini_batches == 9
    for each in found[first:]:
        assert each is not None
        assert each.period_s == pytest.approx(3.0, rel=1e-11)


@pytest.mark.parametrize("at", ["start_s", "end_s"])
def test_a_time_that_is_off_is_no_repetition(at: str) -> None:
    text = uniform("one_f_one_b", 3, 4, 100)
    (_, short), (schedule, long) = (executed(text, "mini_batches", units) for units in (3, 4))
    assert find(short, long, schedule, "mini_batches") is not None
    for op in range(0, len(long.ops), 7):
        times = getattr(long, at).copy()
        times[op] += 1e-9
        off = replace(long, **{at: times})
        found = find(short, off, schedule, "mini_batches")
        assert found is None or found.last - found.first < 4  # it may be in what overlaps anyway


def test_the_period_is_seen_in_the_middle() -> None:
    _, trace = executed(uniform("pipedream", 4, 1, 100), "mini_batches", 64)
    assert period_of(trace, "mini_batches") == 4
    random = np.random.default_rng(0)
    noisy = replace(trace, end_s=trace.end_s + random.random(len(trace.end_s)))
    assert period_of(noisy, "mini_batches") is None
