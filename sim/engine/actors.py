"""Play a program: one process per actor, which yields its ops and requests as it goes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from sim.engine.core import Core
from sim.engine.lanes import deadlock
from sim.engine.queue import FirstComeFirstServed
from sim.errors import Deadlock
from sim.ops import Lane, OpId
from sim.program import Actor, Ask, Do, Op, Program
from sim.schedule import OPS, Rows

Times = NDArray[np.float64]


class Actors:
    """The processes of a program's actors.

    Lanes are held in the order of asking, all of an op's lanes at once; who asks at one instant is served in the order
    of names, whatever order actors were made in. ``admit(op)`` appends an op's duration and station to the columns of
    the core and returns its number.
    """

    def __init__(self, core: Core, program: Program, cores: dict[Lane, int], admit: Callable[[Op], int]) -> None:
        self._core, self._policy, self._admit = core, program.policy(), admit
        self._lanes: FirstComeFirstServed[Lane] = FirstComeFirstServed(core.ready, cores)
        self._arrived: list[int] = []  # ops of this instant that have not asked for their lanes yet
        self._asking: dict[Ask, simpy.Event] = {}
        self._doing: dict[str, str] = {}
        self.ops: list[Op] = []
        core.ended = lambda op: core.defer(lambda: self._lanes.release(op))
        for name, actor in program.actors.items():
            core.env.process(self._play(name, actor()))

    def _play(self, name: str, actor: Actor) -> Generator[simpy.Event, Any, None]:
        for step in actor:
            if isinstance(step, Do):
                self._doing[name] = str(step.op.id)
                yield self._do(step.op)
            else:
                self._doing[name] = f"the release of '{step.event}' at step {step.clock}"
                yield self._ask(step)
        del self._doing[name]

    def _do(self, op: Op) -> simpy.Event:
        number = self._admit(op)
        self.ops.append(op)
        if not self._arrived:
            self._core.defer(self._request_lanes)
        self._arrived.append(number)
        return self._core.completion(number)

    def _request_lanes(self) -> None:
        arrived, self._arrived = self._arrived, []
        for number in sorted(arrived, key=self._core.keys.__getitem__):
            self._lanes.request(number, self.ops[number].lanes)

    def _ask(self, request: Ask) -> simpy.Event:
        released = self._asking[request] = simpy.Event(self._core.env)
        for ready in self._policy.on(request):
            self._asking.pop(ready).succeed()
        return released

    def deadlock(self) -> Deadlock:
        """What each actor is stuck at."""
        return deadlock(dict(self._doing))

    @property
    def stuck(self) -> bool:
        """Whether an actor has not come to its end."""
        return bool(self._doing)

    def columns(
        self, start_s: list[float], end_s: list[float], memory: NDArray[np.void]
    ) -> tuple[tuple[NDArray[np.void], tuple[Lane, ...], Rows], Times, Times, NDArray[np.void]]:
        """What ran, sorted by name as a schedule is: op table, lanes, order of each lane; start, end, memory."""
        by_name = sorted(range(len(self.ops)), key=lambda op: rank(self.ops[op].id))
        ops = [self.ops[op] for op in by_name]
        lanes = {lane: index for index, lane in enumerate(sorted({lane for op in ops for lane in op.lanes}))}
        lanes_of = Rows.of([[lanes[lane] for lane in op.lanes] for op in ops])
        table = np.array([(*op.id, op.source, op.target, op.reads, op.writes) for op in ops], dtype=OPS)
        place = np.empty(len(ops), np.int64)
        place[by_name] = np.arange(len(ops))
        memory["op"] = np.where(memory["op"] >= 0, place[memory["op"]], -1)
        start, end = np.array(start_s)[by_name], np.array(end_s)[by_name]
        held, op = lanes_of.values, lanes_of.owners
        by_time = np.lexsort([op, end[op], start[op]])
        order = Rows.from_pairs(held[by_time], op[by_time], len(lanes))
        return (table, tuple(lanes), order), start, end, memory


def rank(op: OpId) -> int:
    """The order of names among equals in time: by micro-batch, stage, kind, replica, part."""
    key = op.micro_batch
    for value, bits in ((op.stage, 16), (op.kind, 8), (op.replica, 16), (op.part + 1, 24)):
        key = (key << bits) + value
    return key
