"""Closed queueing networks against published cases, closed forms and brute force over every state."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.queueing import bounds, exact, multiclass, schweitzer
from analysis.queueing.multiclass import ClassNetwork
from analysis.queueing.network import Floats, Kind, Network, Station
from sim.errors import UnsupportedPlan

CASES = Path(__file__).parents[3] / "shared" / "data" / "mva_cases.json"


def case(beginning: str) -> dict[str, Any]:
    if not CASES.is_file():
        pytest.skip(f"no {CASES}")
    return next(each for each in json.loads(CASES.read_text()) if each["name"].startswith(beginning))


def stations(service: Sequence[float], visits: Sequence[float], servers: Sequence[Any] = ()) -> tuple[Station, ...]:
    several = servers or [1] * len(service)
    kinds: list[Kind] = ["delay" if each == "IS" else "queue" for each in several]
    return tuple(
        Station(f"s{index}", *figures, kinds[index], 1 if several[index] == "IS" else several[index])
        for index, figures in enumerate(zip(service, visits, strict=True))
    )


@pytest.mark.parametrize("name", ["Jain", "Lazowska p117 (exact"])
def test_single_servers(name: str) -> None:
    known = case(name)
    found = exact.solve(Network(stations(known["S"], known["V"]), known["Z"]), known["N"])
    computed, visits = known["computed"], np.array(known["V"])
    assert found.throughput_per_s == pytest.approx(computed["X_sys"], rel=1e-12)
    assert found.response_s == pytest.approx(computed["R_sys"], rel=1e-12)
    np.testing.assert_allclose(found.residence_s / visits, computed["R_k"], rtol=1e-12)
    np.testing.assert_allclose(found.queue_lengths, computed["Q_k"], rtol=1e-12)
    np.testing.assert_allclose(found.utilization, computed["U_k"], rtol=1e-12)
    for key, ours in (("R", found.residence_s / visits), ("Q", found.queue_lengths)):
        if key in known["published"]:
            np.testing.assert_allclose(ours, known["published"][key], atol=known["tol"])


def test_schweitzer_as_published() -> None:
    known = case("Lazowska p117 Bard")
    found = schweitzer.solve(Network(stations(known["D"], [1] * 3), known["Z"]), known["N"])
    np.testing.assert_allclose(found.queue_lengths, known["published"]["Q"], atol=known["tol"])
    assert found.throughput_per_s == pytest.approx(known["computed"]["X"], rel=1e-10)
    assert found.response_s == pytest.approx(known["computed"]["R"], rel=1e-10)
    np.testing.assert_allclose(found.queue_lengths, known["computed"]["Q"], rtol=1e-10)


def test_several_servers_and_a_delay_as_published() -> None:
    known = case("Bolch")
    found = exact.solve(Network(stations(known["S"], known["V"], known["servers"])), known["N"])
    np.testing.assert_allclose(found.queue_lengths, known["published"]["Q"], atol=known["tol"])
    visited = found.throughput_per_s * np.array(known["V"])
    np.testing.assert_allclose(visited, known["published"]["X"], atol=known["tol"])


def test_asymptotic_bounds_as_published() -> None:
    known = case("Asymptotic")
    found = bounds.asymptotic(Network(stations(known["D"], [1, 1]), known["Z"]), known["N"])
    assert found.throughput_per_s.upper == pytest.approx(known["published"]["X_upper"], abs=known["tol"])
    assert found.response_s.lower == pytest.approx(known["published"]["R_lower"], abs=known["tol"])
    assert found.knee == pytest.approx((9.2 + 8 + 120) / 9.2, rel=1e-15)


def test_two_classes_as_published() -> None:
    known = case("Two-class")
    demands = np.array(known["S"]) * np.array(known["V"])
    single = np.zeros(2, bool), np.ones(2)
    found = multiclass.solve(ClassNetwork(demands, np.array(known["N"]), np.zeros(2), *single))
    for key, ours in (
        ("Q", found.queue_lengths),
        ("residence", found.residence_s),
        ("X", found.throughputs_per_s),
    ):
        np.testing.assert_allclose(ours, known["published"][key], rtol=1e-12)


def birth_and_death(population: int, service: int, servers: int, think: int) -> Fraction:
    """Throughput of one station of several servers and a think time, in exact rationals."""
    weights = [Fraction(1)]
    for j in range(1, population + 1):
        weights.append(weights[-1] * (population - j + 1) * service / (think * min(j, servers)))
    served = sum((min(j, servers) * weight for j, weight in enumerate(weights)), Fraction(0))
    return served / (sum(weights, Fraction(0)) * service)


def test_the_station_that_turns_the_textbook_recursion_negative() -> None:
    """S = 4, m = 8, Z = 10: subtracting for p(0) gives X(80) = −0.83."""
    throughputs = exact.throughputs_per_s(Network((Station("s", 4.0, servers=8),), 10.0), 1000)
    for population in (1, 2, 7, 8, 9, 15, 20, 40, 60, 70, 80, 90, 150, 333, 1000):
        right = birth_and_death(population, 4, 8, 10)
        assert abs(Fraction(throughputs[population - 1]) / right - 1) < 1e-12, population
    assert (throughputs > 0).all()


def test_that_station_as_recorded() -> None:
    known = case("LD-MVA")
    network = Network((Station("s", known["S"], servers=known["servers"]),), known["Z"])
    for population, right in known["exact"].items():
        found = exact.solve(network, int(population))
        assert found.throughput_per_s == pytest.approx(right["X"], rel=1e-12)
        assert found.response_s == pytest.approx(right["R"], rel=1e-12)


def test_a_tail_that_underflows_on_its_way_comes_back() -> None:
    """With Z = 1000 S the chance of 600 waiting is below 1e-308 at N = 600 and near 1 at N = 2000."""
    found = exact.solve(Network((Station("s", 1.0, rates=(1.0, 1.0)),), 1000.0), 2000)
    plain = exact.solve(Network((Station("s", 1.0),), 1000.0), 2000)
    assert found.throughput_per_s == pytest.approx(plain.throughput_per_s, rel=1e-12)
    assert found.queue_lengths[0] == pytest.approx(plain.queue_lengths[0], rel=1e-10)


Speed = Callable[[int], float]


def states(customers: int, places: int) -> Iterator[tuple[int, ...]]:
    """How many may stand at each place."""
    for cuts in itertools.combinations(range(customers + places - 1), places - 1):
        ends = (-1, *cuts, customers + places - 1)
        yield tuple(ends[index + 1] - ends[index] - 1 for index in range(places))


def every_state(service: Floats, populations: Sequence[int], speeds: Sequence[Speed]) -> tuple[Floats, Floats]:
    """X [classes] and Q [classes, stations] by solving the Markov chain over all states, exponential times.

    Each class goes round the stations in order, one visit each; a station shares ``speeds[k](n)`` among its n
    customers. ``service`` has shape [classes, stations].
    """
    classes, places = service.shape
    every = list(itertools.product(*(states(count, places) for count in populations)))
    number = {state: index for index, state in enumerate(every)}
    rates = np.zeros((len(every), len(every)))
    leaving = np.zeros((len(every), classes, places))
    for state, source in number.items():
        totals = [sum(row[place] for row in state) for place in range(places)]
        for kind, place in itertools.product(range(classes), range(places)):
            if state[kind][place]:
                rate = speeds[place](totals[place]) * state[kind][place] / totals[place] / service[kind, place]
                row = list(state[kind])
                row[place] -= 1
                row[(place + 1) % places] += 1
                target = number[(*state[:kind], tuple(row), *state[kind + 1 :])]
                rates[source, target] += rate
                leaving[source, kind, place] = rate
    equations = (rates - np.diag(rates.sum(1))).T
    equations[0] = 1.0
    chances = np.linalg.solve(equations, np.eye(len(every))[0])
    queues = np.tensordot(chances, np.array(every, float), 1)
    return np.tensordot(chances, leaving, 1)[:, 0], queues


def one_server(customers: int) -> float:
    return 1.0


def delay(customers: int) -> float:
    return float(customers)


def speed_of(station: Station, population: int) -> Speed:
    table = station.speeds(population)
    return delay if station.is_delay else lambda customers: float(table[customers - 1])


@pytest.mark.parametrize("seed", range(8))
def test_several_classes_against_every_state(seed: int) -> None:
    rng = np.random.default_rng(seed)
    populations = [(1, 1), (2, 1), (3, 2), (4, 3), (1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)][seed]
    think, demands = rng.uniform(0.1, 3, len(populations)), rng.uniform(0.1, 2, (len(populations), 2))
    is_delay = np.array([False, bool(seed % 3 == 0)])
    network = ClassNetwork(demands, np.array(populations), think, is_delay, np.ones(2))
    found = multiclass.solve(network)
    speeds = [delay, one_server, delay if is_delay[1] else one_server]
    throughputs, queues = every_state(np.column_stack((think, demands)), populations, speeds)
    np.testing.assert_allclose(found.throughputs_per_s, throughputs, rtol=1e-10)
    np.testing.assert_allclose(found.queue_lengths, queues[:, 1:], rtol=1e-10)
    np.testing.assert_allclose(found.utilization, found.throughputs_per_s[:, None] * demands, rtol=1e-12)


LOAD_DEPENDENT = [
    (Station("a", 1.3, servers=2), Station("b", 0.7, servers=3), Station("c", 0.4)),
    (
        Station("a", 1.3, rates=(1.0, 1.6, 1.9)),
        Station("b", 0.5, rates=(1.0, 0.8, 0.5, 0.3)),
        Station("c", 1.1, servers=2),
    ),
    (Station("a", 0.9, rates=(2.0, 0.5, 3.0)), Station("b", 2.0, kind="delay"), Station("c", 0.3)),
    (Station("a", 2.0, servers=4), Station("b", 1.0, servers=2), Station("c", 1.0, servers=9)),
]


@pytest.mark.parametrize("chosen", LOAD_DEPENDENT)
@pytest.mark.parametrize("population", [1, 2, 5, 9])
def test_load_dependent_stations_against_every_state(chosen: tuple[Station, ...], population: int) -> None:
    found = exact.solve(Network(chosen, 1.7), population)
    speeds: list[Speed] = [delay, *(speed_of(station, population) for station in chosen)]
    service = np.array([[1.7, *(station.demand_s for station in chosen)]])
    throughputs, queues = every_state(service, [population], speeds)
    assert found.throughput_per_s == pytest.approx(throughputs[0], rel=1e-10)
    np.testing.assert_allclose(found.queue_lengths, queues[0, 1:], rtol=1e-9)


def test_a_network_of_nothing_but_several_servers() -> None:
    """No think time and no single server: two cyclic stations of 2 and 3 servers."""
    chosen = (Station("a", 1.0, servers=2), Station("b", 2.0, servers=3))
    found = exact.solve(Network(chosen), 6)
    speeds: list[Speed] = [lambda customers: min(customers, 2), lambda customers: min(customers, 3)]
    throughputs, queues = every_state(np.array([[1.0, 2.0]]), [6], speeds)
    assert found.throughput_per_s == pytest.approx(throughputs[0], rel=1e-12)
    np.testing.assert_allclose(found.queue_lengths, queues[0], rtol=1e-12)


TIMES = st.floats(0.01, 100)


@given(st.lists(TIMES, min_size=1, max_size=5), st.floats(0, 100), st.integers(1, 60), st.integers(1, 6))
def test_laws(demands: list[float], think: float, population: int, servers: int) -> None:
    """Little's law, bounds around the solution, rates 1…m as m servers, and one class as one of several."""
    single = Network(tuple(Station(str(index), demand) for index, demand in enumerate(demands)), think)
    found = exact.solve(single, population)
    throughput = found.throughput_per_s
    assert throughput * (think + found.response_s) == pytest.approx(population, rel=1e-10)
    for limits in (bounds.asymptotic(single, population), bounds.balanced(single, population)):
        assert limits is not None
        assert limits.throughput_per_s.lower <= throughput * (1 + 1e-12)
        assert throughput <= limits.throughput_per_s.upper * (1 + 1e-12)
        assert limits.response_s.lower <= found.response_s * (1 + 1e-9) + 1e-9
    approximate = schweitzer.solve(single, population)
    assert approximate.throughput_per_s * (think + approximate.response_s) == pytest.approx(population, rel=1e-10)
    met = (population - 1) / population * approximate.queue_lengths
    np.testing.assert_allclose(approximate.residence_s, single.demands_s * (1 + met), rtol=1e-9)
    several = Network((Station("m", demands[0], servers=servers), *single.stations[1:]), think)
    rates = tuple(float(speed) for speed in range(1, servers + 1))
    as_rates = Network((Station("m", demands[0], rates=rates), *single.stations[1:]), think)
    solved = exact.solve(several, population)
    assert solved.throughput_per_s == pytest.approx(exact.solve(as_rates, population).throughput_per_s, rel=1e-12)
    assert solved.throughput_per_s >= throughput * (1 - 1e-12)
    limits = bounds.asymptotic(several, population)
    assert limits.throughput_per_s.lower <= solved.throughput_per_s * (1 + 1e-12)
    assert solved.throughput_per_s <= limits.throughput_per_s.upper * (1 + 1e-12)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 5))
def test_two_equal_classes_are_one(pairs: list[tuple[float, float]], first: int, second: int) -> None:
    demands = np.array([[pair[0] for pair in pairs]] * 2)
    limits = np.zeros(len(pairs), bool), np.ones(len(pairs))
    network = ClassNetwork(demands, np.array([first, second]), np.full(2, 1.5), *limits)
    found = multiclass.solve(network)
    alone = exact.solve(Network(tuple(Station(str(k), each) for k, each in enumerate(demands[0])), 1.5), first + second)
    assert found.throughputs_per_s.sum() == pytest.approx(alone.throughput_per_s, rel=1e-10)
    np.testing.assert_allclose(found.queue_lengths.sum(0), alone.queue_lengths, rtol=1e-10)
    for limit, rate in zip(bounds.of_classes(network), found.throughputs_per_s, strict=True):
        assert limit.throughput_per_s.lower <= rate * (1 + 1e-12) <= limit.throughput_per_s.upper * (1 + 3e-12)
    iterated = schweitzer.solve_classes(network)
    met = iterated.queue_lengths.sum(0) - iterated.queue_lengths / network.populations[:, None]
    np.testing.assert_allclose(iterated.residence_s, demands * (1 + met), rtol=1e-8)


def test_schweitzer_with_several_servers_and_one_customer_is_exact() -> None:
    network = Network((Station("a", 3.0, servers=4), Station("b", 2.0, kind="delay"), Station("c", 1.0)), 5.0)
    assert schweitzer.solve(network, 1).throughput_per_s == pytest.approx(1 / 11, rel=1e-12)
    for population in (10, 100):
        right = exact.solve(network, population).throughput_per_s
        assert schweitzer.solve(network, population).throughput_per_s == pytest.approx(right, rel=0.1)


def test_a_lattice_too_large_is_refused_with_its_size() -> None:
    network = ClassNetwork(np.ones((4, 3)), np.full(4, 99), np.zeros(4), np.zeros(3, bool), np.ones(3))
    with pytest.raises(UnsupportedPlan, match=r"100 × 100 × 100 × 100 = 100000000 populations .* use schweitzer"):
        multiclass.solve(network)


def test_several_classes_know_single_servers_only() -> None:
    network = ClassNetwork(np.ones((2, 1)), np.array([3, 3]), np.ones(2), np.zeros(1, bool), np.full(1, 2.0))
    with pytest.raises(UnsupportedPlan, match="use schweitzer"):
        multiclass.solve(network)
    alone = ClassNetwork(np.ones((1, 1)), np.array([5]), np.ones(1), np.zeros(1, bool), np.full(1, 2.0))
    one = schweitzer.solve(Network((Station("a", 1.0, servers=2),), 1.0), 5)
    assert schweitzer.solve_classes(alone).throughputs_per_s[0] == pytest.approx(one.throughput_per_s, rel=1e-9)


def test_line_solver_agrees() -> None:
    """line-solver 3.0.8, exact MVA of processor-sharing queues: values typed in."""
    three = exact.solve(Network((Station("a", 2.0, servers=3), Station("b", 3.0)), 5.0), 12)
    assert three.throughput_per_s == pytest.approx(0.333329873082, rel=1e-11)
    np.testing.assert_allclose(three.queue_lengths, [0.675941349141, 9.65740928545], rtol=1e-11)
    np.testing.assert_allclose(three.residence_s, [2.02784509798, 28.972528613], rtol=1e-11)
    np.testing.assert_allclose(three.utilization, [0.222219915388, 0.999989619247], rtol=1e-11)
    demands, single = np.array([[0.5, 1.0], [0.8, 0.3]]), (np.zeros(2, bool), np.ones(2))
    two = multiclass.solve(ClassNetwork(demands, np.array([4, 3]), np.array([2.0, 1.0]), *single))
    np.testing.assert_allclose(two.throughputs_per_s, [0.618339708625, 0.706353017846], rtol=1e-11)
    right = [[1.06697760086, 1.69634298189], [1.60116463758, 0.69248234457]]
    np.testing.assert_allclose(two.queue_lengths, right, rtol=1e-11)
