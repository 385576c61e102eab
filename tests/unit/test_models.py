"""Shipped layer tables against published figures, measured profiles, and the same networks built from torch modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.load import shipped
from scenarios.pipedream import read_graph
from scenarios.profiles import shipped_table
from sim.model import LayerTable

PROFILES = Path(__file__).parents[2].parent / "shared" / "data" / "pipedream"
FP32 = 4
CIFAR, IMAGENET, REVIEW = (3, 32, 32), (3, 224, 224), (200,)


def parameters_of(table: LayerTable) -> float:
    return sum(layer.parameter_elements for layer in table.layers)


# Parameters and multiply-adds as torchvision and timm publish them; timm counts more than products for Inception-v4.
PUBLISHED = [
    ("resnet152", 60_192_808, 11.514e9),
    ("resnet50", 25_557_032, 4.089e9),
    ("resnet18", 11_689_512, 1.814e9),
    ("inception-v4", 42_679_816, 12.28e9),
    ("vgg11", 132_863_336, 7.609e9),
    ("vgg13", 133_047_848, 11.308e9),
    ("vgg16", 138_357_544, 15.470e9),
    ("vgg19", 143_667_240, 19.632e9),
    ("alexnet", 61_100_840, 0.714e9),
]


@pytest.mark.parametrize(("name", "parameters", "multiply_adds"), PUBLISHED)
def test_published_parameters_and_multiply_adds(name: str, parameters: int, multiply_adds: float) -> None:
    table = shipped_table(name)
    assert parameters_of(table) == parameters
    assert sum(layer.forward_flops for layer in table.layers) / 2 == pytest.approx(multiply_adds, rel=3e-3)


@pytest.mark.parametrize("name", shipped("models"))
def test_a_model_file_says_its_own_parameters(name: str) -> None:
    comment = "".join(line for line in shipped("models")[name].read_text().splitlines() if line.startswith("#"))
    said = re.search(r"(\d[\d ]*) parameters", comment)
    assert said is not None
    assert int(said[1].replace(" ", "")) == parameters_of(shipped_table(name))
    assert shipped_table(name).name == name


@pytest.mark.parametrize(("name", "batch"), [("alexnet", 256), ("vgg16", 128)])
def test_a_chain_is_pipedreams_profile_layer_by_layer(name: str, batch: int) -> None:
    nodes = [node for node in profile(name) if not node.kind.startswith(("Input", "Size"))]
    layers = shipped_table(name).layers
    assert [layer.output_elements for layer in layers] == [node.activation_bytes / batch / FP32 for node in nodes]
    assert [layer.parameter_elements for layer in layers] == [node.parameter_bytes / FP32 for node in nodes]


def test_resnet50_is_pipedreams_profile_counted() -> None:
    nodes = profile("resnet50")
    blocks = Counter(node.activation_bytes / 128 / FP32 for node in nodes if node.kind.startswith("Add"))
    layers = shipped_table("resnet50").layers
    assert Counter(layer.output_elements for layer in layers if layer.name.startswith("bottleneck")) == blocks
    assert parameters_of(shipped_table("resnet50")) == sum(node.parameter_bytes for node in nodes) / FP32
    kept = [node for node in nodes if re.match("Conv2d|BatchNorm2d|MaxPool2d|AvgPool2d|Linear", node.kind)]
    assert sum(layer.saved for layer in layers) == sum(node.activation_bytes for node in kept) / 128 / FP32


def profile(name: str) -> list[Any]:
    path = PROFILES / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return list(read_graph(path).order)


# The same networks from torch's own modules, one for each layer of the table.


def conv_bn_relu(torch: Any, channels: int, out: int, kernel: Any, stride: int = 1, padding: Any = 0) -> list[Any]:
    nn = torch.nn
    return [nn.Conv2d(channels, out, kernel, stride, padding, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def joined(torch: Any, how: str, *branches: list[Any]) -> Any:
    class Joined(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Sequential(*branch) for branch in branches)

        def forward(self, x: Any) -> Any:
            ends = [branch(x) for branch in self.branches]
            if how == "concat":
                return torch.cat(ends, dim=1)
            return ends[0].add_(ends[1]) if how == "add_in_place" else ends[0] + ends[1]

    return Joined()


def calling(torch: Any, function: Callable[[Any], Any], **members: Any) -> Any:
    class Calling(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, member in members.items():
                setattr(self, name, member)

        def forward(self, x: Any) -> Any:
            return function(x)

    return Calling()


def vgg(torch: Any, widths: list[int], head: list[Any]) -> list[Any]:
    net, channels = list[Any](), 3
    for width in widths:
        if width:
            net += [torch.nn.Conv2d(channels, width, 3, padding=1), torch.nn.ReLU(inplace=True)]
            channels = width
        else:
            net.append(torch.nn.MaxPool2d(2))
    return [*net, *head]


def classifier(torch: Any, features: int, classes: int) -> list[Any]:
    nn = torch.nn
    hidden = [nn.Linear(features, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096)]
    return [nn.Flatten(), *hidden, nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, classes)]


VGG11 = [64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0]
VGG13 = [64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0]
VGG16 = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
VGG19 = [64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0]


def alexnet(torch: Any) -> list[Any]:
    nn, net, channels = torch.nn, list[Any](), 3
    for out, kernel, stride, padding, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        net += [nn.Conv2d(channels, out, kernel, stride, padding), nn.ReLU(inplace=True)]
        net += [nn.MaxPool2d(3, 2)] if pooled else []
        channels = out
    net += [nn.Flatten(), nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(inplace=True)]
    return [*net, nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)]


def resnet(torch: Any, depths: tuple[int, ...], classes: int, expansion: int = 4) -> list[Any]:
    nn = torch.nn
    net = [*conv_bn_relu(torch, 3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            main = conv_bn_relu(torch, channels, width, 1) if expansion == 4 else []
            main += conv_bn_relu(torch, width if main else channels, width, 3, stride, 1)
            main += conv_bn_relu(torch, width, width * expansion, 1 if expansion == 4 else 3, 1, int(expansion == 1))[
                :2
            ]
            kept = stride == 1 and channels == width * expansion
            shortcut = [] if kept else conv_bn_relu(torch, channels, width * expansion, 1, stride)[:2]
            net += [joined(torch, "add_in_place", main, shortcut), nn.ReLU(inplace=True)]
            channels = width * expansion
    pool = calling(torch, lambda x: x.mean(dim=(2, 3)))
    return [*net, pool, nn.Linear(channels, classes)]


def inception_v4(torch: Any, classes: int, p: int = 0) -> list[Any]:
    """``p``: padding of the windows that have none in the paper."""
    nn = torch.nn

    def path(channels: int, *convs: tuple[Any, ...]) -> list[Any]:
        layers: list[Any] = []
        for out, kernel, *rest in convs:
            stride = rest[0] if rest else 1
            inside = tuple(side // 2 for side in kernel) if isinstance(kernel, tuple) else kernel // 2
            padding = rest[1] if len(rest) > 1 else inside
            layers += conv_bn_relu(torch, channels, out, kernel, stride, padding)
            channels = out
        return layers

    def concat(*branches: list[Any]) -> Any:
        return joined(torch, "concat", *branches)

    def average(channels: int, out: int) -> list[Any]:
        return [nn.AvgPool2d(3, 1, 1), *path(channels, (out, 1))]

    def split(channels: int) -> Any:
        return concat(path(channels, (256, (1, 3))), path(channels, (256, (3, 1))))

    row, column = (1, 7), (7, 1)
    return [
        *path(3, (32, 3, 2, p), (32, 3, 1, p), (64, 3)),
        concat([nn.MaxPool2d(3, 2, p)], path(64, (96, 3, 2, p))),
        concat(path(160, (64, 1), (96, 3, 1, p)), path(160, (64, 1), (64, column), (64, row), (96, 3, 1, p))),
        concat(path(192, (192, 3, 2, p)), [nn.MaxPool2d(3, 2, p)]),
        *(
            concat(
                average(384, 96), path(384, (96, 1)), path(384, (64, 1), (96, 3)), path(384, (64, 1), (96, 3), (96, 3))
            )
            for _ in range(4)
        ),
        concat([nn.MaxPool2d(3, 2, p)], path(384, (384, 3, 2, p)), path(384, (192, 1), (224, 3), (256, 3, 2, p))),
        *(
            concat(
                average(1024, 128),
                path(1024, (384, 1)),
                path(1024, (192, 1), (224, row), (256, column)),
                path(1024, (192, 1), (192, column), (224, row), (224, column), (256, row)),
            )
            for _ in range(7)
        ),
        concat(
            [nn.MaxPool2d(3, 2, p)],
            path(1024, (192, 1), (192, 3, 2, p)),
            path(1024, (256, 1), (256, row), (320, column), (320, 3, 2, p)),
        ),
        *(
            concat(
                average(1536, 256),
                path(1536, (256, 1)),
                [*path(1536, (384, 1)), split(384)],
                [*path(1536, (384, 1), (448, (3, 1)), (512, (1, 3))), split(512)],
            )
            for _ in range(3)
        ),
        calling(torch, lambda x: x.mean(dim=(2, 3))),
        nn.Dropout(0.2),
        nn.Linear(1536, classes),
    ]


def mlp(torch: Any) -> list[Any]:
    nn = torch.nn
    hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return [nn.Linear(64, 256), nn.ReLU(), *hidden, nn.Linear(256, 10)]


def snn(torch: Any) -> list[Any]:
    nn = torch.nn
    hidden = [layer for _ in range(31) for layer in (nn.Linear(2048, 2048), nn.SELU())]
    return [nn.Flatten(), nn.Linear(3072, 2048), nn.SELU(), *hidden, nn.Linear(2048, 10)]


def transformer(torch: Any) -> list[Any]:
    nn = torch.nn

    def attention() -> Any:
        inside = nn.MultiheadAttention(128, 4, batch_first=True)
        return calling(torch, lambda x: inside(x, x, x, need_weights=False)[0], inside=inside)

    positions = nn.Parameter(torch.zeros(200, 128))
    net = [nn.Embedding(10_000, 128), nn.Linear(128, 128), calling(torch, lambda x: x.add_(positions), p=positions)]
    for _ in range(3):
        net += [joined(torch, "add", [attention(), nn.Dropout(0.5)], []), nn.LayerNorm(128)]
        inner = [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.Dropout(0.5)]
        net += [joined(torch, "add", inner, []), nn.LayerNorm(128)]
    return [*net, calling(torch, lambda x: x.mean(dim=1)), nn.Linear(128, 2)]


def residual_lstm(torch: Any) -> list[Any]:
    nn = torch.nn

    def lstm() -> Any:
        inside = nn.LSTM(128, 128, batch_first=True)
        return calling(torch, lambda x: inside(x)[0], inside=inside)

    blocks = [joined(torch, "add_in_place", [lstm(), nn.Linear(128, 128)], []) for _ in range(4)]
    return [nn.Embedding(10_000, 128), *blocks, calling(torch, lambda x: x.mean(dim=1)), nn.Linear(128, 2)]


NETWORKS: dict[str, tuple[Callable[[Any], list[Any]], tuple[int, ...]]] = {
    "alexnet": (alexnet, IMAGENET),
    "vgg11": (lambda torch: vgg(torch, VGG11, classifier(torch, 25088, 1000)), IMAGENET),
    "vgg13": (lambda torch: vgg(torch, VGG13, classifier(torch, 25088, 1000)), IMAGENET),
    "vgg16": (lambda torch: vgg(torch, VGG16, classifier(torch, 25088, 1000)), IMAGENET),
    "vgg19": (lambda torch: vgg(torch, VGG19, classifier(torch, 25088, 1000)), IMAGENET),
    "vgg16-cifar": (lambda torch: vgg(torch, VGG16, [torch.nn.Flatten(), torch.nn.Linear(512, 10)]), CIFAR),
    "vgg16-cifar-wide": (
        lambda torch: vgg(torch, VGG16, [torch.nn.AdaptiveAvgPool2d(7), *classifier(torch, 25088, 10)]),
        CIFAR,
    ),
    "resnet18": (lambda torch: resnet(torch, (2, 2, 2, 2), 1000, expansion=1), IMAGENET),
    "resnet50": (lambda torch: resnet(torch, (3, 4, 6, 3), 1000), IMAGENET),
    "resnet152": (lambda torch: resnet(torch, (3, 8, 36, 3), 1000), IMAGENET),
    "resnet152-cifar": (lambda torch: resnet(torch, (3, 8, 36, 3), 10), CIFAR),
    "inception-v4": (lambda torch: inception_v4(torch, 1000), (3, 299, 299)),
    "inception-v4-cifar": (lambda torch: inception_v4(torch, 10, p=1), CIFAR),
    "mlp": (mlp, (64,)),
    "snn-cifar": (snn, CIFAR),
    "transformer-imdb": (transformer, REVIEW),
    "residual-lstm-imdb": (residual_lstm, REVIEW),
}
BATCH = 2
"""Batch normalisation refuses a single sample of one place."""


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_has_the_output_flops_and_parameters_of_torchs_modules(name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    build, shape = NETWORKS[name]
    measured = []
    with torch.device("meta"), torch.no_grad():
        sample = torch.zeros(BATCH, *shape, dtype=torch.long if shape == REVIEW else torch.float)
        for module in build(torch):
            with FlopCounterMode(display=False) as counter:
                sample = module(sample)
            parameters = sum(parameter.numel() for parameter in module.parameters())
            measured.append((sample.numel() / BATCH, counter.get_total_flops() / BATCH, parameters))
    layers = shipped_table(name).layers
    assert [(layer.output_elements, layer.forward_flops, layer.parameter_elements) for layer in layers] == measured


# Outputs that the table counts as kept though autograd lets them go: the logits, what only a ReLU out of place reads,
# shortcuts that are only added, pools that are only concatenated, two nested concatenations a block, the last pool.
UNUSED = {
    "mlp": 10 + 4 * 256,
    "snn-cifar": 10,
    "vgg16-cifar": 10,
    "resnet152-cifar": 10 + 256 * 8**2 + 512 * 4**2 + 1024 * 2**2 + 2048,
    "inception-v4-cifar": 10 + 64 * 8**2 + 192 * 4**2 + 384 * 2**2 + 1024 + 3 * 2 * 512 + 1536,
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_is_kept_for_backward_is_what_autograd_keeps(name: str) -> None:
    torch = pytest.importorskip("torch")
    build, shape = NETWORKS[name]
    net = torch.nn.Sequential(*build(torch))
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if tensor.dtype is torch.float and len(tensor) == BATCH and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    sample = torch.rand(BATCH, *shape)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(sample)
    elements = sum(storage.nbytes() for storage in kept.values()) / FP32 / BATCH - sample.numel() / BATCH
    assert sum(layer.saved for layer in shipped_table(name).layers) == elements + UNUSED[name]
