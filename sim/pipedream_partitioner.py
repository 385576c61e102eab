"""PipeDream's partitioner: which layers share a stage, and on how many machines each stage is replicated.

A dynamic program over the places where a model may be cut (PipeDream, SOSP 2019, §3.1; msr-fiddle/pipedream,
``optimizer_graph_hierarchical.py``), for machines that are alike and one bandwidth between them. A stage of seconds c
and parameter bytes w on m machines takes t = (c + 4(m−1)·w / (m·bandwidth)) / m a mini-batch as released
(``sync="sum"``), max(c, …) / m as published (``"max"``). Where transfers count, a stage but the first is no faster than
2·a / (m·bandwidth), for the bytes a that enter and those that leave it. Every machine is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, TypeAlias

import numpy as np

from sim.antichains import Floats, States
from sim.errors import Fault, ScenarioError

Sync = Literal["sum", "max"]
Transfers = Literal["include", "ignore"]
Term: TypeAlias = Callable[[int, int], Floats]
"""A figure of stages, [points, points] from start to end, by machines left for the stage and the rest, and its own."""

MOST_MACHINES = 512
MOST_CELLS = 20_000_000
"""Points² × machines: beyond it, tables outgrow memory."""

ROUNDING = 1e-12
"""Bottlenecks this close are equal: no measured time is known so well, and sums of floats are not exact."""
TICK_BITS = 22
"""Stage times are squared as whole ticks, 2²² to a bottleneck: such sums are exact, so that equal ones are equal."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage and its figures for one mini-batch.

    ``layers`` are indices of `States.layers`. ``first`` and ``last`` are positions when all layers are laid out stage
    by stage; for a chain, and wherever cuts follow the order of `sim.graph.chain`, they are the layers themselves.
    ``compute_s`` is on one machine; ``time_s`` with synchronisation and all replicas at work; ``transfer_s`` 0 where
    transfers are ignored; ``memory_bytes`` on each machine.
    """

    first: int
    last: int
    replicas: int
    layers: tuple[int, ...]
    compute_s: float
    time_s: float
    transfer_s: float
    parameter_bytes: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class PipeDreamPartition:
    """Stages in pipeline order; seconds a mini-batch of the slowest stage, on one machine, with data parallelism."""

    stages: tuple[Stage, ...]
    bottleneck_s: float
    single_device_s: float
    data_parallel_s: float

    @property
    def speedup(self) -> float:
        """Over one machine."""
        return self.single_device_s / self.bottleneck_s

    @property
    def data_parallel_speedup(self) -> float:
        """Of data parallelism on as many machines, over one."""
        return self.single_device_s / self.data_parallel_s

    @property
    def in_order(self) -> bool:
        """Whether every stage is a run of consecutive layers."""
        return all(stage.layers == tuple(range(stage.first, stage.last + 1)) for stage in self.stages)


def partition(
    states: States,
    machines: int,
    bytes_per_s: float,
    *,
    replicas: Sequence[int] | None = None,
    sync: Sync = "sum",
    transfers: Transfers = "include",
    memory_bytes: float | None = None,
) -> PipeDreamPartition:
    """The partition with the least bottleneck; of equals the least Σ ``time_s``² over stages, then stage by stage the
    smallest last point and the fewest replicas.

    ``replicas`` prescribes those of each stage: ``[1] * machines`` is a straight pipeline. With ``memory_bytes``, a
    machine must hold ⌈machines from its stage on / replicas⌉ mini-batches, each with its parameters and saved
    activations (the released code holds one fewer, and so nothing at all in the last stage).

    Raises
    ------
    ScenarioError : no such partition, or memory for none; no work at all; a problem beyond the limits of this module.
    """
    _check(states, machines, bytes_per_s, replicas)
    costs = _Costs(states, bytes_per_s, sync, transfers, memory_bytes)
    program = _Program(len(states.members), _choices(machines, replicas))
    time_s = {count: costs.time_s(count) for count in program.sizes}
    bound_s = {count: np.maximum(time_s[count], costs.transfer_s(count)) for count in program.sizes}
    bottleneck_s = program.least(costs.where_it_fits(bound_s), np.maximum)[machines, 0]
    if not np.isfinite(bottleneck_s):
        raise _infeasible(costs, program)
    squares = {count: _squared(time_s[count], bound_s[count], bottleneck_s) for count in program.sizes}
    stages = tuple(costs.stage(*step) for step in program.best_path(costs.where_it_fits(squares)))
    whole_s = float(states.compute_s[-1])
    return PipeDreamPartition(
        stages=stages,
        bottleneck_s=max(max(stage.time_s, stage.transfer_s) for stage in stages),
        single_device_s=whole_s,
        data_parallel_s=float(costs.shared_s(whole_s, states.parameter_bytes[-1], machines)),
    )


def _check(states: States, machines: int, bytes_per_s: float, replicas: Sequence[int] | None) -> None:
    faults = []
    if not 1 <= machines <= MOST_MACHINES:
        faults.append(Fault(f"expected 1 to {MOST_MACHINES} machines, got {machines}", "machines"))
    elif len(states.members) ** 2 * machines > MOST_CELLS:
        message = f"{len(states)} states on {machines} machines are too many"
        hint = f"use at most {MOST_CELLS // len(states.members) ** 2} or a coarser profile"
        faults.append(Fault(message, "machines", suggestion=hint))
    if not bytes_per_s > 0:
        faults.append(Fault(f"expected a bandwidth above 0 bytes/s, got {bytes_per_s}", "bandwidth"))
    if replicas is not None and (sum(replicas) != machines or min(replicas) < 1):
        message = f"expected at least one machine a stage and {machines} in all, got {list(replicas)}"
        faults.append(Fault(message, "replicas"))
    if not states.compute_s[-1] > 0:
        faults.append(Fault("no layer takes any time: there is nothing to balance"))
    if faults:
        raise ScenarioError.of(faults)


@dataclass(frozen=True)
class _Costs:
    """What stages cost. Arrays [points, points] are of the stage from one point to the other, ∞ where there is none."""

    states: States
    bytes_per_s: float
    sync: Sync
    transfers: Transfers
    memory_bytes: float | None

    def between(self, column: Floats) -> Floats:
        """What the layers of the stage add to a column of points; without meaning where there is no stage."""
        return column - column[:, None]

    @cached_property
    def compute_s(self) -> Floats:
        return self.between(self.states.compute_s)

    @cached_property
    def parameter_bytes(self) -> Floats:
        return self.between(self.states.parameter_bytes)

    @cached_property
    def held_bytes(self) -> Floats:
        """Of one mini-batch."""
        held = self.between(self.states.parameter_bytes + self.states.saved_bytes)
        return np.where(self.states.precedes, held, np.inf)

    def shared_s(self, compute_s: Floats | float, parameter_bytes: Floats | float, count: int) -> Floats | float:
        """Seconds of work on ``count`` machines, with the synchronisation of its gradients."""
        sync_s = 4 * (count - 1) * parameter_bytes / (self.bytes_per_s * count) if count > 1 else 0.0
        return (compute_s + sync_s if self.sync == "sum" else np.maximum(compute_s, sync_s)) / count

    def time_s(self, count: int) -> Floats:
        return np.where(self.states.precedes, self.shared_s(self.compute_s, self.parameter_bytes, count), np.inf)

    def transfer_s(self, count: int) -> Floats:
        """As released: activations and their gradients, of the larger cut; nothing counts against the first stage."""
        leaving_s = 2 * self.states.output_bytes / (self.bytes_per_s * count)
        transfer_s = np.maximum(leaving_s, leaving_s[:, None])
        transfer_s[0] = 0.0
        return transfer_s if self.transfers == "include" else np.zeros_like(transfer_s)

    def memory(self, left: int, count: int) -> Floats:
        """Bytes on each of ``count`` machines, if ``left`` serve this stage and those behind it."""
        return self.held_bytes * math.ceil(left / count)

    def where_it_fits(self, figures: Mapping[int, Floats]) -> Term:
        limit = self.memory_bytes
        if limit is None:
            return lambda left, count: figures[count]
        return lambda left, count: np.where(self.memory(left, count) <= limit, figures[count], np.inf)

    def stage(self, start: int, end: int, left: int, count: int) -> Stage:
        members, cell = self.states.members, (start, end)
        return Stage(
            first=int(members[start].sum()),
            last=int(members[end].sum()) - 1,
            replicas=count,
            layers=tuple(np.flatnonzero(members[end] & ~members[start]).tolist()),
            compute_s=float(self.compute_s[cell]),
            time_s=float(self.time_s(count)[cell]),
            transfer_s=float(self.transfer_s(count)[cell]),
            parameter_bytes=float(self.parameter_bytes[cell]),
            memory_bytes=float(self.memory(left, count)[cell]),
        )


@dataclass(frozen=True)
class _Program:
    """The recurrence. ``choices``: how many machines a stage may take of those left for it and the stages behind it."""

    points: int
    choices: Mapping[int, Sequence[int]]

    @property
    def machines(self) -> int:
        return max(self.choices)

    @property
    def sizes(self) -> list[int]:
        return sorted({count for counts in self.choices.values() for count in counts})

    def least(self, term: Term, combine: Callable[[Floats, Floats], Floats]) -> Floats:
        """[machines + 1, points]: the least that the stages from a point on, on so many machines, amount to."""
        least = np.full((self.machines + 1, self.points), np.inf)
        least[0, -1] = 0.0
        for left, counts in self.choices.items():
            for count in counts:
                candidates = combine(term(left, count), least[left - count]).min(axis=1)
                np.minimum(least[left], candidates, out=least[left])
        return least

    def best_path(self, term: Term) -> list[tuple[int, int, int, int]]:
        """Stages of least sum as (start, end, machines left, replicas); of equals the smallest end, then replicas."""
        least = self.least(term, np.add)
        start, left, path = 0, self.machines, []
        while left:
            ends = []
            for count in self.choices[left]:
                attaining = np.flatnonzero(term(left, count)[start] + least[left - count] == least[left, start])
                ends += [(int(end), count) for end in attaining[:1]]
            end, count = min(ends)
            path.append((start, end, left, count))
            start, left = end, left - count
        return path


def _choices(machines: int, replicas: Sequence[int] | None) -> dict[int, Sequence[int]]:
    if replicas is None:
        return {left: range(1, left + 1) for left in range(1, machines + 1)}
    return {left: (count,) for left, count in zip(accumulate(reversed(replicas)), reversed(replicas), strict=True)}


def _squared(time_s: Floats, bound_s: Floats, bottleneck_s: float) -> Floats:
    """Stage times squared, in ticks; ∞ where a stage is slower than the bottleneck."""
    per_tick_s = 2.0 ** (math.frexp(bottleneck_s)[1] - TICK_BITS)
    return np.where(bound_s <= bottleneck_s * (1 + ROUNDING), np.rint(time_s / per_tick_s) ** 2, np.inf)


def _infeasible(costs: _Costs, program: _Program) -> ScenarioError:
    """Why there is no partition: too few cuts, or how much memory the thriftiest one needs."""
    needed_bytes = program.least(costs.memory, np.maximum)[program.machines, 0]
    if np.isfinite(needed_bytes):
        message = f"no partition fits into {costs.memory_bytes:.0f} B of memory a machine"
        hint = f"the least that works on {program.machines} machines is {math.ceil(needed_bytes)} B"
        return ScenarioError.of([Fault(message, "memory", suggestion=hint)])
    message = f"{len(costs.states.layers)} layers cannot be cut into {len(program.choices)} stages"
    return ScenarioError.of([Fault(message, "machines")])
