"""PipeDream's profile files (``graph.txt``), read without trust.

Format (msr-fiddle/pipedream, ``graph/graph.py``): ``node4 -- Conv2d(…) -- forward_compute_time=ms,
backward_compute_time=ms, activation_size=bytes, parameter_size=bytes[ -- stage_id=K]`` and, indented by a tab,
``node1 -- node4`` for an edge. An activation size may be a list ``[a; b]``; lines come in any order.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import networkx as nx

from sim.errors import Fault, ScenarioError, nearest
from sim.graph import ProfileGraph, ProfileNode

_UNITS = {
    "forward_compute_time": "ms",
    "backward_compute_time": "ms",
    "activation_size": "bytes",
    "parameter_size": "bytes",
}
_NODE = re.compile(r"(?:node)?(\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOST = 1e18
"""Larger times or sizes are damage, and sums of them would not stay finite."""
_MOST_BYTES = 4 * 2**20
_BINARY = "a binary file: expected a PipeDream profile, which is text"
_EXAMPLE = "node1 -- Conv2d(…) -- forward_compute_time=…"

_PUBLISHED_BATCHES = {
    "3e914ff5290644c6b1c871002d278e57fcc486c22ac07283480b7779f28e5b08": 128,  # vgg16
    "e9a0bb73a0929b03be3a23cbcdf224c03ae39123bed685de4f1e17b65014d26b": 256,  # alexnet
    "5fc27812d75d7fa39946ef32ac8089cc277b0debc78c6d8200de3cb5c62ca7d2": 128,  # resnet50
    # gnmt: not stated, but its LSTMs' hidden states are 131072 bytes of fp32 in rows of 1024: 32 sentences.
    "2c5b8415ed45b34b7530d051023de388a7e0dbc02cec38f9e43610f29211dc5a": 32,
}


def batch_of(path: Path) -> int | None:
    """The mini-batch, in samples, of one of the profiles published with PipeDream; ``None`` for any other file.

    The files do not say it. They are recognised by content (SHA-256), under whatever name: a profile of one's own
    that happens to be called vgg16.txt gets no batch that it was not measured at.
    """
    try:
        small = path.is_file() and path.stat().st_size <= _MOST_BYTES
        return _PUBLISHED_BATCHES.get(hashlib.sha256(path.read_bytes()).hexdigest()) if small else None
    except OSError:
        return None


def read_graph(path: Path) -> ProfileGraph:
    """Read a profile, times in seconds.

    Raises
    ------
    ScenarioError : the file is none, or has faults; each is listed with its line.
    """
    file = str(path)
    lines = _text(path).split("\n")
    if not any(_NODE.fullmatch(line.partition(" -- ")[0]) for line in lines):
        raise ScenarioError.of([Fault(f"no PipeDream profile: no line such as '{_EXAMPLE}'", file=file)])
    reader = _Reader(file)
    for number, line in enumerate(lines, start=1):
        reader.read(line, number)
    return reader.graph()


def _text(path: Path) -> str:
    try:
        refusal = _refusal(path)
        text = "" if refusal else path.read_text(encoding="utf-8-sig")
    except OSError as error:
        refusal = Fault(f"cannot be read: {error.strerror}", file=str(path))
    except UnicodeDecodeError:
        refusal = Fault(_BINARY, file=str(path))
    else:
        refusal = Fault(_BINARY, file=str(path)) if "\0" in text else refusal
    if refusal:
        raise ScenarioError.of([refusal])
    return text


def _refusal(path: Path) -> Fault | None:
    """Why there is nothing to read at ``path``, told before it is opened: a device or a pipe may never end."""
    file = str(path)
    if path.is_dir():
        return Fault("a directory: expected a PipeDream profile", file=file, suggestion="name the graph.txt in it")
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        return Fault("no such file", file=file, suggestion=nearest(path.name, siblings))
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return Fault(f"expected a PipeDream profile: a text file of at most {_MOST_BYTES >> 20} MiB", file=file)
    return None


class _Reader:
    """Collects nodes, edges and faults line by line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.nodes: dict[int, ProfileNode] = {}
        self.node_lines: dict[int, int] = {}
        self.edge_lines: dict[tuple[int, int], int] = {}
        self.line = 0

    def fault(self, message: str, line: int | None = None, suggestion: str | None = None) -> None:
        self.faults.append(Fault(message, file=self.file, line=line or self.line, suggestion=suggestion))

    def read(self, text: str, line: int) -> None:
        self.line = line
        if not text.strip():
            return
        parts = text.strip().split(" -- ")
        if not text.strip().isprintable():
            self.fault(f"control characters in {_short(text.strip())}")
        elif text[0].isspace():
            self.read_edge(parts)
        else:
            self.read_node(parts)

    def read_edge(self, parts: list[str]) -> None:
        ends = [_NODE.fullmatch(part) for part in parts]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            self.fault(f"expected an edge such as 'node1 -- node4', got {_short(' -- '.join(parts))}")
            return
        self.edge_lines.setdefault((int(ends[0][1]), int(ends[1][1])), self.line)

    def read_node(self, parts: list[str]) -> None:
        name = _NODE.fullmatch(parts[0])
        if name is None:
            self.fault(f"expected a line such as '{_EXAMPLE}', got {_short(' -- '.join(parts))}")
            return
        number = int(name[1])
        if number in self.node_lines:
            self.fault(f"{parts[0]} is there twice, first in line {self.node_lines[number]}")
            return
        self.node_lines[number] = self.line
        if not 3 <= len(parts) <= 4:
            self.fault(f"{parts[0]}: expected 3 or 4 parts between ' -- ', got {len(parts)}")
            return
        values = self.read_fields(parts[0], parts[2])
        self.nodes[number] = ProfileNode(
            number=number,
            description=parts[1],
            forward_s=values["forward_compute_time"] / 1000,
            backward_s=values["backward_compute_time"] / 1000,
            activation_bytes=values["activation_size"],
            parameter_bytes=values["parameter_size"],
            stage=self.read_stage(parts[0], parts[3]) if len(parts) == 4 else None,
        )

    def read_fields(self, node: str, text: str) -> dict[str, float]:
        """The four figures of a node; 0 stands for one that is faulty, the fault keeps it from being used."""
        values: dict[str, float] = {}
        for field in text.split(", "):
            key, _, value = field.partition("=")
            if key not in _UNITS:
                self.fault(f"{node}: unknown field {_short(key)}", suggestion=nearest(key, _UNITS))
            elif key in values:
                self.fault(f"{node}: {key} is there twice")
            else:
                values[key] = self.read_value(f"{node}: {key}", value, _UNITS[key])
        for key in _UNITS:
            if key not in values:
                self.fault(f"{node}: {key} is missing")
        return {key: values.get(key, 0.0) for key in _UNITS}

    def read_value(self, what: str, text: str, unit: str) -> float:
        listed = unit == "bytes" and text.startswith("[") and text.endswith("]")
        terms = text[1:-1].split("; ") if listed else [text]
        if not all(_NUMBER.fullmatch(term) and float(term) <= _MOST for term in terms):
            self.fault(f"{what}: expected a finite number of {unit}, at least 0, got {_short(text)}")
            return 0.0
        return sum(float(term) for term in terms)

    def read_stage(self, node: str, text: str) -> int | None:
        match = re.fullmatch(r"stage_id=(\d{1,9})", text, re.ASCII)
        if match is None:
            self.fault(f"{node}: expected stage_id=K with a whole number K, got {_short(text)}")
        return int(match[1]) if match else None

    def graph(self) -> ProfileGraph:
        """The graph, or every fault of the file in the order of its lines."""
        for edge, line in self.edge_lines.items():
            for end in edge:
                if end not in self.node_lines:
                    self.fault(f"edge to or from node{end}, which is not in the file", line)
        digraph: nx.DiGraph[int] = nx.DiGraph(list(self.edge_lines))
        digraph.add_nodes_from(self.node_lines)
        self.check_cycle(digraph)
        if not self.faults:
            self.check_connected(digraph)
        if self.faults:
            raise ScenarioError.of(sorted(self.faults, key=lambda fault: fault.line or 0))
        source = f"PipeDream profile {self.file}"
        return ProfileGraph(tuple(self.nodes.values()), tuple(self.edge_lines), source)

    def check_cycle(self, digraph: nx.DiGraph[int]) -> None:
        try:
            cycle = nx.find_cycle(digraph)
        except nx.NetworkXNoCycle:
            return
        line = max(self.edge_lines[edge] for edge in cycle)
        shown = [f"node{edge[0]}" for edge in cycle[:8]] + ["..."] * (len(cycle) > 8)
        self.fault(f"cycle {' -> '.join(shown)} -> node{cycle[0][0]}", line)

    def check_connected(self, digraph: nx.DiGraph[int]) -> None:
        """A file cut short loses edges first, and what they joined would drop out of the model without a word."""
        pieces = sorted(nx.weakly_connected_components(digraph), key=len, reverse=True)
        for piece in pieces[1:]:
            node = min(piece)
            self.fault(f"no edge joins node{node} to the rest of the graph", self.node_lines[node])


def _short(text: str) -> str:
    """A piece of the file for a message: quoted, cut short, control characters escaped."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
