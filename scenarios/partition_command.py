"""``twinrail partition``: what PipeDream's partitioner makes of a measured profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from analysis import partition_plot
from analysis.text import duration
from scenarios.pipedream import read_graph
from scenarios.quantities import BytesPerSecond, Capacity, WrongValue, format_bytes, format_rate, printable, shown
from scenarios.strict import Section, check
from scenarios.text_file import saving
from sim.antichains import States, graph_states
from sim.errors import Fault, ScenarioError
from sim.graph import ProfileGraph
from sim.pipedream_partitioner import MOST_MACHINES, PipeDreamPartition, Stage, partition

IMAGES = (".png", ".svg", ".pdf")


def _read_image(value: object) -> object:
    if Path(str(value)).suffix not in IMAGES:
        raise WrongValue(f"expected a file that ends in {', '.join(IMAGES)}, got {shown(value)}")
    return value


class Options(Section):
    """What can be asked of the partitioner, each key an option of the command line."""

    machines: Annotated[int, Field(ge=1, le=MOST_MACHINES)]
    bandwidth: BytesPerSecond
    transfers: Literal["include", "ignore"] = "include"
    sync: Literal["sum", "max"] = "sum"
    straight: bool = False
    memory: Capacity | None = None
    plot: Annotated[str, BeforeValidator(_read_image)] | None = None


def partition_profile(profile: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """The partition of a profile as JSON holds it, and its picture where one is wanted.

    ``given`` are the options as written, those that were. A stage's ``first`` and ``last`` count layers from 0; where
    branches of the graph run side by side, in the order in which all layers are laid out stage by stage.

    Raises
    ------
    ScenarioError : every fault of the options and the profile; no such partition; no writing where the picture goes.
    """
    options, wrongs = check(Options, {key: value for key, value in given.items() if value is not None})
    faults = [Fault(wrong.message, f"--{wrong.path[0]}", suggestion=wrong.suggestion) for wrong in wrongs]
    try:
        graph = read_graph(profile)
        states = graph_states(graph)
    except ScenarioError as error:
        raise ScenarioError.of([*faults, *(_placed(fault, profile) for fault in error.faults)]) from None
    if options is None:
        raise ScenarioError.of(faults)
    found = _partition(states, options, profile)
    result = _result(profile, graph, states, options, found)
    if options.plot is not None:
        with saving(options.plot, "--plot"):
            partition_plot.plot(graph, found, _title(result), Path(options.plot))
    return result


def _partition(states: States, options: Options, profile: Path) -> PipeDreamPartition:
    try:
        return partition(
            states,
            options.machines,
            options.bandwidth,
            replicas=[1] * options.machines if options.straight else None,
            sync=options.sync,
            transfers=options.transfers,
            memory_bytes=options.memory,
        )
    except ScenarioError as error:
        raise ScenarioError.of([_placed(fault, profile) for fault in error.faults]) from None


def _placed(fault: Fault, profile: Path) -> Fault:
    """A fault with the profile it concerns, its path as an option."""
    return replace(fault, file=printable(str(profile)), path=f"--{fault.path}" if fault.path else "")


def _result(
    profile: Path, graph: ProfileGraph, states: States, options: Options, found: PipeDreamPartition
) -> dict[str, Any]:
    return {
        "profile": profile.stem,
        "machines": options.machines,
        "bandwidth_bytes_per_s": options.bandwidth,
        "transfers": options.transfers,
        "sync": options.sync,
        "memory_limit_bytes": options.memory,
        "antichain_states": len(states),
        "stages": [_stage(stage, states) for stage in found.stages],
        "bottleneck_s": found.bottleneck_s,
        "single_device_s": found.single_device_s,
        "data_parallel_s": found.data_parallel_s,
        "data_parallel_speedup": found.data_parallel_speedup,
        "speedup": found.speedup,
        "notes": _notes(graph, found),
    }


def _stage(stage: Stage, states: States) -> dict[str, Any]:
    return {
        "first": stage.first,
        "last": stage.last,
        "replicas": stage.replicas,
        "compute_s": stage.compute_s,
        "time_s": stage.time_s,
        "transfer_s": stage.transfer_s,
        "parameter_bytes": stage.parameter_bytes,
        "memory_bytes": stage.memory_bytes,
        "layers": [states.layers[layer] for layer in stage.layers],
    }


def _notes(graph: ProfileGraph, found: PipeDreamPartition) -> list[str]:
    """What the figures leave out, and where layers are counted in another order than the chain's."""
    notes = []
    loading_s = sum(node.forward_s + node.backward_s for node in graph.nodes if node.number in graph.inputs)
    if loading_s:
        notes.append(f"input nodes cost nothing: {duration(loading_s)} of data loading left out")
    if dropped := [node.name for node in graph.order if node.number not in graph.needed]:
        notes.append(f"left out, since the last node does not need them: {', '.join(dropped)}")
    if not found.in_order:
        notes.append("a cut goes through branches that run side by side: layers are counted stage by stage")
    return notes


def _title(result: Mapping[str, Any]) -> str:
    name = printable(result["profile"])[:40].encode("latin-1", "replace").decode("latin-1")
    machines = f"{result['machines']} machine{'s' * (result['machines'] > 1)}"
    rate, bottleneck = format_rate(result["bandwidth_bytes_per_s"]), duration(result["bottleneck_s"])
    return f"{name}, {machines}, {rate}: {bottleneck}, {result['speedup']:.2f} × one machine"


COLUMNS = ("stage", "replicas", "compute", "time", "transfers", "parameters", "memory", "layers")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The stages as a table, a row each under `COLUMNS`."""
    return [
        (
            str(index),
            str(stage["replicas"]),
            *(duration(stage[key]) for key in ("compute_s", "time_s", "transfer_s")),
            *(format_bytes(stage[key]) for key in ("parameter_bytes", "memory_bytes")),
            f"{stage['first']}–{stage['last']}: {_ends(stage['layers'])}",
        )
        for index, stage in enumerate(result["stages"])
    ]


def _ends(layers: list[str]) -> str:
    return printable(layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]}")


def summary(result: Mapping[str, Any]) -> str:
    """What to expect of the partition, in words."""
    whole, parallel = duration(result["single_device_s"]), duration(result["data_parallel_s"])
    lines = [
        f"a mini-batch every {duration(result['bottleneck_s'])}: {result['speedup']:.3f} × one machine ({whole})",
        f"with data parallelism every {parallel}: {result['data_parallel_speedup']:.3f} × one machine",
        f"compute and synchronisation: their {result['sync']}; transfers: {result['transfers']}d",
        *result["notes"],
    ]
    return "\n".join(lines) + "\n"
