"""Peaks of live memory predicted from a simulated order, against those that real processes count."""

from __future__ import annotations

from typing import Any

import pytest

from backends.base import load
from sim.binding import Binding
from sim.plan import Plan
from sim.planners import gpipe, model_parallel, single
from sim.training import Training
from tests.backends.conftest import SAMPLES, MlpPlan

pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

LONE: dict[str, dict[str, Any]] = {
    "momentum": {"training": Training("momentum")},
    "adam": {"training": Training("adam")},
    "checkpoints": {"checkpoint": True},
}


def predicted_and_counted(plan: Plan, binding: Binding) -> tuple[dict[int, int], dict[int, int]]:
    from backends import torch
    from backends.torch.predicted_peak import predicted_peaks

    trace = load("simulated").execute(plan, binding)
    return predicted_peaks(plan, binding, trace), torch.run(plan, binding, count_memory=True).done.peaks


@pytest.mark.parametrize("how", LONE)
def test_of_one_device_to_the_byte(how: str, mlp_plan: MlpPlan) -> None:
    predicted, counted = predicted_and_counted(*mlp_plan(single.plan(3), **LONE[how]))
    assert predicted == counted


def test_of_stages_that_take_turns_to_the_byte(mlp_plan: MlpPlan) -> None:
    """Only one device is at work, so no message comes while a device computes."""
    predicted, counted = predicted_and_counted(*mlp_plan(model_parallel.plan(2, 3)))
    assert predicted == counted


def test_it_is_not_what_the_binding_says(mlp_plan: MlpPlan) -> None:
    """The layers of this plan claim 8 KiB a micro-batch each: peaks come of the modules, and grow with the depth."""
    from backends.torch.predicted_peak import predicted_peaks

    found = []
    for micro_batches in (32, 96):
        plan, binding = mlp_plan(gpipe.plan(2, micro_batches))
        found.append(predicted_peaks(plan, binding, load("simulated").execute(plan, binding))[0])
    first, last = mlp_plan(gpipe.plan(2, 2))[0].partition[0]
    hidden, linears = SAMPLES * 256 * 4, len([layer for layer in range(first, last + 1) if layer % 2 == 0])
    kept = SAMPLES * 64 * 4 + hidden * (last - first + 1 - linears)  # the input, and what comes of each ReLU
    kept += hidden * (last % 2 == 0)  # the output, where no ReLU makes it
    names = 4 * 2 * linears  # an element for each parameter that the graph names
    assert (found[1] - found[0]) / 64 == kept + names
