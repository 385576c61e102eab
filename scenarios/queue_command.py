"""``twinrail queue solve``: a closed queueing network from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from analysis.queueing import bounds, exact, multiclass, schweitzer
from analysis.queueing.bounds import Bounds
from analysis.queueing.network import Network
from analysis.text import significant
from scenarios.load import load_document
from scenarios.queue_network import ManyClasses, OneClass, parse, visits_of

_BY_METHOD = {"exact": exact.solve, "schweitzer": schweitzer.solve}
_BY_METHOD_OF_CLASSES = {"exact": multiclass.solve, "schweitzer": schweitzer.solve_classes}

Result = dict[str, Any]


def solve_file(file: str) -> Result:
    """The network of a file solved as JSON holds it; with several classes each figure is a map of class to number.

    A station's ``response_time`` is of one visit, its ``residence_time`` of all visits of a cycle; ``response_time`` of
    the whole is a cycle without thinking. Method ``bounds`` leaves out what only a solution has.

    Raises
    ------
    ScenarioError : every fault of the file.
    UnsupportedPlan : a network too large for the method.
    """
    wanted = parse(load_document(file))
    return _one_class(wanted) if isinstance(wanted, OneClass) else _many_classes(wanted)


def _one_class(wanted: OneClass) -> Result:
    network, population = wanted.network(), wanted.population
    result: Result = {"throughput": None, "response_time": None, "stations": []}
    if wanted.method != "bounds":
        found = _BY_METHOD[wanted.method](network, population)
        result = {
            "throughput": found.throughput_per_s,
            "response_time": found.response_s,
            "stations": [
                {
                    "name": station.name,
                    "queue_length": float(found.queue_lengths[index]),
                    "response_time": float(found.residence_s[index]) / station.visits,
                    "residence_time": float(found.residence_s[index]),
                    "utilization": float(found.utilization[index]),
                }
                for index, station in enumerate(network.stations)
            ],
        }
    tighter = bounds.balanced(network, population)
    limits = _limits(bounds.asymptotic(network, population))
    limits["balanced"] = _limits(tighter) if tighter else None
    several = wanted.method == "schweitzer" and any(station.servers > 1 for station in network.stations)
    warnings = [*_approximate(wanted.method, several), *_short_rates(network, population)]
    return {"population": population, **result, "bounds": limits, "method": wanted.method, "warnings": warnings}


def _limits(found: Bounds) -> Result:
    return {
        "throughput": found.throughput_per_s._asdict(),
        "response_time": found.response_s._asdict(),
        "knee": found.knee if found.knee < float("inf") else None,
    }


def _approximate(method: str, several_servers: bool) -> list[str]:
    """What an approximate method does to the figures."""
    if method != "schweitzer":
        return []
    seidmann = ["several servers are approximated by one fast server and a delay (Seidmann)"] * several_servers
    return ["approximate: an arriving customer is taken to meet (N−1)/N of each queue (Bard–Schweitzer)", *seidmann]


def _short_rates(network: Network, population: int) -> list[str]:
    short = [station for station in network.stations if 0 < len(station.rates) < population]
    return [f"{each.name}: beyond {len(each.rates)} customers the last of its rates holds" for each in short]


def _many_classes(wanted: ManyClasses) -> Result:
    network, names = wanted.network(), [*wanted.population]

    def by_class(values: Iterable[float]) -> dict[str, float]:
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    result: Result = {"throughput": None, "response_time": None, "stations": []}
    if wanted.method != "bounds":
        found = _BY_METHOD_OF_CLASSES[wanted.method](network)
        residence_s = found.residence_s
        visits = np.array([[visits_of(station, name) for station in wanted.stations] for name in names])
        result = {
            "throughput": by_class(found.throughputs_per_s),
            "response_time": by_class(residence_s.sum(1)),
            "stations": [
                {
                    "name": station.name,
                    "queue_length": by_class(found.queue_lengths[:, index]),
                    "response_time": by_class(residence_s[:, index] / visits[:, index]),
                    "residence_time": by_class(residence_s[:, index]),
                    "utilization": by_class(found.utilization[:, index]),
                }
                for index, station in enumerate(wanted.stations)
            ],
        }
    limits = {name: _limits(found) for name, found in zip(names, bounds.of_classes(network), strict=True)}
    several = wanted.method == "schweitzer" and bool((network.servers > 1).any())
    warnings = _approximate(wanted.method, several)
    population = dict(wanted.population)
    return {"population": population, **result, "bounds": limits, "method": wanted.method, "warnings": warnings}


COLUMNS = ("station", "queue", "per visit", "per cycle", "utilization", "class")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each station (and class) under `COLUMNS`."""
    keys = ("queue_length", "response_time", "residence_time", "utilization")
    return [
        (station["name"], *(significant(_of(station[key], name)) for key in keys), name)
        for station in result["stations"]
        for name in _classes(result)
    ]


def summary(result: Mapping[str, Any]) -> str:
    """Throughput and response, and what they must lie between."""
    lines = []
    for name in _classes(result):
        limits, prefix = (result["bounds"][name], f"{name}: ") if name else (result["bounds"], "")
        for key, what in (("throughput", "X"), ("response_time", "R")):
            least, most = (significant(value) for value in limits[key].values())
            found = "" if result[key] is None else f" = {significant(_of(result[key], name))}"
            lines.append(f"{prefix}{key.replace('_', ' ')} {what}{found}, bounds {least} to {most}")
        if limits["knee"] is not None:
            lines.append(f"{prefix}queues dominate beyond N* = {significant(limits['knee'])} customers")
    return "\n".join([*lines, *result["warnings"]]) + "\n"


def _classes(result: Mapping[str, Any]) -> list[str]:
    """The names of the classes; one without a name where there is one class."""
    return [*result["population"]] if isinstance(result["population"], Mapping) else [""]


def _of(value: Any, name: str) -> float:
    return float(value[name] if isinstance(value, Mapping) else value)
