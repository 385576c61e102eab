"""Scenarios with parameter servers: what may be written, what is refused and where, what the commands print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scenarios.command_line import app
from scenarios.compose import Composed, compose
from scenarios.load import apply_sets, load_document, parse_text, shipped
from scenarios.points import parse_points
from scenarios.run_folder import run_point
from scenarios.schema import json_schema, parse
from sim.errors import ScenarioError, TwinrailError, UnsupportedPlan
from sim.planners import PLANNERS
from sim.trace import Trace

BASE = """\
name: base
model:
  layers:
    - {name: a, forward: 1 ms, backward: 2 ms, output: 1 kB, parameters: 1 MB}
    - {name: b, forward: 1 ms, backward: 2 ms, output: 1 kB, parameters: 3 MB}
  batch_size: 8
cluster: {workers: 3, servers: 2, device: k80, host: host, nic: 1 Gbit/s, link: {latency: 50 us}}
schedule: {name: parameter_server, mini_batches: 4}
"""


def composed(text: str, *sets: str) -> Composed:
    document = apply_sets(parse_text(text, "base.yaml"), sets)
    return compose(parse(document, PLANNERS), document)


REFUSED = {
    "consistency=asap": "schedule.consistency: expected asp, bsp, {ssp: steps ahead} or {backup: workers to spare}, "
    "got 'asap' (did you mean 'asp'?)",
    "consistency={spp: 1}": "did you mean 'ssp'?",
    "consistency={ssp: -1}": "expected a whole number of steps, got -1",
    "consistency={backup: 0}": "expected a whole number of workers, got 0",
    "consistency={backup: 3}": "3 of 3 workers to spare: at least one must be left",
    "order=priorty": "did you mean 'priority'?",
    "order={window: 64}": "a size needs a unit",
    "order={window: 64 KiB}": "schedule.order has no influence without granularity: layer",
    "order=priority": "schedule.order has no influence without granularity: layer",
    "bucket=4 MiB": "schedule.bucket has no influence without granularity: layer",
    "bucket=4": "a size needs a unit",
    "buckets=4": "unknown key 'buckets' of schedule 'parameter_server' (did you mean 'bucket'?)",
    "granularity=layers": "expected one of step, layer, got 'layers' (did you mean 'layer'?)",
    "snapshot=on_demand": "expected one of on_request, on_delivery, got 'on_demand'",
    "weights=stash": "schedule.weights: 'stash' has no influence: no weights of this 'parameter_server' are ever stale",
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_wrong_key_of_the_schedule(change: str) -> None:
    with pytest.raises(TwinrailError) as caught:
        composed(BASE, f"schedule.{change}")
    assert REFUSED[change] in str(caught.value)


SYNCHRONOUS = {
    "start=random": "schedule.start: random has no influence under bsp: all wait for all",
    "snapshot=on_delivery": "schedule.snapshot has no influence under bsp: no update comes between",
}


@pytest.mark.parametrize("change", SYNCHRONOUS)
def test_what_a_barrier_leaves_without_influence(change: str) -> None:
    with pytest.raises(TwinrailError) as caught:
        composed(BASE, "schedule.consistency=bsp", f"schedule.{change}")
    assert SYNCHRONOUS[change] in str(caught.value)


SECTIONS = {
    "parameter_servers": {
        "{shardin: even}": ".shardin: unknown key 'shardin' (did you mean 'sharding'?)",
        "{sharding: evn}": ".sharding: expected round_robin, greedy, even, best_fit, or {explicit: {layer: server}}, "
        "got 'evn' (did you mean 'even'?)",
        "{sharding: {explicit: {a: 0, bb: 1}}}": ".sharding.explicit.bb: no layer with parameters has that name",
        "{sharding: {explicit: {a: 0}}}": ".sharding.explicit: no server for b",
        "{sharding: {explicit: {a: 0, b: 2}}}": ".sharding.explicit.b: there are 2 servers, from 0 to 1",
        "{count: 3}": ".count: 3 servers on 2 hosts (at most 2)",
        "{cores: 0}": ".cores: must be at least 1, got 0",
        "{discipline: fifo}": ".discipline: expected one of fcfs, processor_sharing, got 'fifo'",
        "{apply: {}}": ".apply: is empty: expected bandwidth, per_tensor or both",
        "{apply: {per_tensor: 5}}": ".apply.per_tensor: a time needs a unit",
    },
    "background": {
        "{workers: 3, parameters: 1 MB, compute: 1 s}": ".workers: 3 of 3 workers: none is left to train",
        "{workers: 1, parameters: 1 MB}": ".compute: missing: the time that a worker of it computes",
        "{workers: 1, parameters: 1 MB, compute: 0 s}": ".compute: must be above 0: its steps have to take time",
    },
    "stragglers": {
        "[{factor: 2}]": ".0: expected a worker, a probability, or both",
        "[{worker: worker7, factor: 2}]": ".0.worker: no worker is named 'worker7' (did you mean 'worker",
        "[{probability: 1.5, factor: 2}]": ".0.probability: must be at most 1.0, got 1.5",
    },
    "faults": {
        "[{at: 1 s, node: serve0, down: 1 s}]": ".0.node: no worker or server is named 'serve0' (did you mean 'server",
        "[{at: 1 s, node: worker0}]": ".0.down: missing: goes with node",
        "[{at: 1 s}]": ".0: expected exactly one of node with down, link with bandwidth with for; got none",
        "[{at: 1 s, link: [worker0, server0], bandwidth: 1 MB/s, for: 1 s}]": ".0.link: there is no link between "
        "'worker0' and 'server0'",
        "[{at: 1 s, link: [worker0, switch], bandwidth: 1 GB/s, for: 1 s}]": ".0.bandwidth: not below the 1.25e+08 B/s "
        "of link 'worker0>switch'",
        "[{at: 1 s, node: worker0, down: 5 s}, {at: 2 s, node: worker0, down: 1 s}]": ": 'worker0' is down already",
    },
    "jitter": {
        "{compute: exponentiall}": ".compute: expected constant, exponential, {lognormal: 0.3}, {uniform: 0.1} or "
        "{empirical: file or list}, got 'exponentiall' (did you mean 'exponential'?)",
        "{compute: {empirical: [1.0]}}": ".compute.empirical",
    },
    "samples": {"100": ": "},
    "partition": {"{cuts: [1]}": ": every worker has the whole model (leave it out)"},
    "memory": {
        "{checkpoint: {}}": ".checkpoint: not with schedule.name: parameter_server",
        "{allocator: caching}": ".allocator: not with schedule.name: parameter_server, whose ops allocate nothing",
    },
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in SECTIONS.items() for value in values])
def test_a_wrong_section(key: str, value: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        composed(f"{BASE}{key}: {value}\n")
    assert f"base.yaml:9: {key}{SECTIONS[key][value]}" in str(caught.value)


@pytest.mark.parametrize("line", ["backend: longest_path", "steady_state: detect"])
def test_what_cannot_play_an_order_that_depends_on_time(line: str) -> None:
    point = parse_points(parse_text(f"{BASE}{line}\n", "base.yaml"), PLANNERS)[0]
    with pytest.raises(UnsupportedPlan, match="the order of 'parameter_server' depends on time"):
        run_point(point, "base")


IDLE = {
    "parameter_servers: {cores: 2}": "parameter_servers.cores: has no influence: updates take no time (give cluster",
    "parameter_servers: {discipline: fcfs}": "parameter_servers.discipline: has no influence: updates take no time",
    "jitter: {apply: exponential}": "jitter.apply: has no influence: updates take no time",
    "jitter: {communication: exponential}": "jitter.communication: has no influence: transfers take no time (give clus",
}


@pytest.mark.parametrize("section", IDLE)
def test_what_is_said_of_things_that_take_no_time(section: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        composed(f"{BASE}{section}\n", "cluster={workers: 3, servers: 2}")
    assert IDLE[section] in str(caught.value)


CLUSTERS = {
    "{workers: 3, servers: 1, nic: 1 GB}": "cluster.nic.worker: 'GB' is no unit of a bandwidth",
    "{workers: 3, servers: 1, nic: {workers: 1 GB/s}}": "unknown key 'workers' (did you mean 'worker'?)",
    "{workers: 3, link: {bandwidth: 1 GB/s}}": "of workers and servers it is that of their nic (write cluster.nic)",
    "{workers: 3, link: {kind: fifo}}": "cluster.link.kind: has no influence without cluster.nic",
    "{workers: 3, concurrency: exclusive}": "'concurrency' belongs with preset or file or devices",
    "{devices: 3, link: {kind: latency}}": "a parameter server needs a node of kind host (write {workers: 8, servers",
    "{devices: 3, host: host, servers: 1, link: {kind: latency}}": "'servers' belongs with workers",
}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_wrong_cluster(cluster: str) -> None:
    with pytest.raises(TwinrailError) as caught:
        composed(BASE, f"cluster={cluster}")
    assert CLUSTERS[cluster] in str(caught.value)


@pytest.mark.parametrize("section", ["parameter_servers: {}", "faults: [{at: 1 s, node: gpu0, down: 1 s}]"])
def test_sections_that_say_nothing_elsewhere(section: str) -> None:
    text = BASE.replace("{name: parameter_server, mini_batches: 4}", "{name: data_parallel, sync: parameter_server}")
    with pytest.raises(ScenarioError, match=f"9: {section.split(':')[0]}: says nothing without schedule.name"):
        composed(f"{text}{section}\n")


def test_apply_belongs_to_servers() -> None:
    text = BASE.replace("{name: parameter_server, mini_batches: 4}", "{name: single}")
    with pytest.raises(ScenarioError, match=r"10: jitter.apply: says nothing without schedule.name: parameter_server"):
        composed(f"{text}samples: 100\njitter: {{apply: {{lognormal: 0.1}}}}\nbackend: longest_path\n")


def test_all_faults_come_at_once() -> None:
    text = f"{BASE}stragglers: [{{factor: 2}}]\nbackground: {{workers: 0}}\nfaults: [{{at: 1, node: x, down: 1 s}}]\n"
    with pytest.raises(ScenarioError) as caught:
        composed(text, "schedule.order=none")
    assert [fault.line for fault in caught.value.faults] == [9, 10, 10, 10, 11, None]


def test_the_cluster_of_workers_and_servers() -> None:
    cluster = composed(BASE).binding.cluster
    assert [node.name for node in cluster.nodes] == ["worker0", "worker1", "worker2", "server0", "server1", "switch"]
    route = cluster.route("server1", "worker2")
    assert [cluster.links[link].name for link in route] == ["server1>switch", "switch>worker2"]
    assert {cluster.links[link].kind for link in route} == {"fair_share"}
    assert cluster.latency_s(route) == pytest.approx(50e-6)
    assert cluster.bytes_per_s(route) == 125e6
    free = composed(BASE, "cluster.nic={server: 10 Gbit/s}").binding.cluster
    kinds = {link.name: link.kind for link in free.links}
    assert (kinds["worker0>switch"], kinds["server0>switch"]) == ("latency", "fair_share")


def test_the_demands_that_a_binding_holds() -> None:
    """What analysis reads: bytes by part, seconds by worker and part, the cores of each server."""
    from sim.binding import Cost
    from sim.ops import OpKind

    plan, binding = composed(BASE, "parameter_servers={sharding: greedy, apply: {bandwidth: 1 GB/s}, cores: 2}")
    layout = plan.work.layout  # type: ignore[union-attr]
    assert layout is not None
    assert (layout.workers, layout.servers) == (3, (3, 4))
    assert [part.server for part in layout.parts] == [0, 1]
    assert [binding.payload_bytes[Cost(OpKind.PUSH, 0, part)] for part in (0, 1)] == [1e6, 3e6]
    assert [binding.seconds[Cost(OpKind.UPDATE, 0, part)] for part in (0, 1)] == pytest.approx([1e-3, 3e-3])
    assert binding.seconds[Cost(OpKind.FORWARD, 0, -1, 2)] == pytest.approx(2e-3)
    assert {device: service.cores for device, service in binding.conditions.services.items()} == {3: 2, 4: 2}
    assert binding.samples == 8


def test_measured_times_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("0.9\n\n1.1\n1.0\n")
    (tmp_path / "base.yaml").write_text(f"{BASE}jitter: {{compute: {{empirical: times.txt}}}}\n")
    document = load_document(tmp_path / "base.yaml")
    binding = compose(parse(document, PLANNERS), document).binding
    assert binding.conditions.jitter.compute is not None
    assert binding.conditions.jitter.compute.values == (0.9, 1.1, 1.0)
    with pytest.raises(ScenarioError, match=r"jitter.compute.empirical: there is no file .*nowhere.txt"):
        composed(f"{BASE}jitter: {{compute: {{empirical: nowhere.txt}}}}\n")
    (tmp_path / "times.txt").write_text("0.9\nfast\n")
    with pytest.raises(
        ScenarioError, match=r"times.txt:2: jitter.compute.empirical: expected a time above 0, got 'fast'"
    ):
        compose(parse(document, PLANNERS), document)


def test_editors_are_told_the_short_forms() -> None:
    schema = json_schema()
    schedule = schema["$defs"]["Schedule"]["properties"]
    assert schedule["consistency"]["anyOf"][0] == {"enum": ["asp", "bsp"]}
    assert {"parameter_servers", "background", "stragglers", "faults"} <= schema["properties"].keys()


def answer(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_a_run_prints(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    text = answer("run", str(tmp_path / "base.yaml"), "--out", str(tmp_path / "out"))
    summary, details = (table.strip() for table in text.split("\n\n") if table.strip())
    assert "steps/s" in summary.splitlines()[0]
    assert [line.split()[0] for line in details.splitlines()[2:]] == [
        "server0",
        "server1",
        "worker0",
        "worker1",
        "worker2",
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"gantt.png", "result.json", "table.txt", "traces"}
    result = json.loads(answer("run", str(tmp_path / "base.yaml"), "--json"))
    served = result["parameter_servers"]
    assert served["imbalance"] == pytest.approx(1.5)  # 1 and 3 of 4 MB
    assert result["samples_per_s"] == pytest.approx(8 * served["steps_per_s"])
    assert answer("run", str(tmp_path / "base.yaml"), "--json") == answer("run", str(tmp_path / "base.yaml"), "--json")


LIBRARY = [name for name in shipped("library") if name.startswith("ps-")]


def library(name: str) -> dict[str, dict[str, Any]]:
    points = parse_points(load_document(shipped("library")[name]), PLANNERS)
    return {outcome.name: outcome.result for outcome in (run_point(point, name) for point in points)}


def test_two_servers_do_not_help_vgg_under_round_robin() -> None:
    found = library("ps-vgg-two-servers-trap")
    rate = {name: result["parameter_servers"]["steps_per_s"] for name, result in found.items()}
    balance = {name: result["parameter_servers"]["imbalance"] for name, result in found.items()}
    assert balance["two by round robin"] == pytest.approx(2, rel=1e-3)
    assert rate["two by round robin"] < 1.08 * rate["one server"]
    assert rate["two by greedy"] > 1.15 * rate["one server"]  # the first linear layer, three quarters, stays whole
    assert min(rate["two by even"], rate["two by best fit"]) > 1.5 * rate["one server"]


def test_what_consistency_costs() -> None:
    found = {name: result["parameter_servers"] for name, result in library("ps-consistency").items()}
    rate = {name: served["steps_per_s"] for name, served in found.items()}
    assert rate["asynchronous"] > rate["stale-synchronous 3"] > 1.3 * rate["stale-synchronous 0"]
    assert rate["one to spare"] > rate["bulk-synchronous"]
    assert found["bulk-synchronous"]["staleness"]["max"] == 0
    assert found["asynchronous"]["staleness"]["mean"] == pytest.approx(7, rel=0.05)


def test_what_the_fault_drill_shows() -> None:
    found = {name: result["parameter_servers"]["faults"] for name, result in library("ps-fault-drill").items()}
    for name, faults in found.items():
        worker, server, link = (fault["steps_per_s"] for fault in faults)
        assert server["during"] < 0.3 * server["before"], name
        assert link["during"] < 0.6 * link["before"], name
        lone = worker["during"] / worker["before"]
        assert (lone < 0.5) == (name in ("bulk-synchronous", "stale-synchronous")), name


def test_the_library_names_its_scenarios(play: Callable[..., Trace]) -> None:
    assert len(LIBRARY) == 9
    for name in LIBRARY:
        assert shipped("library")[name].read_text("utf-8").startswith("# ")
        for point in parse_points(load_document(shipped("library")[name]), PLANNERS):
            compose(point.scenario, point.document)
