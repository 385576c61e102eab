"""Plays actors and their branches: each goes on when what it waits for has happened."""

from __future__ import annotations

from collections.abc import Callable

from sim.program import Actor, Ask, Begin, Do, Op, Program, Wait


class Task:
    """An actor or a branch of one; ``open`` are its branches under way, ``awaited`` those that it waits for."""

    def __init__(self, steps: Actor, parent: Task | None = None, key: int = -1) -> None:
        self.steps, self.parent, self.key = steps, parent, key
        self.open: dict[int, Task] = {}
        self.awaited: tuple[int, ...] = ()


class Host:
    """Plays actors.

    ``do(task, op)`` begins an op and says whether that was all; else `advance` is to be called when it has ended.
    ``ask(task, request)`` puts a request and gives the answer if it comes at once; else `advance` brings it.
    """

    def __init__(self, do: Callable[[Task, Op], bool], ask: Callable[[Task, Ask], int | None]) -> None:
        self._do, self._ask = do, ask
        self.actors = 0

    def start(self, steps: Actor) -> None:
        """Start an actor; ``actors`` counts those that have not come to their end."""
        self.actors += 1
        self.advance(Task(steps))

    def advance(self, task: Task, answer: int | None = None) -> None:
        """Take a task as far as it goes now."""
        while True:
            try:
                step = task.steps.send(answer)  # type: ignore[arg-type]  # the first is None
            except StopIteration:
                self._finish(task)
                return
            answer = None
            if isinstance(step, Do):
                if not self._do(task, step.op):
                    return
            elif isinstance(step, Begin):
                branch = task.open[step.key] = Task(step.branch, task, step.key)
                self.advance(branch)
            elif isinstance(step, Wait):
                if not task.open.keys().isdisjoint(step.keys):
                    task.awaited = step.keys
                    return
            elif (answer := self._ask(task, step)) is None:
                return

    def _finish(self, task: Task) -> None:
        parent = task.parent
        if parent is None:
            self.actors -= 1
            return
        del parent.open[task.key]
        if parent.awaited and parent.open.keys().isdisjoint(parent.awaited):
            parent.awaited = ()
            self.advance(parent)


def rehearse(program: Program) -> dict[tuple[int, int, int], Op]:
    """The ops of everyone's first step, by kind, replica and part: where they run is the same in every step."""
    found: dict[tuple[int, int, int], Op] = {}

    def do(task: Task, op: Op) -> bool:
        found[op.id.kind, op.id.replica, op.id.part] = op
        return True

    def ask(task: Task, request: Ask) -> int | None:
        if request.clock:
            return None
        return 0 if request.event == "begin" else 1

    host = Host(do, ask)
    for start in program.actors.values():
        host.start(start())
    return found
