"""This machine's figures for a point of a scenario: its layers, its messages, its all-reduces, timed repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backends.torch.job import ONE_STEP, Order, Part
from scenarios import measured, profile_command
from scenarios.architecture import shipped_architecture
from scenarios.compose import Composed
from scenarios.profiles import shipped_table
from sim.errors import UnsupportedPlan
from sim.ops import BACKWARD_KINDS, OpKind
from sim.schedule import Schedule
from sim.training import Optimizer, Training

if TYPE_CHECKING:
    from backends.torch.job import Accelerator
    from backends.torch.ping_pong import Link
    from backends.torch.profiler import Profile

FORWARDS = 16
"""Forward passes that each measuring of a profile times at least."""

MOST_IN_ORDER = 8
"""Micro-batches of a stage that are measured in order, at least a mini-batch."""


class Subject(NamedTuple):
    """What is measured: a model at a micro-batch under an optimizer, a part of it by each process, all at once.

    ``sums``: the processes add up their gradients and pass nothing else, so their link is a ring's. ``overlaps``: a
    forward and a backward run at once on a device.
    """

    model: str
    samples: int
    optimizer: Optimizer
    parts: tuple[Part, ...]
    sums: bool
    overlaps: bool

    @property
    def uncut(self) -> Subject:
        """The same while it is not known where to cut: every process runs all layers, a step at a time."""
        last = len(shipped_table(self.model).layers) - 1
        return self._replace(parts=((0, last, ONE_STEP),) * len(self.parts))


class Bench:
    """Measures subjects, each as often as it is asked to; figures are medians over all times."""

    def __init__(self, folder: Path, device: Accelerator) -> None:
        self._folder, self._device = folder, device
        self._profiles: dict[Subject, list[Profile]] = {}
        self._links: dict[Subject, list[Link]] = {}

    def measure(self, subject: Subject) -> None:
        """Once more, from the first warm-up on."""
        from backends.torch import ping_pong
        from backends.torch.profiler import profile_together

        architecture, how = shipped_architecture(subject.model), Training(subject.optimizer)
        profile = profile_together(architecture, subject.samples, how, subject.parts, FORWARDS, self._device)
        self._profiles.setdefault(subject, []).append(profile)
        sums = partial(ping_pong.measure_ring, len(subject.parts))
        link = (sums if subject.sums else ping_pong.measure)(device=self._device)
        self._links.setdefault(subject, []).append(link)

    def figures(self, subject: Subject) -> Mapping[str, str]:
        """What to set in a scenario, by path; the profile is written to the folder."""
        from backends.torch.profiler import merged

        found = merged(self._profiles[subject])
        latency_s, bytes_per_s = np.median([link[:2] for link in self._links[subject]], axis=0).tolist()
        how = Training(subject.optimizer)
        content = profile_command.content(subject.model, subject.samples, how, found, shipped_table(subject.model))
        content["link"] = {"latency": f"{latency_s:.6g} s", "bandwidth": f"{bytes_per_s:.6g} B/s"}
        number = 1 + [*self._profiles].index(subject)
        file = self._folder / f"profile-{number}-{subject.model}-{subject.samples}.yaml"
        measured.write(file, content)
        link = {f"cluster.link.{key}": value for key, value in content["link"].items()}
        gain = {"cluster.concurrency": f"{{shared: {found.overlap_gain}}}"} if subject.overlaps else {}
        return {"model.measured": str(file.resolve()), **link, **gain}


def subject_of(composed: Composed, model: str) -> Subject:
    """What to measure for a plan.

    Raises
    ------
    UnsupportedPlan : its order depends on time.
    """
    plan, binding = composed
    if not isinstance(plan.work, Schedule):
        raise UnsupportedPlan(f"'{plan.method}' is no static schedule: see docs/validation.md for parameter servers")
    shape, ops = plan.work.shape, plan.work.ops
    samples = int(binding.samples) // (shape.micro_batches * shape.replicas)
    computing = [lane.device for lane in plan.work.lanes if lane.computes]
    travels = (ops["target"] >= 0) & (ops["source"] != ops["target"])
    sums = bool((ops["kind"] == OpKind.ALL_REDUCE).any()) and not travels.any()
    orders = [order_of(plan.work, device) for device in sorted({*computing})]
    parts = tuple((*plan.partition[stage], order) for stage, order in orders)
    subject = Subject(model, samples, plan.training.optimizer, parts, sums, len(orders) < len(computing))
    return subject if all(order != ONE_STEP for _, order in orders) else subject.uncut


def order_of(schedule: Schedule, device: int) -> tuple[int, Order]:
    """The stage of a device and its ops, as a profile runs them: backwards whole where they have parts.

    Where a device has several stages or lanes, or fused ops, it is a single step: its order is not known, or mixed.
    """
    ops, shape = schedule.ops, schedule.shape
    timed = np.isin(ops["kind"], (OpKind.FORWARD, *BACKWARD_KINDS, OpKind.FORWARD_BACKWARD, OpKind.UPDATE))
    lanes = [row[timed[row]] for lane, row in zip(schedule.lanes, schedule.order, strict=True) if lane.device == device]
    rows, *others = (ops[lane] for lane in lanes if len(lane))
    stage = int(rows["stage"][0])
    if others or (rows["stage"] != stage).any() or (rows["kind"] == OpKind.FORWARD_BACKWARD).any():
        return stage, ONE_STEP
    period = shape.rounds[stage] if shape.rounds else 1
    wanted = -(-MOST_IN_ORDER // shape.micro_batches)
    updates = min(-(-wanted // period), shape.mini_batches // period)
    found = []
    for row in rows[rows["part"] <= 0]:
        kind, number = OpKind(int(row["kind"])), int(row["micro_batch"])
        update = number if kind is OpKind.UPDATE else int(shape.update_of(stage, number))
        if update < updates:
            found.append((kind, number, update))
    return stage, tuple(found)
