"""Devices and clusters of a scenario, from shipped files or written out in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from scenarios.consistency import devices_at_odds, graph_at_odds
from scenarios.load import load_document, shipped
from scenarios.schema import Cluster as ClusterSection
from scenarios.schema import ClusterFile, ClusterNode, DeviceFile, LinkSettings
from scenarios.schema import Link as LinkSection
from scenarios.server_sections import Nic
from scenarios.strict import validate
from sim.cluster import Cluster, Link, Node
from sim.model import DeviceSpec


@lru_cache
def device_spec(name: str) -> DeviceSpec:
    """The shipped device of that name."""
    file = validate(DeviceFile, load_document(shipped("devices")[name]))
    return DeviceSpec(
        name=file.name,
        memory_bytes=round(file.memory),
        memory_bytes_per_s=file.memory_bandwidth,
        peak_flops_per_s=file.peak.model_dump(exclude_none=True),
        compute_efficiency=file.compute_efficiency.model_dump(exclude_none=True),
        memory_efficiency=file.memory_efficiency,
        source="; ".join(f"{figure}: {source}" for figure, source in file.source.items()),
    )


def build_cluster(section: ClusterSection, folder: Path = Path()) -> Cluster:
    """The cluster of a scenario; ``folder`` is what its ``file`` is relative to.

    Raises
    ------
    ScenarioError : what is wrong in that file, each fault with file and line.
    """
    if section.preset is not None:
        return _of_file(section, _shipped(section.preset))
    if section.file is not None:
        return _of_file(section, _read(folder / section.file))
    if section.devices is not None:
        return _equal_devices(section, section.devices)
    if section.workers is not None:
        return _star(section, section.workers)
    assert section.nodes is not None
    nodes = tuple(_node(node, None, None) for node in section.nodes)
    return Cluster("inline", nodes, _links(section.links or (), None))


@lru_cache
def _shipped(name: str) -> ClusterFile:
    """The shipped cluster of that name."""
    return _read(shipped("clusters")[name])


def _read(path: Path) -> ClusterFile:
    document = load_document(path)
    unknown = devices_at_odds(document.data, ())
    return validate(ClusterFile, document, [*unknown, *graph_at_odds(document.data, ())])


def _of_file(section: ClusterSection, file: ClusterFile) -> Cluster:
    nodes = tuple(_node(node, section.device, section.concurrency) for node in file.nodes)
    changed = [text for text, given in (("device", section.device), ("link", section.link)) if given is not None]
    source = file.source + (f"; {' and '.join(changed)} as set by the scenario" if changed else "")
    return Cluster(file.name, nodes, _links(file.links, section.link), source)


def _equal_devices(section: ClusterSection, count: int) -> Cluster:
    """N equal GPUs (and a host), each pair joined by links of its own."""
    gpus = (ClusterNode(name=f"gpu{index}", kind="gpu") for index in range(count))
    nodes = [_node(gpu, section.device, section.concurrency) for gpu in gpus]
    if section.host is not None:
        nodes.append(Node("host", "host", device_spec(section.host)))
    link = section.link or LinkSettings(kind="latency")
    return Cluster(f"{count} devices", tuple(nodes), [], between_all=_link("", "", link, None), cores=section.cores)


def _star(section: ClusterSection, workers: int) -> Cluster:
    """Workers and servers around a switch, a link of their own in and out; half of the latency on each."""
    gpus = (ClusterNode(name=f"worker{number}", kind="gpu") for number in range(workers))
    hosts = (f"server{number}" for number in range(section.servers or 1))
    spec = None if section.host is None else device_spec(section.host)
    nodes = [*(_node(gpu, section.device, None) for gpu in gpus), *(Node(name, "host", spec) for name in hosts)]
    settings, nic, links = section.link or LinkSettings(), section.nic or Nic(), list[Link]()
    for node in nodes:
        bandwidth = nic.worker if node.kind == "gpu" else nic.server
        kind = "latency" if bandwidth is None else settings.kind or "fair_share"
        for ends in ((node.name, "switch"), ("switch", node.name)):
            link = Link(">".join(ends), *ends, kind, (settings.latency or 0.0) / 2, bandwidth or math.inf)
            links.append(link)
    return Cluster(f"{workers} workers", (*nodes, Node("switch", "switch")), links)


def _node(node: ClusterNode, device: str | None, concurrency: str | float | None) -> Node:
    """A node; ``device`` and ``concurrency`` replace those of a GPU."""
    is_gpu = node.kind == "gpu"
    name = device if device and is_gpu else node.device
    shared = concurrency if concurrency is not None and is_gpu else node.concurrency
    gain = shared if isinstance(shared, float) else None
    return Node(node.name, node.kind, device_spec(name) if name else None, gain)


def _links(sections: Iterable[LinkSection], changes: LinkSettings | None) -> list[Link]:
    links: list[Link] = []
    for section in sections:
        ends = section.between or (section.source or "", section.target or "")
        links.append(_link(ends[0], ends[1], section, changes))
        if section.between:
            links.append(_link(ends[1], ends[0], section, changes))
    return links


def _link(source: str, target: str, section: LinkSettings, changes: LinkSettings | None) -> Link:
    given = section.model_dump() | (changes.model_dump(exclude_unset=True) if changes else {})
    bandwidth = given["bandwidth"] if given["bandwidth"] is not None else math.inf
    return Link(f"{source}>{target}", source, target, given["kind"], given["latency"] or 0.0, bandwidth)
