"""``twinrail explain``: the critical path of a run, what its time goes to, and what faster parts would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis import critical_path, steady
from analysis.critical_path import Part, Piece
from analysis.text import duration, significant
from backends.base import load
from scenarios import run_folder
from scenarios.compose import Composed, compose
from scenarios.load import load_document
from scenarios.points import Point, parse_points
from scenarios.report_folder import traces_of
from sim.binding import Binding
from sim.cluster import Link
from sim.costs import seconds_column
from sim.errors import Fault, RunFailed, ScenarioError, UnsupportedPlan
from sim.ops import COMPUTE_KINDS
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.trace import Trace

MORE = 0.1
"""What a part is made faster, or a memory larger, by."""
SHOWN = 12
"""Causes and pieces of the path in the table."""


class Change(NamedTuple):
    """A part of the hardware, and the figures of a plan where there is more of it, by a share."""

    name: str
    apply: Callable[[Binding, float], Binding]


def explain(folder: Path, point: str | None = None, more: float = MORE) -> dict[str, Any]:
    """What JSON holds of a run, or of each point of a sweep.

    Raises
    ------
    ScenarioError : no run folder, none of its points has that name, or what is asked for failed or has no trace.
    """
    results = run_folder.read(folder)
    names = [str(each["name"]) for each in results]
    if not names:
        raise ScenarioError.of([Fault("holds no point", file=str(folder / "result.json"))])
    if point is not None and point not in names:
        raise ScenarioError.of([Fault(f"no point '{point}': there are {', '.join(names)}", "--point")])
    chosen = [place for place, name in enumerate(names) if point in (None, name)]
    failed = {names[place]: results[place]["error"] for place in chosen if "error" in results[place]}
    if len(failed) == len(chosen):
        raise ScenarioError.of([Fault(f"'{name}' failed: {error}", file=str(folder)) for name, error in failed.items()])
    document = load_document(folder / "scenario.yaml")
    points = {run_folder.point_name(each): each for each in parse_points(document, PLANNERS)}
    files = traces_of(folder, results)
    without = [names[place] for place in chosen if names[place] not in failed and place not in files]
    if without:
        raise ScenarioError.of([Fault(f"no trace of '{name}'", file=str(folder / "traces")) for name in without])
    told = [_explain(files[place], names[place], points.get(names[place]), more) for place in chosen if place in files]
    return {"run": str(folder), "points": told, "failed": failed}


def _explain(file: Path, name: str, point: Point | None, more: float) -> dict[str, Any]:
    trace = Trace.load(file)
    again = _Again.of(trace, point)
    pieces = critical_path.compute(trace, again.alone_s)
    over = steady.compute(trace)
    return {
        "name": name,
        "makespan_s": trace.makespan_s,
        "step_time_s": over.step_time_s,
        "steps": over.last - over.first if over.steady else trace.shape.mini_batches,
        "shares": [_shown(part) for part in critical_path.parts(pieces, over.start_s, over.end_s)],
        "run_shares": [_shown(part) for part in critical_path.parts(pieces, 0.0, trace.makespan_s)],
        "critical_path": [_piece(trace, piece) for piece in pieces],
        "sensitivities": again.sensitivities(more),
        "notes": again.notes,
    }


def _shown(part: Part) -> dict[str, Any]:
    return {"cause": part.cause.kind, "what": part.cause.what, "seconds": part.seconds, "share": part.share}


def _piece(trace: Trace, piece: Piece) -> dict[str, Any]:
    op = str(trace.id(piece.op)) if piece.op >= 0 else None
    return {
        "op": op,
        "start_s": piece.start_s,
        "end_s": piece.end_s,
        "cause": piece.cause.kind,
        "what": piece.cause.what,
    }


class _Again(NamedTuple):
    """The plan of a run once more, to ask what would change; ``composed`` is ``None`` where it cannot be had."""

    composed: Composed | None
    alone_s: list[float] | None
    seed: int
    notes: list[str]

    @classmethod
    def of(cls, trace: Trace, point: Point | None) -> _Again:
        """From the scenario of the run folder, if that gives the same run."""
        seed, backend = int(trace.header["seed"]), trace.header["backend"]
        if point is None:
            return cls(None, None, seed, ["its scenario is not in the run folder: no sensitivities"])
        if backend not in ("simulated", "longest_path"):
            return cls(None, None, seed, [f"backend {backend} measured this run: what is measured cannot be changed"])
        composed = compose(point.scenario, point.document)
        same = load(backend).execute(*composed, seed)
        if len(same.ops) != len(trace.ops) or not bool((same.end_s == trace.end_s).all()):
            return cls(None, None, seed, ["the scenario gives another run than this trace: no sensitivities"])
        work = composed.plan.work
        alone_s = seconds_column(work, composed.binding) if isinstance(work, Schedule) else None
        if composed.binding.cluster.tensor_parallel > 1 or composed.binding.ring_rounds == 1:
            inside = "passes and updates hold collectives of tensor parallelism or ZeRO, which count as computing"
            return cls(None, alone_s, seed, [f"{inside}: no sensitivities"])
        return cls(composed, alone_s, seed, [])

    def sensitivities(self, more: float) -> list[dict[str, Any]]:
        """The step time with more of each part of the hardware: by the graph, to first order and in full, and run.

        The plan stays as it is, also where its scenario would cut the model anew.
        """
        if self.composed is None:
            return []
        plan, binding = self.composed
        base_s = _step_s("simulated", plan, binding, self.seed)
        try:
            graph = Graph.of(self.composed)
        except UnsupportedPlan as error:
            graph = None
            self.notes.append(f"what would change is told by running again, not by a graph: {_reason(error)}")
        return [self._sensitivity(change, more, base_s, graph) for change in changes(binding)]

    def _sensitivity(self, change: Change, more: float, base_s: float, graph: Graph | None) -> dict[str, Any]:
        assert self.composed is not None
        plan, binding = self.composed
        changed = change.apply(binding, more)
        found: dict[str, Any] = {"part": change.name, "more": more, "step_time_s": base_s}
        if graph is not None:
            slope_s = graph.slope(change)
            found |= {"slope_s": slope_s, "linear_step_time_s": base_s + slope_s * more}
        try:
            again_s = _step_s("simulated", plan, changed, self.seed)
        except RunFailed as error:
            return {**found, "error": str(error)}
        if graph is not None:
            found["graph_step_time_s"] = _step_s("longest_path", plan, changed, self.seed)
        return {**found, "simulated_step_time_s": again_s, "speedup": base_s / again_s if again_s else None}


def _reason(error: UnsupportedPlan) -> str:
    """Why there is no graph, without what to do about it."""
    return str(error).partition(": use")[0]


def _step_s(backend: str, *run: Any) -> float:
    return steady.compute(load(backend).execute(*run)).step_time_s


class Graph(NamedTuple):
    """The times of a plan by its graph, and the seconds of each op."""

    composed: Composed
    trace: Trace
    seconds: list[float]

    @classmethod
    def of(cls, composed: Composed) -> Graph:
        """Of a plan in which nothing contends.

        Raises
        ------
        UnsupportedPlan : something does.
        """
        plan, binding = composed
        trace = load("longest_path").execute(plan, binding)
        assert isinstance(plan.work, Schedule)
        return cls(composed, trace, seconds_column(plan.work, binding))

    def slope(self, change: Change) -> float:
        """Seconds by which a step grows (falls, below 0) for each 100 % more of a part, to first order.

        A step ends with the last update of a mini-batch. The end of an op is the sum of the durations on its critical
        path, so it moves by what these move; where paths of equal length compete, to one side. Between t₀ and t₁ of
        `analysis.steady` a step moves by (∂t₁ − ∂t₀) / n.
        """
        plan, binding = self.composed
        trace, small = self.trace, 1e-6
        assert isinstance(plan.work, Schedule)
        after = seconds_column(plan.work, change.apply(binding, small))
        moved = [(b - a) / small for a, b in zip(self.seconds, after, strict=True)]
        over = steady.compute(trace)

        def at(time_s: float) -> float:
            ending = (trace.end_s == time_s).nonzero()[0].tolist()
            paths = [sum(moved[piece.op] for piece in critical_path.back(trace, op) if piece.op >= 0) for op in ending]
            return max(paths, default=0.0)

        steps = over.last - over.first if over.steady else trace.shape.mini_batches
        return (at(over.end_s) - (at(over.start_s) if over.start_s else 0.0)) / steps


def changes(binding: Binding) -> Iterator[Change]:
    """Each class of links whose bandwidth counts, all that computes, the memory of devices."""
    classes: dict[str, list[int]] = {}
    for number, link in enumerate(binding.cluster.links):
        if link.bytes_per_s < float("inf"):
            classes.setdefault(_class(link), []).append(number)
    for name, links in classes.items():
        yield Change(f"bandwidth of {name}", _more_bandwidth(frozenset(links)))
    yield Change("speed of the devices", _faster)
    if any(capacity is not None for capacity in binding.capacity_bytes):
        yield Change("memory of the devices", _more_memory)


def _class(link: Link) -> str:
    return f"{link.kind} links of {significant(link.bytes_per_s / 1e9)} GB/s"


def _more_bandwidth(links: frozenset[int]) -> Callable[[Binding, float], Binding]:
    def apply(binding: Binding, more: float) -> Binding:
        cluster = binding.cluster
        changed = [
            replace(link, bytes_per_s=link.bytes_per_s * (1 + more)) if number in links else link
            for number, link in enumerate(cluster.links)
        ]
        return replace(binding, cluster=replace(cluster, links=changed))

    return apply


def _faster(binding: Binding, more: float) -> Binding:
    seconds = {
        cost: length_s / (1 + more) if cost.kind in COMPUTE_KINDS else length_s
        for cost, length_s in binding.seconds.items()
    }
    return replace(binding, seconds=seconds)


def _more_memory(binding: Binding, more: float) -> Binding:
    capacity = (None if known is None else round(known * (1 + more)) for known in binding.capacity_bytes)
    return replace(binding, capacity_bytes=tuple(capacity))


COLUMNS = ("cause", "of", "ms a step", "share")


def rows(point: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a step waits for."""
    shown = [(part["cause"], part["what"], part["seconds"], part["share"]) for part in point["shares"][:SHOWN]]
    if rest := point["shares"][SHOWN:]:
        shown.append(
            ("others", f"{len(rest)} more", *(sum(part[key] for part in rest) for key in ("seconds", "share")))
        )
    return [
        (cause, what, significant(1e3 * seconds / point["steps"]), f"{100 * share:.1f} %")
        for cause, what, seconds, share in shown
    ]


TIMES = {
    "step_time_s": "step now",
    "linear_step_time_s": "to first order",
    "graph_step_time_s": "by the graph",
    "simulated_step_time_s": "run again",
}


def sensitivity_columns(point: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads of `sensitivity_rows`."""
    more = point["sensitivities"][0]["more"]
    return (f"{100 * more:g} % more", *(TIMES[key] for key in _told(point)), "speed-up")


def sensitivity_rows(point: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What more of each part gives."""
    return [
        (
            each["part"],
            *(duration(each[key]) if key in each else "–" for key in _told(point)),
            f"{each['speedup']:.3f}" if each.get("speedup") else "–",
        )
        for each in point["sensitivities"]
    ]


def _told(point: Mapping[str, Any]) -> list[str]:
    """The step times that are known of some part."""
    return [key for key in TIMES if any(key in each for each in point["sensitivities"])]


def summary(point: Mapping[str, Any]) -> str:
    """What the tables are of."""
    step, run = duration(point["step_time_s"]), duration(point["makespan_s"])
    ops = [*dict.fromkeys(each["op"] or "…" for each in point["critical_path"])]
    if not ops:
        return "\n".join([f"{point['name']}: nothing takes time", *point["notes"]]) + "\n"
    path = f"its critical path has {len(ops)} ops and ends {' '.join(ops[-6:])}"
    lines = [f"{point['name']}: a step takes {step}, the run {run}; {path}", _by_cause(point), *point["notes"]]
    return "\n".join(lines) + "\n"


def _by_cause(point: Mapping[str, Any]) -> str:
    """The shares of a step, whatever stage or link they are of."""
    shares: dict[str, float] = {}
    for part in point["shares"]:
        shares[part["cause"]] = shares.get(part["cause"], 0.0) + part["share"]
    by_size = sorted((cause for cause in shares if shares[cause] >= 0.0005), key=lambda cause: (-shares[cause], cause))
    return f"a step is {', '.join(f'{100 * shares[cause]:.1f} % {cause}' for cause in by_size)}"
