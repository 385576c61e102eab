"""Allocators that place blocks, in the simulator: what calls to the driver cost, by hand, and what runs tell of it."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import breakdown, memory, memory_timeline, pytorch_snapshot, result, table
from backends.base import load
from scenarios import memory_command
from scenarios.compose import compose as compose_scenario
from scenarios.load import parse_text
from scenarios.points import parse_points
from scenarios.run_folder import run_point
from scenarios.schema import parse
from sim.binding import Binding
from sim.engine.run import run
from sim.errors import BadTraceFile, OutOfMemory, ScenarioError, UnsupportedPlan
from sim.memory import snapshot
from sim.memory.allocators import Allocation
from sim.memory.buffers import END, EVENTS, START, BufferKind
from sim.memory.driver import GIB, DriverCosts
from sim.memory.replay import replay
from sim.memory.rules import DeviceCall
from sim.memory.settings import parse_settings
from sim.model import Layer
from sim.pieces import split
from sim.plan import Plan
from sim.planners import data_parallel, dualpipe_2018, gpipe, interleaved_1f1b, one_f_one_b, pipedream, zb_h1
from sim.trace import FINISH, MALLOC, RECORD_STREAM, Trace

MIB = 2**20
FREE_OF_CHARGE = DriverCosts(0, 0, 0, 0, 0, 0)
COSTS = DriverCosts(malloc_s=0.1, malloc_s_per_byte=0, free_s=0.5, free_s_per_byte=0, map_s=0.1, unmap_s=0.5)
EXPANDABLE = parse_settings("expandable_segments:True")
PLACING = {
    "caching": Allocation("caching", costs=FREE_OF_CHARGE),
    "expandable": Allocation("caching", EXPANDABLE, FREE_OF_CHARGE),
    "best_fit": Allocation("best_fit"),
    "arena": Allocation("arena"),
}
LAYERS = [
    Layer(
        name, 1.0, 1.0, 1.0, output_bytes=12 * MIB, saved_bytes=(14 + 4 * k) * MIB, parameter_bytes=(20 + 10 * k) * MIB
    )
    for k, name in enumerate(("conv1", "conv2", "conv3", "fc"))
]
PLANS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpipe": (gpipe.plan(4, 4, 2), {}),
    "one_f_one_b": (one_f_one_b.plan(4, 6, 2), {}),
    "split backward": (zb_h1.plan(4, 6, 2), {}),
    "stash": (pipedream.plan(4, 1, 8), {"weights": "stash"}),
    "predict": (
        dualpipe_2018.plan(4, 1, 12, timeline="concurrent"),
        {"weights": "predict", "distances": ((3, 1),) * 4},
    ),
    "ring": (data_parallel.plan(3, 3), {}),
    "server": (data_parallel.plan(3, 3, "parameter_server", server="gpu"), {"server": 0}),
}


@pytest.mark.parametrize(
    ("name", "allocator"), [pair for pair in product(PLANS, PLACING) if pair != ("server", "arena")]
)
def test_calls_that_cost_nothing_leave_every_bit_of_a_run_as_it_was(
    compose: Any, mesh: Any, name: str, allocator: str
) -> None:
    """All sizes are multiples of 2 MiB, so nothing is rounded and blocks are as large as buffers."""
    work, others = PLANS[name]
    cluster = mesh(4 if work.shape.stages > 1 else 3, "in_order", 0.01, 1e9, 1.5)
    plan, binding = compose(work, cluster, LAYERS, **others)
    counted, placed = run(plan, binding), run(plan, replace(binding, allocator=PLACING[allocator]))
    for column in ("ops", "start_s", "end_s", "flows", "memory"):
        assert getattr(counted, column).tobytes() == getattr(placed, column).tobytes()
    assert (placed.driver["done_s"] == placed.driver["time_s"]).all()


# By hand


def hand_made(
    jobs: Any, cluster: Any, todo: Sequence[Any], buffers: Sequence[tuple[int, int, int]], capacity: int | None
) -> tuple[Plan, Binding]:
    """Jobs on device 0, and buffers of (MiB, op that allocates it at its start, op that frees it at its end)."""
    plan, binding = jobs(todo, cluster)
    rows = [
        row
        for number, (_, first, last) in enumerate(buffers)
        for row in ((first, START, 1, 3, 0, number, 0), (last, END, -1, 3, 0, number, 0))
    ]
    events = np.array(sorted(rows), EVENTS)
    sizes = {(BufferKind.ACTIVATION, number): size * MIB for number, (size, _, _) in enumerate(buffers)}
    capacities = (None if capacity is None else capacity * MIB, *(None,) * (len(binding.devices) - 1))
    return replace(plan, events=events), replace(binding, buffer_bytes=sizes, capacity_bytes=capacities)


def test_a_cudamalloc_lengthens_the_op_that_asked(jobs: Any, job: Any, mesh: Any) -> None:
    """A segment of 12 MiB for 11: 0.25 s, and 0.001 s for each of its bytes' MiB. The second op finds it cached."""
    todo = [job(["0.compute"], 1.0), job(["0.compute"], 1.0)]
    plan, binding = hand_made(jobs, mesh(1), todo, [(11, 0, 0), (11, 1, 1)], None)
    costs = DriverCosts(malloc_s=0.25, malloc_s_per_byte=0.001 / MIB)
    trace = run(plan, replace(binding, allocator=Allocation("caching", costs=costs)))
    assert trace.start_s.tolist() == pytest.approx([0.0, 1.262], abs=1e-12)
    assert trace.end_s.tolist() == pytest.approx([1.262, 2.262], abs=1e-12)
    assert trace.driver[["op", "bytes", "mallocs", "frees", "retries"]].tolist() == [(0, 12 * MIB, 1, 0, 0)]
    assert breakdown.compute(trace).devices[0].compute_s == pytest.approx(2.0, abs=1e-12)
    (reserve,) = memory.reserve(trace)
    assert reserve is not None
    assert (reserve.peak_reserved_bytes, reserve.num_device_alloc, reserve.synchronize_s) == (12 * MIB, 1, 0.0)
    assert reserve.driver_s == pytest.approx(0.262, abs=1e-12)


def test_a_release_waits_for_the_other_lane_and_keeps_it_from_starting(jobs: Any, job: Any, mesh: Any) -> None:
    """100 MiB. Op 0 (60 MiB, forward lane) and op 1 (20 MiB, 10 s, backward lane) start at 0 and work after 0.1 s.

    Op 2 follows op 0 at 1.1 and wants 70 MiB, of which there are 20: it waits for op 1 until 10.1, gives back 60, and
    works after 0.1 s of a failed cudaMalloc, 0.5 s of a cudaFree and 0.1 s of a cudaMalloc. Op 3, ready at 10.1 on the
    backward lane, is held up until these are done.
    """
    lanes = [["0.forward"], ["0.backward"], ["0.forward"], ["0.backward"]]
    todo = [job(lane, seconds) for lane, seconds in zip(lanes, (1.0, 10.0, 1.0, 1.0), strict=True)]
    plan, binding = hand_made(jobs, mesh(1, gain=2.0), todo, [(60, 0, 0), (20, 1, 1), (70, 2, 2)], 100)
    trace = run(plan, replace(binding, allocator=Allocation("caching", costs=COSTS)))
    assert trace.start_s.tolist() == pytest.approx([0.0, 0.0, 1.1, 10.8])
    assert trace.end_s.tolist() == pytest.approx([1.1, 10.1, 11.8, 11.8])
    asked = trace.driver[trace.driver["op"] == 2]
    assert asked[["bytes", "mallocs", "frees", "retries"]].tolist() == [(10 * MIB, 1, 1, 1)]
    assert asked[["time_s", "called_s", "done_s"]].tolist() == [pytest.approx((1.1, 10.1, 10.8))]
    assert [each.tolist()[2:] for each in trace.working_s] == [pytest.approx([10.8, 10.8]), pytest.approx([11.8, 11.8])]
    (reserve,) = memory.reserve(trace)
    assert reserve is not None
    assert (reserve.peak_reserved_bytes, reserve.num_alloc_retries) == (90 * MIB, 1)
    assert (reserve.driver_s, reserve.synchronize_s) == pytest.approx((0.1 + 0.1 + 0.7, 9.0))


def test_pages_of_one_stream_are_unmapped_for_another(jobs: Any, job: Any, mesh: Any) -> None:
    """100 MiB in pages of 20. Op 0 maps three on the forward stream; op 2 wants three on the backward stream at 1.3.

    It waits for op 1, which works from 1.3 to 11.3; a failed map takes 0.1 s, three unmapped 1.5, three mapped 0.3.
    """
    todo = [job(["0.forward"], 1.0), job(["0.forward"], 10.0), job(["0.backward"], 1.0, [0])]
    plan, binding = hand_made(jobs, mesh(1, gain=2.0), todo, [(60, 0, 0), (60, 2, 2)], 100)
    trace = run(plan, replace(binding, allocator=Allocation("caching", EXPANDABLE, COSTS)))
    assert trace.start_s.tolist() == pytest.approx([0.0, 1.3, 1.3])
    assert trace.end_s.tolist() == pytest.approx([1.3, 11.3, 14.2])
    assert trace.driver[["bytes", "retries"]].tolist() == [(60 * MIB, 0), (0, 1)]


def test_memory_that_an_op_takes_at_its_end_delays_the_end(compose: Any, mesh: Any) -> None:
    """The input gradient leaves 2 MiB of its 12 to the weight gradient: a segment of 20 MiB more, at its end."""
    layer = Layer("layer", 1.0, 1.0, 1.0, 0.0, 12.0 * MIB, 0.0, saved_for_weight_bytes=2.0 * MIB)
    plan, binding = compose(zb_h1.plan(1, 1), mesh(1), [layer], allocator=Allocation("caching", costs=COSTS))
    trace = run(plan, replace(binding, buffer_bytes=binding.buffer_bytes | {(BufferKind.ACTIVATION, 0): 0}))
    ended = {str(trace.id(op)): (float(trace.start_s[op]), float(trace.end_s[op])) for op in range(len(trace.ops))}
    assert ended == {
        "0F0": (0.0, 1.0),
        "0I0": (1.0, pytest.approx(2.1)),
        "0W0": (pytest.approx(2.1), pytest.approx(3.1)),
        "0U0": (pytest.approx(3.1), pytest.approx(3.1)),
    }
    assert trace.driver[["time_s", "done_s"]].tolist() == [(2.0, pytest.approx(2.1))]
    assert breakdown.compute(trace).devices[0].compute_s == pytest.approx(3.0)


def test_what_another_stream_still_uses_waits_for_it(compose: Any, mesh: Any) -> None:
    """In DualPipe of 2018 the forward lane has read what the backward lane frees, and is at work on the next.

    Until that has ended no block comes to lie on it; the oracle goes through the requests one by one.
    """
    work, slow = dualpipe_2018.plan(4, 1, 12, timeline="concurrent"), [replace(each, forward_s=3.0) for each in LAYERS]
    plan, binding = compose(work, mesh(4, "in_order", 0.01, 1e9, 1.3), slow, allocator=PLACING["caching"])
    trace = run(plan, binding)
    pending: dict[tuple[int, int], tuple[int, int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    waited = 0
    for _, device, verb, stream, address, size, _ in trace.requests.tolist():
        if verb == MALLOC:
            sizes[device, address] = size
            for (other, begin), (_, end) in pending.items():
                assert other != device or address >= end or address + size <= begin
        elif verb == RECORD_STREAM:
            pending[device, address] = stream, address + sizes[device, address]
            waited += 1
        elif verb == FINISH:
            pending = {key: each for key, each in pending.items() if (key[0], each[0]) != (device, stream)}
    assert waited
    assert not pending


# What it says when there is too little


def test_out_of_memory_ends_in_pytorchs_words(jobs: Any, job: Any, mesh: Any) -> None:
    """40 MiB: 5 of a segment of 20 are taken, so a cudaMalloc of 26 for 25 fails."""
    todo = [job(["0.compute"], 1.0), job(["0.compute"], 1.0), job(["0.compute"], 1.0)]
    plan, binding = hand_made(jobs, mesh(1), todo, [(5, 0, 2), (25, 1, 2)], 40)
    with pytest.raises(OutOfMemory) as caught:
        run(plan, replace(binding, allocator=Allocation("caching")))
    first, second = str(caught.value).split("\n")
    assert first == (
        "gpu0 is out of memory: 26,214,400 B wanted for 0F1.1 (activations of stage 1), 36,700,160 B free of "
        "41,943,040 B; held: activations 5,242,880 B"
    )
    assert second.startswith(
        "CUDA out of memory. Tried to allocate 26.00 MiB. GPU 0 has a total capacity of 40.00 MiB of which 20.00 MiB "
        "is free. Including non-PyTorch memory, this process has 20.00 MiB memory in use. Of the allocated memory "
        "5.00 MiB is allocated by PyTorch, and 15.00 MiB is reserved by PyTorch but unallocated."
    )
    error = caught.value
    assert (error.device, error.requested_bytes, error.live_bytes, error.exit_code) == ("gpu0", 25 * MIB, 5 * MIB, 1)


def test_an_arena_that_is_too_large(compose: Any) -> None:
    plan, binding = compose(gpipe.plan(2, 4), None, LAYERS[:2], allocator=Allocation("arena"))
    needed = memory.compute(run(plan, binding))[1].peak_bytes
    run(plan, replace(binding, capacity_bytes=(None, needed)))
    with pytest.raises(OutOfMemory, match=f"gpu1 is out of memory: the arena planned for this run takes {needed:,} B"):
        run(plan, replace(binding, capacity_bytes=(None, needed - 1)))


def test_who_cannot_have_an_allocator_says_so(compose: Any, mesh: Any) -> None:
    program = data_parallel.plan(2, 1, "parameter_server", server="gpu")
    plan, binding = compose(program, mesh(2), LAYERS, server=0, allocator=Allocation("arena"))
    with pytest.raises(UnsupportedPlan, match=r"memory\.allocator: arena plans all allocations ahead"):
        run(plan, binding)
    plan, binding = compose(gpipe.plan(2, 2), None, LAYERS[:2], allocator=Allocation("caching"))
    for backend in ("longest_path", "torch"):
        with pytest.raises(UnsupportedPlan, match=r"memory\.allocator: caching"):
            load(backend).execute(plan, binding)


# What a run tells


@pytest.fixture(scope="module")
def crowded() -> Trace:
    """A pipeline in memory that just suffices: PyTorch's allocator gives back and tries again."""
    document = parse_text(CROWDED, "crowded.yaml")
    plan, binding = compose_scenario(parse(document), document)
    return run(plan, binding)


CROWDED = """
name: crowded
model: {name: resnet101, batch_size: 408}
cluster: {devices: 4, device: v100, link: {kind: in_order, bandwidth: 12 GB/s}}
schedule: {name: interleaved_1f1b, stages: 4, chunks: 2, micro_batches: 8, mini_batches: 2}
training: {optimizer: adam}
memory: {allocator: caching}
"""


def test_reserved_and_allocated_bytes_at_every_request(crowded: Trace) -> None:
    """Told again what it was told, PyTorch's allocator has the same figures as the tables of the run."""
    reserves = memory.reserve(crowded)
    for device, (peak, reserve) in enumerate(zip(memory.compute(crowded), reserves, strict=True)):
        stats = pytorch_snapshot.devices(crowded)[device].stats()
        assert reserve is not None
        assert peak.peak_bytes == stats["allocated_bytes.all.peak"]
        assert reserve.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
        for key in ("num_device_alloc", "num_device_free", "num_alloc_retries"):
            assert getattr(reserve, key) == stats[key]
    assert sum(reserve.num_alloc_retries for reserve in reserves if reserve) > 2
    assert sum(reserve.synchronize_s for reserve in reserves if reserve) > 0


def test_the_snapshot_of_a_run_is_pytorchs(crowded: Trace, tmp_path: Path) -> None:
    """PyTorch's own viewer reads it, and a replay finds every address, segment, release and block."""
    viz: Any = pytest.importorskip("torch.cuda._memory_viz")
    trace, file = tmp_path / "trace.npz", tmp_path / "run.pickle"
    crowded.save(trace)
    memory_command.write_snapshot(trace, file)
    data = pickle.loads(file.read_bytes())
    assert len(data["device_traces"]) == 4
    for draw in (viz.segments, viz.memory):
        assert "conv0:0:weights" in draw(data, format_flamegraph=lambda lines: lines)
    assert "total_allocated" in viz.segsum(data)
    assert {"cudaMalloc", "cudaFree"} <= set(re.findall(r"cuda\w+", viz.trace(data)))
    for page in (viz.trace_plot, viz.segment_plot):
        assert "MemoryViz.js" in page(data)
    agreements(file)


def agreements(file: Path) -> None:
    """A replay of every device of a snapshot agrees in everything, and checks something."""
    shot = snapshot.read(file)
    for device in range(len(shot.traces)):
        found = replay(shot, device)
        assert found.agrees, found.mismatches
        assert found.cached_allocations.checked > 0
        assert found.new_segments.checked > 0
        assert found.inferred_blocks == 0


SNAPSHOTS = {
    "expandable": ("interleaved_1f1b, stages: 4, chunks: 2", "expandable_segments:True", "16 GB"),
    "expandable, roomy": ("one_f_one_b, stages: 4", "expandable_segments:True", "14 GB"),
    "oversize": ("interleaved_1f1b, stages: 4, chunks: 2", "max_split_size_mb:64", "16 GB"),
    "rounded": ("zb_h1, stages: 4", "roundup_power2_divisions:4", "16 GB"),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshots_under_settings_replay(name: str, tmp_path: Path) -> None:
    schedule, settings, capacity = SNAPSHOTS[name]
    text = CROWDED.replace("interleaved_1f1b, stages: 4, chunks: 2", schedule).replace(
        "allocator: caching", f"allocator: caching, settings: '{settings}', capacity: {capacity}"
    )
    document = parse_text(text, "crowded.yaml")
    trace = run(*compose_scenario(parse(document), document))
    file = tmp_path / "run.pickle"
    snapshot.dump(file, pytorch_snapshot.export(trace))
    agreements(file)


def test_only_a_run_with_pytorchs_allocator_has_a_snapshot(simulate: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    simulate(gpipe.plan(2, 2), layers=LAYERS[:2], allocator=PLACING["best_fit"]).save(file)
    with pytest.raises(UnsupportedPlan, match=r"only a run with memory\.allocator: caching"):
        memory_command.write_snapshot(file, tmp_path / "run.pickle")


def test_the_time_line_of_a_run_with_reserved_bytes_and_segments(crowded: Trace) -> None:
    for device, (peak, reserve) in enumerate(zip(memory.compute(crowded), memory.reserve(crowded), strict=True)):
        line = memory_timeline.of_trace(crowded, device)
        assert line.reserved is not None
        assert reserve is not None
        assert line.reserved.max() == reserve.peak_reserved_bytes
        assert line.allocated.max() == line.allocated[line.at_peak] == peak.peak_bytes
        assert (line.reserved >= line.allocated).all()
        parts = [part for segment in line.segments for part in segment.parts]
        assert sum(segment.size for segment in line.segments) == line.reserved[line.at_peak]
        assert sum(part.size for part in parts if part.category) == peak.peak_bytes


def test_result_and_table(crowded: Trace) -> None:
    found = result.compute(crowded, "crowded", "caching")
    assert json.loads(json.dumps(found)) == found
    assert found["allocator"] == {"name": "caching", "settings": ""}
    reserved = [device["peak_reserved_bytes"] for device in found["devices"]]
    columns, (row,) = table.rows([found])
    shown = dict(zip(columns, row, strict=True))
    assert shown["reserved GiB"].split()[0] == f"{reserved[0] / 2**30:.1f}"
    calls = (sum(device[f"num_{what}"] for device in found["devices"]) for what in ("device_alloc", "alloc_retries"))
    assert shown["mallocs/retries"] == "/".join(map(str, calls))
    waited = sum(device["driver_s"] + device["synchronize_s"] for device in found["devices"])
    assert shown["driver %"] == f"{100 * waited / 4 / found['makespan_s']:.0f} %"
    counted = found | {"allocator": {"name": "counting", "settings": ""}}
    assert table.rows([counted])[0] == table.COLUMNS
    columns, rows = table.rows([found, counted])
    assert dict(zip(columns, rows[1], strict=True))["mallocs/retries"] == table.NONE


# In YAML


SCENARIO = """
name: allocators
model: {uniform: {forward: 1 s, backward: 2 s, activation: 16 MiB, parameters: 32 MiB}, batch_size: 4}
cluster: {devices: 2, link: {kind: in_order, bandwidth: 1 GB/s}}
schedule: {name: gpipe, stages: 2, micro_batches: 4}
memory: MEMORY
"""


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{settings: 'expandable_segments:True'}", "memory.settings", "no influence on allocator: 'counting'"),
        ("{allocator: arena, settings: ''}", "memory.settings", "no influence on allocator: 'arena'"),
        ("{allocator: best_fit, driver: {malloc: 1 ms}}", "memory.driver", "no influence on allocator: 'best_fit'"),
        ("{allocator: cacheing}", "memory.allocator", "did you mean 'caching'?"),
        ("{allocator: caching, settings: 'max_split_size_mb:5'}", "memory.settings", "must be at least 20 MB"),
        (
            "{allocator: caching, settings: 'max_splt_size_mb:50'}",
            "memory.settings",
            "did you mean 'max_split_size_mb'",
        ),
        ("{allocator: caching, settings: 'a:1,b:2'}", "memory.settings", "unknown setting 'b'"),
        ("{allocator: caching, settings: 7}", "memory.settings", "expected text, got 7"),
        ("{allocator: caching, driver: {malloc: 1}}", "memory.driver.malloc", "a time needs a unit"),
        ("{allocator: caching, driver: {map: 1 ms}}", "memory.driver.map", "expandable segments alone map pages"),
        (
            "{allocator: caching, settings: 'expandable_segments:True', driver: {free_per_gib: 1 ms}}",
            "memory.driver.free_per_gib",
            "expandable segments take no cudaMalloc",
        ),
    ],
)
def test_what_is_wrong_with_an_allocator_in_yaml(text: str, path: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(parse_text(SCENARIO.replace("MEMORY", text), "a.yaml"))
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.path) == ("a.yaml", 6, path)
    assert message in str(fault)


def test_costs_of_calls_are_the_scenarios_where_it_says_so() -> None:
    given = "{allocator: caching, driver: {malloc: 1 ms, malloc_per_gib: 2 s, free: 3 ms, free_per_gib: 4 s}}"
    document = parse_text(SCENARIO.replace("MEMORY", given), "a.yaml")
    costs = compose_scenario(parse(document), document).binding.allocator.costs
    assumed = DriverCosts.ASSUMED
    assert costs == DriverCosts(1e-3, 2 / GIB, 3e-3, 4 / GIB, assumed.map_s, assumed.unmap_s)
    calls = [
        DeviceCall("segment_alloc", GIB),
        DeviceCall("segment_alloc", GIB, failed=True),
        DeviceCall("synchronize", 0),
        DeviceCall("segment_free", GIB // 2),
        DeviceCall("segment_map", 60 * MIB, pages=3),
        DeviceCall("segment_unmap", 40 * MIB, pages=2),
    ]
    by_hand = 1e-3 + 2 + 1e-3 + 3e-3 + 2 + 3 * assumed.map_s + 2 * assumed.unmap_s
    assert costs.seconds(calls) == pytest.approx(by_hand, rel=1e-12)


def test_provenance_says_that_costs_are_assumed() -> None:
    document = parse_text(SCENARIO.replace("MEMORY", "{allocator: caching}"), "a.yaml")
    provenance = compose_scenario(parse(document), document).binding.provenance["allocator"]
    assert provenance["origin"] == "assumed"
    assert "cudaMalloc 0.5 ms + 0.5 ms/GiB" in provenance["source"]


def test_a_long_run_with_blocks_is_run_whole() -> None:
    text = SCENARIO.replace("MEMORY", "{allocator: caching}").replace(
        "micro_batches: 4", "micro_batches: 4, mini_batches: 64"
    )
    (point,) = parse_points(parse_text(text + "steady_state: detect\n", "a.yaml"))
    steady = run_point(point, "a").result["steady_state"]
    assert steady["extrapolated_from"] is None
    assert "where blocks lie need not repeat" in steady["reason"]


# Pieces


def test_a_buffer_is_split_among_layers_to_the_byte() -> None:
    assert split(100, (("a", 1.0), ("b", 0.0), ("c", 2.0))) == (("a", 33), ("c", 67))
    assert split(7, ()) == (("", 7),)
    assert split(0, (("a", 1.0),)) == ()
    for size in (1, 10**9 + 7, 2**40 + 1):
        pieces = split(size, tuple((f"{k}", 0.1 * k) for k in range(30)))
        assert sum(piece.size_bytes for piece in pieces) == size


def test_blocks_are_named_by_category_and_layer(simulate: Any) -> None:
    trace = simulate(interleaved_1f1b.plan(2, 2, chunks=2), layers=LAYERS, allocator=PLACING["caching"])
    tags = {tuple(tag) for tag in trace.header["tags"]}
    assert tags == {
        *((category, layer.name) for category in ("weights", "gradients", "activations") for layer in LAYERS),
        *(("communication", f"stage {stage}") for stage in range(4)),
    }
    requested = {
        (category, layer): size
        for (category, layer), size in zip(
            (trace.header["tags"][row["tag"]] for row in trace.requests if row["verb"] == MALLOC),
            trace.requests["bytes"][trace.requests["verb"] == MALLOC].tolist(),
            strict=True,
        )
    }
    assert [requested["activations", layer.name] for layer in LAYERS] == [round(each.saved_bytes) for each in LAYERS]


def test_a_damaged_trace_is_said_to_be_one(crowded: Trace) -> None:
    for column, value in (("address", 512), ("bytes", 7), ("stream", 9)):
        requests = crowded.requests.copy()
        requests[column][5:] = value
        with pytest.raises(BadTraceFile):
            pytorch_snapshot.export(replace(crowded, requests=requests))
    header = crowded.header | {"allocator": {"name": "caching", "settings": "no:thing"}}
    with pytest.raises(BadTraceFile, match="unknown setting 'no'"):
        pytorch_snapshot.export(replace(crowded, header=header))
