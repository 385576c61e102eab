"""First come, first served over several resources, against its definition worked out from scratch at every step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.engine.queue import FirstComeFirstServed

Request = tuple[str, ...]


class Definition:
    """Granted is whoever finds, of everything asked for, a unit that neither a holder nor an earlier request claims."""

    def __init__(self, units: dict[str, int]) -> None:
        self.units = units
        self.held: list[tuple[int, Request]] = []
        self.waiting: list[tuple[int, Request]] = []

    def step(self) -> list[int]:
        granted = []
        for place, (op, resources) in enumerate(self.waiting):
            claims = [resource for _, other in [*self.held, *self.waiting[:place]] for resource in other]
            if all(claims.count(resource) < self.units[resource] for resource in resources):
                granted.append(op)
        self.held += [request for request in self.waiting if request[0] in granted]
        self.waiting = [request for request in self.waiting if request[0] not in granted]
        return granted


UNITS = st.fixed_dictionaries({name: st.integers(1, 3) for name in "abcd"})
ASKS = st.lists(st.sets(st.sampled_from("abcd"), min_size=1).map(lambda names: tuple(sorted(names))), max_size=12)


@given(UNITS, ASKS, st.data())
def test_it_serves_as_defined(units: dict[str, int], asks: list[Request], data: st.DataObject) -> None:
    granted: list[int] = []
    queue: FirstComeFirstServed[str] = FirstComeFirstServed(granted.append, units)
    definition = Definition(units)
    for op, resources in enumerate(asks):
        queue.request(op, resources)
        definition.waiting.append((op, resources))
        expected = definition.step()
        assert granted == expected
        leaving = data.draw(st.none() | st.sampled_from(definition.held)) if definition.held else None
        if leaving is not None:
            definition.held.remove(leaving)
            granted.clear()
            queue.release(leaving[0])
            assert granted == definition.step()
        granted.clear()
        assert queue.waiting() == dict(definition.waiting)
    while definition.held:  # whatever was asked for is served in the end
        op, _ = definition.held.pop(0)
        granted.clear()
        queue.release(op)
        assert granted == definition.step()
    assert not queue.waiting()


def test_nobody_overtakes_and_nobody_waits_for_nothing() -> None:
    granted: list[int] = []
    queue: FirstComeFirstServed[str] = FirstComeFirstServed(granted.append)
    for op, resources in enumerate([("a",), ("a", "b"), ("b",), ("c",)]):
        queue.request(op, resources)
    assert granted == [0, 3]  # 2 finds b free, but 1 asked for it before
    queue.release(0)
    assert granted == [0, 3, 1]
    queue.release(1)
    assert granted == [0, 3, 1, 2]


def test_releasing_nothing_changes_nothing() -> None:
    granted: list[int] = []
    queue: FirstComeFirstServed[str] = FirstComeFirstServed(granted.append)
    queue.request(0, ("a",))
    queue.request(1, ("a",))
    queue.release(1)
    assert (granted, queue.waiting()) == ([0], {1: ("a",)})


def test_who_asks_for_nothing_never_waits() -> None:
    granted: list[int] = []
    FirstComeFirstServed(granted.append).request(7, ())
    assert granted == [7]
