"""One device's process: a thread per lane, each walking its ops of the schedule in order.

The main thread computes; the others send and receive, so a transfer never waits for arithmetic. A thread waits until
what its op needs has ended here, stamps, does the op, stamps.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from backends.torch.job import Failed, Job, Ready, channels, circles, known_on
from sim.rows import IntColumn

if TYPE_CHECKING:
    from backends.torch.kernels import Kernels
    from backends.torch.transport import Transport


def main(job: Job, device: int, meeting: str, parent: Connection, stamps: Any) -> None:
    """Run one device's part of a job.

    ``meeting`` is the URL of a file through which the workers find each other; ``stamps`` shared memory for the start
    and end of every op on every device.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run for all
    threading.Thread(target=_end_with_parent, daemon=True).start()
    columns = np.frombuffer(stamps).reshape(len(job.devices), 2, -1)
    worker = Worker(job, device, parent, Board(*columns[job.devices.index(device)]))
    worker.guard(worker.live, meeting)
    parent.poll(None)  # stay, so that no peer loses a connection, until the parent ends the run


def _end_with_parent() -> None:
    """Leave no orphan when the parent is killed."""
    process = parent_process()
    if process is not None:
        wait([process.sentinel])
        os._exit(1)


class Board:
    """When every op started and ended here (−1: not yet), on the monotonic clock; the parent reads along."""

    def __init__(self, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> None:
        self._start_s, self._end_s, self._news = start_s, end_s, threading.Condition()

    def wait(self, ops: IntColumn) -> None:
        """Return when all these ops have ended."""
        with self._news:
            self._news.wait_for(lambda: bool((self._end_s[ops] >= 0).all()))

    def start(self, op: int) -> None:
        """The op starts now."""
        self._start_s[op] = time.monotonic()

    def end(self, op: int) -> None:
        """The op ends now, and those who wait for it hear so."""
        with self._news:
            self._end_s[op] = time.monotonic()
            self._news.notify_all()


class Line(Protocol):
    """The end of a connection to the parent, as far as a worker uses it."""

    def send(self, message: Any, /) -> None:
        """Tell the parent."""

    def recv(self) -> Any:
        """What the parent tells."""


class Worker:
    """The lanes of one device."""

    _kernels: Kernels
    _transport: Transport

    def __init__(self, job: Job, device: int, parent: Line, board: Board) -> None:
        self._job, self._schedule, self._device, self._parent, self._board = job, job.schedule, device, parent, board
        self._here = known_on(job.schedule, device)
        self._reporting, self._failed = threading.Lock(), False
        self._current = threading.local()

    def live(self, meeting: str) -> None:
        """Set up, report, wait for the common start, walk every lane, report."""
        torch_version = self._set_up(meeting)
        self._parent.send(Ready(torch_version))
        self._parent.recv()
        first, *others = self._walks()
        threads = [threading.Thread(target=self.guard, args=(self._walk, *each), daemon=True) for each in others]
        for thread in threads:
            thread.start()
        self._walk(*first)
        for thread in threads:
            thread.join()
        if not self._failed:
            self._parent.send(self._kernels.results())

    def _set_up(self, meeting: str) -> str:
        """Make the kernels and meet the peers; the version of PyTorch."""
        import torch

        from backends.torch.heap import keep_freed_memory
        from backends.torch.kernels import Kernels
        from backends.torch.transport import Transport

        torch.set_num_threads(1)
        keep_freed_memory()
        self._kernels = Kernels(self._job, (self._device,))
        rank_of = self._job.devices.index
        self._transport = Transport(
            self._job.transport,
            self._kernels.where,
            meeting,
            rank_of(self._device),
            len(self._job.devices),
            [(rank_of(channel.source), rank_of(channel.target)) for channel in channels(self._schedule)],
            [[rank_of(member) for member in members] for members in circles(self._schedule)],
        )
        return str(torch.__version__)

    def _walks(self) -> Iterator[tuple[list[int], Callable[[int], None]]]:
        """The ops of every lane of this device and what to do with them, those that compute first."""
        lanes = [pair for pair in zip(self._schedule.lanes, self._schedule.order, strict=True) if pair[1].size]
        here = [(lane, ops.tolist()) for lane, ops in lanes if lane.device == self._device]
        for _, ops in (pair for pair in here if pair[0].computes):
            yield ops, self._compute
        for _, ops in (pair for pair in here if pair[0].stream == "collective"):
            yield ops, self._reduce
        for channel in channels(self._schedule):
            if channel.source == self._device:
                yield channel.ops.tolist(), self._send
            if channel.target == self._device:
                yield channel.ops.tolist(), self._receive

    def _walk(self, ops: list[int], step: Callable[[int], None]) -> None:
        for op in ops:
            self._current.op = op
            step(op)

    def _await(self, op: int) -> None:
        """Wait for what an op needs as far as this device knows of it: a transfer or collective brings the rest."""
        needed = self._schedule.after[op]
        self._board.wait(needed[self._here[needed]])

    def _compute(self, op: int) -> None:
        self._await(op)
        self._board.start(op)
        with self._own_stream():
            self._kernels.compute(op)
        self._board.end(op)

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """On a GPU every lane has a stream, and an op ends when its kernels have run, not been queued."""
        if self._job.accelerator == "cpu":
            yield
            return
        import torch

        if not hasattr(self._current, "stream"):
            self._current.stream = torch.cuda.Stream(self._kernels.where)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._current.stream):
            yield
            self._current.stream.synchronize()

    def _send(self, op: int) -> None:
        self._await(op)
        self._board.start(op)
        with self._own_stream():
            self._transport.send(self._kernels.outgoing(op), self._channel(op), tag=op)

    def _receive(self, op: int) -> None:
        with self._own_stream():
            tensor = self._kernels.room(op)
            self._transport.receive(tensor, self._channel(op), tag=op)
        self._kernels.arrived(op, tensor)
        self._board.end(op)

    def _channel(self, op: int) -> tuple[int, int]:
        """The ranks that a transfer is from and to."""
        source, target = (self._job.devices.index(int(self._schedule.ops[end][op])) for end in ("source", "target"))
        return source, target

    def _reduce(self, op: int) -> None:
        self._await(op)
        self._board.start(op)
        (addends,) = self._kernels.addends(op)
        circle = tuple(self._job.devices.index(member) for member in self._schedule.devices_of(op))
        with self._own_stream():
            self._transport.all_reduce(addends, circle)
        self._board.end(op)

    def guard(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something and report to the parent what it raises."""
        try:
            work(*arguments)
        except BaseException:
            failed = Failed(time.monotonic(), getattr(self._current, "op", -1), traceback.format_exc())
            with self._reporting, suppress(OSError):  # a parent that is gone needs no report
                self._failed = True
                self._parent.send(failed)
