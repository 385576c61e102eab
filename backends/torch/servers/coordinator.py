"""The parent of a run: it hosts the policy and the actors that are no worker's, and sees to it that the run ends.

A worker that dies leaves the others training: under ``asp`` and ``ssp`` it counts as one that has done all its steps,
under ``backup`` as one to spare. A server that dies, or a worker that a barrier waits for, ends the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from backends.torch.servers import records
from backends.torch.servers.crew import Member
from backends.torch.servers.host import Host, Task
from backends.torch.servers.job import Adopt, Array, Collect, Failed, Finished, Go, Job, Ready, Update
from sim.errors import BackendFailure
from sim.program import Ask, Op, Released

_TICK_S = 0.2
"""How often the parent looks for progress."""

_SET_UP_S = 120.0
"""How long the setting up of a process may take: the import of PyTorch on a busy machine."""


class Came(NamedTuple):
    """What a run came to: its common start on the monotonic clock, who was lost when, versions of libraries, losses by
    step and worker, and each part at the end."""

    zero_s: float
    lost: list[tuple[float, Member]]
    versions: dict[str, str]
    losses: dict[tuple[int, int], float]
    values: dict[int, Array]


class Coordinator:
    """One run. ``patience_s`` is how long nothing may move."""

    def __init__(self, job: Job, members: list[Member], patience_s: float) -> None:
        self._job, self._members, self._patience_s = job, members, patience_s
        self._policy = job.program.policy()
        self._host = Host(self._do, self._answer_own)
        self._device_of = dict(job.program.homes)
        self._servers = {member.device: member for member in members if member.device in job.layout.servers}
        self._training = {member.device: member for member in members if member.device not in self._servers}
        self._asked: dict[Ask, Task] = {}  # by actors that are hosted here
        self._updating: dict[int, Task] = {}  # by part
        self._taken: set[Ask] = set()  # pushed, and let through, but not said to be applied
        self._versions: dict[int, int] = {}  # of each part at the start
        self._lost: list[tuple[float, Member]] = []
        self._losses: dict[tuple[int, int], float] = {}

    def run(self, on_start: Callable[[Mapping[str, int]], None]) -> Came:
        """Let all train; ``on_start`` is told the process id of each device.

        Raises
        ------
        BackendFailure : a server died, a worker that others wait for died, one raised, or nothing moved.
        """
        ready: list[Ready] = self._gather(self._members, _SET_UP_S)
        on_start({member.name: each.pid for member, each in zip(self._members, ready, strict=True)})
        zero_s = time.monotonic()
        self._begin(ready)
        while self._training or self._host.actors:
            for member, message in self._news(self._patience_s):
                self._heard(member, message)
        values: dict[int, Array] = {}
        if self._job.compute == "real" or self._job.checkpoint:
            for server in self._servers.values():
                server.tell(Collect())
            for each in self._gather(list(self._servers.values()), self._patience_s):
                values |= each.parts
        versions = {name: version for each in ready for name, version in each.versions.items()}
        return Came(zero_s, self._lost, versions, self._losses, values)

    def _begin(self, ready: list[Ready]) -> None:
        """Tell the workers where the servers are; go on with what these have kept of an earlier run."""
        kept = {part: state for each in ready for part, state in each.kept.items()}
        self._versions = {part: version for part, (version, _) in kept.items()}
        endpoints = {
            member.device: each.endpoint
            for member, each in zip(self._members, ready, strict=True)
            if member.device in self._servers
        }
        sums = self._job.layout.sums
        first = {
            worker: min(version if sums else newest.get(worker, -1) + 1 for version, newest in kept.values())
            for worker in self._training
        }
        if min(first.values()) >= self._job.program.shape.mini_batches:
            raise BackendFailure("the checkpoint has all its steps already: ask for more mini_batches to go on")
        for worker, member in self._training.items():
            member.tell(Go(endpoints, first[worker]))
        for name, start in self._job.program.actors.items():
            if name not in self._device_of:
                self._host.start(start())

    def _do(self, task: Task, op: Op) -> bool:
        """An update under a barrier; one that was made before the run goes on is not made again."""
        if op.id.micro_batch < self._versions[op.id.part]:
            return True
        self._updating[op.id.part] = task
        self._servers[op.source].tell(Update(op.id.part, op.id.micro_batch))
        return False

    def _answer_own(self, task: Task, request: Ask) -> int | None:
        """What the policy says to an actor that is hosted here."""
        if request.event == "gathered" and request.clock < self._versions[request.part]:
            return 0
        self._asked[request] = task
        mine: int | None = None
        for released in self._policy.on(request):
            if released.request == request:
                mine = released.answer
                del self._asked[request]
            else:
                self._release(released)
        return mine

    def _release(self, released: Released) -> None:
        request, answer = released
        if (task := self._asked.pop(request, None)) is not None:
            self._host.advance(task, answer)
        elif (member := self._training.get(self._device_of[request.actor])) is not None:
            if request.event == "pushed" and answer:
                self._taken.add(request)
            member.tell(released)

    def _put(self, request: Ask) -> None:
        """A worker's request."""
        self._taken.discard(request._replace(event="pushed"))
        for released in self._policy.on(request):
            self._release(released)

    def _heard(self, member: Member, message: Any) -> None:
        match message:
            case None:
                self._lose(member)
            case Ask():
                self._put(message)
            case Update(part):
                self._host.advance(self._updating.pop(part))
            case Adopt(worker, number, part):
                self._put(Ask("applied", self._actor_on(worker), number, part))
            case Finished(losses):
                del self._training[member.device]
                self._losses |= losses

    def _lose(self, member: Member) -> None:
        """A process has died."""
        if not self._versions:
            raise BackendFailure(f"{member.name} {member.death()} while it was set up")
        layout, checkpoint = self._job.layout, self._job.checkpoint
        if member.device in self._servers:
            way_on = f" but for the checkpoint in {checkpoint.folder}: resume from it" if checkpoint else ""
            raise BackendFailure(f"{self._end_of(member)}: its part of the parameters is lost{way_on}")
        actor = self._actor_on(member.device)
        del self._training[member.device]
        self._lost.append((time.monotonic(), member))
        spare = {"bsp": 0, "backup": layout.bound}.get(layout.consistency, layout.workers - 1)
        if len(self._lost) > spare:
            rest = f"{layout.consistency} waits for it" if self._job.layout.sums else "no worker is left"
            raise BackendFailure(f"{self._end_of(member)}: {rest}")
        if layout.consistency == "ssp":
            self._put(Ask("begin", actor, self._job.program.shape.mini_batches))
        for request in sorted(each for each in self._taken if each.actor == actor):
            server = layout.servers[layout.parts[request.part].server]
            self._servers[server].tell(Adopt(member.device, request.clock, request.part))

    def _actor_on(self, device: int) -> str:
        return next(name for name, home in self._device_of.items() if home == device)

    def _end_of(self, member: Member) -> str:
        return f"{member.name} {member.death()} {records.last(member.rows)}"

    def _news(self, patience_s: float, members: list[Member] | None = None) -> Iterator[tuple[Member, Any]]:
        """Messages as they come, ``None`` of a worker that died; at least one.

        Raises
        ------
        BackendFailure : a server died, a process failed, or nothing moved.
        """
        members = [*self._servers.values(), *self._training.values()] if members is None else members
        moved, moved_s = -1, time.monotonic()
        while not (told := wait([member.line for member in members], _TICK_S)):
            moves = sum(os.fstat(member.rows.fileno()).st_size for member in members)
            if moves != moved:
                moved, moved_s = moves, time.monotonic()
            elif time.monotonic() - moved_s > patience_s:
                places = "; ".join(f"{member.name} {records.last(member.rows)}" for member in members)
                raise BackendFailure(f"nothing moved for {patience_s:g} s: {places}")
        for member in (member for member in members if member.line in told):
            try:
                message = member.line.recv()
            except (EOFError, OSError):
                message = None
            if isinstance(message, Failed):
                raise BackendFailure(f"{member.name} {message.reason}")
            yield member, message

    def _gather(self, members: list[Member], patience_s: float) -> list[Any]:
        """The next message of each of these."""
        messages: dict[int, Any] = {}
        while missing := [member for member in members if member.device not in messages]:
            for member, message in self._news(patience_s, missing):
                if message is None:
                    self._lose(member)
                messages[member.device] = message
        return [messages[member.device] for member in members]
