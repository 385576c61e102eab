"""The processes as their parent sees them: started by a command, each with a line to it and a file of what it did."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import IO, NamedTuple

from backends.torch.servers.job import Assignment, Job, Place
from sim.errors import BackendFailure

_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""glibc: keep the memory of large messages for the next ones, instead of having each zeroed by the kernel again."""

_DEATH_S = 5.0
"""How long after its line broke a process is waited for."""


class Member(NamedTuple):
    """A process: the device of the plan that it plays, its name there, the line to it, and its ops (`Rows`)."""

    device: int
    name: str
    process: subprocess.Popen[bytes]
    line: Connection
    rows: IO[bytes]

    def tell(self, message: object) -> None:
        """Send a message; one that died needs none."""
        with suppress(OSError):
            self.line.send(message)

    def death(self) -> str:
        """How it ended, once its line is broken."""
        try:
            code = self.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return "closed its line"
        return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"


@contextmanager
def crew(job: Job, places: Mapping[int, Place]) -> Iterator[list[Member]]:
    """A started process for each worker and server; killed, all of them, on the way out.

    Raises
    ------
    BackendFailure : one cannot be started.
    """
    with ExitStack() as stack:
        members = [_start(stack, job, device, places.get(device, Place())) for device in devices(job)]
        for member in members:
            member.tell(Assignment(job, member.device, places.get(member.device, Place())))
        yield members


def devices(job: Job) -> list[int]:
    """Of the plan, those with a process: workers first."""
    return [*range(job.layout.workers), *job.layout.servers]


def _start(stack: ExitStack, job: Job, device: int, place: Place) -> Member:
    name = job.binding.devices[device]
    rows = tempfile.TemporaryFile()  # noqa: SIM115  # without a name: nothing is left of it, whoever is killed
    stack.callback(rows.close)
    ours, theirs = socket.socketpair()
    line = stack.enter_context(Connection(ours.detach()))
    with theirs:  # closed here, so that the line breaks when the process dies
        handles = theirs.fileno(), rows.fileno()
        command = [*place.prefix, sys.executable, "-P", "-m", __package__, *map(str, handles)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=handles,
                env={**_SETTINGS, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,  # an interrupt from the terminal is the parent's to act on
            )
        except OSError as error:
            raise BackendFailure(f"{name} cannot be started by '{command[0]}': {error.strerror}") from None
    stack.callback(_end, process)
    return Member(device, name, process, line, rows)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
