"""The life of every storage of a training step, simulated or counted, and the peak of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.memory.rules import Rules, Tag

WEIGHTS, GRADIENTS, OPTIMIZER, INPUT = "weights", "gradients", "optimizer", "input"
ACTIVATIONS, CHECKPOINTS, WORKSPACE = "activations", "checkpoints", "workspace"
OUTPUT_GRADIENTS = "output gradients"
LASTING = (WEIGHTS, GRADIENTS, OPTIMIZER)
"""Categories that belong to the parameters, whatever the batch."""


class Change(NamedTuple):
    """A storage came to life (``sign`` 1) or died (−1), in operation number ``operation``; −1: before the first."""

    operation: int
    sign: int
    storage: int


class Peak(NamedTuple):
    """The most bytes alive at once, the operation that brought them, and what they were by category."""

    bytes: int
    operation: str
    consists_of: Mapping[str, int]


@dataclass
class History:
    """Operations by name; bytes, category and layer of each storage; the changes in order."""

    operations: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def born(self, size_bytes: int, category: str, layer: str = "") -> int:
        """A new storage, by number, in the operation that is under way."""
        self.sizes.append(size_bytes)
        self.tags.append(Tag(category, layer))
        storage = len(self.sizes) - 1
        self.changes.append(Change(len(self.operations) - 1, 1, storage))
        return storage

    def dies(self, storage: int) -> None:
        """A storage is let go of."""
        self.changes.append(Change(len(self.operations) - 1, -1, storage))

    @property
    def live_bytes(self) -> int:
        """What is alive now."""
        return sum(change.sign * self.sizes[change.storage] for change in self.changes)

    def peak(self, without: Iterable[str] = (), since: int = 0) -> Peak:
        """The most bytes alive at once from change number ``since`` on, storages of some categories left out."""
        left_out, live, most, held = set(without), 0, -1, Counter[str]()
        operation, consists_of = -1, dict[str, int]()
        for number, change in enumerate(self.changes):
            category, size = self.tags[change.storage].category, self.sizes[change.storage]
            if category in left_out:
                continue
            live += change.sign * size
            held[category] += change.sign * size
            if live > most and number >= since:
                most, operation, consists_of = live, change.operation, {**held}
        return Peak(max(most, 0), self._name(operation), {key: size for key, size in consists_of.items() if size})

    def replay(self, rules: Rules) -> str | None:
        """Play the step through an allocator: the operation that it had no room for, ``None`` where all fitted."""
        addresses: dict[int, int] = {}
        for operation, sign, storage in self.changes:
            if sign < 0:
                rules.free(addresses.pop(storage))
                continue
            grant = rules.malloc(self.sizes[storage], tag=self.tags[storage])
            if grant is None:
                return self._name(operation)
            addresses[storage] = grant.address
        return None

    def _name(self, operation: int) -> str:
        return self.operations[operation] if operation >= 0 else "start"
