"""The network of a scenario for real: the commands that build it, what it carries, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import dpkt
import pytest

from backends import torch as backend
from backends.torch import testbed
from backends.torch.servers import Place
from backends.torch.testbed import bed as module
from backends.torch.testbed import host
from backends.torch.testbed.network import commands, namespaces
from scenarios.compose import compose
from scenarios.hardware import build_cluster
from scenarios.load import parse_text
from scenarios.schema import Cluster as ClusterSection
from scenarios.schema import parse
from sim.cluster import Cluster
from sim.errors import BackendFailure, UnsupportedPlan
from sim.ops import OpKind
from sim.planners import PLANNERS

PREFIX = f"twinrail-test-{os.getpid()}"
NODES = ["worker0", "worker1", "server0"]

LACKING = testbed.missing()
real = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))


def star(workers: int = 2, **more: Any) -> Cluster:
    return build_cluster(ClusterSection.model_validate({"workers": workers, **more}))


def layout(rate: str = "100 Mbit/s", **more: Any) -> tuple[testbed.Port, ...]:
    return testbed.ports(star(nic={"server": rate}, **more), NODES)


# The commands, as text.

GOLDEN = """
ip -n p-switch link add name switch up type bridge
ip -n p-worker0 link add name eth0 type veth peer name port0 netns p-switch
ip -n p-worker0 address add 10.0.0.1/32 dev eth0
ip -n p-worker0 link set dev eth0 up
ip -n p-worker0 route add 10.0.0.0/8 dev eth0 src 10.0.0.1 congctl cubic
ip -n p-switch link set dev port0 master switch up
tc -n p-worker0 qdisc add dev eth0 root netem delay 50us limit 1000
tc -n p-switch qdisc add dev port0 root netem delay 50us limit 1000
ip -n p-server0 link add name eth0 type veth peer name port1 netns p-switch
ip -n p-server0 address add 10.0.0.2/32 dev eth0
ip -n p-server0 link set dev eth0 up
ip -n p-server0 route add 10.0.0.0/8 dev eth0 src 10.0.0.2 congctl cubic
ip -n p-switch link set dev port1 master switch up
tc -n p-server0 qdisc add dev eth0 root handle 1: tbf rate 12500000bps burst 12500 limit 64000
tc -n p-server0 qdisc add dev eth0 parent 1:1 netem delay 50us limit 43
tc -n p-switch qdisc add dev port1 root handle 1: tbf rate 12500000bps burst 12500 limit 64000
tc -n p-switch qdisc add dev port1 parent 1:1 netem delay 50us limit 43
"""


def test_the_commands_of_a_worker_and_a_server_with_a_rate_and_a_latency() -> None:
    cluster = star(1, nic={"server": "100 Mbit/s"}, link={"kind": "fair_share", "latency": "100 us"})
    made = testbed.ports(cluster, ["worker0", "server0"])
    assert [" ".join(command) for command in commands("p", made)] == GOLDEN.split("\n")[1:-1]
    assert namespaces("p", made) == ["p-switch", "p-worker0", "p-server0"]


def test_a_link_without_rate_or_latency_is_not_shaped() -> None:
    assert not [command for command in commands("p", testbed.ports(star(), NODES)) if command[0] == "tc"]


def test_what_a_link_is_given_is_its_own() -> None:
    """Out of a node at its own interface, into it at the port of the switch; bursts and queues follow the rate."""
    cluster = star(1, nic={"worker": "1 Gbit/s", "server": "10 Mbit/s"})
    shaped = [" ".join(command) for command in commands("p", testbed.ports(cluster, ["worker0", "server0"]))]
    shaped = [command for command in shaped if command.startswith("tc")]
    assert [command.split(" root ")[0] for command in shaped] == [
        "tc -n p-worker0 qdisc add dev eth0",
        "tc -n p-switch qdisc add dev port0",
        "tc -n p-server0 qdisc add dev eth0",
        "tc -n p-switch qdisc add dev port1",
    ]
    assert all(command.endswith("tbf rate 125000000bps burst 125000 limit 625000") for command in shaped[:2])
    assert all(command.endswith("tbf rate 1250000bps burst 3200 limit 64000") for command in shaped[2:])


def test_every_node_has_an_address_of_its_own() -> None:
    names = [f"worker{number}" for number in range(600)]
    made = testbed.Bed("p", testbed.ports(star(600), names))
    addresses = [made.address(name) for name in names]
    assert len(set(addresses)) == 600
    assert (addresses[0], addresses[254], addresses[255], addresses[599]) == (
        "10.0.0.1",
        "10.0.0.255",
        "10.0.1.0",
        "10.0.2.88",
    )
    assert made.command_prefix("worker7") == ("ip", "netns", "exec", "p-worker7")


def test_what_namespaces_cannot_show_is_refused_all_at_once() -> None:
    nodes = [{"name": "a b", "kind": "gpu"}, {"name": "lonely", "kind": "gpu"}]
    nodes += [{"name": name, "kind": "gpu"} for name in ("left", "right")]
    nodes += [{"name": name, "kind": "switch"} for name in ("one", "two")]
    links = [{"between": ["left", "one"], "kind": "fifo", "bandwidth": "1 GB/s"}]
    links += [{"between": ["right", "two"], "kind": "fair_share", "bandwidth": "1 GB/s"}]
    cluster = build_cluster(ClusterSection.model_validate({"nodes": nodes, "links": links}))
    with pytest.raises(UnsupportedPlan) as refused:
        testbed.ports(cluster, ["a b", "lonely", "left", "right"])
    assert str(refused.value).split("\n") == [
        "node 'a b' gives a namespace its name: use letters, digits, '-', '_' and '.'",
        "'lonely' has not one link to a switch and one from it: write cluster: {workers: 2, nic: 1 Gbit/s}",
        "not all nodes are joined to the same switch: a testbed has one",
        "link 'left>one' is fifo: TCP shares links, use fair_share",
        "link 'one>left' is fifo: TCP shares links, use fair_share",
    ]


# What a machine may lack.


def test_missing_tools_and_rights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert testbed.missing("tcpdump") == "a testbed needs ip, tc, tcpdump: install iproute2 and tcpdump"
    with pytest.raises(BackendFailure, match=r"install iproute2$") as failed, testbed.build(layout()):
        pass
    assert failed.value.exit_code == 1
    for tool in ("ip", "tc"):
        (tmp_path / tool).touch(0o755)
    monkeypatch.setattr(module, "_capabilities", lambda: 1 << 12)
    assert testbed.missing() == "a testbed makes network namespaces: run it as root, or with CAP_SYS_ADMIN"
    monkeypatch.setattr(module, "_capabilities", lambda: 1 << 12 | 1 << 21)
    assert testbed.missing() is None


def test_a_kernel_without_netem_says_what_to_leave_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n")
    tc.chmod(0o755)
    with pytest.raises(BackendFailure, match=r"no netem.*leave out cluster.link.latency"):
        module._run([str(tc), "qdisc", "add", "root", "netem"])
    with pytest.raises(
        BackendFailure, match=r"tc qdisc add root tbf' failed: Error: Specified qdisc kind is unknown.$"
    ):
        module._run([str(tc), "qdisc", "add", "root", "tbf"])


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc/stat: how busy cores are is read there")
def test_how_busy_the_host_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([[100, 0, 50, 800, 50, 0, 0, 0], [130, 20, 60, 820, 60, 0, 5, 5]])
    monkeypatch.setattr(host, "_ticks", lambda: next(ticks))
    assert host.watch()() == pytest.approx(50 / 100)  # of 100 ticks 20 niced, 20 idle, 10 waiting for a disk
    monkeypatch.undo()
    assert 0 <= host.watch()() <= 1


# For real.


def outside() -> str:
    """Everything of the host that a testbed must not touch."""
    shown = ["ip -o link", "ip -o address", "ip route", "tc qdisc"]
    texts = [subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout for command in shown]
    knobs = ("net/ipv4/tcp_congestion_control", "net/ipv4/ip_forward", "net/core/default_qdisc")
    return "\n".join([*texts, *(Path("/proc/sys", knob).read_text() for knob in knobs)])


def left(prefix: str = PREFIX) -> list[str]:
    """Namespaces of a testbed that are still there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(prefix)]


@pytest.fixture
def clean() -> Iterator[None]:
    before = outside()
    assert left() == []
    yield
    deadline_s = time.monotonic() + 10
    while left() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left() == []
    assert outside() == before


SINK = """
import socket, sys, time
with socket.create_server((sys.argv[1], 2222)) as listening:
    print("up", flush=True)
    while True:
        connection, _ = listening.accept()
        size = 0
        while some := connection.recv(1 << 20):
            size += len(some)
        print(size, time.monotonic(), flush=True)
"""
SOURCE = """
import socket, sys, time
print(time.monotonic())
with socket.create_connection((sys.argv[1], 2222)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


class Wire:
    """Sends bytes between nodes."""

    def __init__(self, made: testbed.Bed, stack: ExitStack) -> None:
        self.made, self._stack = made, stack
        self.sinks: dict[str, IO[str]] = {}

    def listen(self, *nodes: str) -> None:
        for node in nodes:
            command = [*self.made.command_prefix(node), sys.executable, "-c", SINK, self.made.address(node)]
            process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            self._stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            self.sinks[node] = process.stdout

    def send(self, pairs: Sequence[tuple[str, str]], size: int) -> list[float]:
        """Bytes/s of each pair, all at once, from before the connection to the last byte."""
        commands = [
            [*self.made.command_prefix(a), sys.executable, "-c", SOURCE, self.made.address(b), str(size)]
            for a, b in pairs
        ]
        sources = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        starts_s = [float(source.communicate(timeout=60)[0]) for source in sources]
        arrived = [self.sinks[b].readline().split() for _, b in pairs]
        assert [int(moved) for moved, _ in arrived] == [size] * len(pairs)
        return [size / (float(end_s) - start_s) for start_s, (_, end_s) in zip(starts_s, arrived, strict=True)]


@pytest.fixture
def wired(clean: None) -> Iterator[Callable[[testbed.Bed], Wire]]:
    with ExitStack() as stack:
        yield lambda made: Wire(made, stack)


def fastest(runs: Sequence[Sequence[float]]) -> list[float]:
    """Of each pair: what a busy machine does to one run it seldom does to all."""
    return [max(rates) for rates in zip(*runs, strict=True)]


PAYLOAD = 1448 / 1514
"""Of a full Ethernet frame with timestamps."""


@real
@pytest.mark.slow
def test_a_link_carries_its_rate_both_ways_and_others_do_not_slow_it(wired: Callable[..., Wire]) -> None:
    """Oracle: the rate of the bucket, frames counted with their headers; each passes its burst once for free."""
    rates = {"server0": 40e6 / 8, "worker0": 80e6 / 8}
    made = testbed.ports(star(nic={"server": "40 Mbit/s", "worker": "80 Mbit/s"}), NODES)
    size = 2_000_000
    with testbed.build(made, PREFIX) as bed:
        wire = wired(bed)
        wire.listen(*NODES)
        up = fastest([wire.send([("worker0", "server0")], size) for _ in range(3)])
        down = fastest([wire.send([("server0", "worker0")], size) for _ in range(3)])
        both = fastest([wire.send([("worker0", "server0"), ("worker1", "worker0")], size) for _ in range(3)])
        expected = [rates["server0"], rates["server0"], rates["server0"], rates["worker0"]]
        for rate, found in zip(expected, [*up, *down, *both], strict=True):
            assert 0.9 * rate * PAYLOAD < found < 1.01 * rate * PAYLOAD


@real
def test_latency_both_ways(wired: Callable[..., Wire]) -> None:
    """20 ms from node to node, half of it on each link: no answer before 40 ms."""
    cluster = star(nic={"server": "100 Mbit/s"}, link={"kind": "fair_share", "latency": "20 ms"})
    try:
        with testbed.build(testbed.ports(cluster, NODES), PREFIX) as bed:
            wire = wired(bed)
            wire.listen("server0")
            ping = "import socket, sys, time; start_s = time.monotonic(); "
            ping += "socket.create_connection((sys.argv[1], 2222)); print(time.monotonic() - start_s)"
            command = [*bed.command_prefix("worker0"), sys.executable, "-c", ping, bed.address("server0")]
            took_s = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
            assert 0.04 <= min(took_s) < 0.06  # the first also asks for the address of the other
    except BackendFailure as error:
        if "netem" not in str(error):
            raise
        pytest.skip(str(error))


@real
def test_a_namespace_that_exists_already_is_named_and_left_alone(clean: None) -> None:
    taken = f"{PREFIX}-worker1"
    subprocess.run(["ip", "netns", "add", taken], check=True)
    try:
        expected = pytest.raises(BackendFailure, match=f"'{taken}' exists already.*ip netns delete {taken}")
        with expected, testbed.build(layout(), PREFIX):
            pass
        assert left() == [taken]
    finally:
        subprocess.run(["ip", "netns", "delete", taken], check=True)


@real
def test_an_error_inside_leaves_nothing(clean: None) -> None:
    def fail() -> None:
        with testbed.build(layout(), PREFIX):
            assert sorted(left()) == sorted(namespaces(PREFIX, layout()))
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        fail()
    assert left() == []


PARENT = f"""
import subprocess, sys, time
from backends.torch import testbed
from scenarios.hardware import build_cluster
from scenarios.schema import Cluster
cluster = build_cluster(Cluster.model_validate({{"workers": 1, "nic": {{"server": "100 Mbit/s"}}}}))
with testbed.build(testbed.ports(cluster, ["worker0", "server0"]), "{PREFIX}") as bed:
    asleep = subprocess.Popen([*bed.command_prefix("server0"), "sleep", "600"])
    print(asleep.pid, flush=True)
    time.sleep(600)
"""


@real
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_parent_that_is_killed_leaves_nothing(clean: None, how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        asleep = int(parent.stdout.readline())
        assert len(left()) == 3
        parent.send_signal(how)
    deadline_s = time.monotonic() + 10
    while left() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left() == []
    assert not Path(f"/proc/{asleep}/exe").exists() or not os.readlink(f"/proc/{asleep}/exe").endswith("sleep")


@real
@pytest.mark.skipif(testbed.missing("tcpdump") is not None, reason=str(testbed.missing("tcpdump")))
def test_a_capture_holds_every_byte_that_passed(wired: Callable[..., Wire], tmp_path: Path) -> None:
    size, file = 1_000_000, tmp_path / "server0.pcap"
    with testbed.build(layout(), PREFIX) as bed:
        wire = wired(bed)
        wire.listen("server0")
        with bed.capture("server0", file):
            wire.send([("worker0", "server0")], size)
        seen = set[int]()
        with file.open("rb") as opened:
            for _, frame in dpkt.pcap.Reader(opened):
                packet = dpkt.ethernet.Ethernet(frame).data
                if packet.data.dport == 2222:
                    length = packet.len - 4 * packet.hl - 4 * packet.data.off
                    seen.update(range(packet.data.seq, packet.data.seq + length))
        assert len(seen) == size
        subprocess.run(["ip", "-n", f"{PREFIX}-worker0", "link", "delete", "eth0"], check=True)
        expected = pytest.raises(BackendFailure, match=r"no capture on worker0: .*eth0: No such device exists")
        with expected, bed.capture("worker0", file):
            pass


SCENARIO = """
name: two workers
model: {uniform: {forward: 5 ms, backward: 10 ms, activation: 0 B, parameters: 200 kB}, batch_size: 1}
cluster: {workers: 2, servers: 1, nic: {server: 100 Mbit/s}, link: {kind: fair_share}}
schedule: {name: parameter_server, mini_batches: 4}
"""


def served(prefix: str, while_up: Callable[[testbed.Bed], None] = lambda _: None) -> Any:
    """A run of parameter servers in namespaces."""
    document = parse_text(SCENARIO, "scenario.yaml")
    plan, binding = compose(parse(document, PLANNERS), document)
    with testbed.build(testbed.ports(binding.cluster, binding.devices), prefix) as bed:
        while_up(bed)
        places = {
            device: Place(bed.address(name), 2222 * name.startswith("server"), bed.command_prefix(name))
            for device, name in enumerate(binding.devices)
        }
        return backend.run(plan, binding, compute="sleep", places=places).trace


@real
@pytest.mark.slow
def test_parameter_servers_run_in_it(clean: None) -> None:
    """No transfer is faster than its link, but for a burst; no pass is shorter than what it holds."""
    trace = served(PREFIX)
    lasted_s = trace.end_s - trace.start_s
    least_s = {OpKind.PULL: (200_000 - 12_500) / 12.5e6, OpKind.PUSH: (200_000 - 12_500) / 12.5e6}
    for kind, seconds in (least_s | {OpKind.FORWARD: 5e-3, OpKind.BACKWARD: 10e-3}).items():
        mine = lasted_s[trace.ops["kind"] == kind]
        assert len(mine) == 2 * 4
        assert mine.min() > seconds


@real
@pytest.mark.slow
def test_a_port_in_use_is_named(wired: Callable[..., Wire]) -> None:
    with pytest.raises(BackendFailure, match=r"cannot listen on tcp://10.0.0.3:2222: Address already in use"):
        served(PREFIX, lambda bed: wired(bed).listen("server0"))
    assert left() == []
