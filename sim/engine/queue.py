"""First come, first served, for anything that is held: a GPU, server cores, the fifo links of a route, lanes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Resource = TypeVar("Resource", bound=Hashable)


class FirstComeFirstServed(Generic[Resource]):
    """Requests hold one unit of each of several resources at once, or wait.

    A request is granted when every resource has a unit free that no earlier request waits for: all or nothing, so
    holding can never deadlock.
    """

    def __init__(self, grant: Callable[[int], None], units: Mapping[Resource, int] | None = None) -> None:
        self._grant = grant
        self._units = units or {}
        self._held: dict[Resource, int] = {}
        self._holding: dict[int, tuple[Resource, ...]] = {}
        self._waiting: dict[int, tuple[Resource, ...]] = {}

    def request(self, op: int, resources: tuple[Resource, ...]) -> None:
        """Ask for one unit of each; `grant` is called at once or later."""
        self._waiting[op] = resources
        self._serve(set(resources))

    def release(self, op: int) -> None:
        """Give back what ``op`` holds, if it holds anything."""
        resources = self._holding.pop(op, ())
        for resource in resources:
            self._held[resource] -= 1
        if resources and self._waiting:
            self._serve(set(resources))

    def waiting(self) -> dict[int, tuple[Resource, ...]]:
        """Requests not yet granted and what they ask for."""
        return dict(self._waiting)

    def _serve(self, changed: set[Resource]) -> None:
        claimed: dict[Resource, int] = {}
        granted: list[int] = []
        for op, resources in self._waiting.items():
            free = all(
                self._held.get(resource, 0) + claimed.get(resource, 0) < self._units.get(resource, 1)
                for resource in resources
            )
            for resource in resources:
                claimed[resource] = claimed.get(resource, 0) + 1
            if free and (not resources or not changed.isdisjoint(resources)):
                granted.append(op)
        for op in granted:
            self._holding[op] = self._waiting.pop(op)
            for resource in self._holding[op]:
                self._held[resource] = self._held.get(resource, 0) + 1
        for op in granted:
            self._grant(op)
