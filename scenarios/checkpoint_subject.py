"""What `twinrail checkpoint` is asked about: a model, a measured profile, or sizes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from scenarios.architecture import architecture
from scenarios.hardware import device_spec
from scenarios.layer_table import layer_table
from scenarios.load import load_document, shipped
from scenarios.pipedream import read_graph
from sim.architecture import Architecture, Operation
from sim.checkpointing.pytorch import Chain, chain_of, convolutions
from sim.checkpointing.vertices import GRANULARITIES, Granularity, Vertices, cut, names, profile_vertices
from sim.errors import Fault, ScenarioError, nearest
from sim.model import roofline
from sim.tape import ELEMENT, INDEX, Device, Tape, record
from sim.training import Optimizer


@dataclass(frozen=True)
class Subject:
    """A chain of vertices: bytes d_0 … d_n, seconds of each forward pass and of a whole step where they are known.

    ``vertices`` are there for a model, whose layers say what PyTorch keeps of them.
    """

    name: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    seconds: tuple[float, ...] | None = None
    step_s: float | None = None
    vertices: Vertices | None = None
    batch: int = 1
    granularity: Granularity | None = None
    finer: Granularity | None = None
    platform: Device = "cpu"
    optimizer: Optimizer = "sgd"

    @cached_property
    def tape(self) -> Tape:
        """What autograd records of a model."""
        assert self.vertices is not None
        return record(self.vertices, self.batch, self.platform)

    @cached_property
    def chain(self) -> Chain:
        """What PyTorch holds of each vertex; of sizes alone, as if each were a convolution and a ReLU in place."""
        return convolutions(self.sizes) if self.vertices is None else chain_of(self.tape, self.optimizer)


def of_sizes(sizes: tuple[int, ...]) -> Subject:
    """Sizes alone: y_0 and one output for each vertex."""
    return Subject("sizes", sizes, tuple(f"y{k}" for k in range(1, len(sizes))))


def of_profile(path: Path) -> Subject:
    """A profile of PipeDream's profiler, cut where every path passes."""
    graph = read_graph(path)
    vertices = profile_vertices(graph)
    inputs = sum(node.activation_bytes for node in graph.nodes if node.number in graph.inputs & graph.needed)
    return Subject(
        name=path.stem,
        sizes=(round(inputs), *(round(vertex[-1].activation_bytes) for vertex in vertices)),
        names=tuple(f"{vertex[-1].name} {vertex[-1].kind}" for vertex in vertices),
        seconds=tuple(sum(node.forward_s for node in vertex) for vertex in vertices),
        step_s=sum(node.forward_s + node.backward_s for vertex in vertices for node in vertex),
    )


def of_model(
    name: str,
    batch: int = 32,
    granularity: Granularity = "standalone_pool",
    optimizer: Optimizer = "sgd",
    platform: Device = "cpu",
    device: str = "p40",
    shape: tuple[int, ...] | None = None,
) -> Subject:
    """A shipped model by name or a model file, in fp32, its seconds by the roofline of a shipped device.

    ``shape`` of a sample, where it is another than the file's.

    Raises
    ------
    ScenarioError : no such model, every fault of its file, no such device.
    """
    known, devices = shipped("models"), shipped("devices")
    faults = []
    if name not in known and not name.endswith((".yaml", ".yml")):
        hint = nearest(name, known) or "or a file: model.yaml, or graph.txt of PipeDream's profiler"
        faults.append(Fault(f"no model '{name}': there are {', '.join(known)}", "MODEL", suggestion=hint))
    if device not in devices:
        message = f"no device '{device}': there are {', '.join(devices)}"
        faults.append(Fault(message, "--device", suggestion=nearest(device, devices)))
    if faults:
        raise ScenarioError.of(faults)
    document = {**load_document(known.get(name, name)).data, **({} if shape is None else {"input": [*shape]})}
    model = architecture(document)
    vertices = cut(model, granularity)
    profile = roofline(layer_table(document), device_spec(device), "fp32", batch)
    ends = [0, *accumulate(len(vertex) for vertex in vertices)]
    layers = [profile.layers[first:last] for first, last in pairwise(ends)]
    return Subject(
        name=model.name,
        sizes=_sizes(model, vertices, batch),
        names=tuple(names(vertices, granularity)),
        seconds=tuple(sum(layer.forward_s for layer in vertex) for vertex in layers),
        step_s=sum(layer.forward_s + layer.backward_s for layer in profile.layers),
        vertices=vertices,
        batch=batch,
        granularity=granularity,
        finer=dict(pairwise(GRANULARITIES)).get(granularity),
        platform=platform,
        optimizer=optimizer,
    )


def _sizes(model: Architecture, vertices: Vertices, batch: int) -> tuple[int, ...]:
    first = model.entries[0]
    words = isinstance(first, Operation) and first.kind == "embedding"
    outputs = (math.prod(vertex[-1].leaving) * batch * ELEMENT for vertex in vertices)
    return (math.prod(model.input) * batch * (INDEX if words else ELEMENT), *outputs)
