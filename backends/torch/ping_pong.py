"""Latency and bandwidth of a link between two processes of this machine, as tensors travel in a run."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from sim.errors import BackendFailure

SIZES = tuple(1 << power for power in range(12, 25, 2))
"""Bytes of each message: 4 KiB to 16 MiB."""


class Link(NamedTuple):
    """A message of n bytes takes latency_s + n / bytes_per_s; ``seconds`` by size are the medians it was fitted to."""

    latency_s: float
    bytes_per_s: float
    seconds: dict[int, float]


def measure(repeats: int = 20) -> Link:
    """Send messages there and back; half of a round trip counts.

    Raises
    ------
    BackendFailure : a process died.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="twinrail-") as folder:
        meeting = f"file://{folder}/meeting"
        processes = [
            context.Process(target=_play, args=(rank, meeting, repeats, theirs), daemon=True) for rank in (0, 1)
        ]
        for process in processes:
            process.start()
        try:
            while not ours.poll(0.2):
                if not all(process.is_alive() for process in processes):
                    raise BackendFailure("a process of the ping-pong died")
            seconds: dict[int, float] = ours.recv()
        finally:
            for process in processes:
                process.kill()
                process.join()
    return fit(seconds)


def fit(seconds: dict[int, float]) -> Link:
    """The line with the least relative error through the times by size."""
    sizes, times = np.array([*seconds], float), np.array([*seconds.values()])
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency_s, per_byte), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    return Link(max(float(latency_s), 0.0), 1 / float(per_byte), seconds)


def _play(rank: int, meeting: str, repeats: int, line: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    seconds: dict[int, float] = {}
    for size in SIZES:
        message, times = torch.zeros(size, dtype=torch.uint8), list[float]()
        for _ in range(repeats + 3):
            begin = time.perf_counter()
            for sender in (0, 1):
                if rank == sender:
                    dist.send(message, 1 - rank)
                else:
                    dist.recv(message, 1 - rank)
            times.append((time.perf_counter() - begin) / 2)
        seconds[size] = statistics.median(times[3:])
    if not rank:
        line.send(seconds)
    time.sleep(3600)  # the parent ends both
