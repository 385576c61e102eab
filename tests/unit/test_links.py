"""Links without fair sharing: pure delays, channels in order, and circuits that are served first come, first served."""

from __future__ import annotations

import random
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.errors import UnsupportedPlan
from sim.ops import OpKind
from sim.planners import data_parallel, gpipe

INF = float("inf")

Flow = tuple[int, int, float, float]  # source, target, bytes, asked at


def line(nodes: int, kind: LinkKind, latency_s: float = 0.0, bytes_per_s: float = 1.0) -> Cluster:
    """Nodes in a row, link k from node k to the next."""
    links = [Link(f"link{k}", f"n{k}", f"n{k + 1}", kind, latency_s, bytes_per_s) for k in range(nodes - 1)]
    return Cluster("line", tuple(Node(f"n{k}", "host") for k in range(nodes)), links)


@pytest.fixture(scope="session")
def times(jobs: Any, job: Any) -> Any:
    """Start and end of each flow; the trace holds the delays that precede them."""

    def times(flows: list[Flow], cluster: Cluster) -> list[tuple[float, float]]:
        todo = [job(size=asked_s) for *_, asked_s in flows]
        todo += [job((), size, [k], target, source) for k, (source, target, size, _) in enumerate(flows)]
        trace = run(*jobs(todo, cluster))
        return list(zip(trace.start_s.tolist(), trace.end_s.tolist(), strict=True))[len(flows) :]

    return times


def test_a_latency_link_takes_any_number_at_once(times: Any) -> None:
    flows = [(0, 2, 8.0, 0.0), (0, 1, 2.0, 1.0), (0, 2, 8.0, 1.0)]
    assert times(flows, line(3, "latency", 0.25, 4.0)) == [(0.0, 2.5), (1.0, 1.75), (1.0, 3.5)]


def test_a_fifo_link_takes_one_at_a_time(times: Any) -> None:
    flows = [(0, 1, 2.0, 0.0), (0, 1, 2.0, 1.0), (0, 1, 2.0, 0.0)]
    assert times(flows, line(2, "fifo", 0.5)) == [(0.0, 2.5), (5.0, 7.5), (2.5, 5.0)]


def test_a_circuit_holds_every_link_of_its_route(times: Any) -> None:
    """The long one waits until both links are free, holds both, and whoever asks behind it for one of them waits."""
    flows = [(0, 1, 2.0, 0.0), (0, 2, 3.0, 1.0), (1, 2, 1.0, 1.0), (1, 2, 1.0, 0.0)]
    assert times(flows, line(3, "fifo")) == [(0.0, 2.0), (2.0, 5.0), (5.0, 6.0), (0.0, 1.0)]


def test_equal_times_go_by_name(times: Any) -> None:
    assert times([(0, 1, 3.0, 1.0), (0, 1, 2.0, 1.0), (0, 1, 1.0, 1.0)], line(2, "fifo")) == [(1, 4), (4, 6), (6, 7)]


@pytest.mark.parametrize("kind", ["fifo", "in_order"])
def test_equal_times_go_by_name_and_not_by_what_came_before(jobs: Any, job: Any, kind: LinkKind) -> None:
    """All become ready at 1, the highest name first: its forerunner has the lowest name."""
    lanes = () if kind == "fifo" else ("0.compute",)
    todo = [job(size=1.0) for _ in range(3)]
    todo += [job(lanes, float(size), [2 - k], 1 if kind == "fifo" else -1) for k, size in enumerate((3, 2, 1))]
    trace = run(*jobs(todo, line(2, kind)))
    assert trace.start_s[3:].tolist() == [1.0, 4.0, 6.0]


def test_two_lanes_of_a_gpu_that_ask_at_once_go_by_name(jobs: Any, job: Any, mesh: Any) -> None:
    for first, second in (("forward", "backward"), ("backward", "forward")):
        todo = [job(("1.compute",), 1.0), job(("2.compute",), 1.0)]
        todo += [job((f"0.{first}",), 2.0, [1]), job((f"0.{second}",), 3.0, [0])]
        assert run(*jobs(todo, mesh(3))).start_s.tolist() == [0.0, 0.0, 1.0, 3.0]


def test_one_that_ends_makes_room_for_one_that_asks_at_that_very_instant(times: Any) -> None:
    assert times([(0, 1, 2.0, 0.0), (0, 1, 2.0, 2.0), (0, 1, 2.0, 4.0)], line(2, "fifo")) == [(0, 2), (2, 4), (4, 6)]


def circuits(flows: list[Flow], busy: Any = None) -> list[tuple[float, float]]:
    """The definition: at every instant, who has waited longest of those whose links nobody holds or claims before."""
    waiting: list[int] = []
    held: dict[int, float] = {}
    found: dict[int, tuple[float, float]] = {}
    asked = sorted(range(len(flows)), key=lambda k: (flows[k][3], k))
    while asked or waiting:
        now = min([flows[k][3] for k in asked] + list(held.values()))
        held = {k: end for k, end in held.items() if end > now}
        waiting += [k for k in asked if flows[k][3] == now]
        asked = [k for k in asked if flows[k][3] > now]
        for k in tuple(waiting):
            ahead = [*held, *waiting[: waiting.index(k)]]
            if not any(flows[k][0] < flows[other][1] and flows[other][0] < flows[k][1] for other in ahead):
                waiting.remove(k)
                found[k], held[k] = (now, now + flows[k][2]), now + flows[k][2]
    return [found[k] for k in range(len(flows))]


FLOW = st.tuples(
    st.sets(st.integers(0, 4), min_size=2, max_size=2).map(sorted), st.integers(1, 9), st.integers(0, 12)
).map(lambda drawn: (drawn[0][0], drawn[0][1], float(drawn[1]), float(drawn[2])))


@given(flows=st.lists(FLOW, min_size=1, max_size=12))
@settings(max_examples=150)
def test_circuits_by_definition(times: Any, flows: list[Flow]) -> None:
    got = times(flows, line(5, "fifo"))
    assert got == circuits(flows)
    for (one, first), (other, second) in combinations(zip(flows, got, strict=True), 2):
        if one[0] < other[1] and other[0] < one[1]:  # a link in common
            assert first[1] <= second[0] or second[1] <= first[0]


@pytest.mark.parametrize(
    ("changes", "end_s"),
    [
        ([(2.0, 0, 1.0)], [8.0, 13.0]),  # after 1 s on the way 2 of 8 B in 1 s, 6 B at half the speed; then 1 + 4 s
        ([(2.0, 0, 0.0), (4.0, 0, 2.0)], [7.0, 10.0]),  # stalled for two seconds
        ([(2.0, 0, 0.0)], [INF, INF]),
        ([(2.0, 0, INF)], [2.0, 3.0]),
        ([(0.5, 0, 4.0)], [3.0, 5.0]),  # while the first byte is on its way
        ([(2.0, 1, 1.0)], [8.0, 13.0]),  # a link of its route that is a pure delay
        ([(5.0, 0, 1.0)], [5.0, 10.0]),  # at the very instant of an end: for the next one only
        ([(5.5, 0, 1.0)], [5.0, 10.0]),
        ([(2.0, 2, 0.0)], [5.0, 8.0]),  # a link that they do not cross
    ],
)
def test_a_bandwidth_that_changes(carry: Any, changes: list[tuple[float, int, float]], end_s: list[float]) -> None:
    links = [
        Link("", "", "", "fifo", 0.0, 2.0),
        Link("", "", "", "latency", 0.0, INF),
        Link("", "", "", "fifo", 0.0, 1.0),
    ]
    flows = [([(0, 1)], 8.0, 0.0), ([(0, 1)], 4.0, 0.0)]
    assert carry(links, flows, changes, latency_s=1.0) == end_s


def test_a_change_at_the_very_instant_of_an_end_comes_too_late(carry: Any) -> None:
    """3 s at 0.3 B/s are a little less than 0.9 B in binary."""
    assert carry([Link("", "", "", "fifo", 0.0, 0.3)], [([(0,)], 0.9, 0.0)], [(3.0, 0, 0.0)]) == [3.0]


def test_nothing_needs_no_bandwidth(carry: Any) -> None:
    flows = [([(0,)], 0.0, 1.0), ([(0,)], 1.0, 1.0)]
    assert carry([Link("", "", "", "fifo", 0.0, 1.0)], flows, [(0.5, 0, 0.0)]) == [1.0, INF]


def test_what_does_not_cross_the_link_is_left_alone(carry: Any) -> None:
    """To the last bit."""
    links, flows = [Link("", "", "", "fifo", 0.0, rate) for rate in (0.3, 0.7)], [([(0,)], 0.17, 0.1)]
    assert carry(links, flows, [(0.1 + 0.01 * k, 1, 0.1 * k) for k in range(1, 50)]) == carry(links, flows)


@pytest.mark.parametrize(
    ("at_s", "op", "ends"),
    [
        (1.0, 0, [INF, 3.0, 5.0]),  # under way: the next one begins
        (1.0, 1, [2.0, INF, 4.0]),  # waiting
        (2.0, 1, [2.0, INF, 4.0]),  # as it begins
        (9.0, 2, [2.0, 4.0, 6.0]),
    ],
)
def test_what_is_withdrawn_leaves_the_link_to_others(carry: Any, at_s: float, op: int, ends: list[float]) -> None:
    flows = [([(0,)], 2.0, 0.0)] * 3
    assert carry([Link("", "", "", "fifo", 0.0, 1.0)], flows, withdrawn=[(at_s, op)]) == ends


def test_hops_of_one_op_share_a_link_whose_bandwidth_changes(carry: Any) -> None:
    """Two hops over link 0 have 2 B/s each: 2 of 8 B in the first second; then 1 B/s each, less than link 1 has."""
    links = [Link("", "", "", "fifo", 0.0, 4.0), Link("", "", "", "fifo", 0.0, 3.0)]
    assert carry(links, [([(0,), (0, 1)], 8.0, 0.0)], [(1.0, 0, 2.0)]) == [7.0]


def test_a_channel_carries_its_transfers_in_order_and_minds_no_other(jobs: Any, job: Any) -> None:
    channel, other = ("0.send>1", "1.recv<0"), ("0.send>2", "2.recv<0")
    todo = [job(channel, 2.0, target=1), job(channel, 1.0, target=1), job(other, 4.0, target=2)]
    trace = run(*jobs(todo, line(3, "in_order")))
    assert list(zip(trace.start_s.tolist(), trace.end_s.tolist(), strict=True)) == [(0, 2), (2, 3), (0, 4)]


@pytest.mark.parametrize(("kind", "lanes"), [("latency", 0), ("in_order", 2), ("fifo", 2), ("fair_share", 2)])
def test_only_pure_delays_hold_no_channel(simulate: Any, mesh: Any, kind: LinkKind, lanes: int) -> None:
    trace = simulate(gpipe.plan(2, 3), mesh(2, kind, 0.5, 4.0))
    sends = [op for op in range(len(trace.ops)) if trace.ops["kind"][op] == OpKind.SEND_ACTIVATION]
    assert [len(trace.lanes_of[op]) for op in sends] == [lanes] * 3
    assert (trace.ops["source"][sends].tolist(), trace.ops["target"][sends].tolist()) == ([0] * 3, [1] * 3)


def test_routes_have_the_fewest_links_and_cost_the_sum_of_latencies_and_the_least_bandwidth() -> None:
    nodes = tuple(Node(name, "gpu") for name in "abcd")
    links = [
        Link("a>b", "a", "b", "fifo", 1.0, 10.0),
        Link("b>d", "b", "d", "fifo", 2.0, 5.0),
        Link("a>c", "a", "c", "fifo", 1.0, 10.0),
        Link("c>d", "c", "d", "fifo", 0.0, 99.0),
        Link("d>a", "d", "a", "latency", 0.5, 1.0),
    ]
    cluster = Cluster("square", nodes, links)
    route = cluster.route("a", "d")
    assert [links[link].name for link in route] == ["a>b", "b>d"]  # a tie: the first by link order
    assert (cluster.latency_s(route), cluster.bytes_per_s(route)) == (3.0, 5.0)
    assert cluster.route("a", "a") == ()
    assert (cluster.latency_s(()), cluster.bytes_per_s(())) == (0.0, float("inf"))
    assert not cluster.occupies(cluster.route("d", "a"))
    assert cluster.occupies(cluster.route("d", "b"))
    with pytest.raises(UnsupportedPlan, match="no route from 'c' to 'x'"):
        Cluster("square", (*nodes, Node("x", "gpu")), links).route("c", "x")


@given(st.randoms(use_true_random=False), st.integers(3, 7))
def test_of_routes_of_equal_length_the_first_by_link_order(dice: random.Random, count: int) -> None:
    """Against every walk there is."""
    names = [f"n{k}" for k in range(count)]
    pairs = [pair for pair in permutations(names, 2) if dice.random() < 0.5]
    dice.shuffle(pairs)
    links = [Link(f"{a}>{b}", a, b, "fifo", 0.0, 1.0) for a, b in pairs]
    cluster = Cluster("any", tuple(Node(name, "gpu") for name in names), links)
    walks: list[tuple[int, ...]] = [()]
    for _ in range(count):
        arrived = [walk for walk in walks if walk and links[walk[-1]].target == "n1"]
        if arrived:
            assert cluster.route("n0", "n1") == min(arrived)
            return
        ends = [links[walk[-1]].target if walk else "n0" for walk in walks]
        walks = [
            (*walk, k)
            for walk, at in zip(walks, ends, strict=True)
            for k, link in enumerate(links)
            if link.source == at
        ]
    with pytest.raises(UnsupportedPlan, match="no route"):
        cluster.route("n0", "n1")


def test_links_between_all_are_made_where_they_are_used() -> None:
    cluster = Cluster(
        "mesh", tuple(Node(name, "gpu") for name in "abc"), [], between_all=Link("", "", "", "fifo", 1.0, 2.0)
    )
    assert cluster.route("b", "b") == ()
    assert cluster.route("a", "c") == cluster.route("a", "c") == (0,)
    assert cluster.route("c", "a") == (1,)
    assert cluster.links == [Link("a>c", "a", "c", "fifo", 1.0, 2.0), Link("c>a", "c", "a", "fifo", 1.0, 2.0)]


def test_a_route_over_both_kinds_of_sharing_is_refused(compose: Any) -> None:
    nodes = (Node("gpu0", "gpu"), Node("switch", "switch"), Node("gpu1", "gpu"))
    links = [Link("up", "gpu0", "switch", "fifo", 0.0, 1.0), Link("down", "switch", "gpu1", "fair_share", 0.0, 1.0)]
    with pytest.raises(UnsupportedPlan, match="mixes fifo and fair_share"):
        Cluster("mixed", nodes, links).route("gpu0", "gpu1")


def test_a_ring_over_both_kinds_of_sharing_is_refused(simulate: Any) -> None:
    nodes = (Node("gpu0", "gpu"), Node("gpu1", "gpu"))
    links = [Link("there", "gpu0", "gpu1", "fifo", 0.0, 1.0), Link("back", "gpu1", "gpu0", "fair_share", 0.0, 1.0)]
    with pytest.raises(UnsupportedPlan, match="both fifo and fair_share"):
        simulate(data_parallel.plan(2), Cluster("mixed", nodes, links))
