"""PipeDream's partitioner against recorded figures, brute force over every partition, and the released walk."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from analysis import partition_plot
from scenarios.command_line import app
from scenarios.pipedream import read_graph
from sim.antichains import MOST_STATES, States, chain_states, graph_states
from sim.errors import ScenarioError
from sim.graph import ProfileGraph, ProfileNode, chain
from sim.model import Layer, ModelProfile
from sim.partition import balanced
from sim.pipedream_partitioner import MOST_MACHINES, PipeDreamPartition, Sync, Transfers, partition

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "pipedream"


def published(name: str) -> Path:
    path = DATA / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def shape(found: PipeDreamPartition) -> list[int]:
    return [stage.replicas for stage in found.stages]


# Facts: run with the released code; 4 machines.
@pytest.mark.parametrize(
    ("name", "bytes_per_s", "transfers", "replicas", "bottleneck_s", "data_parallel"),
    [
        ("vgg16", 1e9, "include", [3, 1], 0.205521, 1.153),
        ("vgg16", 12e9, "include", [3, 1], 0.170076, 3.318),
        ("alexnet", 1e9, "include", [3, 1], 0.034217, 0.417),
        ("alexnet", 12e9, "include", [2, 1, 1], 0.022186, None),
        ("vgg16", 1e9, "ignore", [3, 1], 0.175733, 1.153),
        ("alexnet", 1e9, "ignore", [2, 1, 1], 0.023166, 0.417),
    ],
)
def test_recorded_partitions(
    name: str,
    bytes_per_s: float,
    transfers: Transfers,
    replicas: list[int],
    bottleneck_s: float,
    data_parallel: float | None,
) -> None:
    found = partition(graph_states(read_graph(published(name))), 4, bytes_per_s, transfers=transfers)
    assert shape(found) == replicas
    assert found.bottleneck_s == pytest.approx(bottleneck_s, abs=5e-7)
    assert found.single_device_s == pytest.approx({"vgg16": 0.672535, "alexnet": 0.085321}[name], abs=5e-7)
    assert found.speedup == pytest.approx(found.single_device_s / bottleneck_s, rel=1e-4)
    if data_parallel is not None:
        assert found.data_parallel_speedup == pytest.approx(data_parallel, abs=5e-4)
    assert found.in_order


@pytest.mark.parametrize(("transfers", "bottleneck_s"), [("include", 0.235590), ("ignore", 0.216450)])
def test_recorded_straight_pipelines_of_vgg16(transfers: Transfers, bottleneck_s: float) -> None:
    states = graph_states(read_graph(published("vgg16")))
    found = partition(states, 4, 12e9, replicas=[1] * 4, transfers=transfers)
    assert shape(found) == [1, 1, 1, 1]
    assert found.bottleneck_s == pytest.approx(bottleneck_s, abs=5e-7)


@pytest.mark.parametrize(("name", "states"), [("vgg16", 40), ("alexnet", 22), ("gnmt", 99), ("resnet50", 240)])
def test_antichain_states_of_the_published_profiles(name: str, states: int) -> None:
    graph = read_graph(published(name))
    found = graph_states(graph)
    assert len(found) == states
    assert {members_of(row) for row in found.members[1:]} == released_states(*operators_and_edges(graph))
    assert found.layers == tuple(layer.name for layer in chain(graph, name, 1).layers)


def test_states_of_a_chain_are_those_of_its_graph() -> None:
    graph = read_graph(published("vgg16"))
    of_graph, of_chain = graph_states(graph), chain_states(chain(graph, "vgg16", 128))
    for column in ("members", "compute_s", "parameter_bytes", "saved_bytes", "output_bytes", "precedes"):
        np.testing.assert_allclose(getattr(of_graph, column), getattr(of_chain, column), rtol=1e-14)


# The antichain states, as the released code walks them.


def operators_and_edges(graph: ProfileGraph) -> tuple[int, list[tuple[int, int]]]:
    """How many layers, and edges between their positions in the chain."""
    names = [layer.name.split()[0] for layer in chain(graph, "graph", 1).layers]
    position = {int(name.removeprefix("node")): index for index, name in enumerate(names)}
    return len(names), [(position[a], position[b]) for a, b in graph.edges if a in position and b in position]


def members_of(row: np.ndarray[Any, np.dtype[np.bool_]]) -> frozenset[int]:
    return frozenset(np.flatnonzero(row).tolist())


def released_states(layers: int, edges: Sequence[tuple[int, int]]) -> set[frozenset[int]]:
    """Antichains, augmented by ancestors with readers elsewhere, each member in turn replaced by one of its readers."""
    outs = [{b for a, b in edges if a == layer} for layer in range(layers)]
    above: list[set[int]] = []
    for layer in range(layers):
        above.append(set().union(*({a} | above[a] for a, b in edges if b == layer)))
    below = [{b for b in range(layers) if a in above[b]} for a in range(layers)]

    def augmented(antichain: frozenset[int]) -> set[int]:
        extra = {p for a in antichain for p in above[a] if any(b not in above[a] and b != a for b in outs[p])}
        return extra | antichain

    def after(antichain: frozenset[int]) -> Iterator[frozenset[int]]:
        wide = augmented(antichain)
        for old in wide:
            for new in outs[old] - antichain:
                if not below[new] & wide:
                    replaced = wide - {old} | {new}
                    yield frozenset(member for member in replaced if not below[member] & replaced)

    start = frozenset([max((layer for layer in range(layers) if not above[layer]), key=lambda s: len(below[s]))])
    found, waiting = {start}, [start]
    while waiting:
        for antichain in after(waiting.pop()):
            if antichain not in found:
                found.add(antichain)
                waiting.append(antichain)
    return {antichain.union(*(above[layer] for layer in antichain)) for antichain in found}


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> ProfileGraph:
    """Layers of whole figures for which every time in a partition on up to four machines is whole."""
    count = draw(st.integers(1, most))
    edges = [(a, b) for b in range(1, count) for a in sorted(draw(st.sets(st.integers(0, b - 1), max_size=2)))]
    if draw(st.booleans()):
        edges += [(a, count - 1) for a in range(count - 1) if all(producer != a for producer, _ in edges)]
    nodes = [
        ProfileNode(
            number,
            draw(st.sampled_from(["Conv2d(1, 1)", "ReLU(inplace)"])),
            forward_s=12.0 * draw(st.integers(0, 3)),
            backward_s=12.0 * draw(st.integers(0, 1)),
            activation_bytes=24.0 * draw(st.integers(0, 8)),
            parameter_bytes=144.0 * draw(st.integers(0, 2)),
        )
        for number in range(count)
    ]
    return ProfileGraph(tuple(draw(st.permutations(nodes))), tuple(edges))


BYTES_PER_S = 4.0


@given(graphs(most=9))
def test_states_are_what_the_released_walk_finds(graph: ProfileGraph) -> None:
    states = graph_states(graph)
    layers, edges = operators_and_edges(graph)
    points = [members_of(row) for row in states.members]
    assert points[0] == frozenset()
    assert points[1:] == sorted(released_states(layers, edges), key=lambda point: (len(point), sorted(point)))
    assert len(states) == len(points) - 1
    nodes = [node for node in graph.order if node.number in graph.needed]
    for point, row in zip(points, range(len(points)), strict=True):
        assert all(a in point for a, b in edges if b in point)
        crossing = {a for a, b in edges if a in point and b not in point}
        assert states.output_bytes[row] == sum(nodes[layer].activation_bytes for layer in crossing)
        assert states.saved_bytes[row] == sum(nodes[i].activation_bytes for i in point if not nodes[i].in_place)
        assert states.compute_s[row] == sum(nodes[layer].forward_s + nodes[layer].backward_s for layer in point)
        assert states.precedes[:, row].tolist() == [other < point for other in points]


@given(graphs(most=8))
def test_with_one_source_the_states_are_all_sets_closed_under_dependency(graph: ProfileGraph) -> None:
    layers, edges = operators_and_edges(graph)
    edges += [(0, layer) for layer in range(1, layers) if all(b != layer for _, b in edges)]
    subsets = (frozenset(i for i in range(layers) if mask >> i & 1) for mask in range(1, 1 << layers))
    closed = {subset for subset in subsets if all(a in subset for a, b in edges if b in subset)}
    whole = ProfileGraph(tuple(ProfileNode(i, "Add", 1.0, 1.0, 1.0, 1.0) for i in range(layers)), tuple(edges))
    if len(whole.needed) == layers:
        assert {members_of(row) for row in graph_states(whole).members[1:]} == closed


# Brute force: every way through the states and every number of replicas, in exact fractions.


class Terms(NamedTuple):
    """What is asked of the partitioner besides states and machines."""

    sync: Sync
    transfers: Transfers
    memory_bytes: float | None


TERMS = st.builds(
    Terms,
    st.sampled_from(["sum", "max"]),
    st.sampled_from(["include", "ignore"]),
    st.none() | st.integers(0, 2000).map(float),
)
Way = list[tuple[int, int]]
"""End point and replicas of each stage."""


def ways(states: States, start: int, machines: int) -> Iterator[Way]:
    for end in range(start + 1, len(states.members)):
        if states.precedes[start, end]:
            if end == len(states):
                yield [(end, machines)]
            for replicas in range(1, machines):
                for rest in ways(states, end, machines - replicas):
                    yield [(end, replicas), *rest]


def rank(states: States, way: Way, terms: Terms) -> tuple[Fraction, Fraction, Way] | None:
    """Bottleneck, Σ stage time², stage by stage end and replicas; ``None`` where memory does not suffice."""
    times, bound = [], Fraction(0)
    bandwidth, left = Fraction(BYTES_PER_S), sum(replicas for _, replicas in way)

    def between(column: np.ndarray[Any, np.dtype[np.float64]], start: int, end: int) -> Fraction:
        return Fraction(column[end]) - Fraction(column[start])

    for (start, _), (end, replicas) in pairwise([(0, 0), *way]):
        parameters = between(states.parameter_bytes, start, end)
        compute, sync = between(states.compute_s, start, end), 4 * (replicas - 1) * parameters / (bandwidth * replicas)
        times.append((compute + sync if terms.sync == "sum" else max(compute, sync)) / replicas)
        bound = max(bound, times[-1])
        if start and terms.transfers == "include":
            moved = max(Fraction(states.output_bytes[point]) for point in (start, end))
            bound = max(bound, 2 * moved / (bandwidth * replicas))
        held = (parameters + between(states.saved_bytes, start, end)) * math.ceil(Fraction(left, replicas))
        if terms.memory_bytes is not None and held > terms.memory_bytes:
            return None
        left -= replicas
    return bound, sum((time**2 for time in times), Fraction(0)), way


@given(graphs(most=6), st.integers(1, 4), TERMS, st.booleans())
@settings(max_examples=400)
def test_partition_is_the_best_of_all(graph: ProfileGraph, machines: int, terms: Terms, straight: bool) -> None:
    states = graph_states(graph)
    every = [way for way in ways(states, 0, machines) if not straight or all(count == 1 for _, count in way)]
    ranked = [ranked for way in every if (ranked := rank(states, way, terms)) is not None]
    replicas = [1] * machines if straight else None
    if not ranked or not states.compute_s[-1]:
        with pytest.raises(ScenarioError):
            partition(states, machines, BYTES_PER_S, replicas=replicas, **terms._asdict())
        return
    bottleneck, _, way = min(ranked)
    found = partition(states, machines, BYTES_PER_S, replicas=replicas, **terms._asdict())
    assert found.bottleneck_s == bottleneck
    assert [(stage.last + 1, stage.replicas) for stage in found.stages] == [
        (states.members[end].sum(), count) for end, count in way
    ]
    points = [members_of(states.members[end]) for end, _ in [(0, 0), *way]]
    assert [set(stage.layers) for stage in found.stages] == [b - a for a, b in pairwise(points)]
    parallel = rank(states, [(len(states), machines)], Terms(terms.sync, "ignore", None))
    assert parallel is not None
    assert found.data_parallel_s == parallel[0]


@given(graphs(most=6), st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda counts: sum(counts) <= 4))
def test_prescribed_replicas_are_kept(graph: ProfileGraph, replicas: list[int]) -> None:
    states, machines, terms = graph_states(graph), sum(replicas), Terms("sum", "include", None)
    ranked = [rank(states, way, terms) for way in ways(states, 0, machines) if [count for _, count in way] == replicas]
    if not ranked or not states.compute_s[-1]:
        with pytest.raises(ScenarioError):
            partition(states, machines, BYTES_PER_S, replicas=replicas)
        return
    found = partition(states, machines, BYTES_PER_S, replicas=replicas)
    best = min(each for each in ranked if each is not None)
    assert (shape(found), found.bottleneck_s) == (replicas, best[0])
    assert [stage.last + 1 for stage in found.stages] == [states.members[end].sum() for end, _ in best[2]]


def layers_of(costs: Sequence[float]) -> ModelProfile:
    layers = tuple(Layer(f"layer{i}", cost, 0.0, 0.0, 0.0, 0.0, 0.0) for i, cost in enumerate(costs))
    return ModelProfile("chain", 1, layers, 0.0, "assumed", "made for this test")


@given(st.lists(st.integers(0, 3).map(float), min_size=1, max_size=12).filter(sum), st.data())
def test_a_straight_pipeline_without_transfers_is_the_balanced_one(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = partition(chain_states(layers_of(costs)), stages, math.inf, replicas=[1] * stages)
    assert tuple((stage.first, stage.last) for stage in found.stages) == balanced(costs, stages)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=10), st.integers(1, 5))
def test_without_parameters_a_stage_for_all_is_as_fast_as_any(costs: list[float], machines: int) -> None:
    found = partition(chain_states(layers_of(costs)), machines, 1.0)
    assert found.bottleneck_s == pytest.approx(math.fsum(costs) / machines, rel=1e-9)
    assert found.speedup == pytest.approx(machines)
    assert found.data_parallel_speedup == pytest.approx(machines)


def test_ties_that_rounding_would_break_go_to_the_smallest_cuts() -> None:
    found = partition(chain_states(layers_of([0.1] * 10)), 4, math.inf, replicas=[1] * 4)
    assert [(stage.first, stage.last) for stage in found.stages] == [(0, 1), (2, 3), (4, 6), (7, 9)]


def test_a_cut_through_branches_counts_layers_stage_by_stage() -> None:
    times = [1.0, 1.0, 1.0, 4.0, 1.0]
    nodes = tuple(ProfileNode(number, "Add", time, 0.0, 1.0, 0.0) for number, time in enumerate(times))
    graph = ProfileGraph(nodes, ((0, 1), (1, 2), (0, 3), (2, 4), (3, 4)))
    found = partition(graph_states(graph), 2, math.inf, replicas=[1, 1])
    # 5 s and 3 s, as 0, 1, 2 and 3, 4 would have it the other way round: the cut behind fewer layers is taken.
    assert [stage.layers for stage in found.stages] == [(0, 3), (1, 2, 4)]
    assert [(stage.first, stage.last) for stage in found.stages] == [(0, 1), (2, 4)]
    assert not found.in_order


def test_the_least_memory_that_works_is_named_and_works() -> None:
    layers = tuple(Layer(f"layer{i}", 1.0, 1.0, 1.0, 10.0, 50.0, 100.0 * (i + 1)) for i in range(4))
    states = chain_states(ModelProfile("chain", 1, layers, 0.0, "assumed", "made for this test"))
    with pytest.raises(ScenarioError, match=r"the least that works on 3 machines is (\d+) B") as caught:
        partition(states, 3, 1e9, memory_bytes=1.0)
    least = float(str(caught.value).rsplit(" B", 1)[0].rsplit(" ", 1)[1])
    found = partition(states, 3, 1e9, memory_bytes=least)
    assert max(stage.memory_bytes for stage in found.stages) == least
    with pytest.raises(ScenarioError, match="no partition fits"):
        partition(states, 3, 1e9, memory_bytes=least - 1)


def test_a_machine_holds_the_mini_batches_in_flight_on_it() -> None:
    layers = tuple(Layer(f"layer{i}", 1.0, 1.0, 1.0, 10.0, 50.0, 100.0) for i in range(3))
    states = chain_states(ModelProfile("chain", 1, layers, 0.0, "assumed", "made for this test"))
    found = partition(states, 7, 1e9, replicas=[4, 2, 1])
    # In flight: 7 machines / 4 rounded up, 3 / 2 rounded up, 1.
    assert [stage.memory_bytes for stage in found.stages] == [2 * 150, 2 * 150, 150]


def test_what_cannot_be_asked_is_refused_all_at_once() -> None:
    states = chain_states(layers_of([0.0, 0.0]))
    with pytest.raises(ScenarioError) as caught:
        partition(states, 0, math.nan, replicas=[1, 0])
    assert [fault.path for fault in caught.value.faults] == ["machines", "bandwidth", "replicas", ""]
    with pytest.raises(ScenarioError, match="2 layers cannot be cut into 3 stages"):
        partition(chain_states(layers_of([1.0, 1.0])), 3, 1.0, replicas=[1, 1, 1])
    with pytest.raises(ScenarioError, match=r"3200 states on 4 machines are too many \(use at most 1 or"):
        partition(chain_states(layers_of([1.0] * 3200)), 4, 1.0)
    with pytest.raises(ScenarioError, match="expected 1 to 512 machines"):
        partition(chain_states(layers_of([1.0])), MOST_MACHINES + 1, 1.0)


def test_graphs_with_too_many_states_are_refused() -> None:
    ends = [ProfileNode(number, "Add", 1.0, 1.0, 1.0, 1.0) for number in range(40)]
    fan = [(0, middle) for middle in range(1, 39)] + [(middle, 39) for middle in range(1, 39)]
    with pytest.raises(ScenarioError, match=f"more than {MOST_STATES} antichain states"):
        graph_states(ProfileGraph(tuple(ends), tuple(fan)))
    long = tuple(ProfileNode(number, "Add", 1.0, 1.0, 1.0, 1.0) for number in range(MOST_STATES + 1))
    with pytest.raises(ScenarioError, match="too many to partition"):
        graph_states(ProfileGraph(long, tuple(pairwise(range(MOST_STATES + 1)))))
    with pytest.raises(ScenarioError, match="only input nodes"):
        graph_states(ProfileGraph((ProfileNode(0, "Input", 1.0, 1.0, 1.0, 1.0),), ()))


# The command.

BRANCHED = """\
node1 -- Input -- forward_compute_time=3.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
node2 -- Conv2d(1) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4e6, parameter_size=4e6
node3 -- Conv$\\x$[/b] -- forward_compute_time=2.0, backward_compute_time=2.0, activation_size=4e6, parameter_size=4e6
node4 -- LSTM(3) -- forward_compute_time=2.0, backward_compute_time=2.0, activation_size=[1e6; 3e6], parameter_size=8e6
node5 -- Add -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4e6, parameter_size=0.0
node6 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=4.0, parameter_size=0.0
node7 -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4e3, parameter_size=2e7
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node5
\tnode4 -- node5
\tnode4 -- node6
\tnode5 -- node7
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "branched.txt"
    path.write_text(BRANCHED)
    return path


def twinrail(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in ("partition", *arguments)])


def test_json_holds_the_contract() -> None:
    run = twinrail(published("vgg16"), "--machines", 4, "--bandwidth", "1 GB/s", "--json")
    found = json.loads(run.stdout)
    assert run.exit_code == 0
    assert [{key: stage[key] for key in ("first", "last", "replicas")} for stage in found["stages"]] == [
        {"first": 0, "last": 16, "replicas": 3},
        {"first": 17, "last": 39, "replicas": 1},
    ]
    assert found["bottleneck_s"] == pytest.approx(0.205521, abs=5e-7)
    assert found["single_device_s"] == pytest.approx(0.672535, abs=5e-7)
    assert found["data_parallel_speedup"] == pytest.approx(1.153, abs=5e-4)
    assert found["speedup"] == pytest.approx(0.672535 / 0.205521, rel=1e-5)
    assert found["antichain_states"] == 40


def test_the_same_answer_whatever_the_hash_seed(profile: Path) -> None:
    code = "from scenarios.command_line import main; main()"
    asked = ["partition", str(profile), "--machines", "3", "--bandwidth", "1 GB/s", "--json"]
    answers = {
        subprocess.run(
            [sys.executable, "-c", code, *asked],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(answers) == 1


def test_the_table_names_stages_and_what_is_left_out(profile: Path) -> None:
    run = twinrail(profile, "--machines", 2, "--bandwidth", "1 GB/s", "--straight", "--transfers", "ignore")
    assert run.exit_code == 0, run.output
    assert "0–1: node2 Conv2d … node3 Conv$\\x$[/b]" in run.stdout
    assert "2–4: node4 LSTM … node7 Linear" in run.stdout
    assert "a mini-batch every 10.0 ms: 1.700 × one machine (17.0 ms)" in run.stdout
    assert "3.00 ms of data loading left out" in run.stdout
    assert "left out, since the last node does not need them: node6" in run.stdout


def test_every_fault_of_the_command_line_and_the_profile_comes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(BRANCHED + "\tnode7 -- node9\n")
    options = ("--machines", 0, "--bandwidth", "1e9", "--sync", "mx", "--transfers", "ignored")
    run = twinrail(path, *options, "--memory", "16", "--plot", "a.jpg", "--json")
    assert (run.exit_code, run.stdout) == (2, "")
    lines = run.stderr.splitlines()
    starts = ("--machines:", "--bandwidth:", "--transfers:", "--sync:", "--memory:", "--plot:", f"{path}:15:")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines
    assert "did you mean 'ignore'" in lines[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machines", "6", "--straight"], "--machines: 5 layers cannot be cut into 6 stages"),
        (["--machines", "2", "--memory", "1 kB"], "--memory: no partition fits into 1000 B"),
        (["--machines", "2", "--plot", "missing/a.png"], "--plot: cannot write there"),
        (["--machines", "513"], "--machines: must be at most 512"),
    ],
)
def test_what_cannot_be_done_is_said(profile: Path, options: list[str], message: str) -> None:
    run = twinrail(profile, "--bandwidth", "1 GB/s", *options)
    assert run.exit_code == 2
    assert message in run.stderr


# The picture.


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_picture_is_written(profile: Path, suffix: str) -> None:
    image = profile.with_suffix(suffix)
    assert twinrail(profile, "--machines", 2, "--bandwidth", "1 GB/s", "--plot", image).exit_code == 0
    assert image.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "gnmt"])
def test_every_node_is_drawn_once_with_its_stage(name: str) -> None:
    graph = read_graph(published(name))
    found = partition(graph_states(graph), 4, 12e9)
    figure = partition_plot.draw(graph, found, name)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {text.split()[0] for text in texts if text.split()[0].isdigit() and " " in text} >= {
        str(node.number) for node in graph.nodes
    }
    numbers = [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold"]
    expected = [str(index) for index, stage in enumerate(found.stages) for _ in stage.layers]
    assert sorted(numbers) == sorted(expected + ["0"] * len(graph.inputs & graph.needed))
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(found.stages)


@given(graphs(most=9))
@settings(max_examples=50)
def test_boxes_never_overlap_and_readers_stand_further_on(graph: ProfileGraph) -> None:
    cells = partition_plot._layout(graph).cells
    assert len(set(cells.values())) == len(graph.nodes)
    for producer, reader in graph.edges:
        assert cells[producer][:2] < cells[reader][:2]
