"""Flows over fair links: hand-worked times, and the same fluid in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster import Cluster, Link, Node
from sim.engine.pool import Flow, Pool
from sim.engine.run import run
from sim.errors import BrokenInvariant

INF = float("inf")


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


@pytest.mark.parametrize(
    ("changes", "end_s"),
    [
        ([(1.0, 0, 1.0)], 7.0),  # 2 of 8 B in the first second, 6 B at half the speed
        ([(1.0, 0, 4.0)], 2.5),
        ([(1.0, 0, 0.0), (3.0, 0, 2.0)], 6.0),  # stalled for two seconds
        ([(1.0, 0, 0.0)], INF),
        ([(1.0, 0, INF)], 1.0),
        ([(1.0, 1, 1.0)], 7.0),  # a link of its route that was wide
        ([(1.0, 2, 1.0), (2.0, 2, 0.0), (3.0, 2, INF)], 5.5),  # a link that is not shared: 2, 1, 0 B, then 5 B at 2
        ([(4.0, 0, 0.0)], 4.0),  # at the very instant of its end
        ([(0.0, 0, 1.0)], 8.0),
        ([(9.0, 0, 0.0)], 4.0),
        ([(1.0, 3, 0.0)], 4.0),  # a link that it does not cross
    ],
)
def test_a_bandwidth_that_changes(carry: Any, changes: list[tuple[float, int, float]], end_s: float) -> None:
    assert carry(crossroads([2.0, INF, INF, 1.0], "ffl"), [([(0, 1, 2)], 8.0, 0.0)], changes) == [end_s]


def test_a_bandwidth_that_changes_is_shared_anew(carry: Any) -> None:
    """A and B have 2 each of link 0. Link 1 drops to 1 at 1 s: A has 1, B the other 3, until A is through at 3 s."""
    flows = [([(0, 1)], 4.0, 0.0), ([(0,)], 12.0, 0.0)]
    assert carry(crossroads([4.0, 8.0]), flows, [(1.0, 1, 1.0)]) == [3.0, 4.0]
    assert carry(crossroads([4.0, 8.0]), flows, [(1.0, 1, 0.0)]) == [INF, 3.5]


def test_nothing_needs_no_bandwidth(carry: Any) -> None:
    flows = [([(0,)], 0.0, 1.0), ([(0, 1)], 1.0, 1.0)]
    assert carry(crossroads([1.0, 1.0]), flows, [(0.5, 0, 0.0)]) == [1.0, INF]


def test_a_change_at_the_very_instant_of_an_end_comes_too_late(carry: Any) -> None:
    """3 s at 0.3 B/s are a little less than 0.9 B in binary."""
    for link in (0, 1):
        assert carry(crossroads([0.3, 0.3], "fl"), [([(link,)], 0.9, 0.0)], [(3.0, link, 0.0)]) == [3.0]


def test_a_change_while_the_first_byte_is_on_its_way(carry: Any) -> None:
    assert carry(crossroads([2.0]), [([(0,)], 4.0, 0.0)], [(0.5, 0, 1.0)], latency_s=1.0) == [5.0]


def test_next_to_nothing_ends_with_what_ended_just_before_it_came(carry: Any) -> None:
    assert carry(crossroads([2.0]), [([(0,)], 2.0, 0.0), ([(0,)], 1e-30, 1.0)]) == [1.0, 1.0]


def test_a_link_that_was_idle_starts_afresh(carry: Any) -> None:
    """Ten days at 1 TB/s would leave no digit for 3 B."""
    flows = [([(0,)], 1e12, 0.0), ([(0,)], 3.0, 1e6)]
    assert carry(crossroads([1e12]), flows, [(2.0, 0, 1.0)]) == [1.0, 1e6 + 3]


def test_a_flow_s_end_moves_only_if_its_rate_does(carry: Any) -> None:
    """To the last bit, whatever goes on elsewhere."""
    links = crossroads([0.3, 0.7, 1.1])
    alone = [([(0,)], 0.1, 0.3), ([(0,)], 0.7, 0.1)]
    others = [([(1, 2)], 0.013 * k, 0.07 * k) for k in range(1, 20)]
    assert carry(links, alone + others)[:2] == carry(links, alone)
    wide = [([(0, 3)], size, asked_s) for _, size, asked_s in alone]
    changes = [(0.11 * k, 3, 1.0 + 0.1 * k) for k in range(1, 30)]
    assert carry([*links, *crossroads([1.0])], wide, changes) == carry(links, alone)


@pytest.mark.parametrize(
    ("at_s", "ends"),
    [
        (0.5, [3.0, INF]),  # before its first byte: the other has the link to itself
        (1.0, [3.0, INF]),  # as it comes
        (2.0, [3.5, INF]),  # 1 of 4 B in the first second
        (3.0, [4.0, INF]),
        (9.0, [5.0, 6.0]),
    ],
)
def test_what_is_withdrawn_leaves_the_link_to_others(carry: Any, at_s: float, ends: list[float]) -> None:
    flows = [([(0,)], 4.0, 0.0), ([(0,), (1,)], 6.0, 0.0)]
    assert carry(crossroads([2.0, 2.0]), flows, latency_s=1.0, withdrawn=[(at_s, 1)]) == ends


def test_bytes_that_are_left_are_a_broken_invariant() -> None:
    pool = Pool(1.0, 0.0)
    pool.put(Flow(1, 0, (0,), 8.0), 0.0)
    with pytest.raises(BrokenInvariant, match="a flow of 8 B ended with 4 B left"):
        list(pool.finish(8.0, 4.0))


def crossroads(bytes_per_s: list[float], kinds: str = "") -> list[Link]:
    """Links without a topology. ``kinds``: l for a link of pure latency, else fair_share."""
    return [
        Link(f"link{k}", "", "", "latency" if kinds[k : k + 1] == "l" else "fair_share", 0.0, rate)
        for k, rate in enumerate(bytes_per_s)
    ]


Asked = tuple[list[tuple[int, ...]], float, float]


def fluid(links: list[Link], asked: list[Asked], changes: list[tuple[float, int, float]]) -> list[float]:
    """The same in exact fractions: rates rise together until a link is full, or a limit on each flow is reached."""
    speed = [link.bytes_per_s for link in links]
    flows = [(op, route) for op, (routes, _, _) in enumerate(asked) for route in routes]
    left = {k: Fraction(asked[op][1]) for k, (op, _) in enumerate(flows)}
    start = [Fraction(asked[op][2]) for op, _ in flows]
    changes = sorted(changes, key=lambda change: change[0])
    end, now = dict.fromkeys(left, INF), Fraction(0)
    while True:
        while changes and changes[0][0] <= now:
            _, link, speed[link] = changes.pop(0)
        rates = shared_rates([(k, flows[k][1]) for k in left if start[k] <= now], links, speed)
        if through := [k for k, rate in rates.items() if rate == INF or not left[k]]:
            end |= dict.fromkeys(through, float(now))
            left = {k: size for k, size in left.items() if k not in through}
            continue
        due = [now + left[k] / rate for k, rate in rates.items() if rate]
        due += [start[k] for k in left if start[k] > now] + [Fraction(at_s) for at_s, *_ in changes]
        if not due:
            return [max(end[k] for k, (owner, _) in enumerate(flows) if owner == op) for op in range(len(asked))]
        for k, rate in rates.items():
            left[k] -= rate * (min(due) - now)
        now = min(due)


def shared_rates(
    flows: list[tuple[int, tuple[int, ...]]], links: list[Link], speed: list[float]
) -> dict[int, Fraction | float]:
    """Rates by flow. A link of another kind is as many links as flows cross it."""
    room: dict[tuple[int, int], Fraction] = {}
    crossing: dict[tuple[int, int], list[int]] = {}
    for k, route in flows:
        for link in set(route):
            if speed[link] < INF:
                key = (link, -1 if links[link].kind == "fair_share" else k)
                room[key] = Fraction(speed[link])
                crossing.setdefault(key, []).append(k)
    rates: dict[int, Fraction | float] = {k: INF for k, _ in flows}
    free = {k for on in crossing.values() for k in on}
    level = Fraction(0)
    while free:
        rising = {key: sum(k in free for k in on) for key, on in crossing.items()}
        rise = min(room[key] / count for key, count in rising.items() if count)
        level += rise
        for key, count in rising.items():
            room[key] -= rise * count
        for key in [key for key, count in rising.items() if count and not room[key]]:
            rates |= {k: level for k in crossing[key] if k in free}
            free -= set(crossing[key])
    return rates


SPEED = st.sampled_from([1.0, 2.0, 3.0, 8.0, INF])
ROUTE = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
TIME = st.integers(0, 12).map(lambda quarters: quarters / 4)
SIZE = st.integers(0, 40).map(lambda quarters: quarters / 4)


@given(
    speeds=st.lists(SPEED, min_size=5, max_size=5),
    kinds=st.sampled_from(["fffff", "fffll"]),
    asked=st.lists(st.tuples(st.lists(ROUTE, min_size=1, max_size=2), SIZE, TIME), min_size=1, max_size=8),
    changes=st.lists(st.tuples(TIME, st.integers(0, 4), SPEED | st.just(0.0)), max_size=3, unique_by=lambda c: c[:2]),
    after_all=st.booleans(),
)
@settings(max_examples=400)
def test_any_flows_over_any_links(
    carry: Any,
    speeds: list[float],
    kinds: str,
    asked: list[Asked],
    changes: list[tuple[float, int, float]],
    after_all: bool,
) -> None:
    links = crossroads(speeds, kinds)
    assert carry(links, asked, changes, after_all=after_all) == pytest.approx(
        fluid(links, asked, changes), rel=1e-12, abs=1e-12
    )


def test_flows_are_conserved_link_by_link(jobs: Any, job: Any) -> None:
    """Whatever enters a node leaves it or ends there: the trace has the same bytes on every link of a route."""
    trace = run(*jobs([job((), 8.0, [], 3, 0), job((), 4.0, [], 3, 1)], line([1.0, 2.0, 3.0])))
    by_link = {link: trace.flows["bytes"][trace.flows["link"] == link].tolist() for link in range(3)}
    assert by_link == {0: [8.0], 1: [8.0, 4.0], 2: [8.0, 4.0]}
    assert all(a <= b for a, b in pairwise(trace.flows["start_s"]))
