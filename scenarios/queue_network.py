"""Network files of ``twinrail queue solve``: customers, think time and stations, of one class or of several.

Times are plain numbers in any one unit. With several classes ``population``, ``think_time``, ``demand``,
``service_time`` and ``visits`` map each class to its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from analysis.queueing.multiclass import ClassNetwork
from analysis.queueing.network import Network, Station
from scenarios.document import Document, KeyPath
from scenarios.quantities import WrongValue, shown
from scenarios.schema import Name
from scenarios.strict import Many, Section, Wrong, validate

_LEAST, _MOST = 1e-18, 1e18
"""Beyond these a number is a slip, and sums or ratios would not stay finite."""


def _read_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < abs(value) < _LEAST:
        raise WrongValue(f"must be 0 or at least {_LEAST:g}, got {shown(value)}")
    return value


Number = Annotated[float, Field(ge=0, le=_MOST), BeforeValidator(_read_number)]
Positive = Annotated[float, Field(gt=0, le=_MOST), BeforeValidator(_read_number)]
Customers = Annotated[int, Field(ge=1, le=10**6)]
Method = Literal["exact", "schweitzer", "bounds"]


class _StationSection(Section):
    """A station: by its ``demand``, or by the ``service_time`` of each of its ``visits``."""

    one_of = (("demand",), ("service_time",))
    only_with: ClassVar = {"visits": ("service_time",)}
    name: Name = Field(description="the station's name")
    servers: Annotated[int, Field(ge=1, le=10**6)] | None = None
    kind: Literal["queue", "delay"] = "queue"


class OneClassStation(_StationSection):
    """A station of a network of one class; ``rates``: its speed with 1, 2, … customers relative to one."""

    demand: Number | None = None
    service_time: Number | None = None
    visits: Positive | None = None
    rates: Annotated[Many[Positive], Field(min_length=1, max_length=10**5)] | None = None


class ManyClassesStation(_StationSection):
    """A station of a network of several classes."""

    demand: dict[str, Number] | None = None
    service_time: dict[str, Number] | None = None
    visits: dict[str, Positive] | None = None


class OneClass(Section):
    """A closed network of one class."""

    population: Customers = Field(description="how many customers, or a map of each class to its number")
    think_time: Number = 0.0
    stations: Annotated[Many[OneClassStation], Field(min_length=1, max_length=10**4)] = Field(
        description="a list of stations"
    )
    method: Method = "exact"

    def network(self) -> Network:
        """As the solvers want it."""
        return Network(tuple(_station(each) for each in self.stations), self.think_time)


class ManyClasses(Section):
    """A closed network of several classes."""

    population: Annotated[dict[str, Customers], Field(min_length=1, max_length=100)] = Field(
        description="a map of each class to its number of customers"
    )
    think_time: dict[str, Number] | None = None
    stations: Annotated[Many[ManyClassesStation], Field(min_length=1, max_length=10**4)] = Field(
        description="a list of stations"
    )
    method: Method = "exact"

    def network(self) -> ClassNetwork:
        """As the solvers want it, classes in the order of ``population``."""
        think = self.think_time or {}
        demands = [[demand_of(station, name) for station in self.stations] for name in self.population]
        return ClassNetwork(
            demands_s=np.array(demands, float),
            populations=np.array([*self.population.values()], np.int64),
            think_s=np.array([think.get(name, 0.0) for name in self.population], float),
            is_delay=np.array([station.kind == "delay" for station in self.stations], bool),
            servers=np.array([station.servers or 1 for station in self.stations], float),
        )


def demand_of(station: ManyClassesStation, name: str) -> float:
    """V·S of a class at a station."""
    return station.demand[name] if station.demand else visits_of(station, name) * (station.service_time or {})[name]


def visits_of(station: ManyClassesStation, name: str) -> float:
    """V of a class at a station, 1 where it is not given."""
    return station.visits[name] if station.visits else 1.0


def _station(section: OneClassStation) -> Station:
    service = section.service_time if section.demand is None else section.demand
    assert service is not None
    return Station(
        section.name, service, section.visits or 1.0, section.kind, section.servers or 1, section.rates or ()
    )


def parse(document: Document) -> OneClass | ManyClasses:
    """The network of a document.

    Raises
    ------
    ScenarioError : every fault of the document, each with file, line and path.
    """
    data = document.data
    if isinstance(data.get("population"), dict):
        return validate(ManyClasses, document, [*_at_odds(data), *_classes(data)])
    return validate(OneClass, document, [*_at_odds(data), *_nothing_takes_time(data)])


def _stations(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    stations = data.get("stations")
    for index, station in enumerate(stations if isinstance(stations, list) else ()):
        if isinstance(station, dict):
            yield ("stations", index), station


def _at_odds(data: Mapping[str, Any]) -> Iterator[Wrong]:
    """Names that are there twice, and ways to serve that exclude each other."""
    names: set[str] = set()
    exact_classes = isinstance(data.get("population"), dict) and data.get("method", "exact") == "exact"
    for path, station in _stations(data):
        name = station.get("name")
        if isinstance(name, str) and name in names:
            yield Wrong((*path, "name"), f"a second station {shown(name)}", "give each station a name of its own")
        names |= {name} if isinstance(name, str) else set()
        if "servers" in station and "rates" in station:
            yield Wrong((*path, "rates"), "expected servers or rates, got both", "rates: [1, 2, 3] are 3 servers")
        for key in ("servers", "rates"):
            if key in station and station.get("kind") == "delay":
                yield Wrong((*path, key), f"{key} say nothing of a delay, where nobody waits")
        if exact_classes and station.get("servers", 1) != 1:
            yield Wrong((*path, "servers"), "of several classes exact knows single servers", "use method: schweitzer")
        if "rates" in station and data.get("method") == "schweitzer":
            yield Wrong((*path, "rates"), "schweitzer does not know rates", "use method: exact")


def _nothing_takes_time(data: Mapping[str, Any]) -> Iterator[Wrong]:
    demands = [station.get(key, 0) for _, station in _stations(data) for key in ("demand", "service_time")]
    if demands and not any([data.get("think_time", 0), *demands]):
        yield Wrong((), "no demand and no think time is above 0: throughput would have no limit")


def _classes(data: Mapping[str, Any]) -> Iterator[Wrong]:
    """Each map has a number for each class and for no other, and each class takes time somewhere."""
    classes = data["population"]
    maps: list[tuple[KeyPath, Any]] = [(("think_time",), data["think_time"])] if "think_time" in data else []
    keys = ("demand", "service_time", "visits")
    maps += [((*path, key), station[key]) for path, station in _stations(data) for key in keys if key in station]
    for path, given in maps:
        if isinstance(given, dict):
            yield from (Wrong(path, f"missing: class {shown(name)}") for name in classes if name not in given)
            for name in given:
                if name not in classes:
                    yield Wrong((*path, name), f"no class {shown(name)}", f"classes: {', '.join(map(str, classes))}")
    if not all(isinstance(given, dict) for _, given in maps):
        return
    for name in classes:
        if not any(given.get(name) for path, given in maps if path[-1] != "visits"):
            yield Wrong(("population", name), "no demand and no think time of this class is above 0")
