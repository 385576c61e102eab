"""Layer tables against published figures, a measured profile and counting by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from scenarios.layer_table import layer_table
from scenarios.pipedream import read_graph
from sim.errors import ScenarioError

REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / "scenarios" / "models"
VGG16_PROFILE = REPOSITORY.parent / "shared" / "data" / "pipedream" / "vgg16.txt"

# Multiply-adds of VGG16's 13 convolutions and 3 linear layers, as commonly tabulated.
VGG16_MACS = [
    *(86_704_128, 1_849_688_064, 924_844_032, 1_849_688_064, 924_844_032, 1_849_688_064, 1_849_688_064),
    *(924_844_032, 1_849_688_064, 1_849_688_064, 462_422_016, 462_422_016, 462_422_016),
    *(102_760_448, 16_777_216, 4_096_000),
]


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(MODELS / f"{name}.yaml")
    return loaded


def of_layers(*layers: Any, shape: Any = (3, 8, 8)) -> dict[str, Any]:
    return {"name": "net", "source": "a test", "input": list(shape), "layers": list(layers)}


def test_vgg16_has_its_published_work_and_parameters() -> None:
    table = layer_table(document("vgg16"))
    assert sum(layer.parameter_elements for layer in table.layers) == 138_357_544
    assert [layer.forward_flops / 2 for layer in table.layers if layer.forward_flops] == VGG16_MACS
    assert sum(layer.forward_flops for layer in table.layers) == pytest.approx(30.94e9, rel=1e-4)
    assert table.input_elements == 3 * 224 * 224


def test_vgg16_has_the_activations_and_parameters_of_pipedreams_profile() -> None:
    if not VGG16_PROFILE.exists():
        pytest.skip(f"needs {VGG16_PROFILE}")
    batch, fp32 = 128, 4
    nodes = [node for node in read_graph(VGG16_PROFILE).order if not node.kind.startswith(("Input", "Size"))]
    table = layer_table(document("vgg16"))
    assert [layer.output_elements for layer in table.layers] == [node.activation_bytes / batch / fp32 for node in nodes]
    assert [layer.parameter_elements for layer in table.layers] == [node.parameter_bytes / fp32 for node in nodes]
    assert [layer.in_place for layer in table.layers if layer.name.startswith("relu")] == [True] * 15


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        # The convolutions of VGG16 (14 714 688) and 512 · 10 + 10.
        ("vgg16-cifar", 33, 14_714_688 + 5_130),
        ("mlp", 9, (64 + 1) * 256 + 3 * (256 + 1) * 256 + (256 + 1) * 10),
    ],
)
def test_shipped_models(name: str, layers: int, parameters: int) -> None:
    table = layer_table(document(name))
    assert len(table.layers) == layers
    assert sum(layer.parameter_elements for layer in table.layers) == parameters
    assert table.layers[-1].output_elements == 10


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.sampled_from(["conv", "max_pool"])
)
@settings(deadline=None)
def test_a_window_is_counted_place_by_place(side: int, kernel: int, stride: int, padding: int, kind: str) -> None:
    options = {"kernel": kernel, "stride": stride, "padding": padding}
    places = len(range(0, side + 2 * padding - kernel + 1, stride))
    given_layer = {kind: {**options, "out": 5} if kind == "conv" else options}
    if not places:
        with pytest.raises(ScenarioError, match="larger than its input"):
            layer_table(of_layers(given_layer, shape=(2, side, side)))
        return
    (layer,) = layer_table(of_layers(given_layer, shape=(2, side, side))).layers
    channels = 5 if kind == "conv" else 2
    assert layer.output_elements == channels * places**2
    assert layer.forward_flops == (2 * 2 * kernel**2 * layer.output_elements if kind == "conv" else 0)
    assert layer.parameter_elements == (5 * (2 * kernel**2 + 1) if kind == "conv" else 0)


def test_a_pool_strides_by_its_kernel_and_a_flatten_and_an_in_place_relu_own_no_output() -> None:
    layers = of_layers(
        {"avg_pool": {"kernel": 4}}, {"relu": None}, {"relu": "in_place"}, {"flatten": None}, {"dropout": 0}
    )
    table = layer_table(layers)
    assert [layer.output_elements for layer in table.layers] == [3 * 2 * 2] * 5
    assert [layer.in_place for layer in table.layers] == [False, False, True, True, False]
    assert [layer.name for layer in table.layers] == ["avg_pool0", "relu1", "relu2", "flatten3", "dropout4"]


def test_the_document_is_left_alone() -> None:
    given_document = document("mlp")
    before = copy.deepcopy(given_document)
    layer_table(given_document)
    assert given_document == before


@pytest.mark.parametrize(
    ("layer", "path", "message"),
    [
        ({"linaer": {"out": 3}}, "layers.0", "did you mean 'linear'"),
        ({"attention": {}}, "layers.0", "known are conv, linear"),
        ("flatten", "layers.0", "write {flatten: }"),
        ({"relu": None, "flatten": None}, "layers.0", "expected one layer"),
        (None, "layers.0", "expected one layer"),
        ({"conv": {"out": 3}}, "layers.0.conv", "'kernel' is missing"),
        ({"conv": {"out": 3, "kernel": 3, "pading": 1}}, "layers.0.conv.pading", "did you mean 'padding'"),
        ({"conv": {"out": 0, "kernel": 3}}, "layers.0.conv.out", "whole number from 1"),
        ({"conv": {"out": True, "kernel": 3}}, "layers.0.conv.out", "whole number from 1"),
        ({"conv": {"out": 10**9, "kernel": 3}}, "layers.0.conv.out", "to 1000000"),
        ({"conv": {"out": 3, "kernel": 2.5}}, "layers.0.conv.kernel", "got 2.5"),
        ({"conv": 3}, "layers.0.conv", "expected options"),
        ({"max_pool": {"kernel": 2, "stride": None}}, "layers.0.max_pool.stride", "got None"),
        ({"linear": {"out": 3}}, "layers.0.linear", "put {flatten: } before it"),
        ({"relu": "inplace"}, "layers.0.relu", "'in_place' or nothing"),
        ({"flatten": 1}, "layers.0.flatten", "expected nothing"),
        ({"dropout": 1.0}, "layers.0.dropout", "probability"),
        ({"dropout": float("nan")}, "layers.0.dropout", "probability"),
    ],
)
def test_a_bad_layer_is_named(layer: Any, path: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        layer_table(of_layers(layer))
    (fault,) = caught.value.faults
    assert fault.path == path
    assert message in str(fault)


def test_a_vector_reaches_no_convolution() -> None:
    with pytest.raises(ScenarioError, match="channels x height x width, 64 reaches it"):
        layer_table(of_layers({"conv": {"out": 1, "kernel": 1}}, shape=(64,)))


def test_all_faults_come_at_once() -> None:
    bad = {"nam": "x", "input": [3, -1], "layers": [{"conv": {}}, {"relu": 2}], "source": " "}
    with pytest.raises(ScenarioError) as caught:
        layer_table(bad)
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["nam", "name", "source", "input", "layers.0.conv", "layers.0.conv", "layers.1.relu"]


@pytest.mark.parametrize("layers", [None, [], "conv", {"conv": {}}])
def test_layers_must_be_a_list(layers: Any) -> None:
    with pytest.raises(ScenarioError, match="layers: expected a list of layers"):
        layer_table({**of_layers(), "layers": layers})
