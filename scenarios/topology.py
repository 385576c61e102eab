"""What a machine says of its own wiring, as a cluster: ``nvidia-smi topo -m`` or NCCL's ``NCCL_TOPO_DUMP_FILE``.

Neither knows bandwidths in use. Unless told, they are those that NCCL counts with (``src/graph/topo.h`` and
``ncclTopoAddPci``): a figure for each NVLink of a generation, three quarters of what PCI Express signals, and one for
the way between sockets. What was taken stands in the ``source`` of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from xml.parsers import expat

import networkx as nx

from scenarios.quantities import printable, shown
from sim.errors import Fault, ScenarioError, nearest

NVLINK_GB_PER_S = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
"""One NVLink, each way, by compute capability: ``SM60_NVLINK_BW`` and so on."""
PCIE_GB_PER_S_LANE = {"2.5": 15 / 80, "5": 30 / 80, "8": 60 / 80, "16": 120 / 80, "32": 240 / 80, "64": 480 / 80}
"""One lane by GT/s: ``kvDictPciGen`` over 80."""
SYSTEM_GB_PER_S = 10.0
"""Between sockets: ``SKL_QPI_BW``."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a GPU's data sheet says of its ports: compute capability, NVLinks, GT/s of its x16 PCI Express port."""

    capability: int
    nvlinks: int
    gigatransfers: str


GENERATIONS = {
    "k80": Generation(37, 0, "8"),
    "p40": Generation(61, 0, "8"),
    "p100": Generation(60, 4, "8"),
    "v100": Generation(70, 6, "8"),
    "a100": Generation(80, 12, "16"),
    "h100": Generation(90, 18, "32"),
    "h200": Generation(90, 18, "32"),
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bandwidths that were given, in bytes per second; ``None``: as NCCL counts."""

    nvlink: float | None = None
    pcie: float | None = None
    system: float | None = None


@dataclass
class _Wiring:
    """A cluster in the making."""

    device: str
    speeds: Speeds
    nodes: list[dict[str, str]] = field(default_factory=list)
    nvlinks: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)

    def node(self, name: str, kind: str) -> None:
        self.nodes.append({"name": name, "kind": kind} | ({"device": self.device} if kind == "gpu" else {}))

    def join(self, a: str, b: str, given: float | None, known_gb_per_s: float) -> None:
        """A link at what was given, else at what NCCL counts for it."""
        gb_per_s = known_gb_per_s if given is None else given / 1e9
        self.links.append(_link(a, b, gb_per_s, "2 us"))

    def nvlink(self, a: str, b: str, capability: int, count: int) -> None:
        """NVLinks side by side."""
        known = max((sm for sm in NVLINK_GB_PER_S if sm <= capability), default=min(NVLINK_GB_PER_S))
        each_gb_per_s = NVLINK_GB_PER_S[known] if self.speeds.nvlink is None else self.speeds.nvlink / 1e9
        self.nvlinks.append(_link(a, b, count * each_gb_per_s, "1 us"))

    def sockets(self, names: Iterable[str]) -> None:
        for a, b in combinations(names, 2):
            self.join(a, b, self.speeds.system, SYSTEM_GB_PER_S)

    def file(self, name: str, source: str) -> dict[str, Any]:
        """What `scenarios.schema.ClusterFile` describes."""
        given = {"NVLink": self.speeds.nvlink, "PCI Express": self.speeds.pcie, "sockets": self.speeds.system}
        told = [f"{what} {value / 1e9:g} GB/s as given" for what, value in given.items() if value is not None]
        counted = " and ".join(what for what, value in given.items() if value is None)
        told += [f"{counted}: bandwidths that NCCL counts with, in its src/graph/topo.h"] if counted else []
        told += ["latencies of 1 and 2 us assumed"]
        links = [*self.nvlinks, *self.links]  # of equal ways a route takes the one whose link stands first
        return {"name": name, "source": "; ".join([source, *told]), "nodes": self.nodes, "links": links}


def _link(a: str, b: str, gb_per_s: float, latency: str) -> dict[str, Any]:
    return {"between": [a, b], "kind": "fair_share", "bandwidth": f"{gb_per_s:g} GB/s", "latency": latency}


_CLOSE = ("PIX", "PXB", "PHB", "NODE")
_RELATIONS = ("X", *_CLOSE, "SYS")


@dataclass(frozen=True)
class Matrix:
    """The table of ``nvidia-smi topo -m``: how each two of its devices are joined, and the cores near each GPU."""

    names: tuple[str, ...]
    relation: Mapping[tuple[str, str], str]
    near: Mapping[str, str]

    def together(self, levels: Iterable[str]) -> list[list[str]]:
        """Devices joined by one of these relations, directly or through others, each group in order."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(self.names)
        graph.add_edges_from(pair for pair, how in self.relation.items() if how in levels)
        return self.components(graph)

    def components(self, graph: nx.Graph[str]) -> list[list[str]]:
        """The devices that a graph of them joins, each group and the groups in the order of the table."""
        groups = (sorted(group, key=self.names.index) for group in nx.connected_components(graph))
        return sorted(groups, key=lambda group: self.names.index(group[0]))


def read_matrix(text: str, file: str) -> Matrix:
    """The table in what ``nvidia-smi topo -m`` printed; the legend below it is not needed.

    Raises
    ------
    ScenarioError : no such table, or cells in it that say nothing, each with its line.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    start = next((number for number, words in enumerate(lines) if words[:1] == ["GPU0"] and "X" not in words), None)
    if start is None:
        raise ScenarioError.of(
            [Fault("no table of nvidia-smi topo -m: expected a line that starts with GPU0", "", file)]
        )
    header = lines[start]
    names = tuple(header[: header.index("CPU")] if "CPU" in header else header)
    faults, rows = list[Fault](), dict[str, tuple[int, list[str]]]()
    for number, words in enumerate(lines[start + 1 :], start + 2):
        if words[:1] == ["Legend:"] or len(rows) == len(names):
            break
        if words and words[0] not in names:
            faults.append(Fault(f"unknown row {shown(words[0])}", "", file, number, nearest(words[0], names)))
        elif words:
            rows[words[0]] = number, words[1:]
    faults += [Fault(f"the row of {name} is missing", "", file) for name in names if name not in rows and not faults]
    relation = {
        (name, other): cell for name, (_, cells) in rows.items() for other, cell in zip(names, cells, strict=False)
    }
    faults += _wrong_cells(names, rows, relation, file)
    if faults:
        raise ScenarioError.of(faults)
    near = {name: cells[len(names)] for name, (_, cells) in rows.items() if len(cells) > len(names)}
    return Matrix(names, relation, {name: cores for name, cores in near.items() if cores != "N/A"})


def _wrong_cells(
    names: tuple[str, ...],
    rows: Mapping[str, tuple[int, list[str]]],
    relation: Mapping[tuple[str, str], str],
    file: str,
) -> list[Fault]:
    faults = []
    for name, (number, cells) in rows.items():
        if len(cells) < len(names):
            faults.append(Fault(f"{len(cells)} cells: expected {len(names)}", name, file, number))
        for other, cell in zip(names, cells, strict=False):
            if not re.fullmatch(r"NV[1-9][0-9]?", cell) and cell not in _RELATIONS:
                expected = f"expected NV#, {', '.join(_RELATIONS)}, got {shown(cell)}"
                faults.append(Fault(expected, f"{name} {other}", file, number, nearest(cell, _RELATIONS)))
            elif (cell == "X") != (name == other):
                faults.append(Fault("X is for a device and itself, and only that", f"{name} {other}", file, number))
            elif relation.get((other, name), cell) != cell:
                back = relation[other, name]
                faults.append(Fault(f"{cell} here, {shown(back)} the other way", f"{name} {other}", file, number))
    return faults


def from_matrix(matrix: Matrix, name: str, device: str, speeds: Speeds) -> dict[str, Any]:
    """A cluster file: GPUs and NICs below PCI Express switches (PIX, PXB) below sockets, and NVLinks between GPUs.

    PHB and NODE meet in the socket. What only NVLink joins is put below the socket whose cores are near it. More
    NVLinks in a row than the GPU has ports are an NVSwitch, to which each GPU has as many as the row says.
    """
    wiring, known = _Wiring(device, speeds), GENERATIONS[device]
    lane_gb_per_s = 16 * PCIE_GB_PER_S_LANE[known.gigatransfers]
    for each in matrix.names:
        wiring.node(each.lower(), "gpu" if each.startswith("GPU") else "switch")
    top = {each: each.lower() for each in matrix.names}
    for word, levels in (("switch", ("PIX",)), ("bridge", ("PIX", "PXB"))):
        for number, group in enumerate(group for group in matrix.together(levels) if len({top[i] for i in group}) > 1):
            above = f"{word}{number}"
            wiring.node(above, "switch")
            for below in dict.fromkeys(top[each] for each in group):
                wiring.join(below, above, speeds.pcie, lane_gb_per_s)
            top.update(dict.fromkeys(group, above))
    hosts = _sockets(matrix)
    for number, group in enumerate(hosts):
        wiring.node(f"host{number}", "host")
        for below in dict.fromkeys(top[each] for each in group):
            wiring.join(below, f"host{number}", speeds.pcie, lane_gb_per_s)
    wiring.sockets(f"host{number}" for number in range(len(hosts)))
    _nvlinks(wiring, matrix, known)
    return wiring.file(name, f"nvidia-smi topo -m of {len(hosts)} sockets, GPUs said to be {device}")


def _sockets(matrix: Matrix) -> list[list[str]]:
    """Groups of devices by socket; GPUs of which nothing is told stand with all others."""
    graph: nx.Graph[str] = nx.Graph()
    for group in matrix.together(_CLOSE):
        nx.add_path(graph, group) if len(group) > 1 else graph.add_node(group[0])
    by_cores: dict[str, list[str]] = {}
    for each, cores in matrix.near.items():
        by_cores.setdefault(cores, []).append(each)
    for group in by_cores.values():
        nx.add_path(graph, group)
    if not by_cores and "SYS" not in matrix.relation.values():
        nx.add_path(graph, matrix.names)
    return matrix.components(graph)


def _nvlinks(wiring: _Wiring, matrix: Matrix, known: Generation) -> None:
    counts = {pair: int(how[2:]) for pair, how in matrix.relation.items() if how.startswith("NV")}
    if not counts:
        return
    if not known.nvlinks:
        message = f"the table has NVLinks, a {wiring.device} has none"
        raise ScenarioError.of([Fault(message, "--device", suggestion=f"known: {', '.join(GENERATIONS)}")])
    in_row = {name: [count for (a, _), count in counts.items() if a == name] for name in matrix.names}
    if any(sum(row) > known.nvlinks for row in in_row.values()):
        wiring.node("nvswitch", "switch")
        for name, row in in_row.items():
            if row:
                wiring.nvlink(name.lower(), "nvswitch", known.capability, max(row))
        return
    for (a, b), count in counts.items():
        if matrix.names.index(a) < matrix.names.index(b):
            wiring.nvlink(a.lower(), b.lower(), known.capability, count)


@dataclass
class _Element:
    """An XML element and its line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> list[_Element]:
        """Elements of that tag directly below."""
        return [child for child in self.children if child.tag == tag]


def read_xml(text: str, file: str) -> _Element:
    """The elements of an XML file. Document types, and so entities, are refused.

    Raises
    ------
    ScenarioError : it is no XML, or declares a document type.
    """
    root = _Element("", {}, 0)
    path, parser = [root], expat.ParserCreate()

    def refuse(message: str, line: int) -> ScenarioError:
        return ScenarioError.of([Fault(message, file=file, line=line)])

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(path) > 64:
            raise refuse("nested deeper than 64 levels", parser.CurrentLineNumber)
        element = _Element(tag, attributes, parser.CurrentLineNumber)
        path[-1].children.append(element)
        path.append(element)

    def doctype(*_: Any) -> None:
        raise refuse("a document type is declared: entities are not read", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.StartDoctypeDeclHandler = start, doctype
    parser.EndElementHandler = lambda _: path.pop()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise refuse(f"not XML: {expat.ErrorString(error.code)}", error.lineno) from None
    return root.children[0]


@dataclass
class _Xml:
    """Reads NCCL's elements into a wiring, collecting faults and what NVLinks refer to."""

    wiring: _Wiring
    file: str
    faults: list[Fault] = field(default_factory=list)
    gpus: dict[str, tuple[str, _Element]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def fault(self, element: _Element, message: str, hint: str | None = None) -> None:
        self.faults.append(Fault(message, element.tag, printable(self.file), element.line, hint))

    def attribute(self, element: _Element, key: str, pattern: str, expected: str) -> str:
        value = element.attributes.get(key)
        if value is None or not re.fullmatch(pattern, value, re.ASCII):
            self.fault(element, f"{key}: expected {expected}, got {shown(value)}")
            return "0"
        return value

    def node(self, element: _Element, name: str, kind: str) -> str:
        if name in self.names:
            self.fault(element, f"'{printable(name)}' is there twice: expected the dump of one machine")
        self.names.add(name)
        self.wiring.node(name, kind)
        return name

    def below(self, element: _Element, parent: str) -> None:
        """PCI devices and NICs below a CPU or a switch."""
        for child in element.all("pci"):
            bus = self.attribute(child, "busid", r"[0-9a-fA-F:.]{4,20}", "a PCI address")
            gpus = child.all("gpu")
            if gpus:
                index = self.attribute(gpus[0], "dev", r"\d{1,4}", "a number")
                name = self.node(gpus[0], f"gpu{index}", "gpu")
                self.gpus[bus] = name, gpus[0]
            else:
                nets = [net for nic in child.all("nic") for net in nic.all("net")]
                name = self.node(child, nets[0].attributes.get("name", bus) if nets else f"pci {bus}", "switch")
            self.wiring.join(name, parent, self.wiring.speeds.pcie, self.pcie_gb_per_s(child))
            self.below(child, name)

    def pcie_gb_per_s(self, element: _Element) -> float:
        if self.wiring.speeds.pcie is not None:
            return 0.0
        speed = re.fullmatch(r"([0-9.]+?)(?:\.0)? GT/s(?: PCIe)?", element.attributes.get("link_speed", ""))
        width = element.attributes.get("link_width", "")
        if speed is None or speed[1] not in PCIE_GB_PER_S_LANE or not re.fullmatch(r"1|2|4|8|16|32", width):
            got = f"{shown(element.attributes.get('link_speed'))} x{printable(width)}"
            self.fault(
                element, f"expected link_speed and link_width such as 16.0 GT/s and 16, got {got}", "give --pcie"
            )
            return 0.0
        return int(width) * PCIE_GB_PER_S_LANE[speed[1]]

    def nvlinks(self) -> None:
        """NVLinks between GPUs once, and those to NVSwitches, one for all that are dumped."""
        to_switch: dict[str, tuple[int, int]] = {}
        for bus, (name, element) in self.gpus.items():
            capability = int(self.attribute(element, "sm", r"\d{2,3}", "a compute capability such as 90"))
            for link in element.all("nvlink"):
                count = int(self.attribute(link, "count", r"[1-9]\d?", "a number of NVLinks"))
                target = link.attributes.get("target", "")
                if link.attributes.get("tclass", "0x03").startswith("0x068000"):
                    to_switch[name] = capability, to_switch.get(name, (0, 0))[1] + count
                elif target not in self.gpus:
                    self.fault(link, f"target {shown(target)} is no GPU of this dump", nearest(target, self.gpus))
                elif bus < target:
                    self.wiring.nvlink(name, self.gpus[target][0], capability, count)
        if to_switch:
            self.wiring.node("nvswitch", "switch")
        for name, (capability, count) in to_switch.items():
            self.wiring.nvlink(name, "nvswitch", capability, count)


def from_xml(root: _Element, file: str, name: str, device: str, speeds: Speeds) -> dict[str, Any]:
    """A cluster file from the elements of an ``NCCL_TOPO_DUMP_FILE``.

    Raises
    ------
    ScenarioError : what is missing in it or fits nothing, each with its line.
    """
    reader = _Xml(_Wiring(device, speeds), file)
    cpus = root.all("cpu")
    if root.tag != "system" or not cpus:
        reader.fault(root, "expected a <system> of <cpu> elements, as NCCL_TOPO_DUMP_FILE has")
        raise ScenarioError.of(reader.faults)
    hosts = []
    for cpu in cpus:
        number = reader.attribute(cpu, "numaid", r"-?\w{1,8}", "a NUMA node")
        hosts.append(reader.node(cpu, f"host{number}", "host"))
        reader.below(cpu, hosts[-1])
    reader.wiring.sockets(hosts)
    reader.nvlinks()
    if not reader.gpus and not reader.faults:
        reader.fault(root, "there is no <gpu> in it")
    if reader.faults:
        raise ScenarioError.of(reader.faults)
    return reader.wiring.file(name, f"NCCL topology of {len(cpus)} NUMA nodes, GPUs said to be {device}")
