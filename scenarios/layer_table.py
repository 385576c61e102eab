"""Model files: a chain of layers by shape, from which work, activations and parameters are computed.

A layer is ``{kind: value}``: ``{conv: {out: 64, kernel: 3, padding: 1}}``, ``{relu: in_place}``, ``{flatten: }``,
``{dropout: 0.5}``; `layer_kinds.KINDS` has them all. Windows are square or ``[height, width]``, a pool strides by its
kernel unless told. ``{conv_bn_relu: …}`` is short for three layers.

``{repeat: {times: 3, layers: […]}}`` stands for its layers one after the other. ``{block: {name: bottleneck, join: add,
branches: [[…], […]]}}`` is one layer of the table, which cannot be cut: branches that all read its input, an empty one
passes it on, joined by their sum (``add``, ``add_in_place``: into the first) or side by side (``concat``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from scenarios.layer_kinds import CONV_BN_RELU, JOINS, KINDS, MisfitError, Shape, Work, join
from scenarios.layer_options import (
    LARGEST,
    Option,
    Options,
    as_list,
    is_whole,
    read_options,
    read_value,
    shown,
    unknown_keys,
)
from sim.errors import Fault, ScenarioError, nearest
from sim.model import Kernel, LayerTable, LayerWork

_KEYS = ("name", "input", "source", "layers")
_MOST_LAYERS = 10_000
_MOST_ELEMENTS = 10**12


@dataclass(frozen=True, slots=True)
class _Step:
    """One layer as read: its work on a shape, and how many layers it counts for."""

    name: str
    path: str
    work: Callable[[Shape], Work]
    in_place: bool = False
    size: int = 1


_Steps = list[_Step | None]
"""Layers in order; ``None`` where one has faults."""


def layer_table(document: Mapping[str, Any]) -> LayerTable:
    """Work per sample of each layer of a model file, given as a plain dict.

    The work of a block is the sum over its layers; what it puts out is its end.

    Raises
    ------
    ScenarioError : every fault of the document, each with its path.
    """
    faults = _faults_of_keys(document)
    steps = _read_layers(as_list(document.get("layers")), "layers", faults)
    shape, layers = _shape(document.get("input")), list[LayerWork]()
    try:
        for step in steps:
            if step is None or shape is None:
                break  # what reaches the layers behind is unknown
            work = _work(step, shape)
            layers.append(_layer(f"{step.name}{len(layers)}", work, step.in_place))
            shape = work.output
    except MisfitError as misfit:
        faults.append(Fault(str(misfit), misfit.path))
    if faults:
        raise ScenarioError.of(faults)
    return LayerTable(document["name"], math.prod(document["input"]), tuple(layers), document["source"])


def _layer(name: str, work: Work, in_place: bool) -> LayerWork:
    return LayerWork(
        name=name,
        forward_flops=sum(kernel.flops for kernel in work.kernels),
        output_elements=math.prod(work.output),
        parameter_elements=sum(kernel.parameter_elements for kernel in work.kernels),
        in_place=in_place,
        saved_elements=work.saved_elements,
        kernels=work.kernels,
    )


def _work(step: _Step, shape: Shape) -> Work:
    try:
        work = step.work(shape)
        if math.prod(work.output) > _MOST_ELEMENTS:
            raise MisfitError(f"more than {_MOST_ELEMENTS} elements come out")
        return work
    except MisfitError as misfit:
        misfit.path = misfit.path or step.path
        raise


def _block_work(how: str, branches: list[list[_Step]], shape: Shape) -> Work:
    kernels, saved_elements, ends = list[Kernel](), 0, list[Shape]()
    for branch in branches:
        end = shape
        for step in branch:
            work = _work(step, end)
            kernels += work.kernels
            saved_elements += work.saved_elements
            end = work.output
        ends.append(end)
    joined = join(how, ends)
    return Work(joined.output, (*kernels, *joined.kernels), saved_elements + joined.saved_elements)


def _faults_of_keys(document: Mapping[str, Any]) -> list[Fault]:
    faults = unknown_keys(document, _KEYS, "")
    for key in ("name", "source"):
        if not isinstance(document.get(key), str) or not document[key].strip():
            faults.append(Fault("expected a text", key))
    if _shape(document.get("input")) is None:
        faults.append(Fault(f"expected one to three whole numbers from 1 to {LARGEST}, such as [3, 224, 224]", "input"))
    if not as_list(document.get("layers")):
        faults.append(Fault("expected a list of layers, such as [{linear: {out: 10}}]", "layers"))
    return faults


def _shape(given: Any) -> Shape | None:
    sizes = tuple(as_list(given))
    return sizes if 1 <= len(sizes) <= 3 and all(is_whole(size, 1) for size in sizes) else None


def _read_layers(entries: Iterable[Any], path: str, faults: list[Fault]) -> _Steps:
    steps: _Steps = []
    for index, entry in enumerate(entries):
        steps += _read(entry, f"{path}.{index}", faults)
    return _within_limit(steps, path, faults)


def _within_limit(steps: _Steps, path: str, faults: list[Fault], times: int = 1) -> _Steps:
    if times * sum(step.size for step in steps if step is not None) <= _MOST_LAYERS:
        return steps * times
    faults.append(Fault(f"more than {_MOST_LAYERS} layers", path))
    return [None]


def _read(entry: Any, path: str, faults: list[Fault]) -> _Steps:
    """The layers that one entry of a list stands for."""
    if not isinstance(entry, Mapping) or len(entry) != 1:
        example = f"write {{{entry}: }}" if isinstance(entry, str) and entry in KINDS else None
        faults.append(Fault("expected one layer, such as {linear: {out: 10}}", path, suggestion=example))
        return [None]
    kind, value = next(iter(entry.items()))
    if kind not in (known := (*KINDS, *_GROUPS)):
        message = f"unknown layer {shown(kind)}, known are {', '.join(known)}"
        faults.append(Fault(message, path, suggestion=nearest(str(kind), known)))
        return [None]
    before, path = len(faults), f"{path}.{kind}"
    if kind in _GROUPS:
        steps = _GROUPS[kind](value, path, faults)
    else:
        steps = [_step(kind, path, read_value(kind, KINDS[kind].takes, value, path, faults))]
    return steps if len(faults) == before else [None]


def _step(kind: str, path: str, options: Options) -> _Step:
    return _Step(kind, path, partial(KINDS[kind].work, options), kind == "flatten" or "in_place" in options)


def _read_conv_bn_relu(value: Any, path: str, faults: list[Fault]) -> _Steps:
    conv = {**read_options(CONV_BN_RELU, value, path, faults), "bias": False}
    return [_step("conv", path, conv), _step("batch_norm", path, {}), _step("relu", path, {"in_place": True})]


def _read_repeat(value: Any, path: str, faults: list[Fault]) -> _Steps:
    if not isinstance(value, Mapping):
        faults.append(Fault(f"expected {{times: 3, layers: […]}}, got {shown(value)}", path))
        return []
    entries = as_list(value.get("layers"))
    if not entries:
        faults.append(Fault("expected a list of layers, such as [{linear: {out: 10}}]", f"{path}.layers"))
    counts = {key: given for key, given in value.items() if key != "layers"}
    times = read_options({"times": Option()}, counts, path, faults).get("times")
    return _within_limit(_read_layers(entries, f"{path}.layers", faults), path, faults, times or 1)


def _read_block(value: Any, path: str, faults: list[Fault]) -> _Steps:
    if not isinstance(value, Mapping):
        faults.append(Fault(f"expected {{branches: [[…], […]], join: add}}, got {shown(value)}", path))
        return []
    faults += unknown_keys(value, ("name", "branches", "join"), path)
    name, how = value.get("name", "block"), value.get("join")
    if not isinstance(name, str) or not name.strip():
        faults.append(Fault(f"expected a text, got {shown(name)}", f"{path}.name"))
    if how not in JOINS:
        hint = nearest(how, JOINS) if isinstance(how, str) else None
        faults.append(Fault(f"expected one of {', '.join(JOINS)}, got {shown(how)}", f"{path}.join", suggestion=hint))
    given = as_list(value.get("branches"))
    if len(given) < 2 or not all(isinstance(branch, list | tuple) for branch in given):
        message = "expected two or more lists of layers, such as [[{linear: {out: 10}}], []]"
        faults.append(Fault(message, f"{path}.branches"))
        return []
    branches = [_read_layers(branch, f"{path}.branches.{index}", faults) for index, branch in enumerate(given)]
    steps = [[step for step in branch if step is not None] for branch in branches]
    faults += _overwriting(steps, how, f"{path}.branches")
    size = 1 + sum(step.size for branch in steps for step in branch)
    return [_Step(str(name), path, partial(_block_work, str(how), steps), size=size)]


def _overwriting(branches: list[list[_Step]], how: Any, path: str) -> list[Fault]:
    """Work in place on what reaches the block, which its other branches read as well."""
    heads = [step for branch in branches for step in takewhile(lambda step: step.in_place, branch)]
    message = "works in place on the input of the block, which other branches read"
    faults = [Fault(message, step.path) for step in heads if step.name != "flatten"]
    if how == "add_in_place" and all(step.in_place for step in branches[0]):
        faults.append(Fault("add_in_place expects a first branch with an output of its own", f"{path}.0"))
    return faults


_GROUPS: dict[str, Callable[[Any, str, list[Fault]], _Steps]] = {
    "conv_bn_relu": _read_conv_bn_relu,
    "repeat": _read_repeat,
    "block": _read_block,
}
