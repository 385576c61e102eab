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
from sim.program import Program
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
    parts = schedule.shape.micro_batches * schedule.shape.replicas
    reasons = [*_machine(), *_memory(binding), *_model(plan, binding, parts), *_training(plan, binding)]
    if reasons := [*reasons, *_order(schedule, binding, oversubscribe)]:
        raise UnsupportedPlan("\n".join(reasons))
    return schedule


def accept_served(plan: Plan, binding: Binding, sleeping: bool) -> None:
    """Whether this backend honours a program of parameter servers; ``sleeping``: it computes nothing.

    What the planned devices and links would take, and how they vary, gives way to what this machine takes; a worker
    that sleeps takes the planned time, and varies as planned.

    Raises
    ------
    UnsupportedPlan : it does not; every reason at once, one a line.
    """
    reasons = [
        *_machine("torch", "zmq"),
        *_memory(binding),
        *_training(plan, binding),
        *_served(plan, binding, sleeping),
    ]
    if not sleeping:
        reasons += _model(plan, binding, 1)
    if reasons:
        raise UnsupportedPlan("\n".join(reasons))


def _served(plan: Plan, binding: Binding, sleeping: bool) -> Iterator[str]:
    assert isinstance(plan.work, Program)
    layout, conditions, optimizer = plan.work.layout, binding.conditions, plan.training.optimizer
    assert layout is not None
    if optimizer not in ("sgd", "momentum"):
        yield f"training.optimizer: a server applies sgd or momentum, not {optimizer}"
    if layout.background:
        yield "background: a second job is only simulated"
    if layout.snapshot == "on_delivery":
        yield "schedule.snapshot: a server reads what it sends when it is asked: use on_request"
    if layout.order == "window":
        yield "schedule.order: window is only simulated: use fifo, reverse or priority"
    for service in {conditions.services[device] for device in layout.servers}:
        if service.cores > 1:
            yield f"parameter_servers.cores: a server applies on one core here, not {service.cores}: use 1"
        if service.discipline != "fcfs":
            yield f"parameter_servers.discipline: {service.discipline} is only simulated: use fcfs"
    if conditions.stragglers and not sleeping:
        yield "stragglers: a worker that computes takes the time it takes: use compute: sleep"
    if conditions.outages or conditions.degradations:
        yield "faults: are only simulated; kill a process of the run to see what it does"


def _machine(*needed: str) -> Iterator[str]:
    packages = {"torch": "PyTorch", "zmq": "pyzmq"}
    for module in needed or ("torch",):
        if importlib.util.find_spec(module) is None:
            yield f"backend torch needs {packages[module]}: pip install twinrail[torch]"


def _memory(binding: Binding) -> Iterator[str]:
    if binding.allocator != COUNTING:
        yield f"memory.allocator: {binding.allocator.name} is only simulated: use counting, or backend simulated"


def _model(plan: Plan, binding: Binding, parts: int) -> Iterator[str]:
    if plan.architecture is None:
        yield f"of model '{plan.model}' only times are known, no layers to run: use a shipped model by its name"
    elif len(plan.architecture.entries[-1].leaving) != 1:
        yield f"model '{plan.model}' is no classifier: this backend has no other loss"
    if binding.samples < 1 or binding.samples % parts:
        yield (
            f"{binding.samples:g} samples in {parts} micro-batches are no whole samples each: "
            f"use a batch_size that {parts} divides"
        )


def _training(plan: Plan, binding: Binding) -> Iterator[str]:
    if plan.training.zero:
        yield "training.zero: is only simulated: every replica here holds all of its state"
    if binding.cluster.tensor_parallel > 1:
        yield "schedule.tensor_parallel: is only simulated: a process here has whole layers"
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
