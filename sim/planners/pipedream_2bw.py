"""PipeDream-2BW (arXiv 2006.09503): asynchronous 1F1B, an update after every mini-batch, and two copies of weights."""

from __future__ import annotations

from sim.errors import Fault, ScenarioError
from sim.planners import pipedream
from sim.schedule import Schedule

DEFAULTS = {"weights": "double_buffer"}


def plan(stages: int, micro_batches: int, mini_batches: int = 0) -> Schedule:
    """The order of PipeDream. Mini-batch b computes with version max(b − 1, 0) in both passes.

    Raises
    ------
    ScenarioError : fewer micro-batches than stages: the version before would not be there in time.
    """
    if 0 < micro_batches < stages:
        message = (
            f"{micro_batches} micro-batches on {stages} stages: a mini-batch must last until the one before is applied"
        )
        raise ScenarioError.of([Fault(message, "schedule.micro_batches", suggestion=f"use at least {stages}")])
    return pipedream.plan(stages, micro_batches, mini_batches)
