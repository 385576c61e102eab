"""The structure of a model: operations one after the other, and blocks of branches that join.

Shapes leave the batch out. What an operation costs and what autograd keeps of it is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One layer of a model file: its kind, its options as read, the shapes that reach and leave it.

    ``flops`` of the forward pass, per sample.
    """

    kind: str
    options: Mapping[str, Any]
    arriving: Shape
    leaving: Shape
    parameter_elements: int
    flops: float

    @property
    def in_place(self) -> bool:
        """Whether it overwrites its input."""
        return "in_place" in self.options


@dataclass(frozen=True, slots=True)
class Block:
    """Branches that all read the same input; an empty one passes it on.

    ``join``: ``add``, ``add_in_place`` (into the first) or ``concat`` (of channels).
    """

    name: str
    join: str
    branches: tuple[tuple[Entry, ...], ...]
    arriving: Shape
    leaving: Shape


Entry = Operation | Block


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: one entry after the other."""

    name: str
    input: Shape
    entries: tuple[Entry, ...]

    @property
    def reads_words(self) -> bool:
        """Whether its input are numbers of words, not values."""
        return isinstance(self.entries[0], Operation) and self.entries[0].kind == "embedding"


def operations(entries: tuple[Entry, ...]) -> Iterator[Operation]:
    """Every operation, those inside blocks too."""
    for entry in entries:
        if isinstance(entry, Operation):
            yield entry
        else:
            for branch in entry.branches:
                yield from operations(branch)
