"""Bounds from a schedule (`sim.window_bounds`, `sim.live_bounds`) against closed forms and runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis import result, steady
from backends.base import load
from scenarios.compose import Composed, compose
from scenarios.load import parse_text
from scenarios.schema import parse
from sim.live_bounds import least_live_bytes
from sim.memory.allocators import Allocation
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.window_bounds import least_step_s, most_in_flight

UNIFORM = """\
name: uniform
model:
  uniform: {{forward: 2 ms, backward: 4 ms, activation: 1 MB, parameters: 1 MB, update: 1 ms}}
  batch_size: 8
cluster: {{devices: 4, {shared}link: {{kind: {kind}, latency: {latency} us{more}}}}}
schedule: {schedule}
"""


def plan(
    schedule: str, kind: str = "latency", latency: int = 0, more: str = "", shared: str = ""
) -> tuple[Composed, Schedule]:
    text = UNIFORM.format(schedule=schedule, kind=kind, latency=latency, more=more, shared=shared)
    document = parse_text(text, "uniform.yaml")
    composed = compose(parse(document, PLANNERS), document)
    assert isinstance(composed.plan.work, Schedule)
    return composed, composed.plan.work


def bound_s(schedule: str, **cluster: str) -> float:
    composed, work = plan(schedule, **cluster)  # type: ignore[arg-type]
    return float(least_step_s(work, [composed.binding])[0])


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 8)])
@pytest.mark.parametrize("method", ["gpipe", "one_f_one_b"])
def test_equal_stages_that_flush(method: str, stages: int, micro_batches: int) -> None:
    """(T + N − 1)(F + B) + U where transfers are free: the bound is the step itself."""
    found = bound_s(f"{{name: {method}, stages: {stages}, micro_batches: {micro_batches}, mini_batches: 3}}")
    assert found == pytest.approx((micro_batches + stages - 1) * 6e-3 + 1e-3, rel=1e-8)


def test_one_mini_batch_is_its_makespan() -> None:
    found = bound_s("{name: gpipe, stages: 4, micro_batches: 8, mini_batches: 1}")
    assert found == pytest.approx(11 * 6e-3 + 1e-3, rel=1e-8)


def test_pipedream_in_steady_state() -> None:
    """Its busiest lane: F + B + U for each mini-batch; k + 1 passes of n are made up for by the way there and back."""
    assert 0.95 * 7e-3 <= bound_s("{name: pipedream, stages: 4}") <= 7e-3


@pytest.mark.parametrize(("shared", "step_s"), [("concurrency: {shared: 1.0}, ", 7e-3), ("", 7e-3)])
def test_lanes_that_share_a_device_cannot_both_be_fast(shared: str, step_s: float) -> None:
    """Side by side a step would take B + U = 5 ms; one device's arithmetic, or one lane at a time, makes it F + B + U.

    Of n steps up to 2N micro-batches may be early.
    """
    schedule = "{name: dualpipe_2018, stages: 2, mini_batches: 60, weights: latest}"
    composed, work = plan(schedule, shared=shared)
    found = float(least_step_s(work, [composed.binding])[0])
    again_s = steady.compute(load("simulated").execute(*composed)).step_time_s
    assert found <= again_s
    assert again_s == pytest.approx(step_s, rel=0.05)
    if shared:
        assert found > 0.9 * step_s


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("{name: pipedream, stages: 4}", 4),
        ("{name: pipedream, stages: 2, replicas: [3, 1]}", 6),  # two on each of three
        ("{name: pipedream_2bw, stages: 2, micro_batches: 4}", 2),
        ("{name: dualpipe_2018, stages: 2, weights: latest}", 4),  # 2N by its rule of admission
        ("{name: zb_h1, stages: 4, micro_batches: 8}", None),  # split passes
    ],
)
def test_micro_batches_in_flight_by_the_order_of_lanes(schedule: str, most: int | None) -> None:
    assert most_in_flight(plan(schedule)[1]) == most


def test_allocators_that_take_time_are_not_bounded() -> None:
    composed, work = plan("{name: gpipe, stages: 2, micro_batches: 2, mini_batches: 2}")
    slow = replace(composed.binding, allocator=Allocation("caching"))
    assert least_step_s(work, [slow]) == [0.0]


def test_bindings_are_columns() -> None:
    composed, work = plan(
        "{name: zb_h1, stages: 4, micro_batches: 8, mini_batches: 3}", "in_order", 5, ", bandwidth: 1 GB/s"
    )
    twice = replace(composed.binding, seconds={cost: 2 * each for cost, each in composed.binding.seconds.items()})
    both = least_step_s(work, [composed.binding, twice])
    assert both.tolist() == [float(least_step_s(work, [each])[0]) for each in (composed.binding, twice)]
    assert both[0] < both[1] < 2 * both[0]


@pytest.mark.parametrize("method", ["gpipe", "one_f_one_b", "zb_h1", "zb_h2"])
def test_live_bytes_of_one_lane_a_device_are_those_of_the_run(method: str) -> None:
    """But for what arrives before it is needed: an activation and a gradient of 1 MB."""
    composed, work = plan(f"{{name: {method}, stages: 4, micro_batches: 8, mini_batches: 2}}")
    assert composed.plan.events is not None
    least = least_live_bytes(work, composed.plan.events, [composed.binding])[:, 0]
    resident = np.zeros(4, np.int64)
    for each in composed.binding.resident:
        resident[each.device] += each.size_bytes
    found = result.compute(load("simulated").execute(*composed), "uniform", method)["devices"]
    peaks = np.array([device["peak_memory_bytes"] for device in found])
    assert (least + resident <= peaks).all()
    assert (peaks <= least + resident + 2_000_000).all()
