"""What this backend cannot honour, with what to use instead."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator

import numpy as np

from backends.torch import models
from backends.torch.job import SENDS
from sim.binding import Binding
from sim.errors import UnsupportedPlan, nearest
from sim.ops import OpKind
from sim.plan import Plan
from sim.schedule import Schedule

_KINDS = (OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE, *SENDS)


def accept(plan: Plan, binding: Binding) -> Schedule:
    """The schedule of a plan that this backend honours.

    Raises
    ------
    UnsupportedPlan : it does not; every reason at once, one a line.
    """
    schedule = plan.work
    if not isinstance(schedule, Schedule):
        raise UnsupportedPlan(f"the order of '{plan.method}' depends on time: use backend simulated")
    if reasons := [*_machine(), *_model(plan, binding), *_training(plan), *_order(schedule, binding)]:
        raise UnsupportedPlan("\n".join(reasons))
    return schedule


def _machine() -> Iterator[str]:
    if importlib.util.find_spec("torch") is None:
        yield "backend torch needs PyTorch: pip install twinrail[torch]"


def _model(plan: Plan, binding: Binding) -> Iterator[str]:
    if plan.model not in models.names():
        hint = nearest(plan.model, models.names())
        yield (
            f"no module for model '{plan.model}': there are {', '.join(models.names())}"
            + (f" ({hint})" if hint else "")
            + "; for other models use backend simulated"
        )
    elif (cut := plan.partition[-1][1] + 1) != (layers := models.load(plan.model).layers):
        yield f"the plan cuts {cut} layers, the module '{plan.model}' has {layers}: use the profile of that model"
    micro_batches = plan.work.shape.micro_batches
    if binding.samples < 1 or binding.samples % micro_batches:
        yield (
            f"{binding.samples:g} samples in {micro_batches} micro-batches are no whole samples each: "
            f"use a batch_size that {micro_batches} divides"
        )


def _training(plan: Plan) -> Iterator[str]:
    if plan.training.optimizer not in ("sgd", "momentum"):
        yield f"optimizer {plan.training.optimizer} has no kernel here: use sgd or momentum, or backend simulated"
    if plan.training.dtype != "fp32":
        yield f"this backend computes in float64, which does not show {plan.training.dtype}: use fp32"
    if plan.work.weights not in ("latest", "stash"):
        yield f"weights: {plan.work.weights} has no kernel here: use weights latest or stash, or backend simulated"


def _order(schedule: Schedule, binding: Binding) -> Iterator[str]:
    ops = schedule.ops
    if schedule.shape.replicas > 1:
        yield f"{schedule.shape.replicas} replicas: this backend sums no gradients between devices: use one replica"
    unknown = ~np.isin(ops["kind"], _KINDS) | (ops["part"] >= 0)
    for op in np.flatnonzero(unknown)[:1].tolist():
        yield f"{schedule.id(op)} has no kernel here, as {int(unknown.sum())} ops of this plan: use backend simulated"
    lanes = Counter(lane.device for lane in schedule.lanes if lane.computes)
    for device, count in lanes.items():
        if count > 1:
            yield f"'{binding.devices[device]}' has {count} compute lanes, a worker has one: use backend simulated"
    if not unknown.any():
        yield from _crossings(schedule)


def _crossings(schedule: Schedule) -> Iterator[str]:
    """Refuse an op that waits for another device without a transfer: its worker would not hear of it."""
    ops, later, earlier = schedule.ops, schedule.after.owners, schedule.after.values
    known_on = np.where(ops["target"] >= 0, ops["target"], ops["source"])
    for edge in np.flatnonzero(known_on[earlier] != ops["source"][later])[:1].tolist():
        waits = f"{schedule.id(int(later[edge]))} waits for {schedule.id(int(earlier[edge]))}"
        yield f"{waits} on another device, and no transfer carries that: use backend simulated"
