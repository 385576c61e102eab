"""How a schedule is made of ops in order: versions and dependencies are derived, and everything is checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.dependencies import dependencies
from sim.errors import InvalidSchedule
from sim.op_table import OPS, UNSET, Halves, op_id
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, Lane, OpId, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule import Schedule, Shape
from sim.schedule_grid import invalid
from sim.schedule_laws import check
from sim.weights import reader_of


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
    earlier, later = dependencies(shape, ops, halves, rows, reader)
    after = Rows.distinct(np.append(later, pairs[:, 1]), np.append(earlier, pairs[:, 0]), len(ops))
    schedule = Schedule(shape, ops, tuple(lanes), rows, after, pairs, weights, distances, predict)
    check(schedule)
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
