"""The kinds of layers: what each takes, and its work per sample as kernels.

A shape is ``(features,)``, ``(positions, features)`` of a sequence, or ``(channels, height, width)``. A multiply–add is
two flops; what is no matrix product or convolution only moves memory. Biases are counted as parameters, not as flops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scenarios.layer_options import Option, Options, Value
from sim.model import Kernel

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer makes of a sample: its output shape, its kernels, the elements it keeps for backward."""

    output: Shape
    kernels: tuple[Kernel, ...]
    saved_elements: int


class MisfitError(Exception):
    """A layer cannot take the shape that reaches it. ``path`` is where it stands, once known."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer: its work on options and an input shape, and what may stand behind its name."""

    work: Callable[[Options, Shape], Work]
    takes: Mapping[str, Option] | Value = "nothing"


def text(sizes: Iterable[int]) -> str:
    """Sizes for a message: ``3x224x224``."""
    return "x".join(str(size) for size in sizes)


def _one_kernel(shape: Shape, output: Shape, flops: int = 0, variables: tuple[int, ...] = ()) -> Work:
    moved = math.prod(shape) + math.prod(output)
    return Work(output, (_kernel(flops, moved, variables),), math.prod(output))


def _kernel(flops: int, moved: int, variables: tuple[int, ...], parameter_reads: int = 1) -> Kernel:
    """A kernel with parameter tensors of these sizes."""
    return Kernel(flops, moved, sum(variables), parameter_reads, variables=variables)


def _slide(options: Options, shape: Shape) -> Shape:
    """Height and width after a window has slid over them."""
    if len(shape) != 3:
        raise MisfitError(f"expects channels x height x width, {text(shape)} reaches it")
    kernel, stride, padding = options["kernel"], options["stride"], options["padding"]
    sides = tuple((side + 2 * p - k) // s + 1 for side, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True))
    if min(sides) < 1:
        message = f"a kernel of {text(kernel)} is larger than its input, {text(shape)} with padding {text(padding)}"
        raise MisfitError(message)
    return sides


def _conv(options: Options, shape: Shape) -> Work:
    output = (options["out"], *_slide(options, shape))
    groups = options["groups"]
    if shape[0] % groups or output[0] % groups:
        raise MisfitError(f"{shape[0]} channels to {output[0]} do not split into {groups} groups")
    weights_each = shape[0] // groups * math.prod(options["kernel"])
    flops = 2 * weights_each * math.prod(output)
    return _one_kernel(shape, output, flops, (output[0] * weights_each, *_bias(output[0], options)))


def _bias(features: int, options: Options) -> tuple[int, ...]:
    return (features,) if options["bias"] else ()


def _linear(options: Options, shape: Shape) -> Work:
    if len(shape) > 2:
        message = f"expects a vector or positions x features, {text(shape)} reaches it: put {{flatten: }} before it"
        raise MisfitError(message)
    output = (*shape[:-1], options["out"])
    flops = 2 * shape[-1] * math.prod(output)
    return _one_kernel(shape, output, flops, (options["out"] * shape[-1], *_bias(options["out"], options)))


def _pool(options: Options, shape: Shape) -> Work:
    return _one_kernel(shape, (shape[0], *_slide(options, shape)))


def _adaptive_avg_pool(options: Options, shape: Shape) -> Work:
    if len(shape) != 3:
        raise MisfitError(f"expects channels x height x width, {text(shape)} reaches it")
    return _one_kernel(shape, (shape[0], *options["out"]))


def _global_avg_pool(options: Options, shape: Shape) -> Work:
    """The mean over the places of an image or the positions of a sequence."""
    if len(shape) == 1:
        raise MisfitError(f"expects an image or positions x features, {text(shape)} reaches it")
    return _one_kernel(shape, (_channels(shape),))


def _flatten(options: Options, shape: Shape) -> Work:
    return Work((math.prod(shape),), (), 0)


def _elementwise(options: Options, shape: Shape) -> Work:
    elements = math.prod(shape)
    return Work(shape, (Kernel(0, 2 * elements),), 0 if "in_place" in options else elements)


def _batch_norm(options: Options, shape: Shape) -> Work:
    """A batch is too large to stay on chip: the input is read once for the statistics, once to be normalised."""
    if len(shape) == 2:
        raise MisfitError(f"expects an image or a vector, {text(shape)} reaches it")
    elements = math.prod(shape)
    return Work(shape, (_kernel(0, 3 * elements, (shape[0], shape[0])),), elements)


def _layer_norm(options: Options, shape: Shape) -> Work:
    """Over the features of a position, which stay on chip."""
    if len(shape) == 3:
        raise MisfitError(f"expects a vector or positions x features, {text(shape)} reaches it")
    return _one_kernel(shape, shape, 0, (shape[-1], shape[-1]))


def _sequence(shape: Shape) -> tuple[int, int]:
    if len(shape) != 2:
        raise MisfitError(f"expects positions x features, {text(shape)} reaches it")
    return shape[0], shape[1]


def _embedding(options: Options, shape: Shape) -> Work:
    if len(shape) != 1:
        raise MisfitError(f"expects a vector of words, {text(shape)} reaches it")
    output = (shape[0], options["out"])
    rows = math.prod(output)
    parameters = options["words"] * options["out"]
    return Work(output, (Kernel(0, shape[0] + 2 * rows, parameters, parameter_reads=0),), rows)


def _position_embedding(options: Options, shape: Shape) -> Work:
    """A learned vector for each position, added."""
    elements = math.prod(_sequence(shape))
    return Work(shape, (Kernel(0, 2 * elements, elements),), 0 if "in_place" in options else elements)


def _self_attention(options: Options, shape: Shape) -> Work:
    """Scaled dot-product attention over several heads (Vaswani et al. 2017), its probabilities written to memory."""
    positions, features = _sequence(shape)
    heads = options["heads"]
    if features % heads:
        raise MisfitError(f"{features} features do not split into {heads} heads")
    tensor, probabilities = positions * features, heads * positions**2
    projection, product = 2 * tensor * features, 2 * positions * tensor
    weight = features**2
    kernels = (
        _kernel(3 * projection, 4 * tensor, (3 * weight, 3 * features)),
        Kernel(product, 2 * tensor + probabilities, operands=2),
        Kernel(0, 2 * probabilities),
        Kernel(product, probabilities + 2 * tensor, operands=2),
        _kernel(projection, 2 * tensor, (weight, features)),
    )
    return Work(shape, kernels, 5 * tensor + probabilities)


def _lstm(options: Options, shape: Shape) -> Work:
    """All steps of a layer (Hochreiter and Schmidhuber 1997), with two biases a gate as in cuDNN.

    The inputs of all steps are projected at once. Then each step reads its recurrent weights, its projected input and
    the last output and cell, and writes gates, cell and output, which are kept.
    """
    steps, features = _sequence(shape)
    hidden = options["hidden"]
    state = steps * hidden
    kernels = (
        _kernel(8 * state * features, steps * features + 4 * state, (4 * hidden * features, 4 * hidden)),
        _kernel(8 * state * hidden, 12 * state, (4 * hidden**2, 4 * hidden), parameter_reads=steps),
    )
    return Work((steps, hidden), kernels, 6 * state)


def _channels(shape: Shape) -> int:
    """Channels of an image, features of a sequence or vector."""
    return shape[1] if len(shape) == 2 else shape[0]


def _with_channels(shape: Shape, channels: int) -> Shape:
    return (shape[0], channels) if len(shape) == 2 else (channels, *shape[1:])


def join(how: str, ends: Sequence[Shape]) -> Work:
    """The end of a block: the sum of its branches, kept or put into the first, or their channels side by side.

    Raises
    ------
    MisfitError : shapes that do not join.
    """
    concat = how == "concat"
    shapes = {_with_channels(end, 0) if concat else end for end in ends}
    if len(shapes) > 1:
        expected = "that differ in channels only" if concat else "of one shape"
        raise MisfitError(f"{how} expects branches {expected}: they end in {', '.join(text(end) for end in ends)}")
    output = _with_channels(ends[0], sum(_channels(end) for end in ends)) if concat else ends[0]
    moved = sum(math.prod(end) for end in ends) + math.prod(output)
    return Work(output, (Kernel(0, moved),), 0 if how == "add_in_place" else math.prod(output))


JOINS = ("add", "add_in_place", "concat")
_WINDOW = {
    "kernel": Option(form="sides"),
    "stride": Option(1, form="sides"),
    "padding": Option(0, least=0, form="sides"),
}
_POOL = {**_WINDOW, "stride": Option("kernel", form="sides")}
CONV_BN_RELU = {"out": Option(), **_WINDOW, "groups": Option(1)}
"""A convolution without bias, batch normalisation and a ReLU in place: three layers written as one."""
_BIAS = Option(True, form="flag")

KINDS: dict[str, Kind] = {
    "conv": Kind(_conv, {**CONV_BN_RELU, "bias": _BIAS}),
    "linear": Kind(_linear, {"out": Option(), "bias": _BIAS}),
    "max_pool": Kind(_pool, _POOL),
    "avg_pool": Kind(_pool, _POOL),
    "adaptive_avg_pool": Kind(_adaptive_avg_pool, {"out": Option(form="sides")}),
    "global_avg_pool": Kind(_global_avg_pool),
    "relu": Kind(_elementwise, "'in_place' or nothing"),
    "selu": Kind(_elementwise, "'in_place' or nothing"),
    "dropout": Kind(_elementwise, "a probability from 0 up to 1"),
    "flatten": Kind(_flatten),
    "batch_norm": Kind(_batch_norm),
    "layer_norm": Kind(_layer_norm),
    "embedding": Kind(_embedding, {"words": Option(), "out": Option()}),
    "position_embedding": Kind(_position_embedding, "'in_place' or nothing"),
    "self_attention": Kind(_self_attention, {"heads": Option()}),
    "lstm": Kind(_lstm, {"hidden": Option()}),
}
