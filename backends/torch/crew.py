"""The worker processes as their parent sees them: start, watch, and always an end.

A worker that raises, dies or hangs ends the run for all; none outlives the run, whatever ends it.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from backends.torch import worker
from backends.torch.job import Done, Failed, Job, Ready
from sim.errors import BackendFailure
from sim.schedule import Schedule

_TICK_S = 0.2
"""How often the parent looks for progress."""

_SET_UP_S = 120.0
"""How long the setting up of a worker may take: the import of PyTorch on a busy machine."""

_SETTLE_S = 0.5
"""How long after a first fault others are waited for: a broken connection may be told before the death behind it."""


M = TypeVar("M", Ready, Done)


class Member(NamedTuple):
    """A worker: the device of the plan it plays, its name there, its process and the line to it."""

    device: int
    name: str
    process: SpawnProcess
    line: Connection


@contextmanager
def _crew(job: Job, names: tuple[str, ...], meeting: str, stamps: Any) -> Iterator[list[Member]]:
    """A started worker for each device; killed, all of them, on the way out."""
    context = multiprocessing.get_context("spawn")
    members: list[Member] = []
    try:
        for device in job.devices:
            ours, theirs = context.Pipe()
            name = names[device]
            process = context.Process(
                target=worker.main, args=(job, device, meeting, theirs, stamps), name=f"twinrail {name}", daemon=True
            )
            members.append(Member(device, name, process, ours))
            process.start()
            theirs.close()  # so that the line breaks when the worker dies
        yield members
    finally:
        for member in members:
            if member.process.pid is not None:
                member.process.kill()
        for member in members:
            member.line.close()
            if member.process.pid is not None:
                member.process.join()
            member.process.close()


def work(
    job: Job, names: tuple[str, ...], patience_s: float, on_start: Callable[[Mapping[str, int]], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Done], str]:
    """Do a job.

    Parameters
    ----------
    names : of the devices of the plan. ``patience_s``: the longest time without a start or end of any op.
    on_start : called with the process id of each device when all are set up and start.

    Returns
    -------
    Start and end of every op in seconds since the common start, what each worker hands back, PyTorch's version.

    Raises
    ------
    BackendFailure : a worker raised, died or hung.
    """
    stamps = multiprocessing.get_context("spawn").RawArray("d", 2 * len(job.devices) * len(job.schedule))
    columns = np.frombuffer(stamps).reshape(len(job.devices), 2, -1)
    columns[:] = -1.0
    with (
        tempfile.TemporaryDirectory(prefix="twinrail-") as folder,
        _crew(job, names, f"file://{folder}/meeting", stamps) as members,
    ):
        watch = Watch(job.schedule, members, columns)
        ready = watch.gather(Ready, _SET_UP_S)
        zero_s = watch.start()
        on_start({member.name: member.process.pid or 0 for member in members})
        done = watch.gather(Done, patience_s)
    start_s, end_s = columns.max(axis=0) - zero_s  # a transfer starts at its source, a collective where it came last
    return start_s, end_s, done, ready[0].torch


class Watch:
    """Waits for the workers, and tells who failed and where."""

    def __init__(self, schedule: Schedule, members: list[Member], stamps: NDArray[np.float64]) -> None:
        self._schedule, self._members, self._stamps = schedule, members, stamps
        self._started = False

    def start(self) -> float:
        """Let every worker go; the time from which the run counts."""
        self._started, zero_s = True, time.monotonic()
        for member in self._members:
            with suppress(OSError):  # a worker that has just died is for `gather` to find
                member.line.send(None)
        return zero_s

    def gather(self, kind: type[M], patience_s: float) -> list[M]:
        """The next message of every worker, in the order of their ranks; ``patience_s`` bounds a standstill.

        Raises
        ------
        BackendFailure : see `work`.
        """
        messages: dict[int, M] = {}
        moved, moved_s = -1, time.monotonic()
        while len(messages) < len(self._members):
            for member, message in _news(self._members, _TICK_S):
                if not isinstance(message, kind):
                    raise self._blame(member, message)
                messages[member.device] = message
            moves = len(messages) + int(np.count_nonzero(self._stamps >= 0))
            if moves != moved:
                moved, moved_s = moves, time.monotonic()
            elif time.monotonic() - moved_s > patience_s:
                late = [member for member in self._members if member.device not in messages]
                places = "; ".join(f"{member.name} {self._whereabouts(member)}" for member in late)
                raise BackendFailure(f"nothing moved for {patience_s:g} s: {places}")
        return [messages[member.device] for member in self._members]

    def _blame(self, member: Member, fault: Failed | None) -> BackendFailure:
        """The first cause: a worker that died without a word, else the earliest that raised."""
        faults, deadline_s = {member.device: fault}, time.monotonic() + _SETTLE_S
        while None not in faults.values() and (left_s := deadline_s - time.monotonic()) > 0:
            others = [member for member in self._members if member.device not in faults]
            for member, message in _news(others, left_s):
                if message is None or isinstance(message, Failed):
                    faults[member.device] = message
        device, fault = min(faults.items(), key=lambda item: item[1].time_s if item[1] else 0.0)
        member = next(member for member in self._members if member.device == device)
        if fault is None:
            return BackendFailure(f"{member.name} {_death(member.process)} {self._whereabouts(member)}")
        where = f"in {self._schedule.id(fault.op)}" if fault.op >= 0 else "while it was set up"
        return BackendFailure(f"{member.name} raised {where}:\n{fault.traceback}")

    def _whereabouts(self, member: Member) -> str:
        """The op that a device is in, or what its next op waits for."""
        schedule, (start_s, end_s) = self._schedule, self._stamps.max(axis=0)
        if not self._started:
            return "while it was set up"
        lanes = zip(schedule.lanes, schedule.order, strict=True)
        ops = next(ops for lane, ops in lanes if lane.device == member.device and lane.computes)
        if not (left := ops[end_s[ops] < 0].tolist()):
            return "after its last op"
        name = schedule.id(left[0])
        if start_s[left[0]] >= 0:
            return f"in {name}"
        missing = [str(schedule.id(earlier)) for earlier in schedule.after[left[0]].tolist() if end_s[earlier] < 0]
        return f"before {name}, waiting for {', '.join(missing) or 'its turn'}"


def _news(members: Sequence[Member], seconds: float) -> Iterator[tuple[Member, Any]]:
    """Messages that come within a time; ``None`` for a worker that died."""
    told = wait([member.line for member in members], seconds)
    for member in members:
        if member.line in told:
            try:
                yield member, member.line.recv()
            except (EOFError, OSError):
                yield member, None


def _death(process: SpawnProcess) -> str:
    process.join(1)
    code = process.exitcode or 0
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"
