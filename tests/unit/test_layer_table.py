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
from sim.model import DeviceSpec, ModelProfile, roofline

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


# A flop a second and an element a second at batch 1: a kernel takes the larger of its flops and its moves.
TOY = DeviceSpec("toy", 10**9, 4.0, {"fp32": 1.0}, {"fp32": 1.0}, 1.0, "a test")


def profile(*layers: Any, shape: Any) -> ModelProfile:
    return roofline(layer_table(of_layers(*layers, shape=shape)), TOY, "fp32", samples=1)


def test_a_block_is_the_sum_of_its_layers_and_their_join() -> None:
    conv, pool = {"conv": {"out": 3, "kernel": 3, "padding": 1}}, {"max_pool": {"kernel": 3, "stride": 1, "padding": 1}}
    parts = layer_table(of_layers(conv, {"relu": None}, pool)).layers
    block = {"block": {"name": "fork", "join": "concat", "branches": [[conv, {"relu": None}, pool], [conv], []]}}
    (layer,) = layer_table(of_layers(block)).layers
    assert layer.name == "fork0"
    assert layer.output_elements == 9 * 8 * 8
    assert layer.forward_flops == 2 * parts[0].forward_flops
    assert layer.parameter_elements == 2 * parts[0].parameter_elements
    assert layer.saved == (3 + 1) * 3 * 8 * 8 + 9 * 8 * 8
    times = [part.forward_s for part in profile(conv, {"relu": None}, pool, shape=(3, 8, 8)).layers]
    (timed,) = profile(block, shape=(3, 8, 8)).layers
    assert timed.forward_s == sum(times) + times[0] + 2 * layer.output_elements


@pytest.mark.parametrize(("join", "saved"), [("add", 10 + 5 + 5), ("add_in_place", 10 + 5)])
def test_a_sum_in_place_keeps_no_output_of_its_own(join: str, saved: int) -> None:
    branches = [[{"linear": {"out": 10}}, {"relu": "in_place"}, {"linear": {"out": 5}}], []]
    (layer,) = layer_table(of_layers({"block": {"branches": branches, "join": join}}, shape=(5,))).layers
    assert layer.saved == saved
    assert layer.output_elements == 5


def test_layers_are_repeated_in_order() -> None:
    inner = {"repeat": {"times": 2, "layers": [{"relu": None}]}}
    repeat = {"repeat": {"times": 2, "layers": [{"linear": {"out": 4}}, inner]}}
    table = layer_table(of_layers(repeat, {"linear": {"out": 1}}, shape=(7,)))
    names = ["linear0", "relu1", "relu2", "linear3", "relu4", "relu5", "linear6"]
    assert [layer.name for layer in table.layers] == names
    assert [layer.parameter_elements for layer in table.layers] == [32, 0, 0, 20, 0, 0, 5]


def test_conv_bn_relu_is_three_layers() -> None:
    short = layer_table(of_layers({"conv_bn_relu": {"out": 6, "kernel": 3, "stride": 2, "groups": 3}}))
    conv = {"conv": {"out": 6, "kernel": 3, "stride": 2, "groups": 3, "bias": False}}
    assert short == layer_table(of_layers(conv, {"batch_norm": None}, {"relu": "in_place"}))


# What torch's module of the kind puts out, multiplies and holds, on the meta device.
MODULES: list[tuple[str, Any, tuple[int, ...], Any]] = [
    ("conv", {"out": 8, "kernel": [1, 7], "stride": [2, 3], "padding": [0, 3]}, (4, 9, 20), None),
    ("conv", {"out": 8, "kernel": 3, "groups": 4, "bias": False}, (4, 9, 20), None),
    ("linear", {"out": 7, "bias": False}, (5, 11), lambda nn: nn.Linear(11, 7, bias=False)),
    ("avg_pool", {"kernel": [2, 3], "padding": [1, 0]}, (4, 9, 20), lambda nn: nn.AvgPool2d((2, 3), padding=(1, 0))),
    ("adaptive_avg_pool", {"out": [3, 5]}, (4, 9, 20), lambda nn: nn.AdaptiveAvgPool2d((3, 5))),
    ("batch_norm", None, (6,), lambda nn: nn.BatchNorm1d(6)),
    ("layer_norm", None, (5, 6), lambda nn: nn.LayerNorm(6)),
    ("embedding", {"words": 50, "out": 6}, (5,), lambda nn: nn.Embedding(50, 6)),
    ("lstm", {"hidden": 6}, (5, 10), lambda nn: nn.LSTM(10, 6, batch_first=True)),
    ("self_attention", {"heads": 3}, (5, 6), lambda nn: nn.MultiheadAttention(6, 3, batch_first=True)),
]


@pytest.mark.parametrize(("kind", "options", "shape", "build"), MODULES)
def test_a_kind_counts_what_torchs_module_does(kind: str, options: Any, shape: tuple[int, ...], build: Any) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    (layer,) = layer_table(of_layers({kind: options}, shape=shape)).layers
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        names = {"kernel": "kernel_size", "out": "out_channels"}
        named = {names.get(key, key): value for key, value in (options or {}).items()}
        module = build(torch.nn) if build else torch.nn.Conv2d(shape[0], **named)
        sample = torch.zeros(2, *shape, dtype=torch.long if kind == "embedding" else torch.float)
        output = module(sample, sample, sample) if kind == "self_attention" else module(sample)
    output = output[0] if isinstance(output, tuple) else output
    assert layer.output_elements == output.numel() / 2
    assert layer.forward_flops == counter.get_total_flops() / 2
    assert layer.parameter_elements == sum(parameter.numel() for parameter in module.parameters())


def test_attention_keeps_its_tensors_and_probabilities_and_a_recurrence_its_gates_and_cell() -> None:
    attention, lstm = {"self_attention": {"heads": 2}}, {"lstm": {"hidden": 6}}
    (layer,) = layer_table(of_layers(attention, shape=(5, 4))).layers
    assert layer.saved == (3 + 1 + 1) * 5 * 4 + 2 * 5 * 5  # queries, keys and values; their mean; the output
    (layer,) = layer_table(of_layers(lstm, shape=(5, 4))).layers
    assert layer.saved == (4 + 1 + 1) * 5 * 6


def test_a_view_takes_no_time_and_what_nothing_trains_before_wants_no_gradient() -> None:
    flat, first, second = profile(
        {"flatten": None}, {"linear": {"out": 3}}, {"linear": {"out": 2}}, shape=(2, 2, 1)
    ).layers
    assert (flat.forward_s, flat.backward_s, flat.saved_bytes) == (0, 0, 0)
    assert (first.backward_input_s, first.backward_weight_s) == (0, first.forward_s)
    assert (second.backward_input_s, second.backward_weight_s) == (second.forward_s, second.forward_s)


@pytest.mark.parametrize(
    ("layer", "shape", "moved"),
    [
        ({"batch_norm": None}, (3, 2, 2), 3 * 12 + 2 * 3),  # read for the statistics, read again, written
        ({"layer_norm": None}, (4, 3), 2 * 12 + 2 * 3),
        ({"dropout": 0.5}, (12,), 2 * 12),
        ({"position_embedding": "in_place"}, (4, 3), 2 * 12 + 12),
        ({"global_avg_pool": None}, (4, 3), 12 + 3),
        ({"block": {"branches": [[], []], "join": "add"}}, (4, 3), 3 * 12),
        ({"block": {"branches": [[], []], "join": "concat"}}, (4, 3), 4 * 12),
    ],
)
def test_what_only_moves_memory_takes_its_moves(layer: Any, shape: tuple[int, ...], moved: int) -> None:
    (timed,) = profile(layer, shape=shape).layers
    assert timed.forward_s == moved


def test_an_embedding_reads_rows_and_writes_the_gradient_of_all() -> None:
    (layer,) = profile({"embedding": {"words": 1000, "out": 3}}, shape=(7,)).layers
    assert (layer.forward_s, layer.backward_input_s) == (7 + 2 * 7 * 3, 0)
    assert layer.backward_weight_s == 7 + 2 * 7 * 3 + 3000


def test_each_step_of_a_recurrence_reads_its_weights() -> None:
    fast = DeviceSpec("fast", 10**9, 4.0, {"fp32": 1e30}, {"fp32": 1.0}, 1.0, "a test")
    (layer,) = roofline(layer_table(of_layers({"lstm": {"hidden": 6}}, shape=(5, 4))), fast, "fp32", 1).layers
    projection, recurrence = 5 * 4 + 5 * 24 + 24 * 5, 5 * 12 * 6
    assert layer.forward_s == pytest.approx(projection + recurrence + 5 * 24 * 7)
    assert layer.backward_input_s == pytest.approx(recurrence + 5 * 24 * 7)  # the projection is the first to be trained
    assert layer.backward_weight_s == pytest.approx(projection + recurrence + 24 * 7)


def test_a_product_of_activations_has_two_gradients() -> None:
    _, layer = profile({"linear": {"out": 4}}, {"self_attention": {"heads": 1}}, shape=(5, 4)).layers
    projections, products, softmax = 4 * 2 * 5 * 4 * 4, 2 * 2 * 5 * 5 * 4, 2 * 5 * 5
    assert layer.forward_s == projections + products + softmax
    assert layer.backward_input_s == projections + 2 * products + softmax
    assert layer.backward_weight_s == projections


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
        ({"selu": True}, "layers.0.selu", "'in_place' or nothing"),
        ({"batch_norm": 3}, "layers.0.batch_norm", "expected nothing"),
        ({"conv": {"out": 3, "kernel": [1, 2, 3]}}, "layers.0.conv.kernel", "[height, width], got [1, 2, 3]"),
        ({"conv": {"out": 3, "kernel": [1, 0]}}, "layers.0.conv.kernel", "got [1, 0]"),
        ({"conv": {"out": 3, "kernel": 1, "bias": 0}}, "layers.0.conv.bias", "true or false, got 0"),
        ({"conv": {"out": 3, "kernel": 1, "groups": 2}}, "layers.0.conv", "3 channels to 3 do not split into 2 groups"),
        ({"conv_bn_relu": {"out": 3, "kernel": 1, "bias": True}}, "layers.0.conv_bn_relu.bias", "unknown key"),
        ({"lstm": {"hidden": 3}}, "layers.0.lstm", "positions x features, 3x8x8 reaches it"),
        ({"self_attention": {"heads": 2}}, "layers.0.self_attention", "positions x features"),
        ({"embedding": {"words": 9, "out": 2}}, "layers.0.embedding", "a vector of words"),
        ({"repeat": 3}, "layers.0.repeat", "expected {times: 3"),
        ({"repeat": {"layers": [{"relu": None}]}}, "layers.0.repeat", "'times' is missing"),
        ({"repeat": {"times": 0, "layers": [{"relu": None}]}}, "layers.0.repeat.times", "from 1"),
        ({"repeat": {"times": 2, "layers": []}}, "layers.0.repeat.layers", "expected a list of layers"),
        ({"repeat": {"times": 2, "layer": 1, "layers": [{"relu": None}]}}, "layers.0.repeat.layer", "unknown key"),
        ({"repeat": {"times": 2, "layers": [{"rleu": None}]}}, "layers.0.repeat.layers.0", "did you mean 'relu'"),
        ({"repeat": {"times": 10_001, "layers": [{"relu": None}]}}, "layers.0.repeat", "more than 10000 layers"),
        ({"block": []}, "layers.0.block", "expected {branches"),
        ({"block": {"branches": [[], []]}}, "layers.0.block.join", "add, add_in_place, concat"),
        ({"block": {"branches": [[], []], "join": "ad"}}, "layers.0.block.join", "did you mean 'add'"),
        ({"block": {"branches": [[]], "join": "add"}}, "layers.0.block.branches", "two or more lists"),
        ({"block": {"branches": [[], {}], "join": "add"}}, "layers.0.block.branches", "two or more lists"),
        ({"block": {"branches": [[], []], "join": "add", "name": 3}}, "layers.0.block.name", "expected a text"),
        (
            {"block": {"branches": [[], [{"conv": {"out": 4, "kernel": 9}}]], "join": "add"}},
            "layers.0.block.branches.1.0.conv",
            "larger than its input",
        ),
        (
            {"block": {"branches": [[], [{"conv": {"out": 4, "kernel": 1}}]], "join": "add"}},
            "layers.0.block",
            "branches of one shape: they end in 3x8x8, 4x8x8",
        ),
        (
            {"block": {"branches": [[], [{"max_pool": {"kernel": 2}}]], "join": "concat"}},
            "layers.0.block",
            "that differ in channels only: they end in 3x8x8, 3x4x4",
        ),
        (
            {"block": {"branches": [[{"relu": "in_place"}], []], "join": "add"}},
            "layers.0.block.branches.0.0.relu",
            "which other branches read",
        ),
        (
            {"block": {"branches": [[], [{"dropout": 0.1}]], "join": "add_in_place"}},
            "layers.0.block.branches.0",
            "an output of its own",
        ),
        (
            {"repeat": {"times": 60, "layers": [{"block": {"branches": [[], []], "join": "concat"}}]}},
            "layers.0.repeat.layers.0.block",
            "more than 1000000000000 elements",
        ),
    ],
)
def test_a_bad_layer_is_named(layer: Any, path: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        layer_table(of_layers(layer))
    (fault,) = caught.value.faults
    assert fault.path == path
    assert message in str(fault)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        ({"conv": {"out": 1, "kernel": 1}}, (64,), "channels x height x width, 64 reaches it"),
        ({"adaptive_avg_pool": {"out": 1}}, (5, 6), "channels x height x width, 5x6 reaches it"),
        ({"global_avg_pool": None}, (64,), "an image or positions x features, 64 reaches it"),
        ({"batch_norm": None}, (5, 6), "an image or a vector, 5x6 reaches it"),
        ({"self_attention": {"heads": 4}}, (5, 6), "6 features do not split into 4 heads"),
        ({"position_embedding": None}, (64,), "positions x features, 64 reaches it"),
        ({"layer_norm": None}, (3, 8, 8), "a vector or positions x features, 3x8x8 reaches it"),
        ({"block": {"branches": [[], [{"global_avg_pool": None}]], "join": "add"}}, (5, 6), "they end in 5x6, 6"),
        ({"block": {"branches": [[], [{"global_avg_pool": None}]], "join": "concat"}}, (5, 6), "they end in 5x6, 6"),
    ],
)
def test_a_layer_refuses_a_shape_it_cannot_take(layer: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        layer_table(of_layers(layer, shape=shape))


def test_all_faults_come_at_once() -> None:
    bad = {"nam": "x", "input": [3, -1], "layers": [{"conv": {}}, {"relu": 2}], "source": " "}
    with pytest.raises(ScenarioError) as caught:
        layer_table(bad)
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["nam", "name", "source", "input", "layers.0.conv", "layers.0.conv", "layers.1.relu"]


def test_faults_inside_blocks_come_with_those_before_them() -> None:
    inner = {"block": {"branches": [[{"linear": {}}], [{"relu": 1}, {"lstm": {"hiden": 2}}]], "join": "sum"}}
    misfit = {"linear": {"out": 1}}
    with pytest.raises(ScenarioError) as caught:
        layer_table(of_layers(misfit, {"repeat": {"times": 2, "layers": [inner]}}))
    block = "layers.1.repeat.layers.0.block"
    assert [fault.path for fault in caught.value.faults] == [
        f"{block}.join",
        f"{block}.branches.0.0.linear",
        f"{block}.branches.1.0.relu",
        f"{block}.branches.1.1.lstm.hiden",
        f"{block}.branches.1.1.lstm",
        "layers.0.linear",
    ]


@pytest.mark.parametrize("layers", [None, [], "conv", {"conv": {}}])
def test_layers_must_be_a_list(layers: Any) -> None:
    with pytest.raises(ScenarioError, match="layers: expected a list of layers"):
        layer_table({**of_layers(), "layers": layers})
