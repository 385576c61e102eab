"""``twinrail queue predict``: throughput and staleness over workers and servers, simulated and in theory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from analysis import parameter_server
from analysis.queueing import predict_plot
from analysis.queueing.demands import BROKEN, Described, describe
from analysis.queueing.prediction import Theory, theories
from backends.base import load
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import apply_sets
from scenarios.points import Point
from scenarios.quantities import WrongValue, shown
from scenarios.run_folder import point_name, read_points, to_json, writing
from scenarios.schema import parse
from scenarios.strict import Section, check
from sim.errors import Fault, ScenarioError, nearest
from sim.program import Layout, Program

MOST_WORKERS, MOST_SERVERS, STARTS = 256, 64, 8
"""``STARTS``: runs from other random phases where nothing varies enough to forget how it began."""
Result = dict[str, Any]
_UNSURE = 0.05
_COUNTS = re.compile(r"(\d{1,4})\.\.(\d{1,4})|(\d{1,4})(,\d{1,4})*", re.ASCII)


def _read_counts(most: int) -> Callable[[object], object]:
    def read(value: object) -> object:
        match = _COUNTS.fullmatch(str(value).replace(" ", ""))
        if match is None:
            raise WrongValue(f"expected numbers such as 1..8 or 1,2,4, got {shown(value)}")
        text = str(value).replace(" ", "")
        counts = [*range(int(match[1]), int(match[2]) + 1)] if match[1] else sorted({int(n) for n in text.split(",")})
        if not counts or not 1 <= counts[0] <= counts[-1] <= most:
            raise WrongValue(f"expected numbers from 1 to {most}, upwards, got {shown(value)}")
        return tuple(counts)

    return read


class Options(Section):
    """What can be asked, each key an option of the command line."""

    workers: Annotated[tuple[int, ...], BeforeValidator(_read_counts(MOST_WORKERS))] | None = None
    servers: Annotated[tuple[int, ...], BeforeValidator(_read_counts(MOST_SERVERS))] | None = None
    target: Annotated[float, Field(gt=0, lt=1)] | None = None
    steps: Annotated[int, Field(ge=20, le=10**6)] | None = None
    point: str | None = None


class Asked(NamedTuple):
    """A scenario, and the numbers of workers and servers to predict it for."""

    document: Document
    name: str
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    target: float | None


class Network(NamedTuple):
    """The scenario with some number of servers: what theory knows of its steps, and what it says of them."""

    described: Described
    servers: tuple[str, ...]
    theory: list[Theory]


def prepare(document: Document, given: Mapping[str, object]) -> Asked:
    """What is asked of a scenario; ``given`` are the options as written, those that were.

    Raises
    ------
    ScenarioError : every fault of the options, or of the scenario; numbers that its cluster cannot have.
    """
    options, wrongs = check(Options, {key: value for key, value in given.items() if value is not None})
    if options is None:
        raise ScenarioError.of([Fault(each[1], f"--{each[0][0]}", suggestion=each[2]) for each in wrongs])
    point = _point(read_points(document), options.point)
    _refuse(point)
    document = apply_sets(point.document, [f"schedule.mini_batches={options.steps}"] if options.steps else [])
    layout = _layout(_composed(document))
    workers, servers = layout.workers, len(layout.servers)
    for key, fixed in _fixed(document).items():
        if getattr(options, key) is not None or (key == "servers" and options.target):
            option = key if getattr(options, key) is not None else "target"
            raise ScenarioError.of([Fault(fixed, f"--{option}", suggestion="cluster: {workers: 8, servers: 1, …}")])
    several = range(1, workers + 1) if "workers" not in _fixed(document) else (workers,)
    name = str(document.data["name"])
    return Asked(document, name, options.workers or tuple(several), options.servers or (servers,), options.target)


def _point(points: Sequence[Point], wanted: str | None) -> Point:
    names = [point_name(point) for point in points]
    if wanted is None and len(points) == 1:
        return points[0]
    if wanted not in names:
        shortened = ", ".join(f"'{name}'" for name in names[:5]) + " …" * (len(names) > 5)
        message = f"a sweep of {len(points)} points: choose one" if wanted is None else f"no point {shown(wanted)}"
        raise ScenarioError.of([Fault(message, "--point", suggestion=nearest(wanted or "", names) or shortened)])
    return points[names.index(wanted)]


def _refuse(point: Point) -> None:
    """Only steps of parameter servers that pass by themselves are a queueing network."""
    schedule = point.scenario.schedule
    if schedule.name != "parameter_server":
        fault = point.document.fault("schedule.name", "expected parameter_server, the method whose steps queue")
        raise ScenarioError.of([fault])
    if schedule.given.get("consistency", ("asp", 0))[0] in ("bsp", "backup"):
        message = "workers that all wait for each other are no queueing network"
        raise ScenarioError.of([point.document.fault("schedule.consistency", message, "asp or ssp")])


def _fixed(document: Document) -> dict[str, str]:
    """What of the cluster cannot be varied, and why."""
    data = document.data
    if not isinstance(data["cluster"], dict) or "workers" not in data["cluster"]:
        return dict.fromkeys(("workers", "servers"), "the nodes of this cluster are fixed")
    named = [*data.get("faults", ()), *(each for each in data.get("stragglers", ()) if "worker" in each)]
    if named:
        return dict.fromkeys(("workers", "servers"), "faults and stragglers name nodes of the cluster as it is")
    counted = "count" in data.get("parameter_servers", {})
    return {"servers": "parameter_servers.count says how many"} if counted else {}


def _varied(document: Document, workers: int, servers: int) -> Document:
    fixed, wanted = _fixed(document), {"workers": workers, "servers": servers}
    return apply_sets(document, [f"cluster.{key}={count}" for key, count in wanted.items() if key not in fixed])


def _composed(document: Document) -> Composed:
    return compose(parse(document), document)


def _layout(composed: Composed) -> Layout:
    assert isinstance(composed.plan.work, Program)
    assert composed.plan.work.layout is not None
    return composed.plan.work.layout


def runs(asked: Asked) -> int:
    """How many simulations `predict` makes at most, each of which it tells."""
    several = STARTS if _is_locked(asked) else 1
    return several * len(asked.servers) * len(asked.workers) + (2 * len(asked.workers) if asked.target else 0)


def _is_locked(asked: Asked) -> bool:
    composed = _composed(asked.document)
    return "phase_locked" in describe(_layout(composed), composed.binding).broken


def predict(asked: Asked, done: Callable[[], object] = lambda: None) -> Result:
    """Simulation and theory for every number of workers and servers, as JSON holds it; ``done`` is told of each run."""
    networks = {count: network(asked, count) for count in asked.servers}
    predictions = [
        _prediction(asked, networks[servers], workers, servers, done)
        for servers in asked.servers
        for workers in asked.workers
    ]
    unsure = any(each.theory[count - 1].uncertainty > _UNSURE for each in networks.values() for count in asked.workers)
    found = {key for each in networks.values() for key in each.described.broken} | ({"bunching"} if unsure else set())
    return {
        "scenario": asked.name,
        "steps": _composed(asked.document).plan.work.shape.mini_batches,
        "networks": [_network(each) for each in networks.values()],
        "predictions": predictions,
        "target": _targets(asked, done) if asked.target is not None else None,
        "broken_assumptions": {key: text for key, text in BROKEN.items() if key in found},
    }


def network(asked: Asked, servers: int) -> Network:
    """The scenario with so many servers, in theory up to the most workers asked for."""
    most = max(asked.workers)
    composed = _composed(_varied(asked.document, max(most, 2), servers))
    layout, binding = _layout(composed), composed.binding
    names = tuple(binding.devices[device] for device in layout.servers)
    described = describe(layout, binding)
    if "layer_overlap" in described.broken and "workers" not in _fixed(asked.document):
        alone = _composed(_varied(asked.document, 1, servers))
        taken_s = 1 / _run(alone, parse(asked.document).seed)["steps_per_s"]
        expected_s = 1 / theories(described.step, 1, names, layout.snapshot)[0].throughput_per_s
        described = describe(layout, binding, overlap_s=expected_s - taken_s)
    return Network(described, names, theories(described.step, most, names, layout.snapshot))


def _network(found: Network) -> Result:
    step, download, upload = found.described.step, *found.described.step.sections
    return {
        "servers": len(found.servers),
        "think_time_s": step.think_s,
        "demands_s": [
            {"server": name, "link_out": out, "link_in": into, "cores": applying}
            for name, out, into, applying in zip(
                found.servers, download.demands_s[0].tolist(), *upload.demands_s.tolist(), strict=True
            )
        ],
        "variation": {
            "think": step.think_variation,
            "link_out": float(download.variations[0]),
            "link_in": float(upload.variations[0]),
            "cores": float(upload.variations[1]),
        },
        "knee": knee if (knee := found.theory[0].bounds.knee) < float("inf") else None,
        "broken_assumptions": list(found.described.broken),
    }


def _run(composed: Composed, seed: int) -> Result:
    """The result of a simulated run.

    Raises
    ------
    ScenarioError : it is too short to have a throughput.
    """
    served = parameter_server.compute(load("simulated").execute(composed.plan, composed.binding, seed))
    if not served["steps_per_s"]:
        raise ScenarioError.of(
            [Fault("a run too short for a throughput", "schedule.mini_batches", suggestion="--steps 100")]
        )
    return served


def _simulated(asked: Asked, workers: int, servers: int, starts: int, done: Callable[[], object]) -> Result:
    """Throughput with its interval: of the batch means of a run, or the least and the most of several starts."""
    document = _varied(asked.document, workers, servers)
    composed, seed, results = _composed(document), parse(document).seed, list[Result]()
    for start in range(starts):
        results.append(_run(composed, seed + start))
        done()
    rates = [each["steps_per_s"] for each in results]
    return {
        "steps_per_s": sum(rates) / starts,
        "interval": results[0]["steps_per_s_interval"] if starts == 1 else [min(rates), max(rates)],
        "starts": starts,
        "staleness": sum(each["staleness"]["mean"] for each in results) / starts,
    }


def _prediction(asked: Asked, found: Network, workers: int, servers: int, done: Callable[[], object]) -> Result:
    theory, locked = found.theory[workers - 1], "phase_locked" in found.described.broken
    simulated = _simulated(asked, workers, servers, STARTS if locked else 1, done)
    return {
        "workers": workers,
        "servers": servers,
        "simulated": simulated,
        "theory": {
            "method": theory.method,
            "steps_per_s": theory.throughput_per_s,
            "interval": theory.interval_per_s,
            "staleness": theory.staleness,
            "one_after_another_steps_per_s": theory.one_after_another_per_s,
            "largest_share_steps_per_s": theory.largest_share_per_s,
        },
        "bounds": theory.bounds.throughput_per_s._asdict(),
        "difference": theory.throughput_per_s / simulated["steps_per_s"] - 1,
        "bottleneck": {"name": theory.bottleneck, "utilization": theory.utilization},
    }


def _targets(asked: Asked, done: Callable[[], object]) -> Result:
    """For each number of workers the fewest servers with which they reach the target, told by theory, then simulated.

    Efficiency is the throughput over as many times that of one worker with these servers.
    """
    assert asked.target is not None
    answers: dict[int, Result] = {}
    for servers in range(1, MOST_SERVERS + 1):
        theory = network(asked, servers).theory
        for workers in asked.workers:
            efficiency = theory[workers - 1].throughput_per_s / (workers * theory[0].throughput_per_s)
            known = answers.setdefault(workers, {"workers": workers, "servers": None, "efficiency": 0.0})
            if known["servers"] is None and efficiency > known["efficiency"]:
                known |= {"efficiency": efficiency, "servers": servers if efficiency >= asked.target else None}
        if all(known["servers"] for known in answers.values()):
            break
    for workers, known in answers.items():
        known["simulated_efficiency"] = None
        if known["servers"]:
            many, one = (_simulated(asked, count, known["servers"], 1, done)["steps_per_s"] for count in (workers, 1))
            known["simulated_efficiency"] = many / (workers * one)
    return {"efficiency": asked.target, "most_servers": servers, "answers": [*answers.values()]}


def write(folder: Path, result: Result, table: str) -> None:
    """Write ``result.json``, ``table.txt`` and ``throughput.png``, over older ones.

    Raises
    ------
    ScenarioError : the folder cannot be written.
    """
    with writing(folder):
        (folder / "result.json").write_text(to_json(result), encoding="utf-8")
        (folder / "table.txt").write_text(table, encoding="utf-8")
        predict_plot.plot(result, folder / "throughput.png")
