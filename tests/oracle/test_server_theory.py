"""Simulated parameter servers against queueing theory and the recorded tables (facts/parameter-servers.md).

Exact mean value analysis is written out here as the independent way to each number; it holds where its assumptions do:
processor sharing at any variance, or first come first served with exponential times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from analysis import parameter_server, served_steps
from sim.trace import Trace

Play = Callable[..., Trace]


def mva(think_s: float, demands_s: list[float], customers: int) -> tuple[float, list[float]]:
    """Throughput and queue lengths of single servers and a delay (Reiser and Lavenberg, JACM 1980)."""
    queues = [0.0] * len(demands_s)
    throughput = 0.0
    for n in range(1, customers + 1):
        residence = [demand * (1 + queue) for demand, queue in zip(demands_s, queues, strict=True)]
        throughput = n / (think_s + sum(residence))
        queues = [throughput * r for r in residence]
    return throughput, queues


class Measured(NamedTuple):
    """Throughput and mean staleness in steady state."""

    steps_per_s: float
    staleness: float


def scenario(workers: int, steps: int, passes_s: float, megabytes: float, servers: str, network: str) -> str:
    return f"""\
name: theory
model:
  uniform: {{forward: {passes_s / 2} s, backward: {passes_s / 2} s, activation: 0 B, parameters: {megabytes} MB}}
  batch_size: 1
cluster: {{workers: {workers}, {network}}}
schedule: {{name: parameter_server, mini_batches: {steps // workers}}}
parameter_servers: {{sharding: even{servers}}}
seed: 1
"""


def measure(play: Play, text: str, *sets: str) -> Measured:
    trace = play(text, *sets)
    steps = served_steps.compute(trace)
    steady = parameter_server.window(steps)
    inside = (steps.done_s > steady.start_s) & (steps.done_s <= steady.end_s)
    assert steady.steps_per_s is not None
    return Measured(steady.steps_per_s, float(steps.staleness[inside].mean()))


DISCIPLINES = [
    ("processor_sharing", "{lognormal: 0.1}", 3.176),
    ("processor_sharing", "{lognormal: 0.5}", 3.176),
    ("processor_sharing", "exponential", 3.176),
    ("fcfs", "exponential", 3.176),
    ("fcfs", "{lognormal: 0.1}", 3.735),
]


@pytest.mark.slow
@pytest.mark.parametrize(("discipline", "variation", "recorded"), DISCIPLINES)
def test_one_station(play: Play, discipline: str, variation: str, recorded: float) -> None:
    """Z = .75, D = .25, four workers: theory holds but for nearly constant times in turn, which tend to the bound."""
    assert mva(0.75, [0.25], 4)[0] == pytest.approx(3.176, abs=5e-4)
    text = scenario(4, 40_000, 0.75, 4, f", discipline: {discipline}, apply: {{per_tensor: 250 ms}}", "servers: 1")
    found = measure(play, text, f"jitter={{compute: {variation}, apply: {variation}}}")
    assert found.steps_per_s == pytest.approx(recorded, rel=0.01)


@pytest.mark.slow
def test_a_link_is_processor_sharing(play: Play) -> None:
    """The same station as the server's link: the download alone is shared."""
    network = "servers: 1, nic: {server: 100 MB/s}"
    found = measure(play, scenario(4, 40_000, 0.6, 20, "", network), "jitter={compute: exponential}")
    assert found.steps_per_s == pytest.approx(mva(0.6, [0.2, 0.2], 4)[0], rel=0.01)


TABLE = [
    (1, 4, 3.090),
    (1, 8, 4.170),
    (2, 1, 1.233),
    (2, 4, 4.37),
    (2, 8, 6.77),
    (4, 1, 1.408),
    (4, 4, 5.40),
    (4, 8, 9.95),
]
CV = "jitter={compute: {lognormal: 0.1}, communication: {lognormal: 0.1}}"


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "workers", "recorded"), TABLE)
def test_equal_shares_on_several_servers(play: Play, servers: int, workers: int, recorded: float) -> None:
    """Z = .6, .2 down and .2 up in all: the recorded simulations of a fork-join network."""
    if servers == 1:
        assert mva(0.6, [0.2, 0.2], workers)[0] == pytest.approx(recorded, abs=5e-4)
    network = f"servers: {servers}, nic: {{server: 100 MB/s}}"
    found = measure(play, scenario(workers, 40_000 if workers > 1 else 8_000, 0.6, 20, "", network), CV)
    assert found.steps_per_s == pytest.approx(recorded, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "recorded"), [(4, 3.556), (8, 5.08)])
def test_skewed_shares_on_two_servers(play: Play, workers: int, recorded: float) -> None:
    """Four fifths on one of two servers."""
    text = f"""\
name: skewed
model:
  layers:
    - {{name: most, forward: 0.3 s, backward: 0.3 s, output: 0 B, parameters: 16 MB}}
    - {{name: rest, forward: 0 s, backward: 0 s, output: 0 B, parameters: 4 MB}}
  batch_size: 1
cluster: {{workers: {workers}, servers: 2, nic: {{server: 100 MB/s}}}}
schedule: {{name: parameter_server, mini_batches: {40_000 // workers}}}
parameter_servers: {{sharding: {{explicit: {{most: 0, rest: 1}}}}}}
seed: 1
"""
    assert measure(play, text, CV).steps_per_s == pytest.approx(recorded, rel=0.01)


STALENESS = [(2, 0.850), (4, 2.455), (8, 5.219), (16, 9.627)]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "recorded"), STALENESS)
def test_staleness_by_the_instant_of_reading(play: Play, workers: int, recorded: float) -> None:
    """Read on request: W − 1. On delivery: less what is queued at the downlink with one worker fewer."""
    closed_form = workers - 1 - mva(0.7, [0.15, 0.15], workers - 1)[1][0]
    assert closed_form == pytest.approx(recorded, abs=5e-4)
    varying, network = CV.replace("{lognormal: 0.1}", "{lognormal: 0.5}"), "servers: 1, nic: {server: 100 MB/s}"
    requested = measure(play, scenario(workers, 16_000, 0.7, 15, "", network), varying).staleness
    assert requested == pytest.approx(workers - 1, rel=1e-3)
    text = scenario(workers, 60_000, 0.7, 15, "", network)
    delivered = measure(play, text, varying, "schedule.snapshot=on_delivery").staleness
    assert delivered == pytest.approx(recorded, rel=0.01)


@pytest.mark.slow
def test_constant_times_lock_their_phases(play: Play) -> None:
    """Z = .75, D = .25, no variance: from a common start four workers go on in step for ever, far below theory."""
    text = scenario(4, 4_000, 0.75, 4, ", discipline: processor_sharing, apply: {per_tensor: 250 ms}", "servers: 1")
    together = measure(play, text, "schedule.start=together").steps_per_s
    assert together == pytest.approx(4 / (0.75 + 4 * 0.25), rel=1e-6)
    assert together == pytest.approx(2.285, abs=1e-3)
    rates = [measure(play, text, f"seed={seed}").steps_per_s for seed in range(5)]
    assert np.ptp(rates) > 0.1  # the phases of the start decide, and stay


@pytest.mark.slow
def test_the_interval_is_as_wide_as_runs_differ(play: Play) -> None:
    """Half of it is 2.093 standard errors, as batch means of one run tell them and many runs show them."""
    text = scenario(4, 4_000, 0.75, 4, ", apply: {per_tensor: 250 ms}", "servers: 1")
    rates, halves = [], []
    for seed in range(40):
        found = parameter_server.compute(
            play(text, f"seed={seed}", "jitter={compute: exponential, apply: exponential}")
        )
        rates.append(found["steps_per_s"])
        halves.append(np.ptp(found["steps_per_s_interval"]) / 2)
    assert np.mean(rates) == pytest.approx(mva(0.75, [0.25], 4)[0], rel=0.005)
    assert np.mean(halves) / 2.093 == pytest.approx(np.std(rates, ddof=1), rel=0.34)  # three times what 40 runs err
