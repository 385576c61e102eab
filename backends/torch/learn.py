"""One training on a simulated cluster: its losses against the cluster's clock, and how good it is on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from backends.torch.evaluate import Exam
from backends.torch.job import Done
from backends.torch.replay import replay
from backends.torch.replay_servers import replay_servers
from backends.torch.threads import one_thread
from sim.binding import Binding
from sim.errors import UnsupportedPlan
from sim.ops import FORWARD_KINDS, OpKind
from sim.plan import Plan
from sim.program import Program
from sim.trace import Trace

TESTS = 10
"""How often weights are tested, after equal shares of all updates."""


class Learned(NamedTuple):
    """The loss of the samples of each update and when it was computed, in that order; what tests found, and when.

    An update is made of a mini-batch, of one worker's step (``asp``, ``ssp``) or of a step of all workers.
    """

    seconds: list[float]
    losses: list[float]
    test_seconds: list[float]
    test_losses: list[float]
    test_accuracies: list[float]


def learn(plan: Plan, binding: Binding, trace: Trace, task: str, learning_rate: float, seed: int) -> Learned:
    """Train on a task in the order of a trace, on one core.

    Raises
    ------
    UnsupportedPlan : there are no kernels for it, or the task does not fit the model.
    """
    plan = replace(plan, training=replace(plan.training, task=task, learning_rate=learning_rate))
    assert plan.architecture is not None
    served = isinstance(plan.work, Program)
    if isinstance(plan.work, Program) and plan.work.layout is None:
        raise UnsupportedPlan(f"'{plan.method}' cannot be trained in the order of a simulation: use parameter_server")
    updates = (trace.ops["kind"] == OpKind.UPDATE) & (not served or trace.ops["stage"] == 0)
    tests = _Tests(Exam(plan.architecture, task), int(updates.sum()))
    with one_thread():
        if served:
            done = replay_servers(plan, trace, round(binding.samples), seed, watch=tests.watch)
        else:
            done = replay(plan, binding, trace, seed, watch=tests.watch)
    return Learned(*_by_time(plan, trace, done), tests.seconds, tests.losses, tests.accuracies)


class _Tests:
    """Scores of the weights that there are after equal shares of all updates."""

    def __init__(self, exam: Exam, updates: int) -> None:
        self._exam, self._done = exam, 0
        self._due = {updates * number // TESTS for number in range(1, TESTS + 1)}
        self.seconds, self.losses, self.accuracies = list[float](), list[float](), list[float]()

    def watch(self, end_s: float, state: Callable[[], Done]) -> None:
        self._done += 1
        if self._done in self._due:
            score = self._exam.score(state())
            self.seconds.append(end_s)
            self.losses.append(score.loss)
            self.accuracies.append(score.accuracy)


def _by_time(plan: Plan, trace: Trace, done: Done) -> tuple[list[float], list[float]]:
    """Losses in the order in which they were computed: when the last forward of an update's samples has ended."""
    served, ops = isinstance(plan.work, Program), trace.ops
    chosen = np.isin(ops["kind"], FORWARD_KINDS) & (ops["stage"] == (0 if served else plan.work.shape.stages - 1))
    when, losses = defaultdict[tuple[int, int], float](float), defaultdict[tuple[int, int], list[float]](list)
    for row, end_s in zip(ops[chosen], trace.end_s[chosen].tolist(), strict=True):
        place = int(row["micro_batch"]), int(row["replica"])
        if not served or place in done.losses:  # a worker to spare may have computed in vain
            update = _update_of(plan, *place)
            when[update] = max(when[update], end_s)
    for place, loss in done.losses.items():
        losses[_update_of(plan, *place)].append(loss)
    merge = np.mean if served else np.sum  # a micro-batch has its share of the mean already
    order = sorted(losses, key=lambda update: (when[update], update))
    return [when[update] for update in order], [float(merge(losses[update])) for update in order]


def _update_of(plan: Plan, number: int, replica: int) -> tuple[int, int]:
    """The update that a micro-batch, or a worker's step, is part of; asynchronous workers have each their own."""
    if isinstance(plan.work, Program):
        assert plan.work.layout is not None
        return number, 0 if plan.work.layout.sums else replica
    return number // plan.work.shape.micro_batches, 0
