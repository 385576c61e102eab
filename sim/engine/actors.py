"""Play a program: every actor and every branch is a task, taken up again when what it waits for has happened."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from simpy.core import StopSimulation

from sim.engine.core import Core
from sim.engine.lanes import deadlock
from sim.engine.queue import FirstComeFirstServed
from sim.errors import Deadlock
from sim.op_table import OPS, UNSET
from sim.ops import Lane, OpId, OpKind
from sim.program import Actor, Ask, Begin, Do, Lost, Op, Program, Wait
from sim.recording import Tables
from sim.rows import IntColumn, Rows

Times = NDArray[np.float64]


class Columns(NamedTuple):
    """What ran, sorted by name as a schedule is, and when."""

    ops: NDArray[np.void]
    lanes: tuple[Lane, ...]
    order: Rows
    start_s: Times
    end_s: Times
    memory: Tables


class Task:
    """An actor or a branch of one. ``open`` are its branches under way, ``awaited`` those that it waits for."""

    __slots__ = ("awaited", "begun", "doing", "due", "key", "name", "open", "parent", "steps")

    def __init__(self, name: str, steps: Actor, parent: Task | None = None, key: int = -1) -> None:
        self.name, self.steps, self.parent, self.key = name, steps, parent, key
        self.open: dict[int, Task] = {}
        self.awaited: tuple[int, ...] = ()
        self.doing: Op | Ask | None = None
        self.due = self.begun = False

    def __str__(self) -> str:
        if isinstance(self.doing, Op):
            return str(self.doing.id)
        if isinstance(self.doing, Ask):
            return f"the release of '{self.doing.event}' at step {self.doing.clock}"
        return ", ".join(dict.fromkeys(str(self.open[key]) for key in self.awaited if key in self.open))


class Actors:
    """The tasks of a program's actors.

    Lanes are held in the order of asking, all of an op's lanes at once; who asks at one instant is served in the order
    of names, whatever order actors were made in. Nobody waits for ``unlimited`` lanes. ``admit(op)`` appends an op's
    duration and station to the columns of the core and returns its number.

    What is public beside `start`, `over`, `deadlock` and `columns` is for `sim.engine.faults`.
    """

    def __init__(self, core: Core, program: Program, unlimited: Set[Lane], admit: Callable[[Op], int]) -> None:
        self._core, self._program, self._policy, self._admit = core, program, program.policy(), admit
        self._granted: list[int] = []
        self._settling = False
        self._lanes: FirstComeFirstServed[Lane] = FirstComeFirstServed(lambda op: self._granted.append(op))
        self._unlimited = unlimited
        self._arrived: list[int] = []  # ops of this instant that have not asked for their lanes yet
        self._left: list[int] = []  # ops of this instant that hold their lanes still
        self._asking: dict[Ask, Task] = {}
        self._versions: defaultdict[tuple[int, int], int] = defaultdict(int)  # updates of each part of each stage
        self._table = array("q")
        self._lane_sets: dict[tuple[Lane, ...], tuple[int, bool]] = {}  # their number, and whether one may wait
        self._on_request = program.layout is None or program.layout.snapshot == "on_request"
        self._foreground = len(program.actors) - len(program.endless)
        self._reads: dict[int, int] = {}
        self.open: dict[int, Task] = {}  # ops under way
        self.ops: dict[int, Op] = {}  # those, and all that use memory
        self.roots: dict[str, Task] = {}
        self.down: set[int] = set()  # devices
        self.held_back: list[tuple[Task, Op]] = []  # ops that need one of these
        core.ended = self._ended

    def start(self, name: str, after_s: float) -> None:
        """Start an actor."""
        task = self.roots[name] = Task(name, self._program.actors[name]())
        self._core.wake(lambda _: self.begin(task), after_s)

    def begin(self, task: Task) -> None:
        """Its time has come: held back while its device is down."""
        task.due = True
        if self.device_of(task) not in self.down:
            task.begun = True
            self.advance(task)

    def come_back(self, task: Task) -> None:
        """Its device is up again."""
        if task.begun:
            self.advance(task, lost=True)
        elif task.due:
            self.begin(task)

    def device_of(self, task: Task) -> int:
        """The device that an actor lives on, −1 where it is not known."""
        return self._program.homes.get(task.name, -1)

    @property
    def over(self) -> bool:
        """Whether all actors have come to their end that have one."""
        return not self._foreground

    def advance(self, task: Task, answer: int | None = None, lost: bool = False) -> None:
        """Take a task as far as it goes now."""
        while True:
            try:
                step = task.steps.throw(Lost) if lost else task.steps.send(answer)  # type: ignore[arg-type]
            except StopIteration:
                self._finish(task)
                return
            answer, lost = None, False
            if isinstance(step, Do):
                self.do(task, step.op)
                return
            if isinstance(step, Begin):
                branch = task.open[step.key] = Task(task.name, step.branch, task, step.key)
                self.advance(branch)
            elif isinstance(step, Wait):
                if not task.open.keys().isdisjoint(step.keys):
                    task.awaited, task.doing = step.keys, None
                    return
            elif (answer := self._ask(task, step)) is None:
                return

    def _ask(self, task: Task, request: Ask) -> int | None:
        """The policy's answer, where it comes at once; whoever else is released goes on."""
        task.doing, self._asking[request] = request, task
        mine: int | None = None
        for released, answer in self._policy.on(request):
            other = self._asking.pop(released, None)
            if other is task:
                mine = answer
            elif other is not None:  # else it was on a device that died
                self.advance(other, answer)
        return mine

    def _finish(self, task: Task) -> None:
        parent = task.parent
        if parent is not None:
            del parent.open[task.key]
            if parent.awaited and parent.open.keys().isdisjoint(parent.awaited):
                parent.awaited = ()
                self.advance(parent)
        elif self.roots.get(task.name) is task:
            del self.roots[task.name]
            self._foreground -= task.name not in self._program.endless
            if not self._foreground and self._program.endless:
                self._core.wake(StopSimulation.callback, 0.0)

    def do(self, task: Task, op: Op) -> None:
        """Run an op of a task."""
        number = self._admit(op)
        task.doing = op
        self.open[number], self.ops[number] = task, op
        self._settle_later()
        self._arrived.append(number)

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._core.defer(self._settle)

    def _settle(self) -> None:
        """When the ends of an instant are done: free lanes, then ask for lanes, in the order of names."""
        self._settling = False
        left, self._left = self._left, []
        arrived, self._arrived = self._arrived, []
        for number in left:
            self._lanes.release(number)
        keys, ops = self._core.keys, self.ops
        arrived = [number for number in arrived if number in self.open]  # the others were lost in this instant
        if len(arrived) > 1:
            arrived.sort(key=lambda number: (ops[number].rank, keys[number]))
        for number in arrived:
            self._request(number)
        granted, self._granted = self._granted, []
        self._core.dispatch(granted)

    def _request(self, number: int) -> None:
        """An op asks for its lanes; a parameter server that reads on request does so now."""
        op = self.ops[number]
        if self.down and not self.down.isdisjoint(devices_of(op)):
            self.held_back.append(self.lose(number))
            return
        if op.reads == UNSET and self._on_request:
            self._reads[number] = self._versions[op.id.stage, op.id.part]
        if self._held(op)[1]:
            self._lanes.request(number, op.lanes, op.rank)
        else:
            self._granted.append(number)

    def _held(self, op: Op) -> tuple[int, bool]:
        """The number of the lanes that an op holds, and whether it may have to wait for them."""
        held = self._lane_sets.get(op.lanes)
        if held is None:
            held = self._lane_sets[op.lanes] = len(self._lane_sets), not self._unlimited >= {*op.lanes}
        return held

    def _ended(self, number: int) -> None:
        if number not in self.open:
            return  # lost
        task, op = self.open.pop(number), self.ops[number]
        if not op.memory:
            del self.ops[number]
        lanes, waits = self._held(op)
        if waits:
            self._settle_later()
            self._left.append(number)
        self._record(number, op, lanes)
        self.advance(task)

    def _record(self, number: int, op: Op, lanes: int) -> None:
        reads, writes, part = op.reads, op.writes, (op.id.stage, op.id.part)
        if reads == UNSET:
            reads = self._reads.pop(number) if self._on_request else self._versions[part]
        if writes == UNSET:
            writes = self._versions[part] + 1
            if op.id.kind is OpKind.UPDATE:
                self._versions[part] = writes
        self._table.extend((*op.id, op.source, op.target, reads, writes, number, lanes))

    def lose(self, number: int) -> tuple[Task, Op]:
        """Forget an op under way, whose end nobody will hear of."""
        self._settle_later()
        self._lanes.withdraw(number)
        self._reads.pop(number, None)
        return self.open.pop(number), self.ops.pop(number)

    def forget(self, task: Task) -> None:
        """An actor's device died: it hears of no release and of no branch any more."""
        if isinstance(task.doing, Ask):
            self._asking.pop(task.doing, None)
        for branch in task.open.values():
            branch.parent = None
        task.open, task.awaited = {}, ()

    def deadlock(self) -> Deadlock:
        """What each actor is stuck at."""
        return deadlock({name: str(task) for name, task in self.roots.items()})

    def columns(self, memory: Tables) -> Columns:
        """What has run to its end."""
        names = OPS.names or ()
        rows = np.frombuffer(self._table, np.int64).reshape(-1, len(names) + 2)
        rows = rows[np.lexsort([rows[:, names.index(name)] for name in _BY_NAME])]
        number, lane_set = rows[:, -2], rows[:, -1]
        ops = np.empty(len(rows), OPS)
        for column, name in enumerate(names):
            ops[name] = rows[:, column]
        start_s, end_s = (np.array(times)[number] for times in (self._core.start_s, self._core.end_s))
        place = np.full(len(self._core.keys) + 1, -1, np.int64)
        place[number] = np.arange(len(rows))
        for table in (memory.events, memory.driver):
            table["op"] = place[table["op"]]
        lanes, order = self._order(lane_set, start_s, end_s)
        return Columns(ops, lanes, order, start_s, end_s, memory)

    def _order(self, lane_set: IntColumn, start_s: Times, end_s: Times) -> tuple[tuple[Lane, ...], Rows]:
        """The lanes, and what ran on each, by time."""
        lanes = {lane: index for index, lane in enumerate(sorted({lane for held in self._lane_sets for lane in held}))}
        sets = Rows.of([[lanes[lane] for lane in held] for held in self._lane_sets])
        sizes = np.diff(sets.starts)[lane_set]
        op = np.repeat(np.arange(len(lane_set)), sizes)
        first = np.cumsum(sizes) - sizes
        held = sets.values[np.arange(len(op)) - np.repeat(first - sets.starts[lane_set], sizes)]
        by_time = np.lexsort([op, end_s[op], start_s[op]])
        return tuple(lanes), Rows.from_pairs(held[by_time], op[by_time], len(lanes))


_BY_NAME = ("part", "replica", "kind", "stage", "micro_batch")


def devices_of(op: Op) -> set[int]:
    """The devices that an op needs."""
    return {op.source, op.target, *(lane.device for lane in op.lanes)}


def rank(op: OpId) -> int:
    """The order of names among equals in time: by micro-batch, stage, kind, replica, part."""
    key = op.micro_batch
    for value, bits in ((op.stage, 16), (op.kind, 8), (op.replica, 16), (op.part + 1, 24)):
        key = (key << bits) + value
    return key
