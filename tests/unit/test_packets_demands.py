"""Demands: estimators on numbers known by hand, and the way round from a simulated run over its capture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis import parameter_server, served_steps
from analysis.packets import demands, links, synthesis
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import read
from analysis.packets.steps import Spans
from analysis.queueing import exact
from analysis.queueing.network import Network, Station
from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.run_folder import read_points
from sim.cluster import Cluster
from sim.errors import UnsupportedPlan
from sim.trace import Trace

THINK, MEGABYTES, RATE, APPLY = 0.2, 10, 100, 2000


def scenario(workers: int, servers: int, steps: int, variation: float = 0.0, worker_nic: str = "10 GB/s") -> str:
    varies = f"{{lognormal: {variation}}}" if variation else "constant"
    return f"""\
name: there and back
model:
  uniform: {{forward: {THINK / 3} s, backward: {2 * THINK / 3} s, activation: 0 B, parameters: {MEGABYTES} MB}}
  batch_size: 8
cluster:
  workers: {workers}
  servers: {servers}
  nic: {{server: {RATE} MB/s, worker: {worker_nic}}}
  link: {{latency: 50 us}}
parameter_servers: {{sharding: even, apply: {{bandwidth: {APPLY} MB/s}}}}
schedule: {{name: parameter_server, mini_batches: {steps}}}
jitter: {{compute: {varies}, communication: {varies}, apply: {varies}}}
seed: 1
"""


def simulated(text: str) -> tuple[Trace, Cluster]:
    (point,) = read_points(parse_text(text, "scenario.yaml"))
    plan, binding = compose(point.scenario, point.document)
    return load("simulated").execute(plan, binding, point.scenario.seed), binding.cluster


def there_and_back(text: str, segment_bytes: int = 36_000) -> dict[str, Any]:
    """Simulate, capture, read."""
    transfers = synthesis.of_trace(*simulated(text))
    records = synthesis.synthesize(transfers, segment_bytes)
    file = io.BytesIO(synthesis.FILE_HEADER.tobytes() + records.tobytes())
    servers = parse_servers(synthesis.addresses(1 + max(transfer.server for transfer in transfers)))
    return dict(read(file, servers).result)


def recovered(found: dict[str, Any], servers: int) -> NDArray[np.float64]:
    """Everything that was put in, as a share of it: think time, and the demands of every server."""
    known = {"downlink": MEGABYTES / RATE / servers, "uplink": MEGABYTES / RATE / servers}
    known["apply"] = MEGABYTES / APPLY / servers
    shares = [
        server["demand_s"][name]["mean"] / known_s for server in found["servers"] for name, known_s in known.items()
    ]
    return np.array([found["think_time_s"]["mean"] / THINK, *shares])


CORNERS = [(1, 1), (2, 4), (8, 2)]


@pytest.mark.parametrize(("workers", "servers"), CORNERS)
def test_constant_demands_come_back_within_a_hundredth(workers: int, servers: int) -> None:
    assert recovered(there_and_back(scenario(workers, servers, 25)), servers) == pytest.approx(1, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_demands_come_back(workers: int, servers: int) -> None:
    """Constant ones within 1 %, those of cv .3 within 3 %: 1,600 steps leave .75 % to chance."""
    constant = there_and_back(scenario(workers, servers, 30))
    assert recovered(constant, servers) == pytest.approx(1, rel=0.01)
    varied = there_and_back(scenario(workers, servers, 1600 // workers, 0.3), 60_000)
    assert recovered(varied, servers) == pytest.approx(1, rel=0.03)
    for demand in (server["demand_s"][name] for server in varied["servers"] for name in ("downlink", "uplink")):
        assert demand["low"] < demand["mean"] < demand["high"] < 1.15 * demand["mean"]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (3, 4), (8, 4)])
def test_demands_come_back_from_behind_workers_links(workers: int, servers: int) -> None:
    """Equal links everywhere, cv .3: servers are seldom the only limit, so rates must be compared within transfers."""
    varied = there_and_back(scenario(workers, servers, 1600 // workers, 0.3, "100 MB/s"), 60_000)
    assert recovered(varied, servers) == pytest.approx(1, rel=0.06)


def test_where_workers_links_are_the_limit_it_is_said() -> None:
    """Two servers on equal links: one worker can tell only what both move together."""
    found = there_and_back(scenario(1, 2, 25, worker_nic="100 MB/s"))
    assert recovered(found, 2)[1] == pytest.approx(2, rel=0.01)
    assert sum("upper bounds" in note for note in found["notes"]) == 2


@pytest.mark.parametrize(("worker_nic", "workers"), [("100 MB/s", 8), ("60 MB/s", 4)])
def test_enough_workers_show_what_servers_can_do(worker_nic: str, workers: int) -> None:
    found = there_and_back(scenario(workers, 1 if workers == 4 else 2, 60, worker_nic=worker_nic))
    assert recovered(found, 1 if workers == 4 else 2) == pytest.approx(1, rel=0.02)


def test_synchronous_training_over_the_shipped_cluster() -> None:
    text = """\
name: bsp
model: {uniform: {forward: 10 ms, backward: 20 ms, activation: 0 B, parameters: 20 MB, update: 5 ms}, batch_size: 8}
cluster: ethernet-ps
schedule: {name: data_parallel, sync: parameter_server, mini_batches: 8}
"""
    found = there_and_back(text, 9_000)
    assert [worker["steps"] for worker in found["workers"]] == [8] * 8
    assert found["think_time_s"]["mean"] == pytest.approx(0.03, rel=0.01)
    demand = found["servers"][0]["demand_s"]
    assert [demand[way]["mean"] for way in ("downlink", "uplink")] == pytest.approx([20e6 / 1.18e9] * 2, rel=0.01)


def test_from_two_workers_to_eight() -> None:
    """Simulate, capture, read demands, solve the network: throughput as if eight workers had been simulated."""
    found = there_and_back(scenario(2, 1, 400, 0.3), 60_000)
    demand = found["servers"][0]["demand_s"]
    stations = tuple(Station(name, demand[name]["mean"]) for name in ("downlink", "uplink", "apply"))
    network = Network(stations, found["think_time_s"]["mean"])
    for workers in (1, 4, 8):
        trace, _ = simulated(scenario(workers, 1, 3000 // workers, 0.3))
        expected = parameter_server.window(served_steps.compute(trace)).steps_per_s
        assert exact.solve(network, workers).throughput_per_s == pytest.approx(expected, rel=0.03), workers


def test_a_mean_and_a_ratio() -> None:
    """Student's t for four values; a ratio of constant rate has no spread."""
    found = demands.mean(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(
        (2.5, 2.5 - 3.182446 * np.sqrt(5 / 3 / 4), 2.5 + 3.182446 * np.sqrt(5 / 3 / 4)), rel=1e-6
    )
    assert demands.mean(np.array([3.0])) == (3.0, None, None)
    assert demands.ratio(np.array([1.0, 2, 0]), np.array([2.0, 4, 0]), 10) == pytest.approx((5, 5, 5))


def test_the_interval_of_a_ratio_covers() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        below = random.exponential(1, 20)
        found = demands.ratio(below * 0.3 + random.normal(0, 0.05, 20), below)
        assert found.low is not None
        assert found.high is not None
        hits += found.low < 0.3 < found.high
    assert 0.90 < hits / 400 < 0.99


def spans(edges: list[tuple[float, float]], size: float, knots: list[list[tuple[float, float]]]) -> Spans:
    """Transfers whose cumulated bytes bend at ``knots`` (time, share sent)."""
    begin, end = (np.array(column, float) for column in zip(*edges, strict=True))
    time, sent = [], []
    for number, (edge, bends) in enumerate(zip(edges, knots, strict=True)):
        at, share = zip((edge[0], 0.0), *bends, (edge[1], 1.0), strict=True)
        time.append(np.linspace(*edge, 401))
        sent.append((number + np.interp(time[-1], at, share)) * size)
    sizes = np.full(len(edges), round(size))
    return Spans(np.arange(len(edges)), begin, begin, end, sizes, np.concatenate(time), np.concatenate(sent))


def test_a_shared_link_is_busy_while_it_carries_anything() -> None:
    """Two workers, half a transfer apart, share 1 MB/s: the union is busy, whatever each of them got."""
    one = spans([(0, 1.5)], 1e6, [[(0.5, 0.5)]])
    two = spans([(0.5, 2.0)], 1e6, [[(1.5, 0.5)]])
    link = links.of_direction({(0, 0): one, (1, 0): two}, 0.0)[0]
    assert link.busy_s.sum() == pytest.approx(2.0)
    assert link.moved.sum() == pytest.approx(2e6)
    assert not link.limited


def test_a_link_that_workers_cannot_fill_is_half_busy() -> None:
    """A worker of half the server's speed keeps its rate when another comes: only together do they fill the link."""
    one = spans([(0, 2), (4, 6)], 1e6, [[(1, 0.5)], [(5, 0.5)]])
    two = spans([(1, 3), (5, 7)], 1e6, [[(2, 0.5)], [(6, 0.5)]])
    link = links.of_direction({(0, 0): one, (1, 0): two}, 0.0)[0]
    assert link.busy_s.sum() == pytest.approx(4.0)  # of 6 s in which it carried something
    assert link.limited  # three workers might have moved more


def test_what_cannot_be_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedPlan, match="nothing to capture"):
        synthesis.synthesize([])
    monkeypatch.setattr(synthesis, "MOST_PACKETS", 4_000)
    many = [synthesis.Transfer(0, 0, False, [0, 1], [0, 1e7])]
    with pytest.raises(UnsupportedPlan, match="use --segment 3756"):
        synthesis.synthesize(many)
    assert len(synthesis.synthesize(many, 3756)) <= 4_000
    with pytest.raises(UnsupportedPlan, match="fewer steps"):
        synthesis.synthesize([synthesis.Transfer(0, 0, False, [0, 1], [0, 1e12])])


def test_a_synthesized_capture_is_one_to_others(tmp_path: Path) -> None:
    """dpkt reads it: order of time, checksums, sequence and acknowledgement numbers."""
    import dpkt

    transfers = [
        synthesis.Transfer(2, 1, False, [0.0, 0.1, 0.2], [0, 90_000, 100_000], asked_s=0.0),
        synthesis.Transfer(2, 1, True, [0.5, 0.6], [0, 600_000], answered_s=0.7),
        synthesis.Transfer(0, 0, True, [0.05, 0.6], [0, 50_000]),
    ]
    synthesis.write(synthesis.synthesize(transfers), tmp_path / "x.pcap")
    sent: dict[tuple[bytes, bytes], int] = {}
    reached: dict[tuple[bytes, bytes], int] = {}
    last = 0.0
    with (tmp_path / "x.pcap").open("rb") as file:
        for time, raw in dpkt.pcap.Reader(file):
            assert time >= last
            last = time
            packet = dpkt.ethernet.Ethernet(raw).data
            segment, way = packet.data, (packet.src, packet.dst)
            assert dpkt.in_cksum(bytes(raw[14:34])) == 0
            payload = packet.len - 40
            grown = payload + bool(segment.flags & dpkt.tcp.TH_SYN)
            assert segment.seq == reached.get(way, segment.seq)
            assert segment.ack == reached.get(way[::-1], 0)
            reached[way] = (segment.seq + grown) % 2**32
            sent[way] = sent.get(way, 0) + payload
    assert sorted(sent.values()) == [0, 50_000, 100_000 + 64, 600_000 + 64]


def test_rates_of_a_trace_are_its_fair_shares() -> None:
    """The second pull halves the first: a quarter of its bytes are sent in its first eighth, not evenly."""
    text = scenario(2, 1, 2).replace("seed: 1", "seed: 3")
    for transfer in synthesis.of_trace(*simulated(text)):
        rates = np.diff(transfer.sent) / np.diff(transfer.time_s)
        assert transfer.sent[-1] == pytest.approx(MEGABYTES * 1e6)
        assert all(np.isclose(rates, RATE * 1e6, rtol=1e-6) | np.isclose(rates, RATE * 5e5, rtol=1e-6))


def test_links_that_are_no_limit_are_no_obstacle() -> None:
    """Transfers over pure delays last no time; they are still seen."""
    found = there_and_back(
        scenario(1, 1, 8).replace("nic: {server: 100 MB/s, worker: 10 GB/s}", "nic: {server: 10 GB/s}")
    )
    assert found["workers"][0]["steps"] == 8
