"""Latency and bandwidth of a link between processes of this machine, as tensors travel and are summed in a run."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from backends.torch.heap import keep_freed_memory
from sim.errors import BackendFailure

SIZES = tuple(1 << power for power in range(12, 25, 2))
"""Bytes of each message: 4 KiB to 16 MiB."""


class Link(NamedTuple):
    """A message of n bytes takes latency_s + n / bytes_per_s; ``seconds`` by size are the medians it was fitted to.

    Of a ring every hop of an all-reduce is such a message, of n / processes bytes.
    """

    latency_s: float
    bytes_per_s: float
    seconds: dict[int, float]


def measure(repeats: int = 20) -> Link:
    """Send messages there and back; half of a round trip counts.

    Raises
    ------
    BackendFailure : a process died.
    """
    return fit({size: taken_s / 2 for size, taken_s in _among(2, _bounce, repeats).items()})


def measure_ring(processes: int, repeats: int = 20) -> Link:
    """Sum tensors among processes, from the gradients to the gradients: copied together, reduced, copied apart.

    The link is the one over which a ring (`sim.binding.Binding.ring_seconds`) would take as long.

    Raises
    ------
    BackendFailure : a process died.
    """
    hops = 2 * (processes - 1)
    seconds = _among(processes, _reduce, repeats)
    return fit({size // processes: taken_s / hops for size, taken_s in seconds.items()})


def _among(processes: int, exchange: Callable[[int, Any], None], repeats: int) -> dict[int, float]:
    """Median seconds of an exchange by its bytes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="twinrail-") as folder:
        about = f"file://{folder}/meeting", processes, exchange, repeats, theirs
        crew = [context.Process(target=_play, args=(rank, *about), daemon=True) for rank in range(processes)]
        for process in crew:
            process.start()
        try:
            while not ours.poll(0.2):
                if not all(process.is_alive() for process in crew):
                    raise BackendFailure("a process that timed messages died")
            seconds: dict[int, float] = ours.recv()
        finally:
            for process in crew:
                process.kill()
                process.join()
    return seconds


def fit(seconds: dict[int, float]) -> Link:
    """The line with the least relative error through the times by size."""
    sizes, times = np.array([*seconds], float), np.array([*seconds.values()])
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency_s, per_byte), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    return Link(max(float(latency_s), 0.0), 1 / float(per_byte), seconds)


def _play(
    rank: int,
    meeting: str,
    processes: int,
    exchange: Callable[[int, Any], None],
    repeats: int,
    line: Connection,
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    keep_freed_memory()
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    seconds: dict[int, float] = {}
    for size in SIZES:
        message, times = torch.zeros(size // 4), list[float]()
        for _ in range(repeats + 3):
            begin = time.perf_counter()
            exchange(rank, message)
            times.append(time.perf_counter() - begin)
        seconds[size] = statistics.median(times[3:])
    if not rank:
        line.send(seconds)
    time.sleep(3600)  # the parent ends all


def _bounce(rank: int, message: Any) -> None:
    """There and back."""
    import torch.distributed as dist

    for sender in (0, 1):
        if rank == sender:
            dist.send(message, 1 - rank)
        else:
            dist.recv(message, 1 - rank)


def _reduce(rank: int, message: Any) -> None:
    import torch.distributed as dist

    from backends.torch.flat import flat, unflatten

    addends = [message]
    total = flat(addends)
    dist.all_reduce(total)
    unflatten(total, addends)
