"""Model files as structures: every operation with its options and shapes, every block with its branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from scenarios.layer_kinds import CONV_BN_RELU, KINDS, join
from scenarios.layer_options import read_options, read_value
from scenarios.layer_table import layer_table
from scenarios.load import load_document, shipped
from sim.architecture import Architecture, Block, Entry, Operation, Shape


@lru_cache
def shipped_architecture(name: str) -> Architecture:
    """The shipped model of that name."""
    return architecture(load_document(shipped("models")[name]).data)


def architecture(document: Mapping[str, Any]) -> Architecture:
    """The structure of a model file, given as a plain dict.

    Raises
    ------
    ScenarioError : every fault of the document, each with its path.
    """
    layer_table(document)
    arriving = tuple(document["input"])
    return Architecture(document["name"], arriving, _entries(document["layers"], arriving))


def _entries(given: Sequence[Mapping[str, Any]], arriving: Shape) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for kind, value in _spelled_out(given):
        entry = _block(value, arriving) if kind == "block" else _operation(kind, value, arriving)
        entries.append(entry)
        arriving = entry.leaving
    return tuple(entries)


def _spelled_out(given: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Every layer by kind and value: repeats repeated, what is short for three layers written as three."""
    for layer in given:
        kind, value = next(iter(layer.items()))
        if kind == "repeat":
            for _ in range(value["times"]):
                yield from _spelled_out(value["layers"])
        elif kind == "conv_bn_relu":
            yield "conv", {**read_options(CONV_BN_RELU, value, "", []), "bias": False}
            yield "batch_norm", None
            yield "relu", "in_place"
        else:
            yield kind, value


def _block(value: Mapping[str, Any], arriving: Shape) -> Block:
    branches = tuple(_entries(branch, arriving) for branch in value["branches"])
    ends = [branch[-1].leaving if branch else arriving for branch in branches]
    return Block(value.get("name", "block"), value["join"], branches, arriving, join(value["join"], ends).output)


def _operation(kind: str, value: Any, arriving: Shape) -> Operation:
    options = read_value(kind, KINDS[kind].takes, value, "", [])
    if kind == "dropout":
        options = {"probability": value}
    work = KINDS[kind].work(options, arriving)
    parameters = sum(kernel.parameter_elements for kernel in work.kernels)
    flops = sum(kernel.flops for kernel in work.kernels)
    return Operation(kind, options, arriving, work.output, int(parameters), flops)
