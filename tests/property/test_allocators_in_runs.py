"""Laws of allocators that place blocks, over random plans: calls of no cost change no time, blocks never overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.run import run
from sim.errors import OutOfMemory
from sim.memory.allocators import Allocation
from sim.memory.driver import DriverCosts
from sim.memory.settings import parse_settings
from sim.model import Layer
from sim.planners import data_parallel, dualpipe_2018, gpipe, interleaved_1f1b, one_f_one_b, pipedream, zb_h1
from sim.schedule import Schedule
from sim.trace import FREE, MALLOC, RECORD_STREAM, Trace

NOTHING = DriverCosts(0, 0, 0, 0, 0, 0)
ALLOCATIONS = [
    Allocation("caching", parse_settings(text), costs)
    for text in ("", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4")
    for costs in (NOTHING, DriverCosts.ASSUMED)
] + [Allocation("best_fit"), Allocation("arena")]
BYTES = st.integers(0, 3 * 2**20) | st.integers(0, 2**26)
SECONDS = st.sampled_from([0.0, 0.1, 1 / 3, 1.0]) | st.floats(1e-3, 10)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, str]:
    """A plan of a random planner and its weight policy."""
    stages, micro_batches, mini_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "stash", "concurrent", "split", "ring"]))
    if name == "ring":
        schedule = data_parallel.plan(stages, mini_batches)
        assert isinstance(schedule, Schedule)
        return schedule, "latest"
    if name == "concurrent":
        return dualpipe_2018.plan(stages, micro_batches, 2 * mini_batches, timeline="concurrent"), "latest"
    if name == "interleaved":
        return interleaved_1f1b.plan(stages, stages * micro_batches, mini_batches, chunks=2), "latest"
    if name == "stash":
        return pipedream.plan(stages, micro_batches, mini_batches), "stash"
    planner = {"gpipe": gpipe, "1f1b": one_f_one_b, "split": zb_h1}[name]
    return planner.plan(stages, micro_batches, mini_batches), "latest"


@given(drawn=schedules(), allocation=st.sampled_from(ALLOCATIONS), data=st.data())
@settings(max_examples=120)
def test_runs_on_any_allocator(
    compose: Any, mesh: Any, drawn: tuple[Schedule, str], allocation: Allocation, data: st.DataObject
) -> None:
    schedule, weights = drawn
    count = schedule.shape.stages if schedule.shape.stages > 1 else data.draw(st.integers(1, 4))
    sizes = [data.draw(st.tuples(BYTES, BYTES, BYTES)) for _ in range(count)]
    times = [data.draw(st.tuples(SECONDS, SECONDS, SECONDS)) for _ in range(count)]
    layers = [
        Layer(f"layer{k}", *seconds, float(output), float(saved), float(parameters), 0.0, saved / 3)
        for k, (seconds, (output, saved, parameters)) in enumerate(zip(times, sizes, strict=True))
    ]
    kind, gain = (
        data.draw(st.sampled_from(["latency", "in_order", "fifo", "fair_share"])),
        data.draw(st.sampled_from([None, 1.3, 2.0])),
    )
    cluster = mesh(1 + max(schedule.placement.values()), kind, 0.01, 1e8, gain)
    plan, binding = compose(schedule, cluster, layers, weights=weights, allocator=allocation)
    trace = run(plan, binding)
    check(trace)
    if allocation.costs == NOTHING or allocation.name != "caching":
        counted = run(plan, replace(binding, allocator=Allocation()))
        assert counted.start_s.tobytes() == trace.start_s.tobytes()
        assert counted.end_s.tobytes() == trace.end_s.tobytes()
    limit = data.draw(st.floats(0.3, 1.1))
    device = data.draw(st.integers(0, len(binding.devices) - 1))
    reserved = np.cumsum(trace.driver["bytes"][trace.driver["device"] == device]).max(initial=0)
    capacity = tuple(int(limit * reserved) if k == device else None for k in range(len(binding.devices)))
    try:
        check(run(plan, replace(binding, capacity_bytes=capacity)))
    except OutOfMemory:
        assert limit < 1


def check(trace: Trace) -> None:
    """On every device no two blocks overlap, all that an op took is given back, and tables agree with one another."""
    for device, capacity in enumerate(trace.header["capacity_bytes"]):
        live: dict[int, int] = {}
        for _, _, verb, _, address, size, _ in trace.requests[trace.requests["device"] == device].tolist():
            if verb == MALLOC:
                assert all(begin + held <= address or begin >= address + size for begin, held in live.items())
                live[address] = size
            elif verb == FREE:
                del live[address]
            elif verb == RECORD_STREAM:
                assert address in live
        events, asked = (table[table["device"] == device] for table in (trace.memory, trace.driver))
        allocated, reserved = (np.cumsum(table["bytes"]) for table in (events, asked))
        resident = int(events["bytes"][events["op"] < 0].sum())
        assert (allocated[-1] if len(allocated) else 0) == resident >= sum(live.values())
        assert (allocated >= 0).all()
        assert int(allocated.max(initial=0)) <= int(reserved.max(initial=0))
        assert capacity is None or int(reserved.max(initial=0)) <= capacity


def test_an_expandable_segment_needs_no_more_than_its_pages(simulate: Any) -> None:
    """What is reserved in pages of 20 and 2 MiB is less than a page of either above what is allocated at most."""
    layers = [Layer("a", 1.0, 1.0, 1.0, 0.0, 33.0 * 2**20, 5.0 * 2**20)]
    trace = simulate(gpipe.plan(1, 4), layers=layers, allocator=ALLOCATIONS[2])
    allocated = int(np.cumsum(trace.memory["bytes"]).max())
    assert allocated <= trace.driver["bytes"].sum() < allocated + 22 * 2**20


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: f"{each.name}-{each.settings}")
def test_equal_runs_have_equal_bytes(compose: Any, mesh: Any, allocation: Allocation, tmp_path: Any) -> None:
    layers = [Layer(f"layer{k}", 1.0, 1.0, 1.0, 1e6, 7e6 * k, 3e6) for k in range(4)]
    plan, binding = compose(one_f_one_b.plan(4, 4), mesh(4, "in_order", 0.1, 1e8), layers, allocator=allocation)
    for name in ("first", "second"):
        run(plan, binding).save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert Trace.load(tmp_path / "first").driver.tolist() == run(plan, binding).driver.tolist()
