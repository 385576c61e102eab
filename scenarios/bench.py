"""This machine's figures for a point of a scenario: its layers, its messages, its all-reduces, timed repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scenarios import measured, profile_command
from scenarios.architecture import shipped_architecture
from scenarios.compose import Composed
from scenarios.profiles import shipped_table
from sim.errors import UnsupportedPlan
from sim.ops import OpKind
from sim.schedule import Schedule
from sim.training import Optimizer, Training

if TYPE_CHECKING:
    from backends.torch.job import Accelerator
    from backends.torch.ping_pong import Link
    from backends.torch.profiler import Profile

STEPS = 10
"""Training steps that each measuring of a profile times."""


class Subject(NamedTuple):
    """What is measured: a model at a micro-batch under an optimizer, on so many processes at once.

    ``sums``: the processes add up their gradients and pass nothing else, so their link is a ring's. ``overlaps``: a
    forward and a backward run at once on a device. ``splits``: backwards are input gradient and weight gradient apart.
    """

    model: str
    samples: int
    optimizer: Optimizer
    processes: int
    sums: bool
    overlaps: bool
    splits: bool


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
        profile = profile_together(architecture, subject.samples, how, subject.processes, STEPS, self._device)
        self._profiles.setdefault(subject, []).append(profile)
        sums = partial(ping_pong.measure_ring, subject.processes)
        link = (sums if subject.sums else ping_pong.measure)(device=self._device)
        self._links.setdefault(subject, []).append(link)

    def figures(self, subject: Subject) -> Mapping[str, str]:
        """What to set in a scenario, by path; the profile is written to the folder."""
        from backends.torch.profiler import merged

        found = merged(self._profiles[subject])
        if subject.splits:
            found = replace(found, layers=found.split)
        latency_s, bytes_per_s = np.median([link[:2] for link in self._links[subject]], axis=0).tolist()
        how = Training(subject.optimizer)
        content = profile_command.content(subject.model, subject.samples, how, found, shipped_table(subject.model))
        content["link"] = {"latency": f"{latency_s:.6g} s", "bandwidth": f"{bytes_per_s:.6g} B/s"}
        kinds = {"ring": subject.sums, "overlapped": subject.overlaps, "split": subject.splits}
        parts = [*subject[:4], *(kind for kind, applies in kinds.items() if applies)]
        file = self._folder / f"{'-'.join(map(str, parts))}.yaml"
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
    processes, overlaps = len({*computing}), len({*computing}) < len(computing)
    travels = (ops["target"] >= 0) & (ops["source"] != ops["target"])
    sums = bool((ops["kind"] == OpKind.ALL_REDUCE).any()) and not travels.any()
    splits = bool((ops["kind"] == OpKind.BACKWARD_WEIGHT).any())
    return Subject(model, samples, plan.training.optimizer, processes, sums, overlaps, splits)
