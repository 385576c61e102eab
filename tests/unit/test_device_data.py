"""The shipped YAML: every figure has a source, and every preset hangs together."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sim.cluster import Cluster, Link, Node

SCENARIOS = Path(__file__).parents[2] / "scenarios"
DEVICES = sorted(path.stem for path in (SCENARIOS / "devices").glob("*.yaml"))
CLUSTERS = sorted(path.stem for path in (SCENARIOS / "clusters").glob("*.yaml"))
MODELS = sorted(path.stem for path in (SCENARIOS / "models").glob("*.yaml"))
SCALE = {"GB": 1e9, "GB/s": 1e9, "TFLOP/s": 1e12, "us": 1e-6}
FIGURES = {"memory", "memory_bandwidth", "peak", "compute_efficiency", "memory_efficiency"}


def read(folder: str, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(SCENARIOS / folder / f"{name}.yaml")
    assert loaded["name"] == name
    return loaded


def quantity(text: str, unit: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?) {unit}", text)
    assert match, f"{text!r} is no quantity in {unit}"
    return float(match[1]) * SCALE[unit]


def cluster(name: str) -> Cluster:
    given = read("clusters", name)
    nodes = tuple(Node(node["name"], node["kind"]) for node in given["nodes"])
    links = tuple(
        Link(
            f"{source}>{target}",
            source,
            target,
            link["kind"],
            quantity(link["latency"], "us"),
            quantity(link["bandwidth"], "GB/s"),
        )
        for link in given["links"]
        for source, target in (link["between"], link["between"][::-1])
    )
    return Cluster(name, nodes, links)


def path(network: Cluster, source: str, target: str) -> list[str]:
    return [source, *(network.links[link].target for link in network.route(source, target))]


def test_what_is_shipped() -> None:
    assert {"k80", "p40", "p100", "v100", "a100", "h100", "h200", "host"} <= set(DEVICES)
    assert {"pcie3-switch-4gpu", "pcie3-two-roots-8gpu", "nvlink-8gpu", "ethernet-ps"} <= set(CLUSTERS)
    assert {"vgg16", "vgg16-cifar", "mlp"} <= set(MODELS)


@pytest.mark.parametrize("name", DEVICES)
def test_every_figure_of_a_device_has_a_unit_and_a_source(name: str) -> None:
    device = read("devices", name)
    assert set(device) == {"name", "source"} | FIGURES
    assert set(device["source"]) == FIGURES
    for figure, source in device["source"].items():
        assert source.startswith(("published: ", "computed from ", "assumed")), figure
    assert device["source"]["compute_efficiency"].startswith("assumed")
    assert device["source"]["memory_efficiency"].startswith("assumed")
    assert quantity(device["memory"], "GB") > 0
    assert quantity(device["memory_bandwidth"], "GB/s") > 0
    assert all(quantity(peak, "TFLOP/s") > 0 for peak in device["peak"].values())
    assert set(device["compute_efficiency"]) == set(device["peak"])
    assert all(0 < share <= 1 for share in (device["memory_efficiency"], *device["compute_efficiency"].values()))


@pytest.mark.parametrize(
    ("name", "cores", "boost_hz", "bus_bits", "bits_per_s"),
    # fp32 peak = 2 flop · cores · boost clock, bandwidth = bus width · rate per pin: the boards' own arithmetic.
    [
        ("k80", 2496, 875e6, 384, 5.0e9),
        ("p40", 3840, 1531e6, 384, 7.23e9),
        ("p100", 3584, 1303e6, 4096, 1.43e9),
        ("v100", 5120, 1530e6, 4096, 1.755e9),
        ("a100", 6912, 1410e6, 5120, 3.186e9),
        ("h100", 16896, 1980e6, 5120, 5.23e9),
        ("h200", 16896, 1980e6, 6144, 6.25e9),
    ],
)
def test_peaks_follow_from_the_hardware(
    name: str, cores: int, boost_hz: float, bus_bits: int, bits_per_s: float
) -> None:
    device = read("devices", name)
    assert quantity(device["peak"]["fp32"], "TFLOP/s") == pytest.approx(2 * cores * boost_hz, rel=0.01)
    assert quantity(device["memory_bandwidth"], "GB/s") == pytest.approx(bus_bits * bits_per_s / 8, rel=0.01)
    assert ("bf16" in device["peak"]) == (name in {"a100", "h100", "h200"})


def test_a_host_is_two_sockets() -> None:
    host, socket = read("devices", "host"), read("devices", "host-socket")
    for figure, unit in (("memory", "GB"), ("memory_bandwidth", "GB/s")):
        assert quantity(host[figure], unit) == 2 * quantity(socket[figure], unit)
    assert quantity(host["peak"]["fp32"], "TFLOP/s") == pytest.approx(2 * 14 * 2.6e9 * 32, rel=0.01)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_joins_known_devices_and_says_where_its_figures_come_from(name: str) -> None:
    given = read("clusters", name)
    assert set(given) == {"name", "source", "nodes", "links"}
    assert "nominal" in given["source"]
    assert "assumed" in given["source"]
    names = [node["name"] for node in given["nodes"]]
    assert len(set(names)) == len(names)
    for node in given["nodes"]:
        assert node["kind"] in {"gpu", "host", "switch"}
        assert ("device" in node) == (node["kind"] != "switch")
        assert node.get("device", "host") in DEVICES
    assert all(end in names for link in given["links"] for end in link["between"])
    network = cluster(name)
    ends = [node.name for node in network.nodes if node.kind != "switch"]
    assert all(network.route(source, target) for source, target in permutations(ends, 2))


def test_pcie_peers_talk_through_the_switch_and_share_the_way_to_the_host() -> None:
    network = cluster("pcie3-switch-4gpu")
    assert path(network, "gpu0", "gpu3") == ["gpu0", "switch", "gpu3"]
    shared = set(network.route("gpu0", "host")) & set(network.route("gpu3", "host"))
    assert [network.links[link].name for link in shared] == ["switch>host"]
    assert network.bytes_per_s(network.route("gpu0", "gpu3")) == 12e9
    assert network.latency_s(network.route("gpu0", "gpu3")) == pytest.approx(4e-6)


def test_two_roots_meet_between_the_sockets() -> None:
    network = cluster("pcie3-two-roots-8gpu")
    assert path(network, "gpu0", "gpu3") == ["gpu0", "switch0", "gpu3"]
    assert path(network, "gpu0", "gpu4") == ["gpu0", "switch0", "host0", "host1", "switch1", "gpu4"]
    assert path(network, "gpu7", "host1") == ["gpu7", "switch1", "host1"]


def test_nvlink_carries_what_gpus_say_to_each_other_and_pcie_the_rest() -> None:
    network = cluster("nvlink-8gpu")
    assert all(path(network, f"gpu{a}", f"gpu{b}")[1] == "nvswitch" for a, b in permutations(range(8), 2))
    assert path(network, "gpu5", "host") == ["gpu5", "port5", "host"]
    assert network.bytes_per_s(network.route("gpu5", "host")) == 50e9


def test_ethernet_workers_reach_the_server_over_its_one_link() -> None:
    network = cluster("ethernet-ps")
    assert len(network.gpus) == 8
    assert path(network, "gpu2", "server") == ["gpu2", "switch", "server"]
