"""The asynchronous relatives: PipeDream-2BW, vertical sync, and the split of 2018, each against its definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis import memory, occupancy, result, staleness
from backends.base import load
from scenarios.command_line import app
from sim.errors import ScenarioError, TwinrailError
from sim.memory.buffers import BufferKind
from sim.model import Layer
from sim.op_table import Halves
from sim.ops import Lane, OpKind
from sim.passes import buffers, transfers, weight_versions
from sim.planners import dualpipe_2018, pipedream, pipedream_2bw, split_2018
from sim.schedule import Schedule
from sim.trace import Trace

DEPTHS = (1, 2, 3, 4, 8)


def layer(forward_s: float, backward_s: float, parameter_bytes: float = 0.0, moved_bytes: float = 0.0) -> Layer:
    """A layer that passes on and saves ``moved_bytes``."""
    return Layer("layer", forward_s, backward_s / 2, backward_s / 2, moved_bytes, moved_bytes, parameter_bytes)


def reads(schedule: Schedule | Trace, kind: OpKind, stage: int) -> list[int]:
    """The version that each micro-batch of a stage reads."""
    found = Halves(schedule.ops).find(kind, stage, np.arange(schedule.shape.total), 0)
    return [int(version) for version in schedule.ops["reads"][found]]


# PipeDream-2BW


@pytest.mark.parametrize("stages", DEPTHS)
@pytest.mark.parametrize("more", [0, 1, 5])
def test_the_versions_of_2bw_are_those_of_the_paper(simulate: Any, stages: int, more: int) -> None:
    """Micro-batch j, counted from 1, uses version max(⌊(j − 1)/T⌋ − 1, 0) in both passes; two copies do."""
    per_update = stages + more
    schedule = pipedream_2bw.plan(stages, per_update, 5)
    trace = simulate(schedule, layers=[layer(1.0, 2.0)] * max(stages, 1), weights="double_buffer")
    paper = [max((j - 1) // per_update - 1, 0) for j in range(1, 5 * per_update + 1)]
    for stage in range(stages):
        assert reads(trace, OpKind.FORWARD, stage) == reads(trace, OpKind.BACKWARD, stage) == paper
    measured = staleness.compute(trace)
    occupied = occupancy.compute(trace, measured)
    assert occupied.weight_copies == (2,) * stages
    assert occupied.in_flight == tuple(stages - k for k in range(stages))
    assert (
        measured.forward.histogram
        == measured.backward.histogram
        == {
            0: stages * per_update,
            1: 4 * stages * per_update,
        }
    )


@pytest.mark.parametrize("stages", range(2, 17))
def test_2bw_needs_as_many_micro_batches_as_stages(stages: int) -> None:
    for micro_batches in range(1, stages):
        with pytest.raises(ScenarioError, match=f"{micro_batches} micro-batches on {stages} stages.*at least {stages}"):
            pipedream_2bw.plan(stages, micro_batches)


def test_what_the_paper_refuses_would_lack_a_version() -> None:
    """With T < N − 1 the version before the newest is not there when the first forward of a mini-batch runs."""
    for stages in range(2, 9):
        for per_update in range(1, 9):
            schedule = pipedream.plan(stages, per_update, 6)
            if per_update >= stages - 1:
                weight_versions.apply(schedule, "double_buffer")
                continue
            with pytest.raises(TwinrailError, match="use at least as many micro_batches as stages"):
                weight_versions.apply(schedule, "double_buffer")


# vertical sync


@pytest.mark.parametrize("stages", DEPTHS)
@pytest.mark.parametrize("per_update", [1, 2])
def test_vertical_sync_is_one_version_for_a_whole_mini_batch(simulate: Any, stages: int, per_update: int) -> None:
    schedule = pipedream.plan(stages, per_update)
    trace = simulate(schedule, layers=[layer(1.0, 2.0)] * stages, weights="vertical_sync")
    first = reads(schedule, OpKind.FORWARD, 0)
    for stage in range(stages):
        assert reads(trace, OpKind.FORWARD, stage) == reads(trace, OpKind.BACKWARD, stage) == first
    measured = staleness.compute(trace)
    if per_update == 1:
        assert measured.forward.by_stage == measured.backward.by_stage == (stages - 1,) * stages
        assert occupancy.compute(trace, measured).weight_copies == (stages,) * stages


# the split of 2018


def test_the_split_by_hand(simulate: Any, mesh: Any) -> None:
    """One stage: GPU 0 sends what a forward of 1 s saved (3 B) and its input (1 B), GPU 1 the weights (8 B), at 4 B/s.

    Two are in flight, so forward 2 waits for the weights that backward 0 made: 1 + 1 + 2 (its end at 4) + 2 = 6.
    """
    work = Layer("layer", 1.0, 1.0, 1.0, 1.0, 3.0, 8.0)
    trace = simulate(split_2018.plan(1, mini_batches=3), mesh(2, "in_order", 0.0, 4.0), [work])
    spans = {str(trace.id(op)): (trace.start_s[op], trace.end_s[op]) for op in range(len(trace.ops))}
    assert spans == {
        "0F0": (0.0, 1.0),
        "0SS0": (1.0, 2.0),
        "0B0": (2.0, 4.0),
        "0U0": (4.0, 4.0),
        "0F1": (1.0, 2.0),
        "0SS1": (2.0, 3.0),
        "0P1": (4.0, 6.0),
        "0B1": (4.0, 6.0),
        "0U1": (6.0, 6.0),
        "0F2": (6.0, 7.0),
        "0SS2": (7.0, 8.0),
        "0B2": (8.0, 10.0),
        "0U2": (10.0, 10.0),
    }
    assert sorted(trace.flows["bytes"].tolist()) == [4.0, 4.0, 4.0, 8.0]


def test_an_update_waits_until_the_weights_it_overwrites_have_left(simulate: Any, mesh: Any) -> None:
    """A slow pull of version 1 holds up update 1, which writes where version 1 is read from."""
    trace = simulate(split_2018.plan(1, mini_batches=4), mesh(2, "in_order", 0.0, 1.0), [layer(1.0, 1.0, 9.0)])
    at = {str(trace.id(op)): op for op in range(len(trace.ops))}
    assert trace.end_s[at["0P1"]] > trace.end_s[at["0B1"]]
    assert trace.start_s[at["0U1"]] == trace.end_s[at["0P1"]]
    assert trace.start_s[at["0P2"]] >= trace.end_s[at["0F2"]] - 1.0  # not under the forward that reads version 1
    assert trace.start_s[at["0F3"]] >= trace.end_s[at["0P2"]]


@pytest.mark.parametrize("stages", DEPTHS)
def test_the_split_is_as_concurrent_dualpipe_on_twice_the_gpus(simulate: Any, mesh: Any, stages: int) -> None:
    work = [layer(1.0, 2.0)] * stages
    split = simulate(split_2018.plan(stages), mesh(2 * stages), work)
    beside = simulate(dualpipe_2018.plan(stages), mesh(stages, gain=2.0), work)
    assert split.makespan_s == beside.makespan_s
    measured = staleness.compute(split)
    assert measured.forward.by_stage == tuple(2 * (stages - k) - 1 for k in range(stages))
    assert measured.backward.by_stage == (0,) * stages
    figures = [result.compute(trace, "test", "test") for trace in (split, beside)]
    assert figures[0]["imbalance"] == pytest.approx(2 / 1.5, rel=1e-12)
    assert figures[1]["imbalance"] < 1.03  # more than 1 by the drain, in which not all have two passes to run
    assert occupancy.compute(split, measured).in_flight[:stages] == tuple(2 * (stages - k) for k in range(stages))


def test_what_the_gpus_of_the_split_hold(simulate: Any, mesh: Any) -> None:
    """Weights on both, gradients behind; activations with their input move when the transfer starts and ends."""
    work = Layer("layer", 1.0, 1.0, 1.0, 10.0, 30.0, 4000.0)
    trace = simulate(split_2018.plan(2, mini_batches=8), mesh(4, "in_order", 0.0, 1e6), [work])
    peaks = [peak.by_category for peak in memory.compute(trace)]
    assert [peak["weights"] for peak in peaks] == [4000] * 4
    assert [peak.get("gradients", 0) for peak in peaks] == [0, 0, 4000, 4000]
    saved = trace.memory[trace.memory["kind"] == BufferKind.ACTIVATION]
    assert sorted(set(saved["device"].tolist())) == [0, 1, 2, 3]
    arrived = trace.memory[trace.memory["kind"] == BufferKind.RECEIVED_ACTIVATION]
    assert sorted(set(arrived["device"].tolist())) == [1, 3]  # the input data of stage 0 count nowhere


def test_the_split_keeps_no_other_versions() -> None:
    schedule = split_2018.plan(2)
    for weights in ("vertical_sync", "double_buffer"):
        with pytest.raises(TwinrailError, match="run on device 0, which has but the weights it was sent"):
            weight_versions.apply(schedule, weights)  # type: ignore[arg-type]
    distances = weight_versions.prediction_distances(schedule)
    with pytest.raises(TwinrailError, match="has but the weights it was sent"):
        weight_versions.apply(schedule, "predict", distances)
    assert weight_versions.apply(schedule, "stash").weights == "stash"


def test_pulls_are_sent_once_for_each_version() -> None:
    schedule = transfers.apply(split_2018.plan(2, 2, 10), lambda source, target: True)
    pulls = schedule.ops[schedule.ops["kind"] == OpKind.PULL]
    for stage in range(2):
        mine = pulls[pulls["stage"] == stage]
        read = schedule.ops["reads"][(schedule.ops["kind"] == OpKind.FORWARD) & (schedule.ops["stage"] == stage)]
        assert mine["reads"].tolist() == mine["micro_batch"].tolist() == sorted(set(read.tolist()) - {0})
    assert len(transfers.apply(schedule, lambda source, target: True)) == len(schedule)
    assert Lane(2, "send>0") in schedule.lanes


# all of them


@pytest.mark.parametrize("stages", range(1, 17))
def test_every_size_builds_or_is_refused(stages: int) -> None:
    """Stages and micro-batches 1 to 16, with transfers and buffers; 2BW refuses fewer than stages."""
    for micro_batches in range(1, 17):
        plans = [(pipedream.plan, "vertical_sync"), (split_2018.plan, "latest")]
        if micro_batches >= stages:
            plans.append((pipedream_2bw.plan, "double_buffer"))
        for plan, weights in plans:
            schedule = weight_versions.apply(plan(stages, micro_batches, 2), weights)  # type: ignore[arg-type]
            schedule = transfers.apply(schedule, lambda source, target: True)
            if stages * micro_batches <= 36:
                assert (buffers.apply(schedule)["op"] >= 0).all()


SECONDS = st.sampled_from([0.1, 0.3, 1.0, 1 / 3, 2.0])
PLANS: dict[str, tuple[Callable[[int, int], Schedule], Any, int]] = {
    "2bw": (lambda n, t: pipedream_2bw.plan(n, n + t - 1, 4), "double_buffer", 1),
    "vertical": (lambda n, t: pipedream.plan(n, t, 3 * n), "vertical_sync", 1),
    "split": (lambda n, t: split_2018.plan(n, t, 3 * n), "latest", 2),
    "split and stash": (lambda n, t: split_2018.plan(n, t, 3 * n), "stash", 2),
    "concurrent vertical": (lambda n, t: dualpipe_2018.plan(n, t, 3 * n), "vertical_sync", 1),
    "concurrent stash": (lambda n, t: dualpipe_2018.plan(n, t, 3 * n), "stash", 1),
}


@pytest.mark.parametrize("name", PLANS)
@given(size=st.tuples(st.integers(1, 4), st.integers(1, 3)), data=st.data())
@settings(max_examples=25)
def test_both_backends_agree_and_versions_hold(
    compose: Any, mesh: Any, name: str, size: tuple[int, int], data: st.DataObject
) -> None:
    plan, weights, gpus = PLANS[name]
    stages, bytes_ = size[0], st.integers(0, 8).map(float)
    layers = [layer(*data.draw(st.tuples(SECONDS, SECONDS, bytes_, bytes_))) for _ in range(stages)]
    cluster = mesh(gpus * stages, data.draw(st.sampled_from(["latency", "in_order"])), 0.25, 4.0, 2.0)
    composed = compose(plan(*size), cluster, layers, weights, update_s=data.draw(st.sampled_from([0.0, 0.5])))
    simulated, exact = (load(backend).execute(*composed) for backend in ("simulated", "longest_path"))
    assert simulated.start_s.tobytes() == exact.start_s.tobytes()
    assert simulated.end_s.tobytes() == exact.end_s.tobytes()
    assert sorted(simulated.memory.tolist()) == sorted(exact.memory.tolist())
    measured = staleness.compute(simulated)
    assert measured.staleness.tolist() == weight_versions.staleness(composed[0].work).tolist()
    assert (measured.applied - measured.version == measured.staleness)[measured.applied >= 0].all()


SCENARIO = """
name: asynchronous
model:
  uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 4 MB}
  batch_size: 64
cluster: {devices: 4, link: {kind: fair_share, latency: 1 us, bandwidth: 12 GB/s}}
schedule: {name: pipedream, stages: 4}
"""


@pytest.mark.parametrize(
    ("schedule", "copies", "forward"),
    [
        ("{name: pipedream_2bw, stages: 4, micro_batches: 8}", [2] * 4, [1] * 4),
        ("{name: pipedream, stages: 4, weights: vertical_sync}", [4] * 4, [3] * 4),
        ("{name: pipedream, stages: 4, weights: latest}", [1] * 4, [3, 2, 1, 0]),
        ("{name: pipedream, stages: 2, replicas: [3, 1]}", [2, 2, 2, 1], [1, 0]),
        ("{name: split_2018, stages: 2}", [1] * 4, [3, 1]),
    ],
)
def test_from_the_command_line(tmp_path: Path, schedule: str, copies: list[int], forward: list[int]) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    run = CliRunner().invoke(app, ["run", str(file), "--set", f"schedule={schedule}", "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    found = found[0] if isinstance(found, list) else found
    assert [device["weight_copies"] for device in found["devices"]] == copies
    assert found["staleness"]["forward"]["by_stage"] == forward
    assert sum(found["staleness"]["histogram"]["forward"].values()) > 0


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("{name: pipedream_2bw, stages: 4, micro_batches: 3}", "schedule.micro_batches: 3 micro-batches on 4 stages"),
        ("{name: pipedream, stages: 2, replicas: [4, 1]}", "schedule.replicas: 5 GPUs on 4 devices"),
        ("{name: pipedream, stages: 2, replicas: [3, 1], mini_batches: 7}", "no multiple of 3"),
        ("{name: gpipe, stages: 2, micro_batches: 2, replicas: [2, 2]}", "unknown key 'replicas' of schedule 'gpipe'"),
        ("{name: data_parallel, gpus: 4}", "unknown key 'gpus' of schedule 'data_parallel'"),
        ("{name: pipedream, stages: 1, weights: vertical_sync}", "no weights of this 'pipedream' are ever stale"),
        ("{name: split_2018, stages: 4}", "needs 8 devices, the cluster has 4"),
    ],
)
def test_refusals_from_the_command_line(tmp_path: Path, schedule: str, message: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    run = CliRunner().invoke(app, ["run", str(file), "--set", f"schedule={schedule}", "--json"])
    assert run.exit_code == 2
    assert message in " ".join(run.output.split())
