"""What runs, where and in which order; never how long.

A `Schedule` holds a static order for every lane and the data dependencies between ops. The dependencies of a
pipeline are written once, in `assemble`; planners and passes only order. Everything is stored as columns: a
schedule of a million ops is a few arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvalidSchedule
from sim.ops import BACKWARD_KINDS as BACKWARD_KINDS
from sim.ops import FORWARD_KINDS as FORWARD_KINDS
from sim.ops import Lane, OpId, OpKind
from sim.weights import reader_of

IntColumn = NDArray[np.int64]

OPS = np.dtype(
    [
        ("kind", "i1"),
        ("stage", "i4"),
        ("micro_batch", "i4"),
        ("replica", "i4"),
        ("part", "i4"),
        ("other_stage", "i4"),
        ("other_micro_batch", "i4"),
        ("source", "i4"),
        ("target", "i4"),
        ("reads", "i4"),
        ("writes", "i4"),
    ]
)
"""Columns of an op table: the seven fields of `OpId`; the device it runs on (a transfer: leaves from) and the device
a transfer arrives at (−1: none); the weight version it reads and writes (−1: none)."""

UNSET = -2
"""A version not stated by the planner: derived from the order of the lane that updates the stage."""

SEND_KINDS = (OpKind.SEND_ACTIVATION, OpKind.SEND_GRADIENT, OpKind.SEND_SAVED)
PASS_KINDS = (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE, *SEND_KINDS)
"""Kinds that are named by micro-batch; the others by mini-batch."""


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
class Rows:
    """A ragged table of integers: row ``i`` is ``values[starts[i]:starts[i + 1]]``."""

    starts: IntColumn
    values: IntColumn

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | IntColumn]) -> Rows:
        """Pack a list of rows."""
        sizes = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        values = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.empty(0, np.int64)
        return cls(np.concatenate([[0], np.cumsum(sizes)]), values)

    @classmethod
    def from_pairs(cls, owner: IntColumn, value: IntColumn, rows: int) -> Rows:
        """Row ``i`` collects ``value`` where ``owner == i``, in the order given."""
        by_owner = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), value[by_owner])

    @classmethod
    def distinct(cls, owner: IntColumn, value: IntColumn, rows: int) -> Rows:
        """`from_pairs` without doubles, each row sorted; values are below ``rows`` too."""
        pairs = np.sort(owner * rows + value)
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])] if len(pairs) else pairs
        owner = pairs // rows
        return cls(np.searchsorted(owner, np.arange(rows + 1)), pairs % rows)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> IntColumn:
        return self.values[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[IntColumn]:
        return (self[row] for row in range(len(self)))

    def reversed(self) -> Rows:
        """Row ``j`` lists every ``i`` whose row holds ``j``; values are row numbers of the same table."""
        return Rows.from_pairs(self.values, self.owners, len(self))

    @cached_property
    def owners(self) -> IntColumn:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def op_id(row: Any) -> OpId:
    """The name of one row of an op table."""
    kind, *rest = (int(row[name]) for name in OPS.names[:7])  # type: ignore[index]
    return OpId(OpKind(kind), *rest)


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

    def check(self) -> None:
        """Find stray, missing, doubled and cyclic ops, on every build.

        Raises
        ------
        InvalidSchedule : with the op's name and the grid in which its cell is marked.
        """
        if not len(self.ops):
            raise InvalidSchedule("an empty schedule: no op at all")
        self._check_names()
        _ = self.topological
        self._check_passes()
        self._check_updates()

    def _check_names(self) -> None:
        """Every op belongs to a stage, a replica and a micro-batch (or mini-batch) of the shape."""
        ops, shape = self.ops, self.shape
        numbers = np.where(np.isin(ops["kind"], PASS_KINDS), shape.total, shape.mini_batches)
        limits = (("stage", shape.stages), ("replica", shape.weight_sets), ("micro_batch", numbers))
        stray = np.any([(ops[name] < 0) | (ops[name] >= limit) for name, limit in limits], axis=0)
        fused = ops["kind"] == OpKind.FORWARD_BACKWARD
        stray |= fused & ((ops["other_stage"] >= shape.stages) | (ops["other_micro_batch"] >= shape.total))
        for op in np.flatnonzero(stray)[:1].tolist():
            counts = zip(shape._fields[:4], shape, strict=False)
            extent = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counts)
            raise self.fault(op, f"{self.id(op)} is unexpected: there should be {extent}")

    def _check_passes(self) -> None:
        """Each stage has one forward and one backward, whole, in parts or split in two, of every micro-batch."""
        halves, shape = self.halves, self.shape
        micro_batch, replica = (axis.ravel() for axis in np.indices((shape.total, shape.replicas)))
        for stage in range(shape.stages):
            if shape.copies:
                forward = halves.find(OpKind.FORWARD, stage, micro_batch, 0, anywhere=True)
                replica = np.where(forward >= 0, self.ops["replica"][forward], 0)
            rows = {kind: halves.find(kind, stage, micro_batch, replica) for kind in (OpKind.FORWARD, *BACKWARD_KINDS)}
            found = {kind: row >= 0 for kind, row in rows.items()}
            found[OpKind.BACKWARD] |= halves.find(OpKind.BACKWARD, stage, micro_batch, replica, 0) >= 0
            split = found[OpKind.BACKWARD_INPUT] | found[OpKind.BACKWARD_WEIGHT]
            needed = {OpKind.FORWARD: np.ones(len(split), bool), OpKind.BACKWARD: ~split}
            for kind in (*FORWARD_KINDS[:1], *BACKWARD_KINDS):
                for place in np.flatnonzero(needed.get(kind, split) & ~found[kind])[:1].tolist():
                    raise self._missing(OpId(kind, stage, int(micro_batch[place]), int(replica[place])))
            for place in np.flatnonzero(split & found[OpKind.BACKWARD])[:1].tolist():
                op = int(rows[OpKind.BACKWARD_INPUT][place])
                raise self.fault(op, f"{self.id(op)} computes a gradient that a full backward computes already")

    def _check_updates(self) -> None:
        """A stage that is updated (or a bucket that is reduced) once is so in every mini-batch."""
        once = self.ops[np.isin(self.ops["kind"], (OpKind.ALL_REDUCE, OpKind.UPDATE))]
        names, member = np.unique(once[["kind", "stage", "replica", "part"]], return_inverse=True)
        for group, (kind, stage, replica, part) in enumerate(names.tolist()):
            updates = self.shape.mini_batches // (self.shape.rounds[stage] if self.shape.rounds else 1)
            missing = np.setdiff1d(np.arange(updates), once["micro_batch"][member == group])
            if len(missing):
                raise self._missing(OpId(OpKind(kind), stage, int(missing[0]), replica, part))

    def _missing(self, name: OpId) -> InvalidSchedule:
        """An `InvalidSchedule` with the cell of an op that is not there, drawn at the end of the lane of its kin."""

        def kin(lane: int) -> tuple[bool, bool]:
            on_lane = self.ops[self.order[lane]]
            of_stage = (on_lane["stage"] == name.stage) & (on_lane["replica"] == name.replica)
            return bool((of_stage & (on_lane["kind"] == name.kind)).any()), bool(of_stage.any())

        rows: list[IntColumn] = list(self.order)
        lane = max(range(len(rows)), key=kin)
        rows[lane] = np.append(rows[lane], len(self.ops))
        ops = np.append(self.ops, np.array([(*name, -1, -1, -1, -1)], OPS))
        return invalid(ops, self.lanes, rows, len(self.ops), f"{name} is missing")


def invalid(
    ops: NDArray[np.void], lanes: Sequence[Lane], order: Iterable[IntColumn], op: int, message: str, most: int = 64
) -> InvalidSchedule:
    """An `InvalidSchedule` with the order of every compute lane and every lane of ``op``, whose cell is marked."""
    shown: list[Lane] = []
    rows: list[list[str]] = []
    for lane, on_lane in zip(lanes, order, strict=True):
        marked = np.flatnonzero(on_lane == op)
        if lane.computes or len(marked):
            first = max(int(marked[0]) - most // 2, 0) if len(marked) else 0
            cells = [_cell(ops[index], index == op) for index in on_lane[first : first + most + 1].tolist()]
            shown.append(lane)
            rows.append(["…", *cells] if first else cells)
    grid = render(shown, rows, most)
    error = InvalidSchedule(f"{message}\n{grid}")
    error.op, error.grid = str(op_id(ops[op])), grid
    return error


def _cell(row: Any, marked: bool) -> str:
    return f">{op_id(row)}<" if marked else str(op_id(row))


def render(lanes: Sequence[Lane], rows: Sequence[Sequence[str]], most: int = 64) -> str:
    """A grid as text: a line a lane, a column a slot, at most ``most`` columns."""
    names = [f"d{lane.device}.{lane.stream}" for lane in lanes]
    width = max((len(cell) for row in rows for cell in row[:most]), default=1)
    label = max((len(name) for name in names), default=0)
    lines = [
        f"{name:<{label}} │ "
        + " ".join(cell.center(width) for cell in row[:most]).rstrip()
        + (" …" * (len(row) > most))
        for name, row in zip(names, rows, strict=True)
    ]
    return "\n".join(lines)


class Halves:
    """Find ops by name in an op table; a fused pair is found by either half.

    The halves of a pair may use two copies of weights: its ``replica`` is that of its forward, and its backward uses
    the copy of its own micro-batch's forward.
    """

    def __init__(self, ops: NDArray[np.void]) -> None:
        self.span = 1 + np.array(
            [max(int(ops[name].max(initial=0)), 0) + 1 for name in ("stage", "micro_batch", "replica", "part")]
        )
        whole = np.flatnonzero(ops["kind"] != OpKind.FORWARD_BACKWARD)
        fused = np.flatnonzero(ops["kind"] == OpKind.FORWARD_BACKWARD)
        if len(fused):
            self.span[0] = max(self.span[0], int(ops["other_stage"].max()) + 2)
            self.span[1] = max(self.span[1], int(ops["other_micro_batch"].max()) + 2)
        self.codes, self.index = np.empty(0, np.int64), np.empty(0, np.int64)
        self._add(whole, *(ops[name][whole] for name in ("kind", "stage", "micro_batch", "replica", "part")))
        self._backward: list[IntColumn] = [ops[name] for name in ("stage", "micro_batch", "replica")]
        if len(fused):
            self._add_pairs(ops, fused)

    def _add_pairs(self, ops: NDArray[np.void], fused: IntColumn) -> None:
        pair, (stage, micro_batch, replica) = ops[fused], (column.copy() for column in self._backward)
        self._add(fused, OpKind.FORWARD, pair["stage"], pair["micro_batch"], pair["replica"], -1)
        stage[fused], micro_batch[fused] = pair["other_stage"], pair["other_micro_batch"]
        own = self.find(OpKind.FORWARD, stage[fused], micro_batch[fused], pair["replica"], anywhere=True)
        replica[fused] = np.where(own >= 0, ops["replica"][own], pair["replica"])
        self._add(fused, OpKind.BACKWARD, stage[fused], micro_batch[fused], replica[fused], -1)
        self._backward = [stage, micro_batch, replica]

    def _add(self, rows: IntColumn, *name: Any) -> None:
        code = np.append(self.codes, self._code(*name))
        by_code = np.argsort(code, kind="stable")
        self.codes, self.index = code[by_code], np.append(self.index, rows)[by_code]

    def _code(self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any) -> IntColumn:
        code = np.asarray(kind, np.int64)
        for value, span in zip((stage, micro_batch, replica, np.add(part, 1)), self.span, strict=True):
            code = code * span + np.asarray(value, np.int64)
        return code

    def backward_of(self, rows: IntColumn) -> tuple[IntColumn, IntColumn, IntColumn]:
        """Stage, micro-batch and replica of each op, of a fused pair those of its backward."""
        stage, micro_batch, replica = (column[rows] for column in self._backward)
        return stage, micro_batch, replica

    def doubled(self) -> int:
        """An op that stands in the table twice, or −1."""
        twice = np.flatnonzero(self.codes[1:] == self.codes[:-1])
        return int(self.index[twice[0] + 1]) if len(twice) else -1

    def find(
        self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any = -1, anywhere: bool = False
    ) -> IntColumn:
        """Rows of the ops asked for (broadcast), −1 where there is none.

        ``anywhere``: where there is none of that replica, the first of any.
        """
        found = self._find(kind, stage, micro_batch, replica, part)
        for other in range(int(self.span[2]) - 1) if anywhere else ():
            if not (found < 0).any():
                break
            found = np.where(found >= 0, found, self._find(kind, stage, micro_batch, other, part))
        return found

    def _find(self, kind: Any, stage: Any, micro_batch: Any, replica: Any, part: Any) -> IntColumn:
        values = np.broadcast_arrays(kind, stage, micro_batch, replica, part)
        inside = np.ones(values[0].shape, bool)
        for value, span in zip(values[1:], self.span, strict=True):
            inside &= (value >= -1) & (value < span - 1)
        inside &= (values[1] >= 0) & (values[2] >= 0) & (values[3] >= 0)
        code = self._code(*values)
        place = np.minimum(np.searchsorted(self.codes, code), max(len(self.codes) - 1, 0))
        found = inside & (self.codes[place] == code) if len(self.codes) else np.zeros(code.shape, bool)
        return np.where(found, self.index[place] if len(self.index) else -1, -1).astype(np.int64)


def assemble(
    shape: Shape,
    lanes: Sequence[Lane],
    ops: NDArray[np.void],
    order: Sequence[Sequence[int] | IntColumn],
    extra: Iterable[tuple[int, int]] | IntColumn = (),
    weights: str = "latest",
    distances: tuple[tuple[int, int], ...] = (),
    predict: str = "",
) -> Schedule:
    """Sort the ops, derive versions and data dependencies, check.

    Parameters
    ----------
    ops : op table in any order; ``reads`` may be `UNSET`.
    order : for each lane the rows of ``ops`` it runs.
    extra : pairs (earlier, later) of rows beyond the data dependencies.

    Raises
    ------
    InvalidSchedule : an op is doubled, missing, unexpected or part of a cycle.
    """
    shape.check()
    by_name = np.lexsort([ops[name] for name in ("part", "replica", "kind", "stage", "micro_batch")])
    place = np.empty(len(ops), np.int64)
    place[by_name] = np.arange(len(ops))
    ops = ops[by_name]
    rows = Rows.of([place[np.asarray(row, np.int64)] for row in order])
    pairs = place[np.asarray(extra if isinstance(extra, np.ndarray) else list(extra), np.int64).reshape(-1, 2)]
    halves = Halves(ops)
    if (twice := halves.doubled()) >= 0:
        raise invalid(ops, lanes, rows, twice, f"{op_id(ops[twice])} stands in the schedule twice")
    _versions(ops, rows)
    reader = reader_of(shape, ops, halves, weights, predict)
    earlier, later = _dependencies(shape, ops, halves, rows, reader)
    after = Rows.distinct(np.append(later, pairs[:, 1]), np.append(earlier, pairs[:, 0]), len(ops))
    schedule = Schedule(shape, ops, tuple(lanes), rows, after, pairs, weights, distances, predict)
    schedule.check()
    return schedule


def _versions(ops: NDArray[np.void], order: Rows) -> None:
    """Fill in unset versions: an op reads as many updates of its stage as stand before it on the updating lane."""
    updates = ops["kind"] == OpKind.UPDATE
    ops["writes"] = np.where(updates, ops["micro_batch"] + 1, -1)
    uses = np.isin(ops["kind"], (*FORWARD_KINDS, *BACKWARD_KINDS, OpKind.RECOMPUTE)) & (ops["reads"] == UNSET)
    for row in order:
        on_lane = ops[row]
        weights_of = on_lane["stage"] * (int(ops["replica"].max(initial=0)) + 1) + on_lane["replica"]
        for owner in np.unique(weights_of[uses[row]]):
            mine = weights_of == owner
            seen = np.cumsum(updates[row] & mine)
            chosen = mine & uses[row]
            ops["reads"][row[chosen]] = np.maximum(ops["reads"][row[chosen]], seen[chosen])
    ops["reads"][ops["reads"] == UNSET] = -1


def _dependencies(
    shape: Shape, ops: NDArray[np.void], halves: Halves, order: Rows, reader: IntColumn
) -> tuple[IntColumn, IntColumn]:
    """Who waits for whom by the data of training: (earlier, later) rows.

    A forward waits for the forward before it (through its transfer where there is one), a backward for its own
    forward and the backward after it, a weight gradient for its input gradient, an all-reduce for the gradients it
    sums, an update for all gradients of its mini-batch; a recomputation comes between its forward and backward. For
    versions see `_version_edges`.
    """
    pairs: list[tuple[IntColumn, IntColumn]] = []

    def link(later: IntColumn, earlier: IntColumn) -> NDArray[np.bool_]:
        found = earlier >= 0
        pairs.append((earlier[found], later[found]))
        return found

    def feed(earlier: IntColumn, later: IntColumn) -> None:
        pairs.append((earlier[later >= 0], later[later >= 0]))

    def rows(*kinds: OpKind) -> tuple[IntColumn, Any]:
        index = np.flatnonzero(np.isin(ops["kind"], kinds))
        return index, ops[index]

    def gradient(stage: Any, micro_batch: Any, replica: Any, part: Any = -1) -> IntColumn:
        full = halves.find(OpKind.BACKWARD, stage, micro_batch, replica, part, anywhere=True)
        split = halves.find(OpKind.BACKWARD_INPUT, stage, micro_batch, replica, part, anywhere=True)
        return np.where(full >= 0, full, split)

    def needs_input(later: IntColumn, stage: Any, micro_batch: Any, replica: Any) -> None:
        arrived = link(later, halves.find(OpKind.SEND_ACTIVATION, stage - 1, micro_batch, replica, anywhere=True))
        link(later[~arrived], halves.find(OpKind.FORWARD, stage - 1, micro_batch, replica, anywhere=True)[~arrived])

    def needs_gradient(later: IntColumn, stage: Any, micro_batch: Any, replica: Any) -> None:
        brought = link(later, halves.find(OpKind.SEND_SAVED, stage, micro_batch, replica))
        link(later[~brought], halves.find(OpKind.FORWARD, stage, micro_batch, replica)[~brought])
        arrived = link(later, halves.find(OpKind.SEND_GRADIENT, stage + 1, micro_batch, replica, anywhere=True))
        link(later[~arrived], gradient(stage + 1, micro_batch, replica)[~arrived])

    index, op = rows(*FORWARD_KINDS)
    needs_input(index, op["stage"], op["micro_batch"], op["replica"])
    index, _ = rows(OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.FORWARD_BACKWARD)
    needs_gradient(index, *halves.backward_of(index))
    index, op = rows(OpKind.RECOMPUTE)
    name = op["stage"], op["micro_batch"], op["replica"]
    link(index, halves.find(OpKind.FORWARD, *name))
    for kind in (OpKind.BACKWARD, OpKind.BACKWARD_INPUT):
        feed(index, halves.find(kind, *name))
    index, op = rows(OpKind.SEND_ACTIVATION, OpKind.SEND_SAVED)
    link(index, halves.find(OpKind.FORWARD, op["stage"], op["micro_batch"], op["replica"]))
    index, op = rows(OpKind.SEND_GRADIENT)
    link(index, gradient(op["stage"], op["micro_batch"], op["replica"]))
    index, op = rows(OpKind.BACKWARD_WEIGHT)
    link(index, halves.find(OpKind.BACKWARD_INPUT, op["stage"], op["micro_batch"], op["replica"], op["part"]))
    index, op = rows(*BACKWARD_KINDS, OpKind.FORWARD_BACKWARD)
    stage, micro_batch, replica = halves.backward_of(index)
    mini_batch = shape.update_of(stage, micro_batch)
    feed(index, halves.find(OpKind.ALL_REDUCE, stage, mini_batch, 0, op["part"]))
    feed(index, halves.find(OpKind.UPDATE, stage, mini_batch, replica))
    index, op = rows(OpKind.ALL_REDUCE)
    for copy in range(shape.weight_sets):
        feed(index, halves.find(OpKind.UPDATE, op["stage"], op["micro_batch"], copy))
    pairs.extend(_version_edges(ops, halves, order, reader))
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _version_edges(
    ops: NDArray[np.void], halves: Halves, order: Rows, reader: IntColumn
) -> list[tuple[IntColumn, IntColumn]]:
    """Order between forwards and the updates of their stage where they stand on different lanes.

    A forward waits for the update it must see; the one it must not see waits for the forward, unless its version is
    kept. On a device that does not update, pulls take the place of updates; a pull itself stands between two updates.
    """
    lane = np.full(len(ops), -1, np.int64)
    lane[order.values] = order.owners
    forward, pull = (np.flatnonzero(ops["kind"] == kind) for kind in (OpKind.FORWARD, OpKind.PULL))

    def found(kind: OpKind, rows: IntColumn, ahead: int) -> IntColumn:
        op = ops[rows]
        return halves.find(kind, op["stage"], op["reads"] + ahead, op["replica"])

    pulled, pulled_next = (found(OpKind.PULL, forward, ahead) for ahead in (0, 1))
    pulled, pulled_next = (np.where(ops["reads"][pulls] >= 0, pulls, -1) for pulls in (pulled, pulled_next))
    made, made_next = (found(OpKind.UPDATE, forward, ahead) for ahead in (-1, 0))
    made_next = np.where(ops["source"][made_next] == ops["source"][forward], made_next, -1)
    seen, unseen = np.where(pulled >= 0, pulled, made), np.where(pulled_next >= 0, pulled_next, made_next)
    before = (seen >= 0) & (lane[seen] != lane[forward])
    behind = (unseen >= 0) & (lane[unseen] != lane[forward]) & (reader[forward] == forward)
    pairs = [(seen[before], forward[before]), (forward[behind], unseen[behind])]
    seen, unseen = (found(OpKind.UPDATE, pull, ahead) for ahead in (-1, 0))
    return [*pairs, (seen[seen >= 0], pull[seen >= 0]), (pull[unseen >= 0], unseen[unseen >= 0])]


class ScheduleBuilder:
    """Collect ops lane by lane; `build` adds the dependencies and checks.

    Examples
    --------
    >>> builder = ScheduleBuilder(Shape(stages=1, micro_batches=1))
    >>> gpu = builder.lane(0, "compute")
    >>> for kind in (OpKind.FORWARD, OpKind.BACKWARD):
    ...     builder.add(gpu, OpId(kind, stage=0, micro_batch=0))
    >>> len(builder.build())
    2
    """

    def __init__(self, shape: Shape) -> None:
        shape.check()
        self.shape = shape
        self._lanes: dict[Lane, list[int]] = {}
        self._rows: list[tuple[int, ...]] = []
        self._named: dict[OpId, int] = {}
        self._extra: list[tuple[OpId, OpId]] = []

    def lane(self, device: int, stream: str) -> Lane:
        """The lane of that name, made where it is new."""
        lane = Lane(device, stream)
        self._lanes.setdefault(lane, [])
        return lane

    def add(self, lanes: Lane | Sequence[Lane], op: OpId, reads: int = UNSET) -> None:
        """Append an op to one lane, or to several that it holds at once. ``reads`` states its weight version."""
        held = [lanes] if isinstance(lanes, Lane) else lanes
        row = len(self._rows)
        for lane in held:
            self._lanes[lane].append(row)
        self._rows.append((*op, held[0].device, -1, reads, -1))
        self._named[op] = row

    def after(self, later: OpId, earlier: OpId) -> None:
        """Make ``later`` wait for ``earlier``, beyond the data dependencies."""
        self._extra.append((earlier, later))

    def build(self) -> Schedule:
        """The schedule, checked.

        Raises
        ------
        InvalidSchedule : an op is doubled, missing or part of a cycle.
        """
        for pair in self._extra:
            for unknown in {*pair} - self._named.keys():
                raise InvalidSchedule(f"{pair[1]} waits for {pair[0]}, but there is no {unknown}")
        extra = [(self._named[earlier], self._named[later]) for earlier, later in self._extra]
        table = np.array(self._rows, dtype=OPS)
        return assemble(self.shape, list(self._lanes), table, list(self._lanes.values()), extra)
