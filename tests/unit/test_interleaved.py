"""Interleaved 1F1B against its closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import occupancy
from backends.longest_path import BACKEND as LONGEST_PATH
from sim.engine.run import run
from sim.errors import UnsupportedPlan
from sim.longest_path import unit_slots
from sim.model import Layer
from sim.ops import OpKind
from sim.planners.interleaved_1f1b import plan

SECONDS = st.floats(1e-3, 1e3)


def chunk(forward_s: float, backward_s: float) -> Layer:
    return Layer("chunk", forward_s, backward_s / 2, backward_s / 2, 0.0, 1.0, 0.0)


@given(
    stages=st.integers(1, 6),
    micro_batches=st.integers(1, 14),
    chunks=st.integers(2, 4),
    forward_s=SECONDS,
    backward_s=SECONDS,
)
@settings(max_examples=60)
def test_makespan(
    simulate: Any, stages: int, micro_batches: int, chunks: int, forward_s: float, backward_s: float
) -> None:
    """(vT + N − 1)(F + B), whether N divides T or not; where T is below N, (vN + T − 1)(F + B)."""
    makespan_s = simulate(plan(stages, micro_batches, 1, chunks), layers=[chunk(forward_s, backward_s)]).makespan_s
    slots = chunks * max(micro_batches, stages) + min(micro_batches, stages) - 1
    assert makespan_s == pytest.approx(slots * (forward_s + backward_s), rel=1e-9)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_bubble_and_in_flight(simulate: Any, stages: int, chunks: int) -> None:
    micro_batches = 4 * stages
    trace = simulate(plan(stages, micro_batches, chunks=chunks), layers=[chunk(1.0, 2.0)])
    work_s = 3.0 * chunks * micro_batches
    assert 1 - work_s / trace.makespan_s == pytest.approx((stages - 1) / (chunks * micro_batches + stages - 1))
    most = occupancy.compute(trace).in_flight[0] / chunks
    assert most == pytest.approx((1 + (stages - 1) / (stages * chunks)) * stages)


def test_chunks_go_round_the_gpus() -> None:
    assert plan(3, 6, chunks=2).placement == {(stage, 0): stage % 3 for stage in range(6)}


def test_the_order_of_megatron() -> None:
    """Two GPUs, two chunks, four micro-batches: rounds of two, chunk by chunk."""
    schedule = plan(2, 4)
    first, second = (
        " ".join(str(schedule.id(int(op))) for op in row if schedule.ops["kind"][op] != OpKind.UPDATE)
        for row in schedule.order
    )
    assert first == "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"
    assert second == "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"


def test_a_single_chunk_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="chunks = 1: nothing to interleave; use one_f_one_b"):
        plan(4, 8, chunks=1)


@pytest.mark.parametrize("stages", range(1, 17))
def test_every_size_builds(stages: int) -> None:
    for micro_batches in range(1, 17):
        _, end = unit_slots(plan(stages, micro_batches))
        assert end.max() == 2 * (2 * max(micro_batches, stages) + min(micro_batches, stages) - 1)


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(1, 3, 2), (2, 5, 3), (3, 2, 2), (4, 8, 2), (5, 7, 2)])
def test_simulated_equals_longest_path(compose: Any, mesh: Any, stages: int, micro_batches: int, chunks: int) -> None:
    cluster = mesh(stages, "in_order", 0.125, 3.0)
    plan_and_binding = compose(
        plan(stages, micro_batches, 2, chunks), cluster, [Layer("chunk", 1.0, 0.7, 0.6, 1.0, 2.0, 3.0)]
    )
    simulated, bound = run(*plan_and_binding), LONGEST_PATH.execute(*plan_and_binding)
    assert np.array_equal(simulated.start_s, bound.start_s)
    assert np.array_equal(simulated.end_s, bound.end_s)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "times", "latency_s", "ours", "published"),
    [
        (8, 24, (18.522, 18.086, 9.337), 0.601, 0.1090, 0.1055),
        (8, 32, (18.513, 18.086, 9.331), 0.626, 0.0847, 0.0818),
        (8, 64, (18.546, 18.097, 9.321), 0.762, 0.0461, 0.0443),
        (16, 48, (11.347, 11.248, 8.132), 0.377, 0.1136, 0.1104),
    ],
)
def test_three_chunks_beside_the_zero_bubble_paper(
    simulate: Any,
    mesh: Any,
    stages: int,
    micro_batches: int,
    times: tuple[float, float, float],
    latency_s: float,
    ours: float,
    published: float,
) -> None:
    """Table 5 of arXiv 2401.10241, which does not say how many chunks: 3 is the nearest, a little above it."""
    forward_s, input_s, weight_s = (time / 3 for time in times)
    layer = Layer("chunk", forward_s, input_s, weight_s, 0.0, 0.0, 0.0)
    trace = simulate(plan(stages, micro_batches, chunks=3), mesh(stages, "latency", latency_s), [layer])
    spans_s = []
    for device in range(stages):
        mine = (trace.ops["source"] == device) & np.isin(trace.ops["kind"], (OpKind.FORWARD, OpKind.BACKWARD))
        spans_s.append(float(trace.end_s[mine].max() - trace.start_s[mine].min()))
    bubble = 1 - micro_batches * sum(times) / max(spans_s)
    assert round(bubble, 4) == ours
    assert abs(bubble - published) < 0.004
