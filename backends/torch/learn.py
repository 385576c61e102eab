"""One training on a simulated cluster: its losses against the cluster's clock, and how good it is at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from backends.torch.evaluate import score
from backends.torch.job import Done
from backends.torch.replay import replay
from backends.torch.replay_servers import replay_servers
from backends.torch.threads import one_thread
from sim.binding import Binding
from sim.ops import FORWARD_KINDS
from sim.plan import Plan
from sim.program import Program
from sim.trace import Trace


class Learned(NamedTuple):
    """The loss of each mini-batch (of a worker's step, with parameter servers) and when it was computed, in order."""

    seconds: list[float]
    losses: list[float]
    test_loss: float
    test_accuracy: float


def learn(plan: Plan, binding: Binding, trace: Trace, task: str, learning_rate: float, seed: int) -> Learned:
    """Train on a task in the order of a trace, on one core.

    Raises
    ------
    UnsupportedPlan : there are no kernels for it, or the task does not fit the model.
    """
    plan = replace(plan, training=replace(plan.training, task=task, learning_rate=learning_rate))
    assert plan.architecture is not None
    with one_thread():
        if isinstance(plan.work, Program):
            done = replay_servers(plan, trace, round(binding.samples), seed)
        else:
            done = replay(plan, binding, trace, seed)
        test = score(plan.architecture, task, done)
    seconds, losses = _by_time(plan, trace, done)
    return Learned(seconds, losses, *test)


def _by_time(plan: Plan, trace: Trace, done: Done) -> tuple[list[float], list[float]]:
    """Losses in the order in which they were computed: when the last forward of a mini-batch has ended."""
    ops, last = trace.ops, plan.work.shape.stages - 1
    served = isinstance(plan.work, Program)
    chosen = np.isin(ops["kind"], FORWARD_KINDS) & (ops["stage"] == (0 if served else last))
    per_step = 1 if served else plan.work.shape.micro_batches
    when: dict[tuple[int, int], float] = {}
    total: dict[tuple[int, int], float] = {}
    for row, end_s in zip(ops[chosen], trace.end_s[chosen].tolist(), strict=True):
        key = int(row["micro_batch"]) // per_step, int(row["replica"]) if served else 0
        when[key] = max(when.get(key, 0.0), end_s)
    for (micro_batch, pipeline), loss in done.losses.items():
        key = micro_batch // per_step, pipeline if served else 0
        total[key] = total.get(key, 0.0) + loss
    order = sorted(total, key=lambda key: (when[key], key))
    return [when[key] for key in order], [total[key] for key in order]
