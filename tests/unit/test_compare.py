"""Prediction beside measurement: errors of a run whose every time is known to be off by a tenth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis import compare
from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.points import parse_points
from sim.planners import PLANNERS
from sim.trace import Trace

TEXT = """
name: small
model: {batch_size: 8, uniform: {forward: 10 ms, backward: 20 ms, activation: 1 MB, parameters: 4 MB, update: 1 ms}}
cluster: {devices: 2, link: {kind: in_order, latency: 0 s, bandwidth: 1 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 3}
"""


@pytest.fixture(scope="module")
def trace() -> Trace:
    (point,) = parse_points(parse_text(TEXT, "small.yaml"), PLANNERS)
    return load("simulated").execute(*compose(point.scenario, point.document))


def slower(trace: Trace, factor: float) -> Trace:
    return replace(trace, start_s=trace.start_s * factor, end_s=trace.end_s * factor)


def test_a_run_a_tenth_slower_than_predicted_is_off_by_an_eleventh(trace: Trace) -> None:
    rows = compare.compute(trace, [slower(trace, factor) for factor in (1.1, 1.0, 1.3)])
    times = [row for row in rows if row.unit == "s"]
    assert {row.metric for row in times} >= {"step time", "mean F", "mean B", "mean U", "mean SF", "mean SB"}
    for row in times:
        assert row.error == pytest.approx(1 / 1.1 - 1)
        assert (row.low, row.high) == pytest.approx((row.predicted, 1.3 * row.predicted))
        assert row.spread == pytest.approx(0.3 / 2 / 1.1)


def test_shares_do_not_depend_on_the_speed_of_a_run(trace: Trace) -> None:
    rows = [row for row in compare.compute(trace, [slower(trace, 2.0)]) if row.unit == "share"]
    assert len(rows) == 3  # two devices and the bubble
    assert [row.error for row in rows] == pytest.approx([0.0] * 3)


def test_memory_is_compared_only_where_it_was_counted(trace: Trace) -> None:
    assert not [row for row in compare.compute(trace, [trace]) if row.unit == "B"]
    own = {row.metric: row.predicted for row in compare.compute(trace, [trace], {"gpu0": 1, "gpu1": 1})}
    peaks = {"gpu0": round(own["peak memory gpu0"] / 1.25), "gpu1": round(own["peak memory gpu1"])}
    found = [row for row in compare.compute(trace, [trace], peaks) if row.unit == "B"]
    assert [row.error for row in found] == pytest.approx([0.25, 0.0], abs=1e-6)


def test_a_means_of_an_op_kind_is_over_all_its_ops(trace: Trace) -> None:
    (forward,) = (row for row in compare.compute(trace, [trace]) if row.metric == "mean F")
    assert forward.predicted == pytest.approx(0.010)
