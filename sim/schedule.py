"""What runs, where and in which order; never how long.

A `Schedule` holds a static order for every lane and the data dependencies between ops. The dependencies of a
pipeline are written once, in `sim.dependencies`; planners and passes only order. Everything is stored as columns: a
schedule of a million ops is a few arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvalidSchedule
from sim.op_table import Halves, alike, op_id
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, Lane, OpId, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule_grid import invalid


class Shape(NamedTuple):
    """How much there is to do.

    Parameters
    ----------
    micro_batches : per mini-batch, and per replica where there are replicas.
    replicas : how many times the whole pipeline is there; each replica trains on every micro-batch number of its own.
    copies : how many copies of each stage divide the micro-batches among them (replicated stages, two directions);
        empty: one of each. The number of a copy stands in an op's ``replica``.
    rounds : how many mini-batches one update of each stage sums; empty: one.
    """

    stages: int
    micro_batches: int
    mini_batches: int = 1
    replicas: int = 1
    copies: tuple[int, ...] = ()
    rounds: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Micro-batches of the whole run (per replica)."""
        return self.micro_batches * self.mini_batches

    @property
    def weight_sets(self) -> int:
        """The most sets of weights that any one stage has."""
        return max(self.replicas, *self.copies, 1)

    def update_of(self, stage: Any, micro_batch: Any) -> IntColumn:
        """Number of the update that applies the gradient of a micro-batch to a stage."""
        mini_batch = np.asarray(micro_batch, np.int64) // self.micro_batches
        return mini_batch // np.asarray(self.rounds, np.int64)[stage] if self.rounds else mini_batch

    def check(self) -> None:
        """Raise `InvalidSchedule` where there is nothing to do: every count is at least 1."""
        counts = {name: getattr(self, name) for name in self._fields[:4]}
        if wrong := [f"{name} = {count}" for name, count in counts.items() if count < 1]:
            raise InvalidSchedule(f"{', '.join(wrong)}: a plan needs at least 1 of each")


@dataclass(frozen=True, eq=False)
class Schedule:
    """A static plan.

    Parameters
    ----------
    shape : stages, micro-batches, mini-batches, replicas.
    ops : the op table (dtype `OPS`), sorted by micro-batch, stage, kind, replica, part: equal schedules have equal
        tables, whatever the order in which they were built.
    lanes : the lanes; ``order[lane]`` lists its ops first to last.
    after : ``after[op]`` lists the ops whose end ``op`` waits for; the order of lanes is not repeated here.
    extra : pairs (earlier, later) that the planner asked for beyond the data dependencies, kept for passes.
    weights : the weight policy that versions follow: see `sim.training.Weights`.
    distances : under ``predict``, how many updates ahead (forward, backward) of each stage predict.
    predict : under ``predict``, the method: see `sim.training.Predict`.
    """

    shape: Shape
    ops: NDArray[np.void]
    lanes: tuple[Lane, ...]
    order: Rows
    after: Rows
    extra: IntColumn
    weights: str = "latest"
    distances: tuple[tuple[int, int], ...] = ()
    predict: str = ""

    def __len__(self) -> int:
        return len(self.ops)

    def id(self, op: int) -> OpId:
        """The name of op number ``op``."""
        return op_id(self.ops[op])

    @cached_property
    def placement(self) -> dict[tuple[int, int], int]:
        """The device of each set of weights, by (stage, replica): where its gradients are made and applied."""
        return self._places(FORWARD_KINDS) | self._places(BACKWARD_KINDS)

    @cached_property
    def forward_only(self) -> dict[tuple[int, int], int]:
        """The device of the forwards of a set of weights, by (stage, replica), where it is not that of `placement`."""
        forward = self._places(FORWARD_KINDS)
        return {weights: device for weights, device in forward.items() if device != self.placement[weights]}

    def _places(self, kinds: Sequence[OpKind]) -> dict[tuple[int, int], int]:
        op = self.ops[np.isin(self.ops["kind"], kinds)]
        replicas = int(op["replica"].max(initial=0)) + 1
        weights, first = np.unique(op["stage"].astype(np.int64) * replicas + op["replica"], return_index=True)
        devices = op["source"][first].tolist()
        return {divmod(place, replicas): device for place, device in zip(weights.tolist(), devices, strict=True)}

    @cached_property
    def halves(self) -> Halves:
        """Its ops by name."""
        return Halves(self.ops)

    @cached_property
    def alike(self) -> tuple[list[tuple[OpId, int, int, list[int]]], list[int]]:
        """Ops that cost the same: of each group the id, source, target and devices of one op; the group of each op."""
        first, member = alike(self.ops)
        ends = zip(self.ops["source"][first].tolist(), self.ops["target"][first].tolist(), strict=True)
        each = [(self.id(op), *pair, self.devices_of(op)) for op, pair in zip(first.tolist(), ends, strict=True)]
        return each, member.tolist()

    def devices_of(self, op: int) -> list[int]:
        """The devices whose lanes an op holds, in order: the members of a collective."""
        return sorted({self.lanes[lane].device for lane in self.lanes_of[op].tolist()})

    @cached_property
    def lanes_of(self) -> Rows:
        """The lanes of each op: one, several for a rendezvous or collective, none for a pure delay."""
        return Rows.from_pairs(self.order.values, self.order.owners, len(self.ops))

    @cached_property
    def waits_for(self) -> Rows:
        """Every op that ``op`` waits for: data dependencies and the op before it on each lane, without doubles."""
        return self.waits_for_on([True] * len(self.lanes))

    def waits_for_on(self, chosen: Sequence[bool] | NDArray[np.bool_]) -> Rows:
        """`waits_for` with the order of the chosen lanes only."""
        inside = np.ones(len(self.order.values), bool)
        inside[self.order.starts[:-1][np.diff(self.order.starts) > 0]] = False  # the first of a lane follows nothing
        inside &= np.repeat(np.asarray(chosen, bool), np.diff(self.order.starts))
        later = self.order.values[inside]
        earlier = np.concatenate([[0], self.order.values])[:-1][inside]
        owner, value = np.concatenate([self.after.owners, later]), np.concatenate([self.after.values, earlier])
        return Rows.distinct(owner, value, len(self.ops))

    @cached_property
    def successors(self) -> Rows:
        """The ops that wait for each op: `waits_for`, reversed."""
        return self.waits_for.reversed()

    @cached_property
    def topological(self) -> list[int]:
        """Every op after all it waits for.

        Raises
        ------
        InvalidSchedule : the order is cyclic (a lane order against the data, or lanes that wait for each other).
        """
        waiting = np.diff(self.waits_for.starts).tolist()
        starts, values = self.successors.starts.tolist(), self.successors.values.tolist()
        done = [op for op, count in enumerate(waiting) if not count]
        for op in done:  # grows while it is walked
            for later in values[starts[op] : starts[op + 1]]:
                waiting[later] -= 1
                if not waiting[later]:
                    done.append(later)
        if len(done) < len(waiting):
            raise self._cyclic(set(done))
        return done

    def _cyclic(self, done: set[int], most: int = 16) -> InvalidSchedule:
        """The fault of a cyclic order, naming one cycle (its first ``most`` ops)."""
        op = next(op for op in range(len(self.ops)) if op not in done)
        path: dict[int, None] = {}
        while op not in path:
            path[op] = None
            op = next(int(earlier) for earlier in self.waits_for[op] if int(earlier) not in done)
        cycle = [*path][list(path).index(op) :]
        names = [str(self.id(step)) for step in cycle[:most]] + ["…"] * (len(cycle) > most) + [str(self.id(op))]
        return self.fault(op, f"these ops wait for each other: {' waits for '.join(names)}")

    def fault(self, op: int, message: str) -> InvalidSchedule:
        """An `InvalidSchedule` that shows the grid with ``op`` marked."""
        return invalid(self.ops, self.lanes, self.order, op, message)
