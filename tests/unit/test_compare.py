"""Prediction beside measurement: errors of a run whose every time is known to be off by a tenth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis import compare
from analysis.compare import Peaks
from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.points import parse_points
from sim.ops import OpKind
from sim.planners import PLANNERS
from sim.trace import Trace

TEXT = """
name: small
model: {batch_size: 8, uniform: {forward: 10 ms, backward: 20 ms, activation: 1 MB, parameters: 4 MB, update: 1 ms}}
cluster: {devices: 2, link: {kind: in_order, latency: 0 s, bandwidth: 1 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 5}
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
    assert [row.error for row in compare.compute(trace, [trace], buffers=True) if row.unit == "B"] == [0.0, 0.0]
    peaks = {"gpu0": Peaks(5, 4), "gpu1": Peaks(1000, 1005)}
    found = {row.metric: row.error for row in compare.compute(trace, [trace], peaks) if row.unit == "B"}
    assert found["peak memory gpu0"] == 0.25
    assert found["peak memory gpu1"] == pytest.approx(-5 / 1005)
    assert {"simulated buffers gpu0", "simulated buffers gpu1"} < found.keys()


@pytest.mark.parametrize(
    ("peak", "said"),
    [
        (Peaks(1005, 1000), "step time predicted -9.1 % outside 8 %; peak memory predicted +0.5 % within 1 %"),
        (Peaks(900, 1000), "step time predicted -9.1 % outside 8 %; peak memory predicted -10.0 % outside 1 %"),
    ],
)
def test_the_verdict_names_the_worst_of_each(peak: Peaks, said: str, trace: Trace) -> None:
    rows = compare.compute(trace, [slower(trace, 1.1)], {"gpu0": peak, "gpu1": Peaks(1, 1)})
    assert compare.verdict(rows) == said


def test_the_mean_of_an_op_kind_leaves_the_first_step_out(trace: Trace) -> None:
    """An optimizer makes its state in the first update."""
    updates = trace.ops["kind"] == OpKind.UPDATE
    longer = np.where(updates & (trace.ops["micro_batch"] == 0), 0.005, np.where(updates, 0.0005, 0.0))
    (mean,) = (
        row
        for row in compare.compute(trace, [replace(trace, start_s=trace.start_s - longer)])
        if row.metric == "mean U"
    )
    assert mean.predicted == pytest.approx(0.001)
    assert mean.measured == pytest.approx(0.0015)


def test_a_pause_in_one_step_is_not_the_step_time(trace: Trace) -> None:
    after = trace.end_s[(trace.ops["kind"] == OpKind.UPDATE) & (trace.ops["micro_batch"] == 2)].max()
    late = replace(trace, start_s=trace.start_s + (trace.start_s >= after), end_s=trace.end_s + (trace.end_s > after))
    assert late.makespan_s == pytest.approx(trace.makespan_s + 1)
    (step,) = (row for row in compare.compute(trace, [late]) if row.metric == "step time")
    assert step.error == pytest.approx(0)
