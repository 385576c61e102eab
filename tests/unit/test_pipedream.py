"""PipeDream's profiles: the published ones against recorded figures, random ones against the rule, broken ones."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.pipedream import batch_of, read_graph
from sim.errors import Fault, ScenarioError
from sim.graph import ProfileGraph, ProfileNode, chain
from sim.model import ModelProfile
from sim.partition import balanced

DATA = Path(__file__).parents[3] / "shared" / "data" / "pipedream"
FIGURES = "forward_compute_time=1.5, backward_compute_time=2.5, activation_size=8.0, parameter_size=4.0"


def published(name: str) -> Path:
    path = DATA / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def profile(name: str) -> ModelProfile:
    path = published(name)
    batch = batch_of(path)
    assert batch is not None
    return chain(read_graph(path), name, batch)


def written(folder: Path, text: str) -> Path:
    path = folder / "graph.txt"
    path.write_text(text)
    return path


def faults_of(path: Path) -> tuple[Fault, ...]:
    with pytest.raises(ScenarioError) as caught:
        read_graph(path)
    assert all(fault.file == str(path) for fault in caught.value.faults)
    return caught.value.faults


@pytest.mark.parametrize(
    ("name", "batch", "layers", "total_s", "parameters"),
    # Seconds on one GPU as PipeDream's optimizer prints them; parameters of the published architectures.
    [("vgg16", 128, 40, 0.672535, 138_357_544), ("alexnet", 256, 22, 0.085321, 61_100_840)],
)
def test_published_profiles(name: str, batch: int, layers: int, total_s: float, parameters: int) -> None:
    model = profile(name)
    assert (model.batch, len(model.layers), model.origin) == (batch, layers, "measured")
    assert sum(layer.forward_s + layer.backward_s for layer in model.layers) == pytest.approx(total_s, rel=1e-9)
    assert sum(layer.parameter_bytes for layer in model.layers) == 4 * parameters
    assert model.input_bytes == batch * 3 * 224 * 224 * 4
    assert any("data loading left out" in note for note in model.notes)


def test_balanced_vgg16_is_pipedreams_straight_pipeline_without_transfers() -> None:
    costs = [layer.forward_s + layer.backward_s for layer in profile("vgg16").layers]
    bottleneck = max(sum(costs[first : last + 1]) for first, last in balanced(costs, 4))
    assert bottleneck == pytest.approx(0.216450, abs=5e-7)


def test_the_batch_follows_from_the_tensors_in_the_file() -> None:
    for name, bytes_per_sample in (("vgg16", 3 * 224 * 224 * 4), ("resnet50", 3 * 224 * 224 * 4)):
        (data,) = (node for node in read_graph(published(name)).nodes if node.description == "Input")
        assert batch_of(published(name)) == data.activation_bytes / bytes_per_sample
    # gnmt: a hidden state is one row of 1024 numbers a sentence; element 1 of an LSTM's output is that state.
    states = [node for node in read_graph(published("gnmt")).nodes if node.description == "__getitem__(1)"]
    sentences = {node.activation_bytes / 1024 / 4 for node in states if node.activation_bytes}
    assert sentences == {batch_of(published("gnmt"))}


def test_the_batch_of_any_other_file_is_unknown(tmp_path: Path) -> None:
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(published("vgg16").read_bytes())
    assert batch_of(copy) == 128
    impostor = tmp_path / "vgg16.txt"
    impostor.write_text(published("vgg16").read_text() + "\n")
    assert batch_of(impostor) is None
    assert batch_of(published("small")) is None
    assert batch_of(tmp_path) is None
    assert batch_of(tmp_path / "missing.txt") is None


def test_small_has_no_prefix_and_loses_its_first_sink() -> None:
    model = chain(read_graph(published("small")), "small", 1)
    assert [layer.name for layer in model.layers] == [f"node{n} test{n}" for n in (4, 5, 2, 3, 1)]
    assert any("node0" in note for note in model.notes)


def test_gnmt_sums_lists_and_drops_the_states_nobody_reads() -> None:
    layers = {layer.name: layer for layer in profile("gnmt").layers}
    assert layers["node7 LSTM"].saved_bytes == 6291456 + 131072 + 131072
    assert "node9 __getitem__" not in layers
    assert len(layers) == 48 - 3 - 8


def test_resnet50_carries_the_shortcut_over_every_cut_of_a_block() -> None:
    layers = {layer.name: layer for layer in profile("resnet50").layers}
    # Inside a block of 512 channels and 28 x 28: the narrow branch and the shortcut, 128 images of fp32.
    assert layers["node71 BatchNorm2d"].output_bytes == 128 * (128 + 512) * 28 * 28 * 4


def test_times_of_backward_are_halved_where_there_are_parameters_and_in_place_saves_nothing(tmp_path: Path) -> None:
    text = (
        f"node1 -- Input -- {FIGURES}\n"
        f"node2 -- Linear(in_features=2, out_features=2) -- {FIGURES} -- stage_id=0\n"
        f"node3 -- ReLU(inplace=True) -- {FIGURES.replace('parameter_size=4.0', 'parameter_size=0')} -- stage_id=1\n"
        f"node4 -- Dropout(p=0.5, inplace=False) -- {FIGURES}\n"
        "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n"
    )
    graph = read_graph(written(tmp_path, text))
    assert [node.stage for node in graph.nodes] == [None, 0, 1, None]
    linear, relu, dropout = chain(graph, "net", 2).layers
    assert (linear.forward_s, linear.backward_input_s, linear.backward_weight_s) == (0.0015, 0.00125, 0.00125)
    assert (relu.backward_input_s, relu.backward_weight_s) == (0.0025, 0)
    assert [layer.saved_bytes for layer in (linear, relu, dropout)] == [8, 0, 8]
    assert [layer.output_bytes for layer in (linear, relu, dropout)] == [8, 8, 0]


@st.composite
def graphs(draw: st.DrawFn) -> ProfileGraph:
    numbers = draw(st.permutations(range(draw(st.integers(1, 9)))))
    descriptions = st.sampled_from(["Input0", "Conv2d(1, 1)", "Add"])
    nodes = [ProfileNode(n, draw(descriptions), 1.0, 1.0, float(2**n), 0.0) for n in numbers]
    pairs = [(a, b) for i, a in enumerate(numbers) for b in numbers[i + 1 :]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return ProfileGraph(tuple(draw(st.permutations(nodes))), tuple(edges))


@given(graphs())
@settings(deadline=None)
def test_chains_follow_the_rule_on_random_graphs(graph: ProfileGraph) -> None:
    nodes = {node.number: node for node in graph.nodes}
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [n for n in nodes if n not in order and all(a in order for a, b in graph.edges if b == n)]
        order.append(min(ready))
    needed = {order[-1]}
    while grown := {a for a, b in graph.edges if b in needed} - needed:
        needed |= grown
    data = {n for n in nodes if nodes[n].description == "Input0" and all(b != n for _, b in graph.edges)}
    expected = [n for n in order if n in needed and n not in data]
    if not expected:
        with pytest.raises(ScenarioError, match="only input nodes"):
            chain(graph, "random", 1)
        return
    model = chain(graph, "random", 1)
    assert [layer.name.split()[0] for layer in model.layers] == [f"node{n}" for n in expected]
    for cut, layer in enumerate(model.layers):
        left, right = set(expected[: cut + 1]), set(expected[cut + 1 :])
        # Every node weighs its own power of two: the sum tells which producers were counted.
        assert layer.output_bytes == sum(2**n for n in {a for a, b in graph.edges if a in left and b in right})
    assert model.input_bytes == sum(2**n for n in data & needed)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("node3 -- Conv2d", "expected 3 or 4 parts between ' -- ', got 2"),
        (f"nod3 -- Conv2d -- {FIGURES}", "expected a line such as"),
        (f"node2 -- Conv2d -- {FIGURES}", "node2 is there twice, first in line 2"),
        (f"2 -- Conv2d -- {FIGURES}", "2 is there twice, first in line 2"),
        (
            f"node3 -- Conv2d -- {FIGURES.replace('1.5', 'nan')}",
            "expected a finite number of ms, at least 0, got 'nan'",
        ),
        (f"node3 -- Conv2d -- {FIGURES.replace('2.5', '-2.5')}", "backward_compute_time: expected"),
        (
            f"node3 -- Conv2d -- {FIGURES.replace('8.0', '[8.0; x]')}",
            "activation_size: expected a finite number of bytes",
        ),
        (f"node3 -- Conv2d -- {FIGURES.replace('8.0', '[]')}", "activation_size: expected a finite number of bytes"),
        (f"node3 -- Conv2d -- {FIGURES.replace('4.0', '1e999')}", "parameter_size: expected"),
        (f"node3 -- Conv2d -- {FIGURES.replace('4.0', '1_0')}", "parameter_size: expected"),
        (f"node3 -- Conv2d -- {FIGURES.replace('activation', 'activaton')}", "did you mean 'activation_size'"),
        (f"node3 -- Conv2d -- {FIGURES}, parameter_size=1", "parameter_size is there twice"),
        (f"node3 -- Conv2d -- {FIGURES[: -len(', parameter_size=4.0')]}", "parameter_size is missing"),
        (f"node3 -- Conv2d -- {FIGURES} -- stage_id=one", "stage_id=K with a whole number"),
        (f"node3 -- Conv2d -- {FIGURES}", "no edge joins node3 to the rest"),
        (f"node3 -- Conv\x1b[2J -- {FIGURES}", "control characters in 'node3 -- Conv\\x1b[2J"),
        ("\tnode1 - node2", "expected an edge such as"),
        ("\tnode1 -- node7", "node7, which is not in the file"),
        ("\tnode2 -- node1", "cycle node1 -> node2 -> node1"),
        ("\tnode2 -- node2", "cycle node2 -> node2"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    good = f"node1 -- Input -- {FIGURES}\nnode2 -- Conv2d -- {FIGURES}\n\tnode1 -- node2\n"
    read_graph(written(tmp_path, good))
    faults = faults_of(written(tmp_path, good + line))
    assert all(fault.line == 4 for fault in faults)
    assert any(message in str(fault) for fault in faults), [str(fault) for fault in faults]


def test_all_faults_come_at_once_in_file_order(tmp_path: Path) -> None:
    text = "\tnode1 -- node9\nnode1 -- A -- forward_compute_time=-1\nrubbish\n"
    assert [fault.line for fault in faults_of(written(tmp_path, text))] == [1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no PipeDream profile"),
        (b"# A page\n\nof text -- with dashes\n", "no PipeDream profile"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "a binary file"),
        (b"node1 -- A -- \x00", "a binary file"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_bytes(content)
    (fault,) = faults_of(path)
    assert message in fault.message


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "")
    assert "a directory" in faults_of(tmp_path)[0].message
    assert "did you mean 'graph.txt'" in str(faults_of(tmp_path / "grapf.txt")[0])
    assert "no such file" in faults_of(tmp_path / "nowhere" / "graph.txt")[0].message
    assert "at most 4 MiB" in faults_of(Path("/dev/zero"))[0].message
    assert "File name too long" in faults_of(tmp_path / ("x" * 5000))[0].message


@given(st.text(alphabet="node1 23-=\t\n;[],.KeXforwadctimsz_", max_size=200), st.integers(0, 7_000), st.integers(0, 50))
@settings(deadline=None, max_examples=200)
def test_damaged_files_are_read_or_refused_and_nothing_else(rubbish: str, at: int, length: int) -> None:
    path = DATA / "vgg16.txt"
    text = path.read_text() if path.exists() else f"node1 -- A -- {FIGURES}\n" * 3
    with TemporaryDirectory() as folder:
        try:
            graph = read_graph(written(Path(folder), text[:at] + rubbish + text[at + length :]))
        except ScenarioError:
            return
    assert all(0 <= node.forward_s < 1e15 for node in graph.nodes)
    chain(graph, "damaged", 1)
