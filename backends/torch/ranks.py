"""A run whose processes ``torchrun`` has started: each plays the device of its rank, and rank 0 records the run.

``torchrun --nproc-per-node 2 --no-python twinrail run SCENARIO --backend torch``. Every rank composes the same plan.
The processes meet through the environment that torchrun gives them, so they may be on several machines; what the clocks
of these are apart is estimated before the start and taken off every stamp. When one fails, torchrun ends the others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.torch.job import Done, Failed, Job, Ready
from backends.torch.worker import Board, Worker
from sim.errors import UnsupportedPlan

if TYPE_CHECKING:
    from sim.schedule import Schedule

ROUNDS = 32
"""Exchanges with rank 0, of which the quickest tells the offset of a clock."""

_TICK_S = 0.5


def started() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def work(
    job: Job, names: tuple[str, ...], patience_s: float, on_start: Callable[[Mapping[str, int]], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Done], str]:
    """Do this rank's part of a job: see `backends.torch.crew.work`. Only rank 0 returns, the others end here.

    Raises
    ------
    UnsupportedPlan : there are more or fewer processes than devices, or they have done a run already.
    """
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != len(job.devices):
        raise UnsupportedPlan(f"torchrun has started {size} processes, the plan has {len(job.devices)} devices")
    if dist.is_initialized():
        raise UnsupportedPlan("torchrun has started these processes for one run: use 'twinrail run' for one point")
    device, stamps = job.devices[rank], np.full((2, len(job.schedule)), -1.0)
    line = _Line(job.schedule, names[device], lambda: on_start({names[device]: os.getpid()}))
    worker = Worker(job, device, line, Board(*stamps))
    threading.Thread(target=_watch, args=(stamps, names[device], patience_s), daemon=True).start()
    worker.guard(worker.live, "env://")
    parts: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object((stamps, line.done), parts)
    if parts is None:
        sys.exit(0)  # rank 0 writes what came of it
    stamped = zip((each for each, _ in parts), line.offsets_s, strict=True)
    columns = np.stack([_as_rank_0_has_it(*each) for each in stamped])
    start_s, end_s = columns.max(axis=0) - line.zero_s
    return start_s, end_s, [done for _, done in parts], line.torch


def _as_rank_0_has_it(stamps: NDArray[np.float64], offset_s: float) -> NDArray[np.float64]:
    return np.where(stamps < 0, -np.inf, stamps - offset_s)


class _Line:
    """What a worker says to its parent where it has none."""

    def __init__(self, schedule: Schedule, name: str, on_start: Callable[[], None]) -> None:
        self._schedule, self._name, self._on_start = schedule, name, on_start
        self.torch, self.zero_s = "", 0.0
        self.offsets_s: list[float] = []
        self.done: Done | None = None

    def send(self, message: Ready | Done | Failed) -> None:
        """Keep what is handed back; a failure ends the process, and torchrun the others."""
        match message:
            case Ready(version):
                self.torch = version
            case Failed(_, op, traceback):
                where = f"in {self._schedule.id(op)}" if op >= 0 else "while it was set up"
                _end(f"{self._name} raised {where}:\n{traceback}")
            case _:
                self.done = message

    def recv(self) -> None:
        """The common start."""
        import torch.distributed as dist

        self.offsets_s = clock_offsets()
        self._on_start()
        dist.barrier()
        self.zero_s = time.monotonic()


def clock_offsets(clock: Callable[[], float] = time.monotonic) -> list[float]:
    """On rank 0 what the clock of each rank is ahead of its own, in seconds; on others nothing.

    Cristian's method: of many exchanges the quickest, whose middle is when the other looked at its clock.
    """
    import torch
    import torch.distributed as dist

    told = torch.zeros(1, dtype=torch.float64)
    if rank := dist.get_rank():
        for _ in range(ROUNDS):
            dist.recv(told, 0)
            told[0] = clock()
            dist.send(told, 0)
        return []
    offsets_s = [0.0]
    for rank in range(1, dist.get_world_size()):
        exchanges = []
        for _ in range(ROUNDS):
            asked_s = clock()
            dist.send(told, rank)
            dist.recv(told, rank)
            heard_s = clock()
            exchanges.append((heard_s - asked_s, float(told[0]) - (asked_s + heard_s) / 2))
        offsets_s.append(min(exchanges)[1])
    return offsets_s


def _watch(stamps: NDArray[np.float64], name: str, patience_s: float) -> None:
    """End a process in which nothing moves."""
    moved, moved_s = -1, time.monotonic()
    while True:
        time.sleep(_TICK_S)
        if (moves := int(np.count_nonzero(stamps >= 0))) != moved:
            moved, moved_s = moves, time.monotonic()
        elif 0 < moves < stamps.size and time.monotonic() - moved_s > patience_s:
            _end(f"{name}: nothing moved for {patience_s:g} s")


def _end(reason: str) -> None:
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)
