"""Latency and bandwidth of a link between processes of this machine, as tensors travel and are summed in a run."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.torch.heap import keep_freed_memory
from backends.torch.job import Accelerator
from sim.errors import BackendFailure

if TYPE_CHECKING:
    from backends.torch.transport import Transport

SIZES = tuple(1 << power for power in range(12, 25, 2))
"""Bytes of each message: 4 KiB to 16 MiB."""


class Link(NamedTuple):
    """A message of n bytes takes latency_s + n / bytes_per_s; ``seconds`` by size are the medians it was fitted to.

    Of a ring every hop of an all-reduce is such a message, of n / processes bytes.
    """

    latency_s: float
    bytes_per_s: float
    seconds: dict[int, float]


def measure(repeats: int = 20, device: Accelerator = "cpu") -> Link:
    """Send messages there and back; half of a round trip counts.

    Raises
    ------
    BackendFailure : a process died.
    """
    return fit({size: taken_s / 2 for size, taken_s in _among(2, _bounce, repeats, device).items()})


def measure_ring(processes: int, repeats: int = 20, device: Accelerator = "cpu") -> Link:
    """Sum tensors among processes, from the gradients to the gradients: copied together, reduced, copied apart.

    The link is the one over which a ring (`sim.binding.Binding.ring_seconds`) would take as long.

    Raises
    ------
    BackendFailure : a process died.
    """
    hops = 2 * (processes - 1)
    seconds = _among(processes, _reduce, repeats, device)
    return fit({size // processes: taken_s / hops for size, taken_s in seconds.items()})


def _among(
    processes: int, exchange: Callable[[Transport, int, Any], None], repeats: int, device: Accelerator
) -> dict[int, float]:
    """Median seconds of an exchange by its bytes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="twinrail-") as folder:
        about = f"file://{folder}/meeting", processes, exchange, repeats, device, theirs
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
    exchange: Callable[[Transport, int, Any], None],
    repeats: int,
    device: Accelerator,
    line: Connection,
) -> None:
    import torch

    from backends.torch.fingerprint import device_of, transport_of
    from backends.torch.transport import Transport

    torch.set_num_threads(1)
    keep_freed_memory()
    where, everyone = device_of(device, rank), tuple(range(processes))
    name = transport_of(device, processes)
    transport = Transport(name, where, meeting, rank, processes, [(0, 1), (1, 0)], [everyone])
    seconds: dict[int, float] = {}
    for size in SIZES:
        message, times = torch.zeros(size // 4, device=where), list[float]()
        for _ in range(repeats + 3):
            begin = time.perf_counter()
            exchange(transport, rank, message)
            if where.type == "cuda":
                torch.cuda.synchronize(where)
            times.append(time.perf_counter() - begin)
        seconds[size] = statistics.median(times[3:])
    if not rank:
        line.send(seconds)
    time.sleep(3600)  # the parent ends all


def _bounce(transport: Transport, rank: int, message: Any) -> None:
    """There and back."""
    for channel in ((0, 1), (1, 0)):
        (transport.send if rank == channel[0] else transport.receive)(message, channel, tag=0)


def _reduce(transport: Transport, rank: int, message: Any) -> None:
    from torch.distributed import get_world_size

    transport.all_reduce([message], tuple(range(get_world_size())))
