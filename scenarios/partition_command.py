"""``twinrail partition``: PipeDream's partition of a measured profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from analysis import partition_plot
from analysis.text import duration, significant
from scenarios.pipedream import read_graph
from scenarios.quantities import BANDWIDTH, CAPACITY, WrongValue, format_bytes, format_rate, printable, shown
from sim.antichains import States, graph_states
from sim.errors import Fault, ScenarioError, nearest
from sim.graph import ProfileGraph
from sim.pipedream_partitioner import MOST_MACHINES, PipeDreamPartition, Stage, Sync, Transfers, partition

IMAGES = (".pdf", ".png", ".svg")

T = TypeVar("T")


class Question(NamedTuple):
    """What is asked, as written on the command line."""

    profile: Path
    machines: str
    bandwidth: str
    transfers: str = "include"
    sync: str = "sum"
    straight: bool = False
    memory: str | None = None
    plot: Path | None = None


class Answer(NamedTuple):
    """The partition as JSON would hold it, and the table of its stages."""

    result: dict[str, Any]
    rows: list[dict[str, str]]


def answer(asked: Question) -> Answer:
    """Partition the profile, and draw it where a picture is wanted.

    Raises
    ------
    ScenarioError : faults of the command line and of the profile, all at once; no such partition; no room for a plot.
    """
    faults: list[Fault] = []

    def read(option: str, reader: Callable[[str], T], text: str) -> T | None:
        try:
            return reader(text)
        except WrongValue as error:
            faults.append(Fault(str(error), option, suggestion=error.suggestion))
            return None

    machines = read("--machines", _machines, asked.machines)
    bytes_per_s = read("--bandwidth", BANDWIDTH.read, asked.bandwidth)
    transfers: Transfers | None = read("--transfers", _word("include", "ignore"), asked.transfers)
    sync: Sync | None = read("--sync", _word("sum", "max"), asked.sync)
    memory_bytes = None if asked.memory is None else read("--memory", CAPACITY.read, asked.memory)
    if asked.plot is not None:
        read("--plot", _image, str(asked.plot))
    graph = None
    try:
        graph = read_graph(asked.profile)
        states = graph_states(graph)
    except ScenarioError as error:
        faults += [replace(fault, file=str(asked.profile)) for fault in error.faults]
    if faults or None in (machines, bytes_per_s, transfers, sync) or graph is None:
        raise ScenarioError.of(faults)
    assert machines and bytes_per_s and transfers and sync  # noqa: PT018  # for the type checker
    replicas = [1] * machines if asked.straight else None
    try:
        found = partition(
            states, machines, bytes_per_s, replicas=replicas, sync=sync, transfers=transfers, memory_bytes=memory_bytes
        )
    except ScenarioError as error:
        raise ScenarioError.of([_as_option(fault, asked.profile) for fault in error.faults]) from None
    return Answer({}, [])
