"""The Gantt chart says what it draws; the Chrome trace obeys the Trace Event Format."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import chrome_trace, gantt
from sim.binding import Figures, bind
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.memory.buffers import Category
from sim.model import Layer, uniform
from sim.ops import COMPUTE_KINDS, OpKind
from sim.passes import buffers, transfers, weight_versions
from sim.plan import Plan
from sim.planners import data_parallel, gpipe, one_f_one_b, pipedream
from sim.program import Program
from sim.schedule import Schedule
from sim.trace import Trace
from sim.training import Training


def simulate(
    work: Schedule | Program, link: LinkKind = "in_order", weights: weight_versions.Weights = "latest"
) -> Trace:
    """Run uniform stages (1 s forward, 2 s backward, 0.5 s update) on a mesh with transfers of 0.25 s."""
    shape, serves = work.shape, isinstance(work, Program)
    names = [f"gpu{index}" for index in range(max(shape.stages, shape.replicas))] + ["host"] * serves
    nodes = tuple(Node(name, "host" if name == "host" else "gpu") for name in names)
    figures = Figures(
        profile=uniform(shape.stages, Layer("layer", 1.0, 1.0, 1.0, 1.0, 1.0, 8.0), 1.0),
        partition=tuple((stage, stage) for stage in range(shape.stages)),
        training=Training(),
        cluster=Cluster(
            "mesh", nodes, [Link(f"{a}>{b}", a, b, link, 0.0, 4.0) for a in names for b in names if a != b]
        ),
        devices=tuple(names),
        samples=4.0,
        update_s=0.5,
        server=len(names) - 1 if serves else None,
    )
    binding, events = bind(work, figures), None
    if isinstance(work, Schedule):
        work = transfers.apply(weight_versions.apply(work, weights), binding.holds_lanes)
        events = buffers.apply(work)
    return run(Plan("method", work, figures.partition, "uniform", figures.training, events), binding)


TRACES = {
    "lanes hold transfers": lambda: simulate(one_f_one_b.plan(3, 4, 2)),
    "transfers are delays": lambda: simulate(pipedream.plan(2, 1, 6), "latency", "stash"),
    "parameter server": lambda: simulate(data_parallel.plan(2, 2, sync="parameter_server"), "fair_share"),
    "ring": lambda: simulate(data_parallel.plan(3, 2)),
}


@pytest.fixture(params=TRACES)
def trace(request: pytest.FixtureRequest) -> Trace:
    return TRACES[request.param]()


def events(trace: Trace, *phases: str) -> list[dict[str, Any]]:
    exported = json.loads(json.dumps(chrome_trace.export(trace), allow_nan=False))
    return [event for event in exported["traceEvents"] if event["ph"] in phases]


def test_every_event_has_its_keys_and_a_named_process_and_thread(trace: Trace) -> None:
    labels = events(trace, "M")
    processes = {event["pid"] for event in labels if event["name"] == "process_name"}
    threads = {(event["pid"], event["tid"]) for event in labels if event["name"] == "thread_name"}
    assert len(threads) == len({thread for _, thread in threads}) == len(trace.lanes)
    for event in events(trace, *"MXsfC"):
        assert {"name", "ph", "ts", "pid", "tid"} <= set(event)
        assert event["pid"] in processes
        assert event["ts"] >= 0
        if event["ph"] in "Xsf":
            assert (event["pid"], event["tid"]) in threads
    kinds = Counter(event["ph"] for event in chrome_trace.export(trace)["traceEvents"])
    assert set(kinds) <= set("MXsfC")


def test_a_slice_for_every_op_on_every_lane_it_holds(trace: Trace) -> None:
    slices = events(trace, "X")
    assert len(slices) == len(trace.lanes_of.values)
    wanted = Counter(
        (str(trace.id(op)), lane + 1)
        for lane, op in zip(trace.lanes_of.values.tolist(), trace.lanes_of.owners.tolist(), strict=True)
    )
    assert Counter((event["name"], event["tid"]) for event in slices) == wanted
    assert sum(event["dur"] for event in slices) == pytest.approx(
        1e6 * float((trace.end_s - trace.start_s)[trace.lanes_of.owners].sum())
    )
    updates = [event for event in slices if event["cat"] == "forward"]
    assert all({"stage", "micro_batch", "replica", "reads_version"} == set(event["args"]) for event in updates)


def test_arrows_pair_up_and_touch_slices_on_the_devices_of_their_transfer(trace: Trace) -> None:
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(trace, "X"):
        slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    arrows = {phase: {event["id"]: event for event in events(trace, phase)} for phase in "sf"}
    moves = np.isin(trace.ops["kind"], [*COMPUTE_KINDS, OpKind.ALL_REDUCE], invert=True)
    assert set(arrows["s"]) == set(arrows["f"]) == set(np.flatnonzero(moves).tolist())
    for number, leaves in arrows["s"].items():
        arrives, op = arrows["f"][number], trace.ops[number]
        assert (leaves["pid"], arrives["pid"]) == (op["source"] + 1, op["target"] + 1)
        assert leaves["ts"] <= arrives["ts"]
        assert arrives["bp"] == "e"
        for event in (leaves, arrives):
            assert any(low <= event["ts"] < high for low, high in slices[event["pid"], event["tid"]])


def test_counters_follow_live_memory_and_links(trace: Trace) -> None:
    counters = events(trace, "C")
    for device in range(len(trace.header["devices"])):
        changes = trace.memory[trace.memory["device"] == device]
        shown = [event for event in counters if event["pid"] == device + 1]
        assert [event["ts"] for event in shown] == (np.unique(changes["time_s"]) * 1e6).tolist()
        for event in shown:
            live = changes["bytes"][changes["time_s"] * 1e6 <= event["ts"]].sum()
            assert sum(event["args"].values()) == live
            assert set(event["args"]) <= set(map(str, Category))
    links = [event for event in counters if event["pid"] == len(trace.header["devices"]) + 1]
    assert {event["name"] for event in links} == {trace.header["links"][link]["name"] for link in trace.flows["link"]}
    assert min(event["args"]["transfers"] for event in links) == 0
    assert max(event["args"]["transfers"] for event in links) >= 1


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in (*figure.texts, *figure.axes[0].texts)]


def drawn_s(figure: Any) -> float:
    """Area of all bars in lane-heights × seconds, from the shapes that were drawn."""
    area = 0.0
    for collection in figure.axes[0].collections:
        for path in collection.get_paths():
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            area += float((high - low).prod())
    return area


def test_a_chart_of_whole_runs() -> None:
    traces = {"GPipe": simulate(gpipe.plan(2, 3)), "1F1B": simulate(one_f_one_b.plan(2, 6))}
    figure = gantt.draw(traces)
    (axes,) = figure.axes
    longest_s = max(trace.makespan_s for trace in traces.values())
    assert axes.get_xlim() == (0.0, longest_s)
    assert axes.get_xlabel() == "time (s)"
    assert [label.get_text() for label in axes.get_yticklabels()] == 2 * ["gpu0 compute", "gpu1 compute"]
    shown = texts(figure)
    assert shown[0] == "What every lane does: 2 variants on one time axis"
    assert {"GPipe", "1F1B", "0", "5"} <= set(shown)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forward", "backward", "update", "transfer"]
    lanes_s = sum(
        float((trace.end_s - trace.start_s)[np.isin(trace.ops["kind"], list(COMPUTE_KINDS))].sum())
        for trace in traces.values()
    )
    moving_s = sum(
        float((trace.end_s - trace.start_s)[np.isin(trace.ops["kind"], list(COMPUTE_KINDS), invert=True)].sum())
        for trace in traces.values()
    )
    assert drawn_s(figure) == pytest.approx(gantt.LANE * lanes_s + 2 * gantt.STRIP * moving_s)


def test_a_chart_of_excerpts_says_so_and_leaves_warm_up_out() -> None:
    traces = {"long": simulate(pipedream.plan(2, 1, 80)), "short": simulate(gpipe.plan(2, 4))}
    figure = gantt.draw(traces)
    window_s = 1.5 * 16.0  # of GPipe's step: 5 slots of 3 s, an update, and two transfers of 0.25 s on the way
    assert figure.axes[0].get_xlim() == (0.0, window_s + 0.0)
    shown = texts(figure)
    assert shown[0].endswith("(excerpts of 24.0 s, warm-up left out)")
    assert figure.axes[0].get_xlabel() == "time since the start of the excerpt (s)"
    long = next(text for text in shown if text.startswith("step") and "shown from" in text)
    assert "shown from 0 s" not in long
    assert sum("shown from" in text for text in shown) == 1


def test_colours_tell_kinds_apart_and_numbers_need_room() -> None:
    styles = set(gantt.STYLES.values())
    assert len({style.colour for style in styles}) >= len(styles) - 2  # both gradients share those of backward
    assert set(gantt.STYLES) == set(OpKind)
    crowded = gantt.draw({"crowded": simulate(one_f_one_b.plan(2, 400))})
    assert not any(text.isdigit() for text in texts(crowded))


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_chart_is_written_as_its_suffix_says(tmp_path: Path, suffix: str, magic: bytes) -> None:
    gantt.plot({"x" * 300: simulate(data_parallel.plan(2, 2, sync="parameter_server"))}, tmp_path / f"chart.{suffix}")
    assert (tmp_path / f"chart.{suffix}").read_bytes().startswith(magic)


def test_a_run_that_takes_no_time_can_be_drawn() -> None:
    trace = simulate(gpipe.plan(1, 1))
    still = replace(trace, start_s=trace.start_s * 0, end_s=trace.end_s * 0)
    assert gantt.draw({"nothing": still}).axes[0].get_xlim() == (0.0, 1.0)
