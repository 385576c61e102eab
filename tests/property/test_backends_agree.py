"""Longest path and simulation are two ways to one answer: equal to the last bit wherever nothing contends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import load
from sim.binding import Binding
from sim.cluster import LinkKind
from sim.errors import OutOfMemory, UnsupportedPlan
from sim.model import Layer
from sim.plan import Plan
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
def test_plans_of_every_planner(
    compose: Any, mesh: Any, drawn: tuple[Schedule, str], data: st.DataObject, zero: bool
) -> None:
    """Times, flows, and memory event by event, also where computing takes no time."""
    schedule, weights = drawn
    simulated, exact = both(*compose(schedule, weights=weights, **data.draw(settings_of(mesh, schedule, zero))))
    assert simulated.memory.tolist() == exact.memory.tolist()


def both(plan: Plan, binding: Binding) -> list[Trace]:
    """The traces of both backends, their times found equal."""
    simulated, exact = (load(name).execute(plan, binding) for name in ("simulated", "longest_path"))
    for column in ("ops", "start_s", "end_s", "flows"):
        assert getattr(simulated, column).tobytes() == getattr(exact, column).tobytes()
    return [simulated, exact]


COMPUTE = [(f"{device}.compute",) for device in range(3)]
TOGETHER = [("0.compute", "1.compute"), ("0.compute", "1.compute", "2.compute"), ("1.compute", "1.copy")]
CHANNELS = [(f"{a}.send>{b}", f"{b}.recv<{a}") for a in range(3) for b in range(3) if a != b]
RINGS = [
    ("0.collective", "1.collective"),
    ("0.collective", "1.collective", "2.collective"),
    ("1.collective", "2.collective"),
]


@given(data=st.data(), count=st.integers(1, 25), kind=st.sampled_from(["latency", "in_order"]))
@settings(max_examples=300)
def test_any_graph_of_ops(jobs: Any, job: Any, mesh: Any, data: st.DataObject, count: int, kind: LinkKind) -> None:
    """Hand-made: rendezvous of compute lanes, channels, collectives over some devices, delays that hold nothing."""
    todo = []
    for number in range(count):
        lanes = data.draw(st.sampled_from([(), *COMPUTE, *TOGETHER, *CHANNELS, *RINGS]))
        after = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        target = int(lanes[1].split(".")[0]) if lanes in CHANNELS else -1
        todo.append(job(lanes, data.draw(MAYBE_NO_SECONDS), sorted(after), target))
    both(*jobs(todo, mesh(3, kind, 0.1, 3.0)))


@pytest.mark.parametrize(
    ("schedule", "cluster", "reason"),
    [
        (gpipe.plan(2, 2), {"kind": "fifo", "bytes_per_s": 1.0}, "'gpu0>gpu1' is fifo"),
        (gpipe.plan(2, 2), {"kind": "fair_share", "bytes_per_s": 1.0}, "'gpu0>gpu1' is fair_share"),
        (data_parallel.plan(2), {"kind": "fair_share", "bytes_per_s": 1.0}, "is fair_share"),
        (dualpipe_2018.plan(2), {"gain": 1.5}, "'gpu0' has 2 compute lanes that slow each other"),
        (dualpipe_2018.plan(2), {}, "'gpu0' has 2 compute lanes that slow each other"),
        (data_parallel.plan(2, 1, "parameter_server"), {"host": True}, "depends on time"),
    ],
)
def test_what_the_longest_path_cannot_tell_it_refuses(
    compose: Any, mesh: Any, schedule: Any, cluster: dict[str, Any], reason: str
) -> None:
    server = 2 if cluster.get("host") else None
    plan, binding = compose(schedule, mesh(2, **cluster), server=server)
    with pytest.raises(UnsupportedPlan, match=f"{reason}.*use backend simulated"):
        load("longest_path").execute(plan, binding)
    load("simulated").execute(plan, binding)


@given(drawn=schedules(), data=st.data())
@settings(max_examples=60)
def test_one_refuses_what_is_out_of_memory_to_the_other(
    compose: Any, mesh: Any, drawn: tuple[Schedule, str], data: st.DataObject
) -> None:
    schedule, weights = drawn
    plan, binding = compose(schedule, weights=weights, **data.draw(settings_of(mesh, schedule, False)))
    most = peaks(load("simulated").execute(plan, binding))
    both(plan, replace(binding, capacity_bytes=tuple(most)))
    device = data.draw(st.integers(0, len(most) - 1))
    if not most[device]:
        return
    short = replace(binding, capacity_bytes=tuple(size - (k == device) for k, size in enumerate(most)))
    with pytest.raises(OutOfMemory, match=binding.devices[device]):
        load("simulated").execute(plan, short)
    with pytest.raises(UnsupportedPlan, match=f"'{binding.devices[device]}' runs out of memory"):
        load("longest_path").execute(plan, short)
