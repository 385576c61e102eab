"""What passes between the parent and its processes: the job, and messages on the line to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.torch.job import Arithmetic
from sim.binding import Binding
from sim.plan import Plan
from sim.program import Layout, Program

Compute = Literal["real", "sleep"]

Array = NDArray[np.floating[Any]]


class Place(NamedTuple):
    """Where the process of a device runs.

    ``host``: the address on which a server listens (empty: 127.0.0.1), from which a worker connects (empty: any).
    ``port``: of a server; 0: a free one. ``prefix``: what its command begins with, such as ``ip netns exec NAME``.
    """

    host: str = ""
    port: int = 0
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """Where servers keep their state on disk: all of it every so many updates of each, and a log of what came since.

    Without ``resume`` the folder must hold no checkpoint yet, with it one of every server.
    """

    folder: Path
    every: int = 100
    resume: bool = False

    def files(self, server: int) -> tuple[Path, Path]:
        """The state of a server, by its number, and the log."""
        return self.folder / f"server{server}.npz", self.folder / f"server{server}.log"


@dataclass(frozen=True)
class Job:
    """One run, the same for every process.

    ``compute: sleep`` holds the binding's seconds instead of computing, and trains nothing.
    """

    plan: Plan
    binding: Binding
    seed: int
    compute: Compute = "real"
    arithmetic: Arithmetic = "float32"
    checkpoint: Checkpoint | None = None

    @property
    def program(self) -> Program:
        """What is executed."""
        assert isinstance(self.plan.work, Program)
        return self.plan.work

    @property
    def layout(self) -> Layout:
        """What is where in it."""
        assert self.program.layout is not None
        return self.program.layout


class Assignment(NamedTuple):
    """The first message to a process."""

    job: Job
    device: int
    place: Place


class Go(NamedTuple):
    """To a worker: where each server listens, and the step to begin with."""

    endpoints: dict[int, str]
    first_step: int


class Update(NamedTuple):
    """To a server, and back when it is done: update a part with the mean of what was added."""

    part: int
    number: int


class Adopt(NamedTuple):
    """To a server, and back when it is done: add the gradient that it holds of a worker that died."""

    worker: int
    number: int
    part: int


class Collect(NamedTuple):
    """To a server: hand back what it keeps."""


class Ready(NamedTuple):
    """A process is set up.

    ``versions`` of its libraries; of a server also where it listens, and by part the version that it keeps and the
    newest step of each worker that is in it.
    """

    pid: int
    versions: dict[str, str]
    endpoint: str = ""
    kept: Mapping[int, tuple[int, dict[int, int]]] = {}


class Finished(NamedTuple):
    """A worker has come to its end; the loss of each step by number and worker."""

    losses: dict[tuple[int, int], float]


class Values(NamedTuple):
    """What a server keeps at the end, by part."""

    parts: dict[int, Array]


class Failed(NamedTuple):
    """A process cannot go on, and why."""

    reason: str


def elements_of(layout: Layout) -> list[int]:
    """Elements of each part."""
    return [sum(int(stop) - int(start) for _, start, stop in part.slices) for part in layout.parts]
