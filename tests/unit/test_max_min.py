"""Max-min fair rates: by hand, by the condition that makes them so, and kept while flows come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.max_min import MaxMin, max_min
from sim.errors import BrokenInvariant

INF = float("inf")
LINKS = 6

Route = tuple[int, ...]


@pytest.mark.parametrize(
    ("routes", "capacity", "rates"),
    [
        ([(0,), (0,)], {0: 2.0}, [1.0, 1.0]),
        ([(0,), (0, 1), (1,)], {0: 1.0, 1: 1.0}, [0.5, 0.5, 0.5]),
        ([(0, 1, 2), (0,), (1,), (2,)], {0: 1.0, 1: 1.0, 2: 1.0}, [0.5] * 4),  # the parking lot
        ([(0, 1, 2), (0,), (1,), (2,)], {0: 1.0, 1: 2.0, 2: 4.0}, [0.5, 0.5, 1.5, 3.5]),
        ([(0,), (0, 1), (0, 1), (1,)], {0: 3.0, 1: 4.0}, [1.0, 1.0, 1.0, 2.0]),
        ([(0, -1), (0,)], {0: 4.0, -1: 1.0}, [1.0, 3.0]),  # a flow with a cap of its own
        ([(0,), (0, 1), (1,)], {0: 0.0, 1: 3.0}, [0.0, 0.0, 3.0]),  # a dead link
        ([(0, 0)], {0: 2.0}, [2.0]),
        ([()], {}, [INF]),
        ([(0,), (0, 1), (1,)], {0: INF, 1: INF}, [INF] * 3),
        ([(0,), (0, 1), (1,)], {0: INF, 1: 1.0}, [INF, 0.5, 0.5]),
        ([], {}, []),
    ],
)
def test_rates_by_hand(routes: list[Route], capacity: dict[int, float], rates: list[float]) -> None:
    assert max_min(routes, capacity) == rates


ROUTE = st.sets(st.integers(0, LINKS - 1), min_size=1).map(lambda links: tuple(sorted(links)))
CAPACITY = st.lists(st.floats(1e-3, 1e12), min_size=LINKS, max_size=LINKS).map(lambda rates: dict(enumerate(rates)))


@given(st.lists(ROUTE, min_size=1, max_size=12), CAPACITY)
@settings(max_examples=400)
def test_rates_are_feasible_and_every_flow_has_a_bottleneck(routes: list[Route], capacity: dict[int, float]) -> None:
    """Bertsekas & Gallager 6.5.2: max-min fair if and only if each flow crosses a full link on which none is faster."""
    rates = max_min(routes, capacity)
    load = {link: sum(rate for route, rate in zip(routes, rates, strict=True) if link in route) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for route, rate in zip(routes, rates, strict=True):
        assert rate > 0
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(rate >= other * (1 - 1e-9) for on, other in zip(routes, rates, strict=True) if link in on)
            for link in route
        )


@dataclass
class Kept:
    """`MaxMin` beside the definition: bundles of flows over routes, each flow of a bundle with a cap (or none)."""

    bundles: Sequence[tuple[Route, float]]
    capacity: dict[int, float]
    rates: MaxMin = field(default_factory=MaxMin)
    flows: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for link, capacity in self.capacity.items():
            self.rates.set_capacity(link, capacity)
        for number, (route, cap) in enumerate(self.bundles):
            self.rates.set_capacity(-1 - number, cap)
            assert self.rates.bundle(route if cap == INF else (*route, -1 - number)) == number

    def step(self, come: Mapping[int, int], resized: Mapping[int, float]) -> tuple[set[int], Collection[int]]:
        """Flows of each bundle that come (go), and links of a new capacity."""
        for bundle, count in come.items():
            count = max(count, -self.flows[bundle])
            self.flows[bundle] += count
            self.rates.add(bundle, count)
        for link, capacity in resized.items():
            self.capacity[link] = capacity
            self.rates.set_capacity(link, capacity)
        return self.rates.refill()

    def expected(self) -> dict[int, float]:
        """The rate of each bundle that has flows, from scratch: every cap is a link of the flow's own."""
        capacity, routes, owners = dict(self.capacity), list[Route](), list[int]()
        for bundle, count in self.flows.items():
            for _ in range(count):
                capacity[-1 - len(routes)] = self.bundles[bundle][1]
                routes.append((*self.bundles[bundle][0], -1 - len(routes)))
                owners.append(bundle)
        return dict(zip(owners, max_min(routes, capacity), strict=True))

    def found(self) -> dict[int, float]:
        """The same, as kept."""
        bottlenecks = {bundle: self.rates.bottleneck[bundle] for bundle, count in self.flows.items() if count}
        return {bundle: self.rates.level[link] for bundle, link in bottlenecks.items()}


def steps(speeds: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[dict[int, int], dict[int, float]]]]:
    """What comes and goes at each instant; now and then a link has another capacity."""
    come = st.dictionaries(st.integers(0, 9), st.sampled_from([-3, -1, -1, 1, 1, 4]), min_size=1, max_size=3)
    resized = st.dictionaries(st.integers(0, LINKS - 1), speeds, max_size=1)
    return st.lists(st.tuples(come, resized | st.just({}) | st.just({})), min_size=1, max_size=25)


TIES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 4.0])
SPEEDS = st.floats(1e-2, 1e6)


def kept(speeds: st.SearchStrategy[float]) -> st.SearchStrategy[Kept]:
    """Ten bundles over any routes, of which some have a cap."""
    bundle = st.tuples(ROUTE, speeds | st.just(INF) | st.just(INF))
    capacity = st.lists(speeds, min_size=LINKS, max_size=LINKS).map(lambda rates: dict(enumerate(rates)))
    return st.builds(Kept, st.lists(bundle, min_size=10, max_size=10), capacity)


@pytest.mark.parametrize("speeds", [TIES, SPEEDS], ids=["ties", "speeds"])
def test_rates_kept_are_the_rates_from_scratch_at_every_event(speeds: st.SearchStrategy[float]) -> None:
    @given(kept(speeds), steps(speeds))
    @settings(max_examples=400)
    def check(mine: Kept, events: list[tuple[dict[int, int], dict[int, float]]]) -> None:
        for come, resized in events:
            mine.step(come, resized)
            assert mine.found() == pytest.approx(mine.expected(), rel=1e-12, abs=0)

    check()


@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from([1.0, 2.0, 2.5]), st.data())
@settings(max_examples=100)
def test_stars(workers: int, servers: int, faster: float, data: st.DataObject) -> None:
    """Each worker and each server has a link; the servers' are as fast, or so fast that both hold flows back."""
    bundles = [((worker, workers + server), INF) for worker in range(workers) for server in range(servers)]
    links = dict.fromkeys(range(workers), 1.0) | dict.fromkeys(range(workers, workers + servers), faster)
    mine = Kept(bundles, links)
    for _ in range(30):
        bundle = data.draw(st.integers(0, len(bundles) - 1))
        mine.step({bundle: data.draw(st.sampled_from([-1, 1, 1]))}, {})
        assert mine.found() == pytest.approx(mine.expected(), rel=1e-12, abs=0)


def test_only_what_can_change_is_looked_at() -> None:
    """Three servers at 6; the workers at 10 hold nobody back until one has no rival at two servers."""
    worker, server = (0, 1, 2), (3, 4, 5)
    bundles = [((w, s), INF) for w in worker for s in server]
    mine = Kept(bundles, dict.fromkeys(worker, 10.0) | dict.fromkeys(server, 6.0))
    mine.step(dict.fromkeys(range(9), 1), {})
    assert mine.found() == dict.fromkeys(range(9), 2.0)
    assert mine.step({0: -1}, {}) == ({3}, {})  # one flow to server 3 has gone, two share it
    assert mine.step({0: 1}, {}) == ({3}, {0: None})
    links, looked_at = mine.step({0: -1, 1: -1, 3: -1, 4: -1}, {})  # worker 2 alone at two servers would have 6 + 6 + 2
    assert links == {2, 3, 4}
    assert set(looked_at) == {6, 7}
    assert mine.found() == {2: 2.0, 5: 2.0, 6: 4.0, 7: 4.0, 8: 2.0}


def test_what_comes_and_goes_at_once_changes_nothing() -> None:
    mine = Kept([((0,), INF)], {0: 2.0})
    mine.step({0: 2}, {})
    mine.rates.add(0, -1)
    assert mine.step({0: 1}, {}) == (set(), {})


def test_a_link_that_is_filled_too_far_is_a_broken_invariant() -> None:
    class Careless(MaxMin):
        def _rise(self, room: dict[int, list[float]], free: int) -> None:
            super()._rise({link: [2 * left, flows] for link, (left, flows) in room.items()}, free)

    with pytest.raises(BrokenInvariant, match="link 3 carries 4 B/s of 2 B/s"):
        Kept([((3,), INF), ((4,), INF)], {3: 2.0, 4: 4.0}, Careless()).step({0: 1, 1: 1}, {})
