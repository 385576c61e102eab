"""``twinrail plan``: the best plans of a scenario's model on its cluster, confirmed by simulation.

Branch and bound. Candidates are taken in the order of their best throughput by `sim.bounds`. One is left out where its
least memory fits no device, where it is staler than wanted, or where ``top`` plans that were simulated and fit are no
worse than its bounds in throughput, peak memory and staleness alike. Such a candidate is none of the ``top`` best by
any of the three, for ``top`` plans are as good or better; nor does it add a point to the Pareto front, for whatever it
reaches, one of these reaches too. So the best, the runners-up and the front are those of trying everything.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from analysis.text import significant
from scenarios import run_folder
from scenarios.document import Document, Node, Place, assign, split
from scenarios.load import dump
from scenarios.plan_space import Choice, Space
from scenarios.planned import Planned
from scenarios.points import Point
from scenarios.schema import Scenario, parse
from sim.bounds import held_by, least_peak_bytes, least_staleness, least_step_s
from sim.errors import Fault, InfeasibleBudget, OutOfMemory, ScenarioError, TwinrailError
from sim.planners import PLANNERS

Objective = Literal["throughput", "memory", "staleness"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "memory", "staleness")
AT_ONCE = 16
"""Candidates simulated between two looks at what may be left out, whatever the number of processes."""

Overrides = Mapping[str, Any]


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
    overrides: Overrides
    best: Score
    short_of: str = ""


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


def plan(
    document: Document, options: Options, progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """The answer as JSON holds it; ``progress`` is told how many candidates are dealt with, and of how many.

    Raises
    ------
    ScenarioError : the scenario or the options are wrong, or say what cannot be planned.
    InfeasibleBudget : nothing in the space fits the memory and the staleness asked for.
    """
    options.check()
    scenario = parse(document, PLANNERS)
    _refuse(document, scenario)
    own = simulate(document, Planned(), {})
    candidates = [bounded(*each, options) for each in enumerate(Space(scenario, document).choices())]
    if not candidates:
        raise ScenarioError.of([document.fault("plan", "leaves nothing to try")])
    search = _Search(document, options, progress)
    search.over(candidates)
    return search.answer(scenario.name, own)


def _refuse(document: Document, scenario: Scenario) -> None:
    """What a plan is not made of."""
    messages = {
        "sweep": "holds many scenarios: a plan starts from one",
        "converge": "is an experiment: a plan predicts",
        "samples": "are not drawn for a plan",
        "steady_state": "is not used: candidates are short runs",
    }
    given = [key for key in messages if key in document.data]
    faults = [document.fault(key, messages[key], f"--set {key}=null") for key in given]
    if scenario.backend == "torch":
        faults.append(document.fault("backend", "a plan is predicted, not measured", "--set backend=simulated"))
    if faults:
        raise ScenarioError.of(faults)


def bounded(number: int, choice: Choice, options: Options) -> Bounded:
    """A candidate with what it reaches at best."""
    overrides, known, binding = choice
    if known is None or binding is None:
        return Bounded(number, overrides, Score(-math.inf, 0.0, 0.0))
    stages = len(binding.devices) if known.method != "data_parallel" else 1
    step_s, peaks = least_step_s(known, binding), least_peak_bytes(known, binding)
    staleness = least_staleness(known, stages)
    best = Score(-binding.samples / step_s if step_s else -math.inf, max(peaks), staleness)
    homes = [held[0] for held in held_by(known, stages)]
    capacities = [binding.capacity_bytes[k if known.method != "data_parallel" else d] for d, k in enumerate(homes)]
    if any(limit is not None and peak > limit for peak, limit in zip(peaks, capacities, strict=True)):
        return Bounded(number, overrides, best, "memory")
    stale = options.max_staleness is not None and staleness > options.max_staleness
    return Bounded(number, overrides, best, "staleness" if stale else "")


class _Search:
    """Candidates left out, simulated and refused so far."""

    def __init__(self, document: Document, options: Options, progress: Callable[[int, int], None]) -> None:
        self.document, self.options, self.progress = document, options, progress
        self.planned = Planned()
        self.tried: list[Tried] = []
        self.pruned = Counter({"memory": 0, "staleness": 0, "throughput": 0})
        self.without = Counter({"memory": 0, "staleness": 0, "refused": 0})

    def over(self, candidates: Sequence[Bounded]) -> None:
        """Deal with every candidate, the most promising first."""
        total = len(candidates)
        waiting = iter(sorted(candidates, key=lambda each: (*each.best, each.number)))
        while batch := [*itertools.islice(filter(self._is_worth_it, waiting), AT_ONCE)]:
            for candidate, outcome in zip(batch, self._simulated(batch), strict=True):
                self._take(candidate, outcome)
            self.progress(sum(self.pruned.values()) + sum(self.without.values()) + len(self.tried), total)

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

    def answer(self, name: str, own: dict[str, Any] | Refused) -> dict[str, Any]:
        """The best, those behind it and the front."""
        if not self.tried:
            counts = {**self.pruned, **{f"simulated, {reason}": count for reason, count in self.without.items()}}
            raise InfeasibleBudget(
                "no plan fits: " + ", ".join(f"{reason} {count}" for reason, count in counts.items() if count)
            )
        objective, top = self.options.objective, self.options.top
        best = sorted(self.tried, key=lambda each: (each.score.by(objective), each.candidate.number))
        simulated = len(self.tried) + sum(self.without.values())
        return {
            "scenario": name,
            "objective": objective,
            "max_staleness": self.options.max_staleness,
            "baseline": own if isinstance(own, dict) else {"error": own.message},
            "best": _shown(best[0]),
            "runners_up": [_shown(each) for each in best[1:top]],
            "pareto": [_shown(each) for each in front(best)],
            "pruned": dict(self.pruned),
            "searched": simulated + sum(self.pruned.values()),
            "simulated": simulated,
            "did_not_fit": self.without["memory"],
            "too_stale": self.without["staleness"],
            "refused": self.without["refused"],
        }


def front(tried: Iterable[Tried]) -> list[Tried]:
    """Those that none is better than in one figure and no worse in the others, by throughput; of equals the first."""
    found: list[Tried] = []
    for each in sorted(tried, key=lambda each: (each.score, each.candidate.number)):
        if not any(other.score.no_worse(each.score) for other in found):
            found.append(each)
    return found


def _shown(tried: Tried) -> dict[str, Any]:
    return {"name": name_of(tried.candidate.overrides), "overrides": dict(tried.candidate.overrides), **tried.figures}


def name_of(overrides: Overrides) -> str:
    """A plan in one line."""
    schedule = dict(overrides["schedule"])
    counts = {"stages": "stages", "micro_batches": "micro-batches", "buckets": "buckets"}
    words = [
        str(schedule["name"]),
        *(f"{schedule[key]} {word}" for key, word in counts.items() if schedule.get(key, 1) > 1),
    ]
    words += [f"{key} {_short(schedule[key])}" for key in ("replicas", "weights", "consistency") if key in schedule]
    words += [f"{overrides['parameter_servers.count']} servers"] if "parameter_servers.count" in overrides else []
    words += [str(overrides[key]) for key in ("parameter_servers.sharding",) if key in overrides]
    if (partition := overrides.get("partition")) is not None:
        words.append(f"cuts {_short(partition['cuts'])}")
    checkpoint = overrides.get("memory.checkpoint")
    return ", ".join([*words, *([f"checkpoints {checkpoint['method']}"] if checkpoint else [])])


def _short(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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


def winner(document: Document, found: Mapping[str, Any]) -> str:
    """The best plan as a scenario file, which names its other files by full path."""
    best = with_overrides(document, found["best"]["overrides"])
    files = {
        f"model.{key}": str((document.directory(f"model.{key}") / best.data["model"][key]).resolve())
        for key in ("profile", "measured")
        if key in best.data["model"]
    }
    return dump(with_overrides(best, files).data)


def write(folder: Path, document: Document, found: Mapping[str, Any], table: str) -> None:
    """``scenario.yaml``, the best plan, which ``twinrail run`` takes; ``plan.json`` and ``table.txt``.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with run_folder.writing(folder):
        (folder / "scenario.yaml").write_text(winner(document, found), encoding="utf-8")
        (folder / "plan.json").write_text(run_folder.to_json(found), encoding="utf-8")
        (folder / "table.txt").write_text(table, encoding="utf-8")


FRONT_SHOWN = 10
"""Plans of the front in the table, beside the best and those behind it."""
COLUMNS = ("plan", "samples/s", "× baseline", "peak GiB", "staleness", "on the front", "why")


def rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The baseline, the best, those behind it, and the rest of the front."""
    base = found["baseline"].get("samples_per_s")
    ranked = [found["best"], *found["runners_up"]]
    fronts = [plan["overrides"] for plan in found["pareto"]]
    others = [plan for plan in found["pareto"] if plan["overrides"] not in [each["overrides"] for each in ranked]]
    ranked += others[:FRONT_SHOWN]
    own = [_row("as it is", found["baseline"], base, False)] if base else []
    return own + [_row(plan["name"], plan, base, plan["overrides"] in fronts) for plan in ranked]


def _row(name: str, plan: Mapping[str, Any], base: float | None, on_front: bool) -> tuple[str, ...]:
    speed = plan["samples_per_s"]
    return (
        name,
        significant(speed),
        f"{speed / base:.2f}" if base else "–",
        significant(plan["peak_memory_bytes"] / 2**30),
        str(plan["staleness"]),
        "yes" if on_front else "",
        plan["why"],
    )


def summary(found: Mapping[str, Any]) -> str:
    """How much was tried, and why not the rest."""
    proved = ", ".join(f"{count} by {bound}" for bound, count in found["pruned"].items())
    failed = f"{found['did_not_fit']} did not fit, {found['too_stale']} were too stale, {found['refused']} make no plan"
    lines = [
        f"{found['searched']} candidates, {found['simulated']} simulated; proved to be out of it: {proved}",
        f"of those simulated {failed}",
    ]
    lines.append(f"the front has {len(found['pareto'])} plans: all are in --json")
    if "error" in found["baseline"]:
        lines.append(f"the scenario as it is: {found['baseline']['error'].splitlines()[0]}")
    return "\n".join(lines) + "\n"
