"""What a worker does between its pulls and its pushes: nothing but pass the time, or see `passes`."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from backends.torch.servers.job import Array, Job, elements_of
from sim.engine.draws import Draws
from sim.ops import OpId


class Computing(Protocol):
    """``losses`` by step and worker. What `take` and `gradient` touch, `compute` leaves alone meanwhile."""

    losses: dict[tuple[int, int], float]

    def fetch(self, number: int) -> None:
        """Have the samples of a step at hand."""
        ...

    def take(self, part: int, offset: int, values: Array) -> None:
        """Some elements of a part have arrived."""
        ...

    def compute(self, op: OpId) -> None:
        """Do a pass of a block."""
        ...

    def gradient(self, part: int) -> Array:
        """The gradient of a part; it stays as it is until the next backward of this part."""
        ...


class Asleep:
    """Holds the seconds of every pass, as the scenario lets them vary; its gradients are zeros."""

    def __init__(self, job: Job, worker: int) -> None:
        self.losses: dict[tuple[int, int], float] = {}
        self._binding, self._worker = job.binding, worker
        self._draws = Draws(job.binding.conditions, job.seed)
        self._elements = elements_of(job.layout)
        self._zeros = np.zeros(max(self._elements), job.arithmetic)

    def fetch(self, number: int) -> None:
        """See `Computing`."""

    def take(self, part: int, offset: int, values: Array) -> None:
        """See `Computing`."""

    def compute(self, op: OpId) -> None:
        """See `Computing`."""
        seconds = self._binding.op_seconds(op, self._worker, -1, (self._worker,))
        time.sleep(seconds * self._draws.factor(op))

    def gradient(self, part: int) -> Array:
        """See `Computing`."""
        return self._zeros[: self._elements[part]]


def computing(job: Job, worker: int) -> tuple[Computing, dict[str, str]]:
    """As the job says, and the version of PyTorch where it takes part."""
    if job.compute == "sleep":
        return Asleep(job, worker), {}
    import torch

    from backends.torch.servers.passes import Passes

    torch.set_num_threads(1)
    return Passes(job, worker), {"torch": str(torch.__version__)}
