"""HolisticTraceAnalysis reads our runs and finds the times that `analysis.breakdown` finds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import breakdown, holistic_trace, usage
from sim.model import Layer
from sim.planners import data_parallel, gpipe, one_f_one_b, pipedream
from sim.trace import Trace

LAYER = Layer("layer", 1e-3, 1e-3, 1e-3, 4e6, 4e6, 8e6)


@pytest.fixture(scope="module", params=["1f1b", "gpipe", "pipedream", "ring", "delays"])
def trace(request: pytest.FixtureRequest, simulate: Callable[..., Trace], mesh: Callable[..., Any]) -> Trace:
    """Passes of 1 and 2 ms, transfers of 0.5 ms: whole microseconds, as HTA rounds to them."""
    work = {
        "1f1b": one_f_one_b.plan(3, 4, 2),
        "gpipe": gpipe.plan(2, 3),
        "pipedream": pipedream.plan(2, 1, 6),
        "ring": data_parallel.plan(4, 2),
        "delays": one_f_one_b.plan(2, 3),
    }[request.param]
    kind = "latency" if request.param == "delays" else "in_order"
    return simulate(work, mesh(4, kind, 0.0, 8e9), (LAYER,), update_s=5e-4)


def ask(trace: Trace, folder: Path, question: str) -> Any:
    """The data frame with which HTA answers."""
    reason = "HolisticTraceAnalysis is not installed: it is in the extra 'hta'"
    analysis = pytest.importorskip("hta.trace_analysis", reason=reason)
    for rank, text in enumerate(holistic_trace.export(trace)):
        (folder / f"rank{rank}.json").write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HTA's own, about the pandas it runs on
        found = getattr(analysis.TraceAnalysis(trace_dir=str(folder)), question)(visualize=False)
    return found.sort_values("rank")


def test_every_rank_says_who_it_is_and_holds_every_op_of_its_device(trace: Trace) -> None:
    used, texts = usage.compute(trace), holistic_trace.export(trace)
    assert len(texts) == len(used.accelerators) > 1
    for rank, (device, text) in enumerate(zip(used.accelerators, texts, strict=True)):
        content = json.loads(text)
        assert f'"rank": {rank}' in text
        assert content["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": len(texts)}
        kernels = [event for event in content["traceEvents"] if event["ph"] == "X"]
        assert {event["cat"] for event in kernels} == {"kernel"}
        assert all(event["args"]["stream"] == event["tid"] >= 7 for event in kernels)
        wanted = {str(trace.id(op)) for op in [*used.compute[device].tolist(), *used.moving[device].tolist()]}
        assert {event["args"]["op"] for event in kernels} == wanted


def test_hta_finds_our_breakdown(trace: Trace, tmp_path: Path) -> None:
    """Its times are of the span from a rank's first to its last kernel, ours of the makespan."""
    found = ask(trace, tmp_path, "get_temporal_breakdown")
    used, own = usage.compute(trace), breakdown.compute(trace).devices
    assert len(found) == len(own)
    for (_, row), device, spent in zip(found.iterrows(), used.accelerators, own, strict=True):
        active = used.active[device]
        span_s = float(active.end_s[-1] - active.start_s[0])
        idle_s = spent.idle_s - (trace.makespan_s - span_s)
        ours = np.array([idle_s, spent.compute_s, spent.communication_s])
        theirs = row[["idle_time(us)", "compute_time(us)", "non_compute_time(us)"]].to_numpy(float)
        assert theirs == pytest.approx(ours * 1e6, abs=1e-6)
        percent = row[["idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg"]].to_numpy(float)
        assert percent == pytest.approx(100 * ours / span_s, abs=0.005 + 1e-9)
    assert found["non_compute_time(us)"].sum() > 0


def test_hta_finds_how_much_communication_hides_behind_compute(trace: Trace, tmp_path: Path) -> None:
    found = ask(trace, tmp_path, "get_comm_comp_overlap")
    used, own = usage.compute(trace), breakdown.compute(trace).devices
    theirs = found["comp_comm_overlap_pctg"].tolist()
    for percent, device, spent in zip(theirs, used.accelerators, own, strict=True):
        moving_s = used.spans(used.moving[device]).length_s
        assert percent == pytest.approx(100 * (1 - spent.communication_s / moving_s), abs=0.005 + 1e-9)
