"""Devices that are processes of one machine share its cores: against hand-worked times and what cannot be lost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import longest_path
from scenarios.compose import compose
from scenarios.load import apply_sets, parse_text
from scenarios.points import parse_points
from scenarios.schema import parse
from sim.binding import Binding
from sim.engine.run import run
from sim.errors import ScenarioError, UnsupportedPlan
from sim.plan import Plan
from sim.planners import PLANNERS

TEXT = """
name: processes
model: {uniform: {forward: 1 s, backward: 2 s, activation: 1 B, parameters: 0 B}, batch_size: 8}
cluster: {devices: 4, link: {kind: latency}, cores: 1}
schedule: {name: gpipe, stages: 4, micro_batches: 4}
"""


def composed(*sets: str) -> tuple[Plan, Binding]:
    (point,) = parse_points(apply_sets(parse_text(TEXT, "processes.yaml"), list(sets)), PLANNERS)
    return compose(point.scenario, point.document)


def without_cores(binding: Binding) -> Binding:
    return replace(binding, cluster=replace(binding.cluster, cores=None))


SCHEDULES = {
    "gpipe": (),
    "one_f_one_b": (),
    "pipedream": (),
    "zb_h1": ("model.uniform.backward_input=1 s", "model.uniform.backward_weight=1 s", "model.uniform.backward=2 s"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_core_does_all_work_one_after_the_other_and_is_never_idle(schedule: str) -> None:
    """Transfers take no time, so until the end some op can always run."""
    plan, binding = composed(f"schedule.name={schedule}", *SCHEDULES[schedule])
    alone = run(plan, without_cores(binding))
    computes = [lane.computes for lane in alone.lanes]
    held = np.array([any(computes[lane] for lane in row) for row in alone.lanes_of])
    work_s = float((alone.end_s - alone.start_s)[held].sum())
    assert work_s > 0
    assert run(plan, binding).makespan_s == pytest.approx(work_s, rel=1e-12)


@given(cores=st.integers(1, 6), micro_batches=st.integers(1, 6))
def test_cores_bound_the_speed_and_no_more(cores: int, micro_batches: int) -> None:
    """Not faster than the work over the cores or than with a core for each, and the work takes no longer than alone."""
    plan, binding = composed(f"cluster.cores={cores}", f"schedule.micro_batches={micro_batches}")
    alone, shared = run(plan, without_cores(binding)), run(plan, binding)
    work = Fraction(4 * micro_batches * 3)
    least, most = max(work / cores, Fraction(alone.makespan_s)), work
    assert float(least) * (1 - 1e-9) <= shared.makespan_s <= float(most) * (1 + 1e-9)
    if cores >= 4:
        assert (shared.start_s == alone.start_s).all()
        assert (shared.end_s == alone.end_s).all()


def test_four_at_once_on_two_cores_take_twice_as_long() -> None:
    """Data parallel: four replicas of the same forward."""
    plan, binding = composed("schedule={name: data_parallel, sync: ring}", "cluster.cores=2")
    trace = run(plan, binding)
    first = trace.end_s - trace.start_s
    alone = run(plan, without_cores(binding))
    forward = trace.ops["kind"] == 0
    assert first[forward] == pytest.approx(2 * (alone.end_s - alone.start_s)[forward])


def test_the_graph_refuses_cores_that_do_not_suffice() -> None:
    with pytest.raises(UnsupportedPlan, match="4 compute lanes share 3 cores: use backend simulated"):
        longest_path.BACKEND.execute(*composed("cluster.cores=3"))
    plan, binding = composed("cluster.cores=4")
    assert longest_path.BACKEND.execute(plan, binding).makespan_s == run(plan, binding).makespan_s


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["cluster.concurrency={shared: 1.5}"], "has no influence beside cores"),
        (["cluster.cores=0"], "cluster.cores"),
        (["cluster={preset: 4gpu-pcie3, cores: 2}"], "cores"),
    ],
)
def test_what_makes_no_sense_is_refused(sets: list[str], says: str) -> None:
    document = apply_sets(parse_text(TEXT, "processes.yaml"), sets)
    with pytest.raises(ScenarioError, match=says):
        parse(document, PLANNERS)
