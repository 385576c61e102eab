"""A plan says what is recomputed: vertices that run as they are, and runs of vertices that are checkpointed.

Vertices count from 1; vertex k makes y_k of y_{k−1}, and y_0 is the input. ``(1, Run((2, 3)), 4)`` keeps what vertices
1 and 4 save; of 2 and 3 only y_1 is kept, from which they are run again before their backward. A run may hold runs:
then its recomputation is checkpointed in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """Vertices that are checkpointed as one. ``offload``: its input waits in the memory of the host."""

    items: tuple[int | Run, ...]
    offload: bool = False


Plan = tuple[int | Run, ...]


def vertices(plan: Iterable[int | Run]) -> Iterator[int]:
    """Every vertex, in order."""
    for item in plan:
        if isinstance(item, Run):
            yield from vertices(item.items)
        else:
            yield item


def of_checkpoints(checkpoints: Sequence[int]) -> Plan:
    """The plan that keeps y_c for every c, both ends among them.

    What lies between two checkpoints is recomputed as one, but not behind the last: there backward follows at once.
    """
    plan: list[int | Run] = []
    for start, end in pairwise(checkpoints):
        between = tuple(range(start + 1, end + 1))
        plain = len(between) == 1 or end == checkpoints[-1]
        plan += between if plain else [Run(between)]
    return tuple(plan)


def checkpoints(plan: Plan) -> list[int]:
    """Where items of the plan begin and end: what is kept until it is used, 0 and the last vertex among them."""
    return [0, *(max(vertices([item])) for item in plan)]


def recomputed(plan: Plan) -> list[int]:
    """The vertices that are run again, each as often as it is."""
    again: list[int] = []
    for item in plan:
        if isinstance(item, Run):
            again += [*vertices(item.items), *recomputed(item.items)]
    return sorted(again)


def as_lists(plan: Plan) -> list[Any]:
    """The plan as JSON and YAML hold it: a run is a list, an offloaded one ``{"offload": list}``."""
    lists: list[Any] = []
    for item in plan:
        inside = as_lists(item.items) if isinstance(item, Run) else item
        lists.append({"offload": inside} if isinstance(item, Run) and item.offload else inside)
    return lists


def from_lists(lists: Sequence[Any]) -> Plan:
    """The plan of `as_lists`."""
    plan: list[int | Run] = []
    for item in lists:
        inside = item["offload"] if isinstance(item, dict) else item
        plan.append(inside if isinstance(inside, int) else Run(from_lists(inside), inside is not item))
    return tuple(plan)
