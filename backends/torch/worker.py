"""One device's process: a thread per lane, each walking its ops of the schedule in order.

The main thread computes; the others send and receive, so a transfer never waits for arithmetic. A thread waits until
what its op needs has ended here, stamps, does the op, stamps.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.torch.job import Failed, Job, Ready, channels
from sim.schedule import IntColumn

if TYPE_CHECKING:
    from backends.torch.kernels import Kernels


def main(job: Job, device: int, parent: Connection, stamps: Any) -> None:
    """Run one device's part of a job; ``stamps`` is shared memory for the start and end of every op."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run for all
    threading.Thread(target=_end_with_parent, daemon=True).start()
    columns = np.frombuffer(stamps).reshape(2, -1)
    worker = Worker(job, device, parent, Board(*columns))
    worker.guard(worker.live)
    parent.poll(None)  # stay, so that no peer loses a connection, until the parent ends the run


def _end_with_parent() -> None:
    """Leave no orphan when the parent is killed."""
    process = parent_process()
    if process is not None:
        wait([process.sentinel])
        os._exit(1)


class Board:
    """When every op started and ended (−1: not yet), on the monotonic clock; the parent reads along."""

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


class Worker:
    """The lanes of one device."""

    _kernels: Kernels

    def __init__(self, job: Job, device: int, parent: Connection, board: Board) -> None:
        self._job, self._device, self._parent, self._board = job, device, parent, board
        self._reporting, self._failed = threading.Lock(), False
        self._current = threading.local()

    def live(self) -> None:
        """Set up, report, wait for the common start, walk every lane, report."""
        torch_version = self._set_up()
        self._parent.send(Ready(torch_version))
        self._parent.recv()
        threads = [
            threading.Thread(target=self.guard, args=(self._walk, ops, step), daemon=True)
            for ops, step in self._channel_ends()
        ]
        for thread in threads:
            thread.start()
        for lane, ops in zip(self._job.schedule.lanes, self._job.schedule.order, strict=True):
            if lane.device == self._device and lane.computes:
                self._walk(ops.tolist(), self._compute)
        for thread in threads:
            thread.join()
        if not self._failed:
            self._parent.send(self._kernels.results())

    def _set_up(self) -> str:
        """Make the kernels and meet the peers over the loopback interface; the version of PyTorch."""
        import torch
        import torch.distributed as dist

        from backends.torch.kernels import Kernels

        torch.set_num_threads(1)
        self._kernels = Kernels(self._job, self._device)
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        dist.init_process_group(
            "gloo",
            init_method=self._job.meeting,
            rank=self._job.devices.index(self._device),
            world_size=len(self._job.devices),
            timeout=timedelta(days=365),  # the parent is the watchdog
        )
        return str(torch.__version__)

    def _channel_ends(self) -> Iterable[tuple[list[int], Callable[[int], None]]]:
        for channel in channels(self._job.schedule):
            if channel.source == self._device:
                yield channel.ops.tolist(), self._send
            if channel.target == self._device:
                yield channel.ops.tolist(), self._receive

    def _walk(self, ops: list[int], step: Callable[[int], None]) -> None:
        for op in ops:
            self._current.op = op
            step(op)

    def _compute(self, op: int) -> None:
        self._board.wait(self._job.schedule.after[op])
        self._board.start(op)
        self._kernels.compute(op)
        self._board.end(op)

    def _send(self, op: int) -> None:
        from torch.distributed import send

        self._board.wait(self._job.schedule.after[op])
        self._board.start(op)
        send(self._kernels.outgoing(op), self._job.devices.index(int(self._job.schedule.ops["target"][op])), tag=op)

    def _receive(self, op: int) -> None:
        from torch.distributed import recv

        tensor = self._kernels.room(op)
        recv(tensor, self._job.devices.index(int(self._job.schedule.ops["source"][op])), tag=op)
        self._kernels.arrived(op, tensor)
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
