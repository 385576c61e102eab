"""The longest path against SimPy, on one sample and on a thousand, and a steady state against the whole run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.base import load
from backends.longest_path import BACKEND
from benchmarks.engine import composed
from benchmarks.measure import Row, cpu_seconds, side_by_side
from scenarios.load import parse_text
from scenarios.points import Point
from scenarios.run_folder import run_point
from scenarios.schema import parse
from sim.costs import seconds_column
from sim.jitter import Distribution, Jitter
from sim.longest_path import latest_ends, times
from sim.rows import IntColumn
from sim.schedule import Schedule

SAMPLES = 1000
STAGES, MICRO_BATCHES, MINI_BATCHES = 64, 512, 50

LONG = f"""
name: long
model: {{uniform: {{forward: 1 s, backward: 2 s, activation: 1 GB, parameters: 8 B}}, batch_size: {MICRO_BATCHES}}}
cluster: {{devices: {STAGES}, link: {{kind: in_order, bandwidth: 10 GB/s}}}}
schedule: {{name: one_f_one_b, stages: {STAGES}, micro_batches: {MICRO_BATCHES}, mini_batches: {MINI_BATCHES}}}
backend: longest_path
"""


def _path_alone(schedule: Schedule, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """A thousand makespans with durations that are there already: the same row for every op of a batch."""

    def draw(ops: IntColumn, samples: int) -> NDArray[np.float64]:
        return seconds[: len(ops), :samples]

    ends = np.flatnonzero(np.diff(schedule.successors.starts) == 0)
    return latest_ends(schedule, draw, SAMPLES, [ends])


def _samples() -> list[Row]:
    plan, binding = composed(STAGES, MICRO_BATCHES)
    schedule = plan.work
    assert isinstance(schedule, Schedule)
    simulated, jitter = load("simulated").execute, Distribution("lognormal", 0.05)
    seconds, ops = seconds_column(schedule, binding), len(schedule)
    drawn = jitter.factors(np.random.default_rng(0), 64, SAMPLES)
    assert (
        BACKEND.execute(plan, binding).makespan_s
        == simulated(plan, binding).makespan_s
        == max(times(schedule, seconds)[1])
    )
    sampled = partial(BACKEND.sample, plan, binding, Jitter(jitter, jitter), SAMPLES, [])
    one, simpy = side_by_side(partial(times, schedule, seconds), partial(simulated, plan, binding))
    whole = cpu_seconds(partial(BACKEND.execute, plan, binding))
    alone, jittered = (cpu_seconds(work) / SAMPLES for work in (partial(_path_alone, schedule, drawn), sampled))
    name = f"longest path, {ops:,} ops"
    rows = []
    for what, ours, wanted in (
        ("one sample, the path alone", one, "10"),
        ("one sample, with its trace", whole, "–"),
        (f"{SAMPLES:,} samples, the path alone", alone, "200"),
        (f"{SAMPLES:,} samples, and drawing them", jittered, "200"),
    ):
        text = f"{1e9 * ours / ops:,.1f} ns/op"
        rows.append(
            Row(f"{name}, {what}", text, f"{1e9 * simpy / ops:,.0f} ns/op", simpy / ours, wanted, "SimPy, trace on")
        )
    return rows


def _steady_state() -> Row:
    results: list[dict[str, Any]] = []

    def run(more: str) -> None:
        document = parse_text(LONG + more, "long.yaml")
        results.append(run_point(Point({}, document, parse(document)), "long").result)

    told, ran = (cpu_seconds(partial(run, more)) for more in ("steady_state: detect\n", ""))
    assert results[0]["steady_state"]["extrapolated_from"]
    for figure in ("makespan_s", "step_time_s", "samples_per_s"):
        assert math.isclose(results[0][figure], results[1][figure], rel_tol=1e-9)
    name = f"steady state, 1F1B {STAGES} x {MICRO_BATCHES}, {MINI_BATCHES} mini-batches"
    return Row(name, f"{told:.1f} s", f"{ran:.1f} s", ran / told, "10", "the whole run, same result")


def measure() -> list[Row]:
    """The rows of this benchmark."""
    return [*_samples(), _steady_state()]
