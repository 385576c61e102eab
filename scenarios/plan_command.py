"""``twinrail plan``: the best plans of a scenario's model on its cluster, found by `scenarios.plan_search`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.text import significant
from scenarios import run_folder
from scenarios.document import Document
from scenarios.load import dump
from scenarios.plan_search import (
    Options,
    Overrides,
    Progress,
    Refused,
    Search,
    Tried,
    bounded,
    front,
    simulate,
    with_overrides,
)
from scenarios.plan_space import Space
from scenarios.planned import Planned
from scenarios.schema import Scenario, parse
from sim.errors import InfeasibleBudget, ScenarioError
from sim.planners import PLANNERS


def plan(document: Document, options: Options, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """The answer as JSON holds it; ``progress``: see `scenarios.plan_search.Search`.

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
    search = Search(document, options, progress)
    search.over(candidates)
    return _answer(scenario.name, search, own)


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


def _answer(name: str, search: Search, own: dict[str, Any] | Refused) -> dict[str, Any]:
    """The best, those behind it and the front."""
    if not search.tried:
        words = {"memory": "need more memory", "staleness": "are too stale", "refused": "make no plan"}
        counts = (search.pruned + search.without).items()
        raise InfeasibleBudget(f"no plan fits: {', '.join(f'{count} {words[reason]}' for reason, count in counts)}")
    objective, top = search.options.objective, search.options.top
    best = sorted(search.tried, key=lambda each: (each.score.by(objective), each.candidate.number))
    simulated = len(search.tried) + search.without["memory"] + search.without["staleness"]
    return {
        "scenario": name,
        "objective": objective,
        "max_staleness": search.options.max_staleness,
        "baseline": own if isinstance(own, dict) else {"error": own.message},
        "best": _shown(best[0]),
        "runners_up": [_shown(each) for each in best[1:top]],
        "pareto": [_shown(each) for each in front(best)],
        "pruned": dict(search.pruned),
        "searched": simulated + sum(search.pruned.values()) + search.without["refused"],
        "simulated": simulated,
        "did_not_fit": search.without["memory"],
        "too_stale": search.without["staleness"],
        "refused": search.without["refused"],
    }


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
    if (servers := overrides.get("parameter_servers.count")) is not None:
        words.append(f"{servers} server{'s' if servers > 1 else ''}")
    words += [str(overrides[key]) for key in ("parameter_servers.sharding",) if key in overrides]
    if (partition := overrides.get("partition")) is not None:
        words.append(f"cuts {_short(partition['cuts'])}")
    checkpoint = overrides.get("memory.checkpoint")
    return ", ".join([*words, *([f"checkpoints {checkpoint['method']}"] if checkpoint else [])])


def _short(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def winner(document: Document, found: Mapping[str, Any]) -> str:
    """The best plan as a scenario file, which names its other files by full path."""
    return dump(with_overrides(document, found["best"]["overrides"]).with_full_paths().data)


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
    """The scenario as it is, the best and those behind it by rank, and the rest of the front."""
    base = found["baseline"].get("samples_per_s")
    ranked = [found["best"], *found["runners_up"]]
    fronts = [plan["overrides"] for plan in found["pareto"]]
    others = [plan for plan in found["pareto"] if plan["overrides"] not in [each["overrides"] for each in ranked]]
    shown = [(f"{rank}. {plan['name']}", plan) for rank, plan in enumerate(ranked, 1)]
    shown += [(plan["name"], plan) for plan in others[:FRONT_SHOWN]]
    own = [_row("as it is", found["baseline"], base, False)] if base else []
    return own + [_row(name, plan, base, plan["overrides"] in fronts) for name, plan in shown]


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
    """What to choose, how much was tried, and why not the rest."""
    best, baseline, pareto = found["best"], found["baseline"], found["pareto"]
    base = baseline.get("samples_per_s")
    times = f", {best['samples_per_s'] / base:.2f} times the scenario as it is" if base else ""
    lines = [f"best by {found['objective']}: {_told(best)}{times}; {best['why']}"]
    fresh = [plan for plan in pareto if not plan["staleness"]]
    if best["staleness"] and fresh:
        lines.append(f"best where no weights are stale: {_told(fresh[0])}")
    smallest = min(pareto, key=lambda plan: (plan["peak_memory_bytes"], -plan["samples_per_s"]))
    if smallest["peak_memory_bytes"] < best["peak_memory_bytes"]:
        lines.append(f"least memory: {_told(smallest)}")
    if len(pareto) > 1:
        front_is = "which no other beats in throughput, memory or staleness without being worse in another"
        lines.append(f"on the front: {len(pareto)} plans, {front_is}; all are in --json")
    if "error" in baseline:
        lines.append(f"the scenario as it is: {baseline['error'].splitlines()[0]}")
    return "\n".join([*lines, _tried(found)]) + "\n"


def _told(plan: Mapping[str, Any]) -> str:
    memory = significant(plan["peak_memory_bytes"] / 2**30)
    return f"{plan['name']}: {significant(plan['samples_per_s'])} samples/s in {memory} GiB"


def _tried(found: Mapping[str, Any]) -> str:
    pruned = found["pruned"]
    counts = [
        (found["simulated"], "simulated"),
        (pruned["throughput"], f"proved to be no better than {1 + len(found['runners_up'])} of these"),
        (pruned["memory"], "proved not to fit"),
        (pruned["staleness"], "proved too stale"),
        (found["refused"], "make no plan"),
    ]
    failed = [(found["did_not_fit"], "did not fit"), (found["too_stale"], "were too stale")]
    inside = ", ".join(f"{count} {words}" for count, words in failed if count)
    told = [f"{count} {words}" for count, words in counts if count]
    told[0] += f" ({inside})" if inside else ""
    return f"{found['searched']} candidates: {', '.join(told)}"
