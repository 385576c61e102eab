"""PyTorch's pipeline schedule files: a row a rank, a cell a slot, an empty cell where the rank is idle."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scenarios import pytorch_actions
from scenarios.consistency import MAX_FORWARDS
from scenarios.pytorch_actions import EXAMPLES, LETTERS, NEXT, Action, Dialect
from scenarios.quantities import printable, shown
from scenarios.text_file import read_text
from sim.assembly import assemble
from sim.errors import Fault, InvalidSchedule, ScenarioError, UnsupportedPlan
from sim.longest_path import unit_slots
from sim.op_table import OPS, PASS_KINDS, UNSET
from sim.ops import COMPUTE_KINDS, Lane, OpId, OpKind
from sim.rows import IntColumn, Rows
from sim.schedule import Schedule, Shape

MAX_BYTES = 8 << 20
MAX_FAULTS = 20

Layout = tuple[tuple[Lane | str, ...], ...]
"""The cells of each rank: the lane whose next op stands there, or a text that is no op of ours; empty: idle."""


class Recorded(NamedTuple):
    """A file as read; ``write(*recorded)`` gives its cells back."""

    schedule: Schedule
    layout: Layout
    dialect: Dialect


class _Cell(NamedTuple):
    """An action and where it stands: ranks count from 0, lines and columns from 1."""

    action: Action
    rank: int
    line: int
    column: int

    @property
    def place(self) -> str:
        return f"line {self.line}, column {self.column}"


def is_schedule(file: str | Path) -> bool:
    """Whether the first line of a file holds an action such as 0F0, which that of no scenario or trace does."""
    path = Path(file)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as opened:
            first = opened.read(4096).decode("utf-8-sig", "replace").lstrip().split("\n", 1)[0]
    except OSError:
        return False  # whoever reads it says what is wrong with it
    return any(pytorch_actions.parse(text.strip(' "\r')) for text in first.split(","))


def read(path: Path, dialect: Dialect | None = None, mini_batches: int = 1) -> Recorded:
    """The training step of a file, ``mini_batches`` times, each with an update of every stage at its end.

    A transfer that the file states is one op on both lanes of its channel, on each in the order of that rank's row, and
    it starts only when both rows have come to it. The two directions between two ranks are two channels.

    Parameters
    ----------
    dialect : ``None``: legacy where the file holds W but no I.

    Raises
    ------
    ScenarioError : everything that is wrong with the file, with line and column.
    """
    step = _Step(printable(str(path)))
    step.parse(read_text(path, "a pipeline schedule in CSV", MAX_BYTES))
    step.check(dialect)
    if len(step.cells) * mini_batches > MAX_FORWARDS:
        step.fault(f"{len(step.cells)} actions x {mini_batches} mini-batches: the limit is {MAX_FORWARDS}")
    step.refuse()
    return Recorded(step.schedule(mini_batches), step.layout(), step.dialect)


class _Step:
    """Collects the actions of a file and its faults; one without faults becomes a schedule."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.rows: list[list[str]] = []
        self.cells: list[_Cell] = []
        self.dialect: Dialect = "current"
        self.owner: dict[int, _Cell] = {}  # the first cell of each stage
        self.stages = self.micro_batches = 0

    def fault(self, message: str, line: int | None = None, column: int = 0, hint: str | None = None) -> None:
        if len(self.faults) <= MAX_FAULTS:  # there may be one in every cell
            self.faults.append(Fault(message, f"column {column}" if column else "", self.file, line, hint))

    def fault_at(self, cell: _Cell, message: str, hint: str | None = None) -> None:
        self.fault(message, cell.line, cell.column, hint)

    def refuse(self) -> None:
        """Raise if there are faults."""
        if len(self.faults) > MAX_FAULTS:
            self.faults[MAX_FAULTS:] = [Fault("and more faults", file=self.file)]
        if self.faults:
            raise ScenarioError.of(self.faults)

    def name(self, op: OpId, receives: bool = False) -> str:
        return pytorch_actions.write(Action(op, receives), self.dialect)

    def parse(self, text: str) -> None:
        lines = csv.reader(io.StringIO(text.rstrip(), newline=None), strict=True)
        try:
            for rank, row in enumerate(lines):
                self.rows.append([cell.strip() for cell in row])
                self.parse_row(rank, lines.line_num)
        except csv.Error as error:
            self.fault(f"no CSV: {error}", lines.line_num)

    def parse_row(self, rank: int, line: int) -> None:
        before = len(self.cells), len(self.faults)
        for column, text in enumerate(self.rows[rank], start=1):
            if action := pytorch_actions.parse(text):
                self.cells.append(_Cell(action, rank, line, column))
            elif text and not pytorch_actions.moves_nothing(text):
                self.fault(f"expected an action such as {EXAMPLES}, got {shown(text)}", line, column)
        if before == (len(self.cells), len(self.faults)):
            self.fault(f"rank {rank} has nothing to do", line)

    def check(self, dialect: Dialect | None) -> None:
        """Look for every kind of fault that does not follow from those found before."""
        if not self.rows and not self.faults:
            self.fault("nothing in it: expected a row for each rank, such as 0F0,0F1,0B0,0B1")
        for look in (self.check_names, lambda: self.read_dialect(dialect), self.check_passes, self.check_transfers):
            if not self.faults:
                look()

    def check_names(self) -> None:
        """No action is there twice, no stage on two ranks."""
        seen: dict[tuple[OpId, bool], _Cell] = {}
        for cell in self.cells:
            receives = cell.action.receives
            for half in cell.action.halves:
                if (first := seen.setdefault((half, receives), cell)) is not cell:
                    self.fault_at(cell, f"{self.name(half, receives)} is there twice, first in {first.place}")
            for stage in cell.action.stages:
                if (first := self.owner.setdefault(stage, cell)).rank != cell.rank:
                    there = f"on rank {first.rank} in {first.place}"
                    self.fault_at(cell, f"stage {stage} is on rank {cell.rank} here, {there}")

    def read_dialect(self, wanted: Dialect | None) -> None:
        """Which dialect it is, and B in its sense."""
        first = {cell.action.op.kind: cell for cell in reversed(self.cells)}
        split, weight = first.get(OpKind.BACKWARD_INPUT), first.get(OpKind.BACKWARD_WEIGHT)
        self.dialect = wanted or ("legacy" if weight and not split else "current")
        if self.dialect == "current":
            if weight and not split:
                self.fault_at(weight, "there is W but no I: B is the input gradient", "write dialect: legacy")
            return
        for stranger in filter(None, (split, first.get(OpKind.FORWARD_BACKWARD))):
            self.fault_at(stranger, "not of the legacy dialect, in which B is the input gradient")
        for place, cell in enumerate(self.cells):
            if cell.action.op.kind is OpKind.BACKWARD:
                op = cell.action.op._replace(kind=OpKind.BACKWARD_INPUT)
                self.cells[place] = cell._replace(action=Action(op))

    def check_passes(self) -> None:
        """Each stage has one forward and one backward, whole or split in two, of every micro-batch."""
        found = {half: cell for cell in self.cells for half in cell.action.halves if half.kind not in NEXT}
        self.stages = 1 + max((op.stage for op in found), default=-1)
        self.micro_batches = 1 + max((op.micro_batch for op in found), default=-1)
        for op in islice(self.missing_passes(found), MAX_FAULTS + 1):
            owner = self.owner.get(op.stage)
            self.fault(f"{self.name(op)} is missing", owner.line if owner else None)
        for op, cell in found.items():
            whole = op._replace(kind=OpKind.BACKWARD)
            if op.kind in (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT) and whole in found:
                self.fault_at(cell, f"{self.name(op)} is a part of {self.name(whole)} in {found[whole].place}")

    def missing_passes(self, found: Container[OpId]) -> Iterator[OpId]:
        for stage in range(self.stages):
            for micro_batch in range(self.micro_batches):
                forward, backward = OpId(OpKind.FORWARD, stage, micro_batch), OpId(OpKind.BACKWARD, stage, micro_batch)
                halves = [backward._replace(kind=kind) for kind in (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)]
                split = self.dialect == "legacy" or any(half in found for half in halves)
                yield from (op for op in (forward, *(halves if split else [backward])) if op not in found)

    def check_transfers(self) -> None:
        """A file that states its communication states both ends of all of it, and no other."""
        found = {cell.action: cell for cell in self.cells if cell.action.op.kind in NEXT}
        needed = set(self.transfers())
        for action, cell in found.items():
            if action.op not in needed:
                self.fault_at(cell, f"{self.name(*action)}: nothing goes from one rank to another there")
        for op in sorted(needed) if found else ():
            for receives in (False, True):
                action = Action(op, receives)
                if action not in found:
                    self.fault(f"{self.name(*action)} is missing", self.owner[action.stages[0]].line)

    def transfers(self) -> Iterator[OpId]:
        """What must go from one rank to another."""
        for kind, ahead in NEXT.items():
            for stage in range(self.stages):
                if 0 <= stage + ahead < self.stages and self.owner[stage].rank != self.owner[stage + ahead].rank:
                    yield from (OpId(kind, stage, micro_batch) for micro_batch in range(self.micro_batches))

    def lane(self, cell: _Cell) -> Lane:
        op, receives = cell.action
        if op.kind not in NEXT:
            return Lane(cell.rank, "compute")
        peer = self.owner[op.stage if receives else op.stage + NEXT[op.kind]].rank
        return Lane(cell.rank, f"recv<{peer}" if receives else f"send>{peer}")

    def layout(self) -> Layout:
        rows: list[list[Lane | str]] = [[*row] for row in self.rows]
        for cell in self.cells:
            rows[cell.rank][cell.column - 1] = self.lane(cell)
        return tuple(tuple(row) for row in rows)

    def schedule(self, mini_batches: int) -> Schedule:
        """The step repeated; the update of stage k is row k of each repetition."""
        updates = [OpId(OpKind.UPDATE, stage, 0) for stage in range(self.stages)]
        rows = {op: row for row, op in enumerate(dict.fromkeys([*updates, *(cell.action.op for cell in self.cells)]))}
        order: dict[Lane, list[int]] = {Lane(rank, "compute"): [] for rank in range(len(self.rows))}
        last = {self.owner[stage].rank: stage - len(rows) for stage in range(self.stages)}  # of the step before
        extra: list[tuple[int, int]] = []
        for cell in self.cells:
            lane, row = self.lane(cell), rows[cell.action.op]
            order.setdefault(lane, []).append(row)
            if lane.computes:
                last[cell.rank] = row
            else:
                extra.append((last[cell.rank], row))
        for stage in range(self.stages):
            order[Lane(self.owner[stage].rank, "compute")].append(stage)
        shape = Shape(self.stages, self.micro_batches, mini_batches)
        table = np.array([self.table_row(op) for op in rows], OPS)
        try:
            return assemble(shape, [*order], *_repeated(shape, table, order.values(), extra))
        except InvalidSchedule as error:
            raise self.located(error) from None

    def table_row(self, op: OpId) -> tuple[int, ...]:
        target = self.owner[op.stage + NEXT[op.kind]].rank if op.kind in NEXT else -1
        return (*op, self.owner[op.stage].rank, target, UNSET, -1)

    def located(self, error: InvalidSchedule) -> ScenarioError:
        """The error with the place of its op in the file."""
        op = OpId.parse(error.op)
        op = op._replace(micro_batch=op.micro_batch % self.micro_batches)
        cell = next((cell for cell in self.cells if op in (cell.action.op, *cell.action.halves)), None)
        self.fault(str(error), cell.line if cell else None, cell.column if cell else 0)
        return ScenarioError.of(self.faults)


def _repeated(
    shape: Shape, table: NDArray[np.void], order: Iterable[Sequence[int]], extra: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.void], list[IntColumn], IntColumn]:
    """Ops, order of lanes and extra pairs of every mini-batch; a negative row is one of the mini-batch before."""
    ops, step = np.tile(table, shape.mini_batches), np.arange(shape.mini_batches)[:, None]
    shift = np.where(np.isin(table["kind"], PASS_KINDS), shape.micro_batches, 1)
    ops["micro_batch"] += (step * shift).ravel()
    ops["other_micro_batch"] += (step * np.where(table["other_micro_batch"] >= 0, shift, 0)).ravel()
    pairs = (np.array(extra, np.int64).reshape(1, -1, 2) + len(table) * step[:, :, None]).reshape(-1, 2)
    return ops, [(np.array(row) + len(table) * step).ravel() for row in order], pairs[pairs[:, 0] >= 0]


def without_lanes(schedule: Schedule, holds_lanes: Callable[[int, int], bool]) -> Schedule:
    """The schedule whose transfers hold lanes only where ``holds_lanes(source, target)``: elsewhere they are delays."""
    sends = schedule.ops[schedule.ops["target"] >= 0]
    delays = [pair for pair in np.unique(sends[["source", "target"]]).tolist() if not holds_lanes(*pair)]
    if not delays:
        return schedule
    idle = {lane for a, b in delays for lane in (Lane(a, f"send>{b}"), Lane(b, f"recv<{a}"))}
    kept = [(lane, row) for lane, row in zip(schedule.lanes, schedule.order, strict=True) if lane not in idle]
    return replace(schedule, lanes=tuple(lane for lane, _ in kept), order=Rows.of([row for _, row in kept]))


def write(schedule: Schedule, layout: Layout | None = None, dialect: Dialect = "current") -> str:
    """The training step of a schedule as a file; updates are left out, as they are in PyTorch's.

    Parameters
    ----------
    layout : where the ops stand; ``None``: compute only, each op in the column of its slot in a unit-slot run.

    Raises
    ------
    UnsupportedPlan : PyTorch's files cannot hold it: a stage on two devices, two compute lanes on one, ops without
        letters there, mini-batches that differ or overlap; or ``layout`` is that of another schedule.
    """
    if reasons := [*_refusals(schedule, dialect)]:
        raise UnsupportedPlan(f"no schedule that PyTorch's CSV can hold: {'; '.join(reasons)}")
    cells = _unit_slot_layout(schedule) if layout is None else layout
    wanted = Counter(cell for row in cells for cell in row if not isinstance(cell, str))
    step = {lane: _one_step(schedule, lane) for lane in {*wanted, *filter(_computes, schedule.lanes)}}
    if any(wanted[lane] != len(ops) for lane, ops in step.items()):
        raise UnsupportedPlan("the layout is that of another schedule")
    left = {lane: iter(ops) for lane, ops in step.items()}
    texts = (
        [cell if isinstance(cell, str) else _text(cell, next(left[cell]), dialect) for cell in row] for row in cells
    )
    return "".join(f"{','.join(row)}\n" for row in texts)


def _text(lane: Lane, op: OpId, dialect: Dialect) -> str:
    return pytorch_actions.write(Action(op, lane.stream.startswith("recv<")), dialect)


def _refusals(schedule: Schedule, dialect: Dialect) -> Iterator[str]:
    ops = schedule.ops
    known = {*LETTERS, OpKind.FORWARD_BACKWARD, OpKind.UPDATE}
    if unknown := {OpKind(kind) for kind in np.unique(ops["kind"]).tolist()} - known:
        yield f"it has no letters for {', '.join(kind.name.lower() for kind in sorted(unknown))}"
    places = np.unique(ops[["stage", "source"]][np.isin(ops["kind"], [*COMPUTE_KINDS])])
    if len(places) > schedule.shape.stages or bool((ops["replica"] > 0).any()):
        yield "a stage is there twice"
    if bool((ops["part"] >= 0).any()):
        yield "its ops have parts"
    if max(Counter(lane.device for lane in schedule.lanes if lane.computes).values()) > 1:
        yield "a device has two compute lanes"
    if dialect == "legacy" and bool(np.isin(ops["kind"], (OpKind.BACKWARD, OpKind.FORWARD_BACKWARD)).any()):
        yield "the legacy dialect has no full backward"


def _one_step(schedule: Schedule, lane: Lane) -> list[OpId]:
    """The ops of a lane in the first mini-batch, updates left out.

    Raises
    ------
    UnsupportedPlan : another mini-batch differs from it, or overlaps with it.
    """
    micro_batches, mini_batches = schedule.shape.micro_batches, schedule.shape.mini_batches
    rows = schedule.order[schedule.lanes.index(lane)] if lane in schedule.lanes else ()
    names = [op for op in map(schedule.id, rows) if op.kind is not OpKind.UPDATE]
    first = names[: len(names) // mini_batches]
    repeated = [_later(op, step * micro_batches) for step in range(mini_batches) for op in first]
    if names != repeated or any(max(op.micro_batch, op.other_micro_batch) >= micro_batches for op in first):
        raise UnsupportedPlan("PyTorch's CSV holds one training step: the mini-batches of this schedule overlap")
    return first


def _later(op: OpId, micro_batches: int) -> OpId:
    other = op.other_micro_batch + micro_batches if op.other_micro_batch >= 0 else -1
    return op._replace(micro_batch=op.micro_batch + micro_batches, other_micro_batch=other)


def _unit_slot_layout(schedule: Schedule) -> Layout:
    """Each op of the first mini-batch in the column of its slot in a unit-slot run; a row for each compute lane."""
    slots, _ = unit_slots(schedule)
    layout: list[tuple[Lane | str, ...]] = []
    for lane in sorted(filter(_computes, schedule.lanes)):
        rows = schedule.order[schedule.lanes.index(lane)]
        rows = rows[schedule.ops["kind"][rows] != OpKind.UPDATE]
        taken = set(slots[rows[: len(rows) // schedule.shape.mini_batches]].tolist())
        layout.append(tuple(lane if slot in taken else "" for slot in range(max(taken) + 1)))
    return tuple(layout)


def _computes(lane: Lane) -> bool:
    return lane.computes
