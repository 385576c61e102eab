"""What most tests are made of: a small cluster, a model of equal stages, and the way from a plan to its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings

from sim.assembly import assemble
from sim.binding import Binding, Cost, Figures, bind
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.model import Layer, ModelProfile
from sim.op_table import OPS, UNSET
from sim.ops import TRANSFER_KINDS, Lane, OpId, OpKind
from sim.passes import buffers, transfers, weight_versions
from sim.plan import Plan
from sim.program import Program
from sim.rows import Rows
from sim.schedule import Schedule, Shape
from sim.trace import Trace
from sim.training import Training

settings.register_profile("twinrail", derandomize=True, deadline=None)
settings.load_profile("twinrail")


def _mesh(
    devices: int,
    kind: LinkKind = "latency",
    latency_s: float = 0.0,
    bytes_per_s: float = float("inf"),
    gain: float | None = None,
    host: bool = False,
) -> Cluster:
    names = [*(f"gpu{index}" for index in range(devices)), *(["host"] if host else [])]
    nodes = tuple(Node(name, "host" if name == "host" else "gpu", None, gain) for name in names)
    pairs = permutations(names, 2)
    return Cluster("mesh", nodes, [Link(f"{a}>{b}", a, b, kind, latency_s, bytes_per_s) for a, b in pairs])


@pytest.fixture(scope="session")
def mesh() -> Callable[..., Cluster]:
    """A cluster with a link from every device to every other: free transfers unless told otherwise."""
    return _mesh


def _compose(
    work: Schedule | Program,
    cluster: Cluster | None = None,
    layers: Sequence[Layer] = (Layer("layer", 1.0, 1.0, 1.0, 0.0, 0.0, 0.0),),
    weights: weight_versions.Weights = "latest",
    distances: tuple[tuple[int, int], ...] = (),
    predict: weight_versions.Predict = "spectrain",
    **figures: Any,
) -> tuple[Plan, Binding]:
    """One layer a stage (a single layer: on every stage), all layers where there is one stage."""
    shape = work.shape
    layers = tuple(layers) * shape.stages if len(layers) == 1 else tuple(layers)
    partition = tuple((k, k) for k in range(shape.stages)) if shape.stages > 1 else ((0, len(layers) - 1),)
    cluster = cluster or _mesh(shape.stages * shape.replicas)
    profile = ModelProfile("test", 1.0, layers, layers[0].output_bytes, "assumed", "made for this test")
    devices = tuple(node.name for node in cluster.nodes if node.kind != "switch")
    known = Figures(profile, partition, Training("sgd"), cluster, devices, 1.0, update_s=0.0)._replace(**figures)
    binding = bind(work, known)
    if isinstance(work, Program):
        return Plan("test", work, partition, "test", known.training), binding
    work = transfers.apply(weight_versions.apply(work, weights, distances, predict), binding.holds_lanes)
    return Plan("test", work, partition, "test", known.training, buffers.apply(work)), binding


@pytest.fixture(scope="session")
def compose() -> Callable[..., tuple[Plan, Binding]]:
    """From a planner's work to plan and binding; further keywords are fields of `Figures`."""
    return _compose


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Trace]:
    """`compose`, then run on the simulator."""

    def simulate(work: Schedule | Program, *args: Any, **keywords: Any) -> Trace:
        return run(*_compose(work, *args, **keywords))

    return simulate


def _written(shape: Shape, lanes: Mapping[str, str], after: Sequence[tuple[str, str]] = ()) -> Schedule:
    order = {Lane(int(lane.split(".")[0]), lane.split(".")[1]): text.split() for lane, text in lanes.items()}
    holders: dict[str, list[int]] = {}
    for lane, names in order.items():
        for name in names:
            holders.setdefault(name, []).append(lane.device)
    number = {name: index for index, name in enumerate(holders)}
    rows = []
    for name, devices in holders.items():
        op = OpId.parse(name)
        rows.append((*op, devices[0], devices[-1] if op.kind in TRANSFER_KINDS else -1, UNSET, -1))
    pairs = [(number[earlier], number[later]) for later, earlier in after]
    return assemble(
        shape, list(order), np.array(rows, OPS), [[number[name] for name in row] for row in order.values()], pairs
    )


@pytest.fixture(scope="session")
def written() -> Callable[..., Schedule]:
    """A schedule from the names on each lane (``0.compute``); a name on several lanes is one op that holds them all.

    ``after`` are pairs (later, earlier) beyond the data dependencies.
    """
    return _written


class Job(NamedTuple):
    """A piece of work outside all rules of training: seconds, or bytes from its device to ``target``."""

    lanes: Sequence[str] = ()
    size: float = 1.0
    after: Sequence[int] = ()
    target: int = -1
    source: int = 0


def _jobs(jobs: Sequence[Job], cluster: Cluster) -> tuple[Plan, Binding]:
    order: dict[Lane, list[int]] = {}
    rows: list[tuple[int, ...]] = []
    seconds: dict[Cost, float] = {}
    payloads: dict[Cost, float] = {}
    for number, job in enumerate(jobs):
        for text in job.lanes:
            order.setdefault(Lane(int(text.split(".")[0]), text.split(".")[1]), []).append(number)
        collective = any(text.endswith("collective") for text in job.lanes)
        kind = OpKind.ALL_REDUCE if collective else OpKind.SEND_ACTIVATION if job.target >= 0 else OpKind.FORWARD
        (payloads if collective or job.target >= 0 else seconds)[Cost(kind, 0, number)] = job.size
        source = int(job.lanes[0].split(".")[0]) if job.lanes else job.source
        rows.append((kind, 0, number, 0, number, -1, -1, source, job.target, -1, -1))
    after = Rows.of([sorted(job.after) for job in jobs])
    nothing = np.empty((0, 2), np.int64)
    schedule = Schedule(
        Shape(1, len(jobs)), np.array(rows, OPS), tuple(order), Rows.of([*order.values()]), after, nothing
    )
    devices = tuple(node.name for node in cluster.nodes if node.kind != "switch")
    binding = Binding(cluster, devices, seconds, payloads, {}, (), (None,) * len(devices), 1.0)
    return Plan("jobs", schedule, ((0, 0),), "none", Training()), binding


@pytest.fixture(scope="session")
def jobs() -> Callable[..., tuple[Plan, Binding]]:
    """A plan of hand-made jobs, unchecked: the engine alone is on trial. Op number i is job number i."""
    return _jobs


@pytest.fixture(scope="session")
def job() -> type[Job]:
    """`Job`, which tests cannot import from here."""
    return Job


@pytest.fixture(scope="session")
def play() -> Callable[..., Trace]:
    """Simulate a scenario given as text, with ``--set``."""
    from scenarios.compose import compose
    from scenarios.load import apply_sets, parse_text
    from scenarios.schema import parse
    from sim.planners import PLANNERS

    def play(text: str, *sets: str) -> Trace:
        document = apply_sets(parse_text(text, "scenario.yaml"), sets)
        scenario = parse(document, PLANNERS)
        return run(*compose(scenario, document), scenario.seed)

    return play
