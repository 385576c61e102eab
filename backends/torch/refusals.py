"""What this backend cannot honour, with what to use instead."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator

import numpy as np

from backends.torch.job import SENDS, known_on
from sim.binding import Binding
from sim.errors import UnsupportedPlan
from sim.memory.allocators import COUNTING
from sim.ops import COMPUTE_KINDS, OpKind
from sim.plan import Plan
from sim.schedule import Schedule

_KINDS = (*COMPUTE_KINDS - {OpKind.ACCUMULATE}, *SENDS, OpKind.ALL_REDUCE)


def accept(plan: Plan, binding: Binding, oversubscribe: bool = False) -> Schedule:
    """The schedule of a plan that this backend honours.

    Raises
    ------
    UnsupportedPlan : it does not; every reason at once, one a line.
    """
    schedule = plan.work
    if not isinstance(schedule, Schedule):
        raise UnsupportedPlan(f"the order of '{plan.method}' depends on time: use backend simulated")
    reasons = [*_machine(), *_memory(binding), *_model(plan, binding), *_training(plan)]
    if reasons := [*reasons, *_order(schedule, binding, oversubscribe)]:
        raise UnsupportedPlan("\n".join(reasons))
    return schedule


def _machine() -> Iterator[str]:
    if importlib.util.find_spec("torch") is None:
        yield "backend torch needs PyTorch: pip install twinrail[torch]"


def _memory(binding: Binding) -> Iterator[str]:
    if binding.allocator != COUNTING:
        yield f"memory.allocator: {binding.allocator.name} is only simulated: use counting, or backend simulated"


def _model(plan: Plan, binding: Binding) -> Iterator[str]:
    if plan.architecture is None:
        yield f"of model '{plan.model}' only times are known, no layers to run: use a shipped model by its name"
    elif len(plan.architecture.entries[-1].leaving) != 1:
        yield f"model '{plan.model}' is no classifier: this backend has no other loss"
    shape = plan.work.shape
    parts = shape.micro_batches * shape.replicas
    if binding.samples < 1 or binding.samples % parts:
        yield (
            f"{binding.samples:g} samples in {parts} micro-batches are no whole samples each: "
            f"use a batch_size that {parts} divides"
        )


def _training(plan: Plan) -> Iterator[str]:
    if plan.training.dtype != "fp32":
        yield f"this backend computes in float32, which does not show {plan.training.dtype}: use fp32"


def _order(schedule: Schedule, binding: Binding, oversubscribe: bool) -> Iterator[str]:
    ops = schedule.ops
    unknown = ~np.isin(ops["kind"], [int(kind) for kind in _KINDS])
    for op in np.flatnonzero(unknown)[:1].tolist():
        yield f"{schedule.id(op)} has no kernel here, as {int(unknown.sum())} ops of this plan: use backend simulated"
    lanes = Counter(lane.device for lane in schedule.lanes if lane.computes)
    for device, count in lanes.items():
        if count > 1 and not oversubscribe:
            yield (
                f"'{binding.devices[device]}' has {count} compute lanes, a process on the CPU has one: "
                f"use --allow-oversubscribe, or backend simulated"
            )
    if not unknown.any():
        yield from _crossings(schedule)


def _crossings(schedule: Schedule) -> Iterator[str]:
    """Refuse an op that waits for another device without a transfer: its worker would not hear of it."""
    ops, later, earlier = schedule.ops, schedule.after.owners, schedule.after.values
    unheard = np.ones(len(later), bool)
    for device in {lane.device for lane in schedule.lanes}:
        unheard &= ~(known_on(schedule, device)[earlier] & (ops["source"][later] == device))
    unheard &= ops["kind"][later] != OpKind.ALL_REDUCE  # its members meet in it
    for edge in np.flatnonzero(unheard)[:1].tolist():
        waits = f"{schedule.id(int(later[edge]))} waits for {schedule.id(int(earlier[edge]))}"
        yield f"{waits} on another device, and no transfer carries that: use backend simulated"
