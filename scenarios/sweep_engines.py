"""Where the points of a sweep run: here, by joblib in processes or on a Dask cluster, or on a Ray cluster."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal, get_args

from scenarios.sweep_work import Done, Task, run_task
from sim.errors import BackendFailure, ScenarioError, TwinrailError, nearest

Engine = Literal["local", "dask", "ray"]
Coming = Generator[tuple[list[Done], float], None, None]
"""What comes of each task, and the seconds it took."""

_NEEDS = {"dask": "distributed", "ray": "ray"}
_WATCHED = threading.Event()


def engine_of(name: str) -> Engine:
    """The engine of that name.

    Raises
    ------
    ScenarioError : there is none.
    """
    for engine in get_args(Engine):
        if name == engine:
            found: Engine = engine
            return found
    hint = nearest(name, get_args(Engine))
    raise ScenarioError(f"--engine: expected local, dask or ray, got '{name}'" + (f" ({hint})" if hint else ""))


def run_tasks(tasks: Iterator[Task], engine: Engine, jobs: int, address: str | None) -> Coming:
    """What comes of the tasks, as each is done. Tasks are taken two ahead of each worker.

    Raises
    ------
    ScenarioError : the engine is not installed, or nothing answers at the address.
    BackendFailure : a worker died.
    """
    if engine == "local" and jobs == 1:
        yield from map(run_task, tasks)
        return
    if engine != "local" and find_spec(_NEEDS[engine]) is None:
        raise ScenarioError(f"--engine {engine} needs {_NEEDS[engine]}, which is not installed: use twinrail[cluster]")
    try:
        yield from _by_ray(tasks, jobs, address) if engine == "ray" else _by_joblib(tasks, engine, jobs, address)
    except TwinrailError:
        raise
    except Exception as error:
        message = f"a worker died ({type(error).__name__}: {error}): --resume goes on from what is finished"
        raise BackendFailure(message) from None


def _by_joblib(tasks: Iterator[Task], engine: Engine, jobs: int, address: str | None) -> Coming:
    from joblib import Parallel, delayed, parallel_config

    work: Callable[[Task], Any] = _Watched(os.getpid()) if engine == "local" else run_task
    with (
        nullcontext() if engine == "local" else _dask(jobs, address),
        parallel_config(backend="loky" if engine == "local" else "dask"),
    ):
        n_jobs = jobs if address is None else -1
        parallel = Parallel(n_jobs=n_jobs, batch_size=1, pre_dispatch="2*n_jobs", return_as="generator_unordered")
        yield from parallel(delayed(work)(task) for task in tasks)


class _Watched:
    """`run_task` in a process that ends when the sweep's does, also where that was killed."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self, task: Task) -> tuple[list[Done], float]:
        if not _WATCHED.is_set():
            _WATCHED.set()
            threading.Thread(target=_end_with, args=(self.parent,), daemon=True).start()
        return run_task(task)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def _dask(jobs: int, address: str | None) -> Iterator[None]:
    from distributed import Client

    local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(**local) if address is None else Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise ScenarioError(f"--address {address}: no Dask scheduler answers there: {error}") from None
    with client:
        yield


def _by_ray(tasks: Iterator[Task], jobs: int, address: str | None) -> Coming:
    """joblib cannot take results from Ray as they come, so its tasks are waited for here."""
    import ray

    local = {"num_cpus": jobs, "include_dashboard": False} if address is None else {"address": address}
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself ends the process where none is
        ray.init(log_to_driver=False, logging_level="ERROR", **local)
    except (OSError, ValueError, RuntimeError) as error:
        raise ScenarioError(f"--address {address}: no Ray cluster answers there: {error}") from None
    try:
        work, workers = ray.remote(run_task), int(ray.cluster_resources().get("CPU", 1))
        waiting = [work.remote(task) for task in islice(tasks, 2 * workers)]
        while waiting:
            (ready, *_), waiting = ray.wait(waiting)
            waiting += [work.remote(task) for task in islice(tasks, 1)]
            yield ray.get(ready)
    finally:
        ray.shutdown()
