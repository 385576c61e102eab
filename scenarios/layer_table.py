"""Model files: a list of layers by shape, from which work, activations and parameters are computed.

``{conv: {out: 64, kernel: 3, padding: 1}}``, ``{relu: in_place}``, ``{max_pool: {kernel: 2}}``, ``{avg_pool: …}``,
``{flatten: }``, ``{linear: {out: 4096}}``, ``{dropout: 0.5}``. Kernels, strides and paddings are square, a pool strides
by its kernel unless told, biases are counted. Layer i of the list is layer i of the table.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.errors import Fault, ScenarioError, nearest
from sim.model import LayerTable, LayerWork

Shape = tuple[int, ...]
Options = dict[str, int]
Work = tuple[int, Shape, int]
"""Forward flops and output shape per sample, parameters."""

_LARGEST = 1_000_000
_KEYS = ("name", "input", "source", "layers")


def layer_table(document: Mapping[str, Any]) -> LayerTable:
    """Work per sample of each layer of a model file, given as a plain dict.

    A multiply–add is two flops; only convolutions and linear layers do any, the others move memory. An in-place ReLU
    and a flatten have no output of their own.

    Raises
    ------
    ScenarioError : every fault of the document, each with its path.
    """
    faults = _faults_of_keys(document)
    shape = _shape(document.get("input"))
    steps = [_read(entry, f"layers.{index}", faults) for index, entry in enumerate(_list(document.get("layers")))]
    layers: list[LayerWork] = []
    for index, step in enumerate(steps):
        if step is None or shape is None:
            break  # what reaches the layers behind is unknown
        kind, options = step
        try:
            flops, shape, parameters = _WORK[kind](options, shape)
        except _MisfitError as misfit:
            faults.append(Fault(str(misfit), f"layers.{index}.{kind}"))
            break
        in_place = kind == "flatten" or "in_place" in options
        layers.append(LayerWork(f"{kind}{index}", flops, math.prod(shape), parameters, in_place))
    if faults:
        raise ScenarioError.of(faults)
    return LayerTable(document["name"], math.prod(document["input"]), tuple(layers), document["source"])


def _faults_of_keys(document: Mapping[str, Any]) -> list[Fault]:
    faults = _unknown(document, _KEYS, "")
    for key in ("name", "source"):
        if not isinstance(document.get(key), str) or not document[key].strip():
            faults.append(Fault("expected a text", key))
    if _shape(document.get("input")) is None:
        faults.append(
            Fault(f"expected one to three whole numbers from 1 to {_LARGEST}, such as [3, 224, 224]", "input")
        )
    if not _list(document.get("layers")):
        faults.append(Fault("expected a list of layers, such as [{linear: {out: 10}}]", "layers"))
    return faults


def _unknown(given: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...], path: str) -> list[Fault]:
    return [
        Fault(f"unknown key {_shown(key)}", f"{path}.{key}" if path else str(key), suggestion=nearest(str(key), known))
        for key in given
        if key not in known
    ]


def _list(value: Any) -> Sequence[Any]:
    """A list as it is; nothing for whatever is none."""
    return value if isinstance(value, list | tuple) else ()


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def _shape(given: Any) -> Shape | None:
    sizes = tuple(_list(given))
    return sizes if 1 <= len(sizes) <= 3 and all(_is_whole(size, 1) for size in sizes) else None


def _read(entry: Any, path: str, faults: list[Fault]) -> tuple[str, Options] | None:
    """Kind and options of one layer; ``None`` where it has faults."""
    if not isinstance(entry, Mapping) or len(entry) != 1:
        example = f"write {{{entry}: }}" if isinstance(entry, str) and entry in _WORK else None
        faults.append(Fault("expected one layer, such as {linear: {out: 10}}", path, suggestion=example))
        return None
    kind, value = next(iter(entry.items()))
    if kind not in _WORK:
        message = f"unknown layer {_shown(kind)}, known are {', '.join(_WORK)}"
        faults.append(Fault(message, path, suggestion=nearest(str(kind), _WORK)))
        return None
    before = len(faults)
    options = _read_options(kind, value, f"{path}.{kind}", faults)
    return (kind, options) if len(faults) == before else None


def _read_options(kind: str, value: Any, path: str, faults: list[Fault]) -> Options:
    if kind in _DEFAULTS:
        return _read_mapping(_DEFAULTS[kind], value, path, faults)
    if kind == "relu" and value == "in_place":
        return {"in_place": 1}
    if kind == "dropout":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            faults.append(Fault(f"expected a probability from 0 up to 1, got {_shown(value)}", path))
    elif value is not None:
        expected = "'in_place' or nothing" if kind == "relu" else "nothing"
        faults.append(Fault(f"expected {expected} behind '{kind}:', got {_shown(value)}", path))
    return {}


def _read_mapping(defaults: Mapping[str, int | str | None], value: Any, path: str, faults: list[Fault]) -> Options:
    if not isinstance(value, Mapping):
        faults.append(Fault(f"expected options such as {{{next(iter(defaults))}: 2}}, got {_shown(value)}", path))
        return {}
    faults += _unknown(value, defaults, path)
    options: Options = {}
    for key, default in defaults.items():
        least = 0 if key == "padding" else 1
        given = value.get(key, options.get(default, least) if isinstance(default, str) else default)
        if key not in value and default is None:
            faults.append(Fault(f"'{key}' is missing", path))
        elif not _is_whole(given, least):
            expected = f"expected a whole number from {least} to {_LARGEST}"
            faults.append(Fault(f"{expected}, got {_shown(given)}", f"{path}.{key}"))
        else:
            options[key] = given
    return options


def _shown(value: Any) -> str:
    """A value for a message, cut short; Python refuses to write out whole numbers of thousands of digits."""
    return "a huge number" if isinstance(value, int) and abs(value) > 10**30 else reprlib.repr(value)


class _MisfitError(Exception):
    """A layer cannot take the shape that reaches it."""


def _text(shape: Shape) -> str:
    return "x".join(str(size) for size in shape)


def _slide(options: Options, shape: Shape) -> Shape:
    """Height and width after a window has slid over them."""
    if len(shape) != 3:
        raise _MisfitError(f"expects channels x height x width, {_text(shape)} reaches it")
    padding, kernel, stride = options["padding"], options["kernel"], options["stride"]
    sides = tuple((side + 2 * padding - kernel) // stride + 1 for side in shape[1:])
    if min(sides) < 1:
        raise _MisfitError(f"a kernel of {kernel} is larger than its input, {_text(shape)} with padding {padding}")
    return sides


def _conv(options: Options, shape: Shape) -> Work:
    output = (options["out"], *_slide(options, shape))
    weights_each = shape[0] * options["kernel"] ** 2
    return 2 * weights_each * math.prod(output), output, options["out"] * (weights_each + 1)


def _linear(options: Options, shape: Shape) -> Work:
    if len(shape) != 1:
        raise _MisfitError(f"expects a vector, {_text(shape)} reaches it: put {{flatten: }} before it")
    return 2 * shape[0] * options["out"], (options["out"],), options["out"] * (shape[0] + 1)


def _pool(options: Options, shape: Shape) -> Work:
    return 0, (shape[0], *_slide(options, shape)), 0


def _flatten(options: Options, shape: Shape) -> Work:
    return 0, (math.prod(shape),), 0


def _elementwise(options: Options, shape: Shape) -> Work:
    return 0, shape, 0


_WORK: dict[str, Callable[[Options, Shape], Work]] = {
    "conv": _conv,
    "linear": _linear,
    "max_pool": _pool,
    "avg_pool": _pool,
    "relu": _elementwise,
    "dropout": _elementwise,
    "flatten": _flatten,
}
_POOL: dict[str, int | str | None] = {"kernel": None, "stride": "kernel", "padding": 0}
_DEFAULTS: dict[str, dict[str, int | str | None]] = {
    "conv": {"out": None, "kernel": None, "stride": 1, "padding": 0},
    "max_pool": _POOL,
    "avg_pool": _POOL,
    "linear": {"out": None},
}
"""Options of a kind and what they are unless given: a number, as much as another option, ``None``: required."""
