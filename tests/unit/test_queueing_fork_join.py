"""Fork and join over several servers: limits that are exact, a simulator of the network alone, and recorded runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from analysis.queueing import exact, fork_join
from analysis.queueing.fork_join import ForkJoin, Section, estimates, intervals
from analysis.queueing.network import Network, Station
from analysis.queueing.slowest import mean_of_slowest
from analysis.queueing.staleness import staleness
from docs import tables_queueing
from docs.tables_queueing import Case, simulated


def case(
    workers: int,
    think_s: float,
    demands_s: tuple[float, float],
    variations: tuple[float, float, float],
    shares: Sequence[float],
) -> Case:
    return Case(workers, think_s, demands_s, variations, shares, math.nan)


def estimated(network: Case) -> float:
    return estimates(network.step(), network.workers)[-1].throughput_per_s


class Run(NamedTuple):
    """Steps/s, and staleness [servers] where a server's copy is read on request, and on delivery."""

    steps_per_s: float
    on_request: list[float]
    on_delivery: list[float]


class Shared:
    """A server's link in virtual time: all transfers on it progress alike."""

    def __init__(self) -> None:
        self.clock, self.at_s = 0.0, 0.0
        self.ends: dict[int, float] = {}

    def advance(self, now_s: float) -> None:
        if self.ends:
            self.clock += (now_s - self.at_s) / len(self.ends)
        self.at_s = now_s

    def next(self) -> tuple[float, int]:
        """When the next transfer ends, and whose it is."""
        if not self.ends:
            return math.inf, -1
        worker = min(self.ends, key=lambda each: self.ends[each])
        return self.at_s + (self.ends[worker] - self.clock) * len(self.ends), worker


def simulate(network: Case, steps: int, seed: int) -> Run:
    """Workers that compute, upload to all servers, download from all, and so on, from random phases."""
    rng, servers = random.Random(seed), len(network.shares)

    def lognormal(mean: float, variation: float) -> float:
        spread = math.sqrt(math.log1p(variation**2))
        return mean * math.exp(spread * rng.gauss(0, 1) - spread**2 / 2)

    links = [[Shared() for _ in network.shares] for _ in range(2)]
    computed_s = [rng.random() * (network.think_s + sum(network.demands_s)) for _ in range(network.workers)]
    left, versions = [0] * network.workers, [0] * servers
    asked, given = ([[0] * servers for _ in range(network.workers)] for _ in range(2))
    on_request, on_delivery, done, start_s, now_s = [0] * servers, [0] * servers, 0, 0.0, 0.0

    def begin(section: int, worker: int) -> None:
        left[worker] = servers
        for server, share in enumerate(network.shares):
            links[section][server].advance(now_s)
            size_s = lognormal(network.demands_s[section] * share, network.variations[1 + section])
            links[section][server].ends[worker] = links[section][server].clock + size_s

    while done < steps * 1.1:
        computing_s = min(computed_s)
        (ends_s, worker), section, server = min(
            (link.next(), section, server) for section in range(2) for server, link in enumerate(links[section])
        )
        if computing_s <= ends_s:
            worker, now_s = computed_s.index(computing_s), computing_s
            computed_s[worker] = math.inf
            begin(1, worker)
            continue
        now_s = ends_s
        links[section][server].advance(now_s)
        del links[section][server].ends[worker]
        if section == 0:
            given[worker][server] = versions[server]
        else:
            if done >= steps * 0.1:
                on_request[server] += versions[server] - asked[worker][server]
                on_delivery[server] += versions[server] - given[worker][server]
            versions[server] += 1
        left[worker] -= 1
        if not left[worker] and section == 0:
            computed_s[worker] = now_s + lognormal(network.think_s, network.variations[0])
        elif not left[worker]:
            done += 1
            start_s = now_s if done == steps // 10 else start_s
            asked[worker] = versions.copy()
            begin(0, worker)
    counted = done - steps // 10
    return Run(
        counted / (now_s - start_s), *([total / counted for total in each] for each in (on_request, on_delivery))
    )


def facts(workers: int, shares: Sequence[float]) -> Case:
    return case(workers, 0.6, (0.2, 0.2), (0.1, 0.1, 0.1), shares)


FACTS = [(shares, *row) for shares, by_workers in tables_queueing.FACTS.items() for row in by_workers.items()]
"""Simulated twice by others, 2·10⁵ steps each."""


@pytest.mark.parametrize(("shares", "workers", "simulated"), FACTS)
def test_the_table_of_the_facts(shares: Sequence[float], workers: int, simulated: float) -> None:
    assert estimated(facts(workers, shares)) == pytest.approx(simulated, rel=0.02)


def test_brackets_of_the_table() -> None:
    """Visited in turn and the largest share alone, as tabled: 3.527 and 4.498 of 4 workers on two equal servers."""
    step = facts(4, [0.5, 0.5]).step()
    assert exact.solve(step.one_after_another(), 4).throughput_per_s == pytest.approx(3.527, abs=5e-4)
    assert exact.solve(step.largest_share(), 4).throughput_per_s == pytest.approx(4.498, abs=5e-4)


def test_a_random_sweep() -> None:
    """All of 500 networks lie where the estimate says; but for a few that are about to bunch it is right."""
    errors, told = [], []
    for network in simulated():
        low, high = intervals(network.step(), network.workers)[-1]
        told.append(low <= network.steps_per_s <= high)
        errors.append(abs(estimated(network) / network.steps_per_s - 1))
    assert len(errors) == 500
    assert all(told)
    assert np.mean(errors) < 0.005
    assert np.mean(np.array(errors) < 0.05) > 0.99
    assert max(errors) < 0.1


@pytest.mark.parametrize("number", [7, 60, 191])
def test_the_recorded_runs_are_what_this_simulator_makes(number: int) -> None:
    network = simulated()[number]
    found = simulate(network, 15_000 // len(network.shares), 1)
    assert found.steps_per_s == pytest.approx(network.steps_per_s, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [facts(8, [0.5, 0.5]), facts(4, [0.25] * 4), case(16, 0.2, (0.4, 0.4), (0.2, 0.2, 0.2), [0.2] * 5)]
)
def test_estimate_and_simulator_agree(network: Case) -> None:
    """The last one bunches: 1/Dmax is 12.5 steps/s, the largest share alone would make 11.2."""
    found = simulate(network, 20_000, 3)
    assert estimated(network) == pytest.approx(found.steps_per_s, rel=0.05)
    alone = exact.solve(network.step().largest_share(), network.workers).throughput_per_s
    assert alone > max(found.steps_per_s, estimated(network))
    before, now = estimates(network.step(), network.workers)[-2:]
    np.testing.assert_allclose(staleness(before, now, "on_request"), found.on_request, rtol=0.05)
    np.testing.assert_allclose(staleness(before, now, "on_delivery"), found.on_delivery, rtol=0.05)


@pytest.mark.parametrize("variation", [0.1, 0.5, 1.0])
def test_one_worker_takes_the_mean_of_the_slowest(variation: float) -> None:
    rng = np.random.default_rng(5)
    spread = math.sqrt(math.log1p(variation**2))
    samples = np.exp(rng.normal(-(spread**2) / 2, spread, (400_000, 3))) * [0.5, 0.3, 0.2]
    slowest = mean_of_slowest(np.array([0.5, 0.3, 0.2]), np.full(3, variation))
    assert slowest == pytest.approx(samples.max(1).mean(), rel=0.003)
    network = case(1, 0.7, (0.4, 0.3), (0.3, variation, variation), [0.5, 0.3, 0.2])
    assert estimated(network) == pytest.approx(1 / (0.7 + 0.7 * slowest), rel=1e-12)


def test_two_nearly_normal_times() -> None:
    """E[max] of two normal times is μ + σ/√π."""
    assert mean_of_slowest(np.ones(2), np.full(2, 1e-3)) == pytest.approx(1 + 1e-3 / math.sqrt(math.pi), abs=2e-7)


@pytest.mark.parametrize("variation", [0.0, 0.3])
def test_one_server_is_exact(variation: float) -> None:
    network = case(12, 0.5, (0.3, 0.2), (0.2, variation, variation), [1.0])
    product_form = Network((Station("down", 0.3), Station("up", 0.2)), 0.5)
    throughputs = [each.throughput_per_s for each in estimates(network.step(), 12)]
    np.testing.assert_allclose(throughputs, exact.throughputs_per_s(product_form, 12), rtol=1e-12)


def test_an_uneven_bottleneck_is_used_up_by_many_workers() -> None:
    network = case(400, 1.0, (0.5, 0.2), (0.3, 0.3, 0.3), [0.4, 0.3, 0.3])
    assert estimated(network) == pytest.approx(1 / 0.2, rel=0.01)


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.7, 0.2, 0.1], [0.125] * 8])
def test_bounds_hold(shares: Sequence[float]) -> None:
    network = case(24, 0.4, (0.4, 0.2), (0.1, 0.4, 0.2), shares)
    for estimate in estimates(network.step(), network.workers):
        limits = fork_join.bounds(network.step(), estimate.population)
        assert limits.throughput_per_s.lower <= estimate.throughput_per_s <= limits.throughput_per_s.upper * (1 + 1e-12)
        assert 0 <= estimate.bunching < 1
        busy_s = network.think_s + sum(estimate.gathered_s)
        assert estimate.throughput_per_s * busy_s == pytest.approx(estimate.population, rel=1e-12)


def test_servers_with_nothing_to_do_change_nothing() -> None:
    network, more = (case(6, 0.4, (0.4, 0.2), (0.2, 0.2, 0.2), shares) for shares in ([0.6, 0.4], [0.6, 0.4, 0.0]))
    assert estimated(more) == pytest.approx(estimated(network), rel=1e-12)


def test_cores_that_are_never_short_are_a_delay() -> None:
    ones = np.ones(1)
    endless, many = (
        ForkJoin(1.0, 0.3, (Section("apply", np.array([[0.5]]), 0.3 * ones, cores * ones),)) for cores in (np.inf, 1e9)
    )
    rates = [estimates(step, 20)[-1].throughput_per_s for step in (endless, many)]
    np.testing.assert_allclose(rates, 20 / 1.5, rtol=1e-6)
    assert exact.solve(endless.largest_share(), 20).throughput_per_s == pytest.approx(20 / 1.5, rel=1e-12)


STALENESS = {2: 0.850, 4: 2.455, 8: 5.219, 16: 9.627}
"""D_dl = .15, Z = .7, D_ul + apply = .15, read on delivery."""


@pytest.mark.parametrize(("workers", "known"), STALENESS.items())
def test_staleness_of_one_server(workers: int, known: float) -> None:
    network = case(workers, 0.7, (0.15, 0.15), (0.3, 0.3, 0.3), [1.0])
    before, now = estimates(network.step(), workers)[-2:]
    assert staleness(before, now, "on_request")[0] == pytest.approx(workers - 1, rel=1e-12)
    assert staleness(before, now, "on_delivery")[0] == pytest.approx(known, abs=5e-4)


def test_nobody_is_stale_alone() -> None:
    network = case(1, 0.7, (0.15, 0.15), (0.3, 0.3, 0.3), [0.5, 0.5])
    (now,) = estimates(network.step(), 1)
    assert staleness(None, now, "on_delivery").tolist() == [0.0, 0.0]
