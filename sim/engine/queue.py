"""First come, first served, for anything that is held: a GPU, server cores, the fifo links of a route, lanes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

Resource = TypeVar("Resource", bound=Hashable)


class _Turn(NamedTuple):
    """Where a request stands in the queues of all that it asks for."""

    rank: int
    number: int
    op: int


class FirstComeFirstServed(Generic[Resource]):
    """Requests hold one unit of each of several resources at once, or wait.

    A request is granted when every resource has a unit free that no earlier request waits for: all or nothing, so
    holding can never deadlock. One of a lower ``rank`` counts as earlier.
    """

    def __init__(self, grant: Callable[[int], None], units: Mapping[Resource, int] | None = None) -> None:
        self._grant = grant
        self._units = units or {}
        self._held: dict[Resource, int] = {}
        self._holding: dict[int, tuple[Resource, ...]] = {}
        self._waiting: dict[int, tuple[Resource, ...]] = {}
        self._turns: dict[int, _Turn] = {}
        self._queues: dict[Resource, list[_Turn]] = {}
        self._asked = 0

    def request(self, op: int, resources: tuple[Resource, ...], rank: int = 0) -> None:
        """Ask for one unit of each; `grant` is called at once or later."""
        if not self._waiting and self._all_free(resources):
            self._hold(op, resources)
            self._grant(op)
            return
        self._asked += 1
        turn = _Turn(rank, self._asked, op)
        if all(self._is_free(resource, turn) for resource in resources):
            self._hold(op, resources)
            self._grant(op)
            return
        self._waiting[op], self._turns[op] = resources, turn
        for resource in resources:
            insort(self._queues.setdefault(resource, []), turn)

    def release(self, op: int) -> None:
        """Give back what ``op`` holds, if it holds anything."""
        resources = self._holding.pop(op, ())
        for resource in resources:
            self._held[resource] -= 1
        if self._waiting:
            self._serve(resources)

    def withdraw(self, op: int) -> None:
        """Give back what ``op`` holds, or stop it from waiting."""
        if op not in self._waiting:
            self.release(op)
            return
        self._serve(self._leave(op))

    def waiting(self) -> dict[int, tuple[Resource, ...]]:
        """Requests not yet granted and what they ask for."""
        return dict(self._waiting)

    def _all_free(self, resources: tuple[Resource, ...]) -> bool:
        """Whether each has a unit that nobody holds."""
        held, units = self._held, self._units
        for resource in resources:  # noqa: SIM110  # a loop is the faster way to ask, and this is asked for every op
            if held.get(resource, 0) >= units.get(resource, 1):
                return False
        return True

    def _is_free(self, resource: Resource, turn: _Turn) -> bool:
        """Whether there is a unit that nobody holds and nobody earlier waits for."""
        earlier = bisect_left(self._queues.get(resource, ()), turn)
        return self._held.get(resource, 0) + earlier < self._units.get(resource, 1)

    def _hold(self, op: int, resources: tuple[Resource, ...]) -> None:
        self._holding[op] = resources
        for resource in resources:
            self._held[resource] = self._held.get(resource, 0) + 1

    def _leave(self, op: int) -> tuple[Resource, ...]:
        """Take a request out of its queues."""
        resources, turn = self._waiting.pop(op), self._turns.pop(op)
        for resource in resources:
            self._queues[resource].remove(turn)
        return resources

    def _serve(self, changed: tuple[Resource, ...]) -> None:
        """Grant what one more unit of each makes free; at each of them that can only be one request."""
        next_in_turn = set[_Turn]()
        for resource in changed:
            queue = self._queues.get(resource, ())
            place = self._units.get(resource, 1) - self._held.get(resource, 0) - 1
            if 0 <= place < len(queue):
                next_in_turn.add(queue[place])
        granted = [
            turn.op
            for turn in sorted(next_in_turn)
            if all(self._is_free(resource, turn) for resource in self._waiting[turn.op])
        ]
        for op in granted:
            self._hold(op, self._leave(op))
        for op in granted:
            self._grant(op)
