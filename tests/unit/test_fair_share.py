"""Max-min fair shares: hand-worked rates and times, the condition that makes rates max-min fair, and exact fluids."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster import Cluster, Link, Node
from sim.engine.fair_share import check_capacity, max_min
from sim.engine.run import run
from sim.errors import BrokenInvariant

INF = float("inf")
LINKS = 6


def line(bytes_per_s: list[float], kinds: str = "", latency_s: float = 0.0) -> Cluster:
    """Nodes in a row; link k joins node k to the next. ``kinds``: l for a link of pure latency, else fair_share."""
    links = [
        Link(f"link{k}", f"n{k}", f"n{k + 1}", "latency" if kinds[k : k + 1] == "l" else "fair_share", latency_s, rate)
        for k, rate in enumerate(bytes_per_s)
    ]
    return Cluster("line", tuple(Node(f"n{k}", "host") for k in range(len(bytes_per_s) + 1)), links)


@pytest.fixture(scope="session")
def ends(jobs: Any, job: Any) -> Any:
    """When flows ``(source, target, bytes, asked at)`` end."""

    def ends(flows: list[tuple[int, int, float, float]], cluster: Cluster) -> list[float]:
        todo = [job(size=asked_s) for *_, asked_s in flows]
        todo += [job((), size, [k], target, source) for k, (source, target, size, _) in enumerate(flows)]
        trace = run(*jobs(todo, cluster))
        assert trace.start_s[len(flows) :].tolist() == [asked_s for *_, asked_s in flows]
        return list(trace.end_s[len(flows) :].tolist())

    return ends


@pytest.mark.parametrize(
    ("routes", "capacity", "rates"),
    [
        ([(0,), (0,)], {0: 2.0}, [1.0, 1.0]),
        ([(0,), (0, 1), (1,)], {0: 1.0, 1: 1.0}, [0.5, 0.5, 0.5]),
        ([(0, 1, 2), (0,), (1,), (2,)], {0: 1.0, 1: 1.0, 2: 1.0}, [0.5] * 4),  # the parking lot
        ([(0, 1, 2), (0,), (1,), (2,)], {0: 1.0, 1: 2.0, 2: 4.0}, [0.5, 0.5, 1.5, 3.5]),
        ([(0,), (0, 1), (0, 1), (1,)], {0: 3.0, 1: 4.0}, [1.0, 1.0, 1.0, 2.0]),
        ([(0, -1), (0,)], {0: 4.0, -1: 1.0}, [1.0, 3.0]),  # a flow with a cap of its own
        ([(0, 0)], {0: 2.0}, [2.0]),
        ([()], {}, [INF]),
        ([(0,), (0, 1), (1,)], {0: INF, 1: INF}, [INF] * 3),
        ([(0,), (0, 1), (1,)], {0: INF, 1: 1.0}, [INF, 0.5, 0.5]),
        ([], {}, []),
    ],
)
def test_rates_by_hand(routes: list[tuple[int, ...]], capacity: dict[int, float], rates: list[float]) -> None:
    assert max_min(routes, capacity) == rates
    check_capacity(routes, rates, capacity)


ROUTES = st.lists(
    st.sets(st.integers(0, LINKS - 1), min_size=1).map(lambda links: tuple(sorted(links))), min_size=1, max_size=12
)
CAPACITY = st.lists(st.floats(1e-3, 1e12), min_size=LINKS, max_size=LINKS).map(lambda rates: dict(enumerate(rates)))


@given(ROUTES, CAPACITY)
@settings(max_examples=400)
def test_rates_are_feasible_and_every_flow_has_a_bottleneck(
    routes: list[tuple[int, ...]], capacity: dict[int, float]
) -> None:
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
    check_capacity(routes, rates, capacity)


def test_a_full_link_is_a_broken_invariant() -> None:
    with pytest.raises(BrokenInvariant, match="link 3"):
        check_capacity([(3,), (3,)], [1.0, 1.1], {3: 2.0})


def test_a_shared_uplink(ends: Any) -> None:
    """Half each until the small one is through at 2 s; the other then has 4 of 6 B left, at full speed."""
    assert ends([(0, 1, 6.0, 0.0), (0, 1, 2.0, 0.0)], line([2.0])) == [4.0, 2.0]


def test_a_late_arrival(ends: Any) -> None:
    """Alone for 1 s (2 of 6 B), shared for 2 s (2 B), alone again for 1 s."""
    assert ends([(0, 1, 6.0, 0.0), (0, 1, 2.0, 1.0)], line([2.0])) == [4.0, 3.0]


def test_the_parking_lot(ends: Any) -> None:
    """Rates .5 .5 1.5 3.5; the last is through at 2 s, the third at 4 s, the second at 6 s; then 1 for the long one."""
    flows = [(0, 3, 5.0, 0.0), (0, 1, 3.0, 0.0), (1, 2, 6.0, 0.0), (2, 3, 7.0, 0.0)]
    assert ends(flows, line([1.0, 2.0, 4.0])) == [8.0, 6.0, 4.0, 2.0]


def test_crossing_flows_speed_up_when_a_bottleneck_clears(ends: Any) -> None:
    """A and B share link 0 at 1; C gets the other 3 of link 1. A ends at 1: B rises to 2, C falls to 2."""
    assert ends([(0, 1, 1.0, 0.0), (0, 2, 5.0, 0.0), (1, 2, 7.0, 0.0)], line([2.0, 4.0])) == [1.0, 3.0, 3.0]


def test_a_slow_link_of_another_kind_caps_its_flow(ends: Any) -> None:
    """One flow goes on over a pure delay of 1 B/s: the other has 3 of 4 B/s, and all of it once the first is done."""
    assert ends([(0, 2, 2.0, 0.0), (0, 1, 10.0, 0.0)], line([4.0, 1.0], " l")) == [2.0, 3.0]


def test_bytes_flow_after_the_latency_of_the_whole_route(ends: Any) -> None:
    cluster = line([2.0, 2.0], latency_s=0.25)
    assert ends([(0, 2, 2.0, 0.0), (0, 1, 2.0, 0.0)], cluster) == [2.25, 2.0]  # alone in (.25, .5), shared until 2


def test_nothing_takes_no_time(ends: Any) -> None:
    assert ends([(0, 1, 0.0, 1.0), (0, 1, 2.0, 1.0)], line([2.0])) == [1.0, 2.0]
    assert ends([(0, 2, 8.0, 1.0), (0, 1, 8.0, 1.0), (1, 2, 8.0, 1.0)], line([INF, INF])) == [1.0] * 3
    assert ends([(0, 1, 8.0, 1.0), (0, 1, 8.0, 1.0)], line([INF])) == [1.0] * 2


@pytest.mark.parametrize("asked_s", [1e3, 1e5, 1e7])
def test_a_small_flow_late_in_a_long_run(ends: Any, asked_s: float) -> None:
    """The clock is only good to its last bits, which is no reason to suspect lost bytes."""
    cluster = line([16e9])
    for end_s in ends([(0, 1, 100.0, asked_s), (0, 1, 8.0, asked_s), (0, 1, 3.0, asked_s)], cluster):
        assert end_s == pytest.approx(asked_s, abs=2e-8)
    for end_s in ends([(0, 1, 3.0, asked_s)], cluster):
        assert end_s == pytest.approx(asked_s, abs=2e-8)


def fluid(flows: list[tuple[int, int, float, float]], bytes_per_s: list[float]) -> list[float]:
    """The same in exact fractions: rates rise together until a link is full."""
    left = {k: Fraction(size) for k, (_, _, size, _) in enumerate(flows)}
    end: dict[int, Fraction] = {}
    now = Fraction(0)
    while left:
        active = [k for k in left if Fraction(flows[k][3]) <= now]
        rates, free = {k: Fraction(0) for k in active}, {*active}
        while free:
            slack = {
                link: (Fraction(rate) - sum((rates[k] for k in active if crosses(flows[k], link)), Fraction(0)))
                / sum(crosses(flows[k], link) for k in free)
                for link, rate in enumerate(bytes_per_s)
                if any(crosses(flows[k], link) for k in free)
            }
            rise = min(slack.values())
            for k in free:
                rates[k] += rise
            full = [link for link, room in slack.items() if room == rise]
            free = {k for k in free if not any(crosses(flows[k], link) for link in full)}
        due = [now + left[k] / rates[k] for k in active]
        due += [Fraction(asked_s) for *_, asked_s in flows if asked_s > now]
        step = min(due) - now
        now += step
        for k in active:
            left[k] -= rates[k] * step
            if not left[k]:
                del left[k]
                end[k] = now
    return [float(end[k]) for k in range(len(flows))]


def crosses(flow: tuple[int, int, float, float], link: int) -> bool:
    """Whether a flow on a line uses a link."""
    return flow[0] <= link < flow[1]


FLOW = st.tuples(
    st.sets(st.integers(0, 4), min_size=2, max_size=2).map(sorted), st.integers(1, 64), st.integers(0, 16)
).map(lambda drawn: (drawn[0][0], drawn[0][1], drawn[1] / 4, drawn[2] / 4))


@given(
    flows=st.lists(FLOW, min_size=1, max_size=7), rates=st.lists(st.integers(1, 8).map(float), min_size=4, max_size=4)
)
@settings(max_examples=150)
def test_flows_of_any_sizes_and_times(
    ends: Any, flows: list[tuple[int, int, float, float]], rates: list[float]
) -> None:
    assert ends(flows, line(rates)) == pytest.approx(fluid(flows, rates), rel=1e-9)


def test_flows_are_conserved_link_by_link(jobs: Any, job: Any) -> None:
    """Whatever enters a node leaves it or ends there: the trace has the same bytes on every link of a route."""
    trace = run(*jobs([job((), 8.0, [], 3, 0), job((), 4.0, [], 3, 1)], line([1.0, 2.0, 3.0])))
    by_link = {link: trace.flows["bytes"][trace.flows["link"] == link].tolist() for link in range(3)}
    assert by_link == {0: [8.0], 1: [8.0, 4.0], 2: [8.0, 4.0]}
    assert all(a <= b for a, b in pairwise(trace.flows["start_s"]))
