"""The planner's search: branch and bound over candidates, confirmed by simulation.

A candidate has bounds on throughput, peak memory and staleness: first those of `sim.bounds`, from figures alone. When
it comes up, its schedule is made, and all candidates of that schedule get tighter ones from it (`sim.window_bounds`,
`sim.live_bounds`). They are taken in the order of their best throughput. One is left out where its least memory fits
no device, where it is staler than wanted, or where ``top`` plans that were simulated and fit are no worse than its
bounds in throughput, peak memory and staleness alike. Such a candidate is none of the ``top`` best by any of the three,
for ``top`` plans are as good or better; nor does it add a point to the Pareto front, for whatever it reaches, one of
these reaches too. So the best, the runners-up and the front are those of trying everything.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from scenarios import run_folder
from scenarios.compose import compose
from scenarios.document import Document, Node, Place, assign, split
from scenarios.plan_space import Choice
from scenarios.planned import Planned
from scenarios.points import Point
from scenarios.schema import parse
from sim.bounds import held_by, least_peak_bytes, least_staleness, least_step_s, resident_bytes
from sim.errors import Fault, OutOfMemory, ScenarioError, TwinrailError
from sim.live_bounds import least_live_bytes
from sim.passes import weight_versions
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.window_bounds import least_step_s as schedule_step_s

Objective = Literal["throughput", "memory", "staleness"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "memory", "staleness")
AT_ONCE = 16
"""Candidates simulated between two looks at what may be left out, whatever the number of processes."""

Overrides = Mapping[str, Any]
Progress = Callable[[int, int, float], None]


class Score(NamedTuple):
    """What plans are compared by, less is better: minus samples per second, bytes of the fullest device, staleness."""

    slowness: float
    peak_bytes: float
    staleness: float

    def no_worse(self, other: Score) -> bool:
        """Whether it is as good in all three."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))

    def by(self, objective: Objective) -> tuple[float, ...]:
        """To sort by."""
        first = OBJECTIVES.index(objective)
        return (self[first], *self)


class Bounded(NamedTuple):
    """A candidate and what it reaches at best; ``short_of`` names the limit that even so it does not keep."""

    number: int
    choice: Choice
    best: Score = Score(-math.inf, 0.0, 0.0)
    short_of: str = ""

    @property
    def overrides(self) -> Overrides:
        """What it changes in the scenario."""
        return self.choice.overrides

    @property
    def promise(self) -> tuple[float, ...]:
        """To sort by: the most promising first."""
        return (*self.best, self.number)


class Tried(NamedTuple):
    """A candidate that was simulated and keeps every limit."""

    candidate: Bounded
    figures: dict[str, Any]
    score: Score


class Refused(NamedTuple):
    """A candidate without figures: ``memory`` where it did not fit, ``refused`` where it makes no plan."""

    reason: str
    message: str


@dataclass(frozen=True)
class Options:
    """What is asked: how many plans, the best by what, within which limit; on how many processes; prune or try all."""

    objective: Objective = "throughput"
    max_staleness: int | None = None
    top: int = 5
    jobs: int = 1
    prune: bool = True

    def check(self) -> None:
        """Refuse what cannot be asked, all faults at once."""
        faults = []
        if self.objective not in OBJECTIVES:
            faults.append(Fault(f"expected {', '.join(OBJECTIVES)}, got '{self.objective}'", "--objective"))
        if self.max_staleness is not None and self.max_staleness < 0:
            faults.append(Fault("expected a number of updates, 0 or more", "--max-staleness"))
        faults += [Fault("expected 1 or more", f"--{name}") for name in ("top", "jobs") if getattr(self, name) < 1]
        if faults:
            raise ScenarioError.of(faults)


def bounded(number: int, choice: Choice, options: Options) -> Bounded:
    """A candidate with what it reaches at best, by its figures alone."""
    _, known, binding, _ = choice
    if known is None or binding is None:
        return Bounded(number, choice)
    stages = len(binding.devices) if known.method != "data_parallel" else 1
    step_s, peaks = least_step_s(known, binding), least_peak_bytes(known, binding)
    return _judged(Bounded(number, choice), step_s, peaks, least_staleness(known, stages), options)


def refined(document: Document, planned: Planned, group: Sequence[Bounded], options: Options) -> Sequence[Bounded]:
    """Candidates of one schedule, each with what it reaches at best by that schedule too, where that can be made."""
    changed = with_overrides(document, group[0].overrides)
    try:
        plan, own = compose(parse(changed, PLANNERS), changed, planned=planned)
    except TwinrailError:
        return group
    assert isinstance(plan.work, Schedule)
    assert plan.events is not None
    choices = [(each.choice.plan, each.choice.binding) for each in group]
    known = [(candidate, binding) for candidate, binding in choices if candidate is not None and binding is not None]
    bindings = [replace(binding, devices=own.devices) for _, binding in known]
    steps_s = schedule_step_s(plan.work, bindings)
    live = least_live_bytes(plan.work, plan.events, bindings).T.tolist()
    staleness = int(weight_versions.staleness(plan.work).max(initial=0))
    return [
        _judged(each, float(step_s), [*map(sum, zip(resident_bytes(*figures), peaks, strict=True))], staleness, options)
        for each, figures, step_s, peaks in zip(group, known, steps_s, live, strict=True)
    ]


def _judged(candidate: Bounded, step_s: float, peaks: Sequence[int], staleness: int, options: Options) -> Bounded:
    """A candidate that reaches no more than before, nor than these allow."""
    known, binding = candidate.choice.plan, candidate.choice.binding
    assert known is not None
    assert binding is not None
    best = Score(
        max(candidate.best.slowness, -binding.samples / step_s if step_s else -math.inf),
        max(candidate.best.peak_bytes, *peaks),
        max(candidate.best.staleness, staleness),
    )
    alone = known.method == "data_parallel"
    homes = [held[0] for held in held_by(known, len(binding.devices) if not alone else 1)]
    capacities = [binding.capacity_bytes[device if alone else stage] for device, stage in enumerate(homes)]
    if any(limit is not None and peak > limit for peak, limit in zip(peaks, capacities, strict=True)):
        return candidate._replace(best=best, short_of="memory")
    stale = options.max_staleness is not None and best.staleness > options.max_staleness
    return candidate._replace(best=best, short_of=candidate.short_of or ("staleness" if stale else ""))


class _Waiting(NamedTuple):
    """Candidates that are dealt with together; ``order``: their schedule is still to be made."""

    promise: tuple[float, ...]
    order: str
    candidates: list[Bounded]


class Search:
    """Candidates left out, simulated and refused so far.

    ``progress`` is told how many candidates are settled, of how many, and the best samples per second so far.
    """

    def __init__(self, document: Document, options: Options, progress: Progress) -> None:
        self.document, self.options, self.progress = document, options, progress
        self.planned = Planned()
        self.tried: list[Tried] = []
        self.pruned = Counter({"memory": 0, "staleness": 0, "throughput": 0})
        self.without = Counter({"memory": 0, "staleness": 0, "refused": 0})

    def over(self, candidates: Sequence[Bounded]) -> None:
        """Deal with every candidate, the most promising first."""
        groups: dict[str, list[Bounded]] = {}
        for each in candidates:
            order = each.choice.order if self.options.prune else ""
            groups.setdefault(order or f"#{each.number}", []).append(each)
        waiting = [_Waiting(min(e.promise for e in group), order, group) for order, group in groups.items()]
        heapq.heapify(waiting)
        while batch := self._next(waiting):
            for candidate, outcome in zip(batch, self._simulated(batch), strict=True):
                self._take(candidate, outcome)
            fastest = max((-each.score.slowness for each in self.tried), default=0.0)
            self.progress(len(candidates) - self._open(waiting), len(candidates), fastest)

    def _next(self, waiting: list[_Waiting]) -> list[Bounded]:
        """The most promising candidates of those whose schedule has been made."""
        batch: list[Bounded] = []
        while waiting and len(batch) < AT_ONCE:
            _, order, group = heapq.heappop(waiting)
            group = [each for each in group if self._is_worth_it(each)]
            if order.startswith("#"):
                batch += group
            elif group:
                for each in refined(self.document, self.planned, group, self.options):
                    heapq.heappush(waiting, _Waiting(each.promise, f"#{each.number}", [each]))
        return batch

    def _open(self, waiting: Iterable[_Waiting]) -> int:
        """How many of those that wait may still be among the answers."""
        left = np.array([each.best for group in waiting for each in group.candidates]).reshape(-1, 3)
        if not self.options.prune or not self.tried:
            return len(left)
        scores = np.array([each.score for each in self.tried])
        better = (scores[:, None] <= left).all(axis=2).sum(axis=0)
        return int((better < self.options.top).sum())

    def _is_worth_it(self, candidate: Bounded) -> bool:
        """Whether it may be among the answers; what it is left out for is counted."""
        if not self.options.prune:
            return True
        reason = candidate.short_of
        better = (each for each in self.tried if each.score.no_worse(candidate.best))
        if not reason and len([*itertools.islice(better, self.options.top)]) == self.options.top:
            reason = "throughput"
        self.pruned.update([reason] if reason else [])
        return not reason

    def _simulated(self, batch: Sequence[Bounded]) -> list[dict[str, Any] | Refused]:
        if self.options.jobs == 1:
            return [simulate(self.document, self.planned, each.overrides) for each in batch]
        from joblib import Parallel, delayed

        work = (delayed(_simulate_apart)(self.document, each.overrides) for each in batch)
        found: list[dict[str, Any] | Refused] = Parallel(n_jobs=self.options.jobs)(work)
        return found

    def _take(self, candidate: Bounded, outcome: dict[str, Any] | Refused) -> None:
        if isinstance(outcome, Refused):
            self.without[outcome.reason] += 1
            return
        score = Score(-outcome["samples_per_s"], outcome["peak_memory_bytes"], outcome["staleness"])
        if self.options.max_staleness is not None and score.staleness > self.options.max_staleness:
            self.without["staleness"] += 1
            return
        self.tried.append(Tried(candidate, outcome, score))


def front(tried: Iterable[Tried]) -> list[Tried]:
    """Those that none is better than in one figure and no worse in the others, by throughput; of equals the first."""
    found: list[Tried] = []
    for each in sorted(tried, key=lambda each: (each.score, each.candidate.number)):
        if not any(other.score.no_worse(each.score) for other in found):
            found.append(each)
    return found


_APART = Planned()
"""Schedules that a process made before."""


def _simulate_apart(document: Document, overrides: Overrides) -> dict[str, Any] | Refused:
    return simulate(document, _APART, overrides)


def simulate(document: Document, planned: Planned, overrides: Overrides) -> dict[str, Any] | Refused:
    """The figures of one candidate, by the same steps as ``twinrail run``."""
    try:
        changed = with_overrides(document, overrides)
        scenario = parse(changed, PLANNERS)
        found = run_folder.run_point(Point({}, changed, scenario), scenario.name, planned=planned).result
    except OutOfMemory as error:
        return Refused("memory", str(error))
    except TwinrailError as error:
        return Refused("refused", str(error))
    if not found["samples_per_s"]:
        return Refused("refused", "nothing takes time")
    return {
        "samples_per_s": found["samples_per_s"],
        "step_time_s": found["step_time_s"],
        "peak_memory_bytes": max(device["peak_memory_bytes"] for device in found["devices"]),
        "staleness": max(found["staleness"][side]["max"] or 0 for side in ("forward", "backward")),
        "bubble_of_total": found["bubble"]["of_total"],
        "why": found["why"],
    }


def with_overrides(document: Document, overrides: Overrides) -> Document:
    """The document with values at dotted paths; ``None`` removes what stands there."""
    root = document.root
    for path, value in overrides.items():
        root = assign(root, split(path), None if value is None else _node(value))
    return replace(document, root=root)


def _node(value: Any) -> Node:
    """Plain data as a node that was written nowhere."""
    if isinstance(value, Mapping):
        value = {key: _node(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [_node(item) for item in value]
    return Node(value, Place(None, None))
