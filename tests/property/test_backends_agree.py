"""Longest path and simulation are two ways to one answer: equal to the last bit wherever nothing contends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import load
from sim.errors import OutOfMemory, UnsupportedPlan
from sim.model import Layer
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.schedule import Schedule
from sim.trace import Trace

SECONDS = st.sampled_from([0.1, 0.2, 0.3, 1.0, 1 / 3, 0.7, 2.0]) | st.floats(1e-3, 10)
MAYBE_NO_SECONDS = st.just(0.0) | SECONDS
SIZE = st.integers(0, 50).map(float)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, str]:
    """A plan of a random planner and its weight policy."""
    stages, micro_batches, mini_batches = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    name = draw(st.sampled_from(["gpipe", "1f1b", "pipedream", "stash", "concurrent", "ring"]))
    if name == "ring":
        schedule = data_parallel.plan(stages, mini_batches, buckets=draw(st.integers(1, 3)))
        assert isinstance(schedule, Schedule)
        return schedule, "latest"
    if name == "concurrent":
        return dualpipe_2018.plan(stages, micro_batches, 2 * mini_batches), "latest"
    if name in ("pipedream", "stash"):
        return pipedream.plan(stages, micro_batches, mini_batches), "stash" if name == "stash" else "latest"
    planner = gpipe if name == "gpipe" else one_f_one_b
    return planner.plan(stages, micro_batches, mini_batches), "latest"


@st.composite
def settings_of(draw: st.DrawFn, mesh: Any, schedule: Schedule, zero: bool) -> dict[str, Any]:
    """Layers, cluster and update time without contention; ``zero``: durations may be 0."""
    shape, seconds = schedule.shape, MAYBE_NO_SECONDS if zero else SECONDS
    count = shape.stages if shape.stages > 1 else draw(st.integers(3, 6))
    layer = st.builds(Layer, st.just("layer"), seconds, seconds, seconds, SIZE, SIZE, SIZE, st.just(0.0))
    concurrent = any(lane.stream == "forward" for lane in schedule.lanes)
    return {
        "layers": draw(st.lists(layer, min_size=count, max_size=count)),
        "cluster": mesh(
            shape.stages * shape.replicas,
            draw(st.sampled_from(["latency", "in_order"])),
            draw(MAYBE_NO_SECONDS),
            draw(st.just(float("inf")) | st.floats(1, 100)),
            2.0 if concurrent else draw(st.sampled_from([None, 1.0, 2.0])),
        ),
        "update_s": draw(MAYBE_NO_SECONDS),
        "buckets": 1 + int(schedule.ops["part"].max()) if (schedule.ops["part"] >= 0).any() else 1,
    }


def peaks(trace: Trace) -> list[int]:
    """The most bytes live at once on each device."""
    devices = range(len(trace.header["devices"]))
    return [int(np.cumsum(trace.memory["bytes"][trace.memory["device"] == k]).max(initial=0)) for k in devices]


@given(drawn=schedules(), data=st.data(), zero=st.booleans())
@settings(max_examples=500)
def test_planners(compose: Any, mesh: Any, drawn: tuple[Schedule, str], data: st.DataObject, zero: bool) -> None:
    schedule, weights = drawn
    plan, binding = compose(schedule, weights=weights, **data.draw(settings_of(mesh, schedule, zero)))
    simulated, exact = (load(name).execute(plan, binding) for name in ("simulated", "longest_path"))
    assert simulated.start_s.tobytes() == exact.start_s.tobytes()
    assert simulated.end_s.tobytes() == exact.end_s.tobytes()
    assert simulated.flows.tobytes() == exact.flows.tobytes()
    assert sorted(simulated.memory.tolist()) == sorted(exact.memory.tolist())
    assert peaks(simulated) == peaks(exact)
