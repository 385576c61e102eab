"""What must fit together in a scenario with parameter servers, and what says nothing without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scenarios.document import Document, KeyPath
from scenarios.strict import Wrong

OF_SERVERS = ("parameter_servers", "background", "stragglers", "faults")
METHOD = "parameter_server"


def has_servers(data: Mapping[str, Any]) -> bool:
    """Whether the scenario trains with parameter servers that order by time."""
    schedule = data.get("schedule")
    return isinstance(schedule, dict) and schedule.get("name") == METHOD


def servers_at_odds(document: Document) -> Iterator[Wrong]:
    """What does not fit together, malformed values left to the schema."""
    data = document.data
    if not has_servers(data):
        for key in OF_SERVERS:
            if key in data:
                yield Wrong((key,), f"says nothing without schedule.name: {METHOD}")
        if "apply" in _mapping(data.get("jitter")):
            yield Wrong(("jitter", "apply"), f"says nothing without schedule.name: {METHOD}")
        return
    if "samples" in data:
        yield Wrong(("samples",), "a run whose order depends on time is one sample", "give jitter alone")
    if "partition" in data:
        yield Wrong(("partition",), "every worker has the whole model", "leave it out")
    memory = _mapping(data.get("memory"))
    if "checkpoint" in memory:
        yield Wrong(("memory", "checkpoint"), f"not with schedule.name: {METHOD}")
    if memory.get("allocator", "counting") != "counting":
        yield Wrong(("memory", "allocator"), f"not with schedule.name: {METHOD}, whose ops allocate nothing")
    apply = _mapping(data.get("parameter_servers")).get("apply")
    if apply == {}:
        yield Wrong(("parameter_servers", "apply"), "is empty: expected bandwidth, per_tensor or both")
    if apply and "update" in _mapping(_mapping(data.get("model")).get("uniform")):
        yield Wrong(("model", "uniform", "update"), "parameter_servers.apply says what an update takes", "leave it out")
    yield from _stragglers(data.get("stragglers"))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _stragglers(section: Any) -> Iterator[Wrong]:
    for index, straggler in enumerate(section if isinstance(section, list) else ()):
        here: KeyPath = ("stragglers", index)
        if isinstance(straggler, dict) and straggler.keys().isdisjoint(("worker", "probability")):
            yield Wrong(here, "expected a worker, a probability, or both", "write {worker: worker0, factor: 2}")
