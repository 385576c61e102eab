"""Recomputation in a schedule: order, time, memory, and a scenario that fits only with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.schema import parse
from sim.errors import OutOfMemory, UnsupportedPlan
from sim.ops import OpKind
from sim.passes import rematerialize
from sim.planners import dualpipe_v, gpipe, one_f_one_b, zb_h1
from sim.schedule import Schedule
from sim.trace import Trace

SCENARIO = """\
name: deep
model:
  layers: [{layers}]
  batch_size: 4
cluster: {{devices: 1}}
training: {{optimizer: sgd}}
schedule: {{name: single}}
memory: {memory}
"""
LAYER = "{{name: l{0}, forward: 1 s, backward: 2 s, output: 100 B, parameters: 0 B}}"


def run(memory: str, layers: int = 9) -> Trace:
    text = SCENARIO.format(layers=", ".join(LAYER.format(index) for index in range(layers)), memory=memory)
    document = parse_text(text, "deep.yaml")
    return load("simulated").execute(*compose(parse(document), document))


@pytest.mark.parametrize(
    "plan", [lambda: gpipe.plan(3, 4), lambda: one_f_one_b.plan(3, 4, 2), lambda: zb_h1.plan(3, 6)]
)
def test_each_backward_has_its_recomputation_right_before_it(plan: Callable[[], Schedule]) -> None:
    before, after = plan(), rematerialize.apply(plan())
    needing = np.isin(before.ops["kind"], rematerialize.NEEDING)
    assert len(after) == len(before) + int(needing.sum())
    for row in after.order:
        ops = [after.id(op) for op in row.tolist()]
        for first, second in pairwise(ops):
            if first.kind is OpKind.RECOMPUTE:
                assert second.kind in rematerialize.NEEDING
                assert second[1:] == first[1:]
    again = after.ops[after.ops["kind"] == OpKind.RECOMPUTE]
    versions = {tuple(op[["stage", "micro_batch"]]): op["reads"] for op in before.ops[needing]}
    assert all(op["reads"] == versions[tuple(op[["stage", "micro_batch"]])] for op in again)


def test_time_and_memory_by_hand() -> None:
    """Nine equal layers in three segments (√9): all 9 run twice; 3 checkpoints and the 2 between them are live."""
    everything, segments = run("{}"), run("{checkpoint: {method: sqrt_n}}")
    assert everything.makespan_s == 27.0
    assert segments.makespan_s == 27.0 + 9.0
    assert _peak(everything) == 900
    assert _peak(segments) == 300 + 200


def _peak(trace: Trace) -> int:
    return int(np.cumsum(trace.memory["bytes"]).max())


def test_what_does_not_fit_fits_with_checkpoints() -> None:
    with pytest.raises(OutOfMemory):
        run("{capacity: 600 B}")
    assert run("{capacity: 600 B, checkpoint: {method: sqrt_n}}").makespan_s == 36.0


def test_the_optimum_needs_no_more_than_equal_segments() -> None:
    for objective in ("basic", "corrected", "reentrant", "non_reentrant"):
        assert _peak(run(f"{{checkpoint: {{objective: {objective}}}}}")) <= 900


@pytest.mark.parametrize("plan", [gpipe, one_f_one_b])
def test_recomputation_may_fill_a_bubble(plan: Any, simulate: Callable[..., Trace]) -> None:
    """On the first of two stages the recomputation of the first backward runs while its gradient is still awaited."""
    work = rematerialize.apply(plan.plan(2, 2))
    trace = simulate(work, checkpoints=((0, 1), (0, 1)))
    again = next(op for op in range(len(trace.ops)) if str(trace.id(op)) == "0R0")
    backward = next(op for op in range(len(trace.ops)) if str(trace.id(op)) == "0B0")
    assert trace.end_s[again] <= trace.start_s[backward]


def test_fused_pairs_are_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="fused"):
        rematerialize.apply(dualpipe_v.plan(2, 4))
