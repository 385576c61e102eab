"""What every backend owes: it runs a plan by these laws, or refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from backends.base import load, names
from sim.binding import Cost
from sim.errors import UnsupportedPlan
from sim.op_table import OPS
from sim.ops import TRANSFER_KINDS, OpKind
from sim.passes.weight_versions import staleness
from sim.plan import Plan
from sim.planners import gpipe, one_f_one_b, pipedream
from sim.schedule import Schedule
from sim.trace import FLOWS, MEMORY, Trace

PLANS: dict[str, tuple[Schedule, str, str]] = {
    "gpipe": (gpipe.plan(2, 4, 2), "latest", "in_order"),
    "one_f_one_b": (one_f_one_b.plan(2, 4, 2), "latest", "latency"),
    "pipedream": (pipedream.plan(2, 1, 6), "stash", "in_order"),
}
CASES = [pytest.param((backend, plan), id=f"{backend}-{plan}") for backend in names() for plan in PLANS]


class Case(NamedTuple):
    """A plan and what a backend made of it."""

    plan: Plan
    schedule: Schedule
    trace: Trace
    payloads: dict[Cost, float]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, mlp_plan: Any) -> Case:
    """One run of one plan, shared by all laws."""
    backend, name = request.param
    plan, binding = mlp_plan(*PLANS[name])
    try:
        trace = load(backend).execute(plan, binding, seed=1)
    except UnsupportedPlan as refusal:
        pytest.skip(f"refused: {refusal}")
    return Case(plan, plan.work, trace, dict(binding.payload_bytes))


def test_columns_have_the_dtypes_of_a_trace(case: Case) -> None:
    trace = case.trace
    assert (trace.ops.dtype, trace.flows.dtype, trace.memory.dtype) == (OPS, FLOWS, MEMORY)
    assert trace.start_s.dtype == trace.end_s.dtype == np.float64


def test_each_op_runs_exactly_once(case: Case) -> None:
    assert np.array_equal(case.trace.ops, case.schedule.ops)
    assert len(case.trace.start_s) == len(case.trace.end_s) == len(case.schedule)
    assert (case.trace.start_s >= 0).all()
    assert (case.trace.end_s >= case.trace.start_s).all()


def test_every_lane_runs_in_the_order_of_the_schedule(case: Case) -> None:
    assert case.trace.lanes == case.schedule.lanes
    for run, planned in zip(case.trace.order, case.schedule.order, strict=True):
        assert run.tolist() == planned.tolist()


def test_no_lane_overlaps_itself(case: Case) -> None:
    for ops in case.schedule.order:
        assert (case.trace.start_s[ops[1:]] >= case.trace.end_s[ops[:-1]]).all()


def test_nothing_starts_before_the_end_of_what_it_waits_for(case: Case) -> None:
    waits = case.schedule.waits_for
    assert (case.trace.start_s[waits.owners] >= case.trace.end_s[waits.values]).all()


def test_each_transfer_is_a_flow_of_its_payload(case: Case) -> None:
    flows, ops = case.trace.flows, case.trace.ops
    moving = np.flatnonzero(np.isin(ops["kind"], sorted(TRANSFER_KINDS)))
    assert sorted(flows["op"].tolist()) == moving.tolist()  # every route here is one link
    for flow in flows:
        op = ops[flow["op"]]
        assert flow["bytes"] == case.payloads[Cost(OpKind(int(op["kind"])), int(op["stage"]))]
        assert (flow["start_s"], flow["end_s"]) == (case.trace.start_s[flow["op"]], case.trace.end_s[flow["op"]])


def test_memory_is_that_of_the_plan_and_returns_to_its_start(case: Case) -> None:
    moved = case.trace.memory[case.trace.memory["op"] >= 0]
    columns = ["op", "device", "kind", "stage", "number"]
    assert case.plan.events is not None
    assert sorted(moved[columns].tolist()) == sorted(case.plan.events[columns].tolist())
    assert moved["bytes"].sum() == 0
    assert (np.diff(case.trace.memory["time_s"]) >= 0).all()


def test_the_order_that_was_run_is_a_schedule_again(case: Case) -> None:
    again = case.trace.as_schedule()
    assert np.array_equal(again.ops, case.schedule.ops)
    assert again.lanes == case.schedule.lanes
    assert np.array_equal(again.order.values, case.schedule.order.values)
    assert np.array_equal(again.after.values, case.schedule.after.values)


def test_versions_and_staleness_are_those_of_the_schedule(case: Case) -> None:
    again = case.trace.as_schedule()
    assert again.weights == case.schedule.weights
    assert np.array_equal(again.ops["reads"], case.schedule.ops["reads"])
    assert np.array_equal(staleness(again), staleness(case.schedule))


def test_a_saved_trace_loads_and_saves_to_the_same_bytes(case: Case, tmp_path: Path) -> None:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    case.trace.save(first)
    again = Trace.load(first)
    again.save(second)
    assert first.read_bytes() == second.read_bytes()
    assert again.header == case.trace.header
    assert np.array_equal(again.start_s, case.trace.start_s)


def test_the_header_says_who_ran_what(case: Case, request: pytest.FixtureRequest) -> None:
    header = case.trace.header
    assert header["backend"] in request.node.name
    assert (header["seed"], header["method"], header["model"]) == (1, "example", "mlp")
    assert header["hardware"]
