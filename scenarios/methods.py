"""Every pipeline method side by side, under the conditions of its closed forms: equal stages, free transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from analysis import methods_table
from analysis.methods_table import Costs
from backends.base import load
from scenarios.compose import compose
from scenarios.load import dump, parse_text
from scenarios.schema import parse
from sim.errors import TwinrailError
from sim.planners import PLANNERS
from sim.trace import Trace


class Method(NamedTuple):
    """A row of the table: a name and its ``schedule`` section, to which stages and micro-batches are added.

    Parameters
    ----------
    micro_batches : how many a mini-batch has, by the numbers of stages and of micro-batches asked for.
    chunks : stages that each GPU holds of the model.
    """

    title: str
    schedule: Mapping[str, Any]
    micro_batches: Callable[[int, int], int | None] = lambda stages, micro_batches: micro_batches
    mini_batches: int | None = 3
    optimizer: str = "momentum"
    chunks: int = 1


def _asynchronous(title: str, optimizer: str = "momentum", **schedule: Any) -> Method:
    """A method that updates after every micro-batch; runs for as long as its planner thinks steady."""
    return Method(title, schedule, lambda stages, micro_batches: None, None, optimizer)


def _at_least(rounds: int) -> Callable[[int, int], int]:
    """As many micro-batches as asked for, but no fewer than a number for each stage."""
    return lambda stages, micro_batches: max(rounds * stages, micro_batches)


METHODS = (
    Method("GPipe", {"name": "gpipe"}),
    Method("1F1B with flush", {"name": "one_f_one_b"}),
    Method("interleaved 1F1B, 2 chunks", {"name": "interleaved_1f1b", "chunks": 2}, chunks=2),
    Method("ZB-H1", {"name": "zb_h1"}),
    Method("ZB-H2", {"name": "zb_h2"}),
    Method("ZB-V", {"name": "zb_v"}, _at_least(2), chunks=2),
    Method("Chimera", {"name": "chimera"}, lambda stages, micro_batches: stages),
    Method("DualPipe 2025", {"name": "dualpipe_2025"}, _at_least(2)),
    Method("DualPipeV", {"name": "dualpipe_v"}, _at_least(2), chunks=2),
    _asynchronous("vanilla asynchronous 1F1B", name="pipedream", weights="latest"),
    _asynchronous("PipeDream, weight stashing", name="pipedream"),
    _asynchronous("PipeDream, vertical sync", name="pipedream", weights="vertical_sync"),
    Method("PipeDream-2BW", {"name": "pipedream_2bw"}, _at_least(1), None),
    _asynchronous("SpecTrain, alternating", name="dualpipe_2018", timeline="alternating"),
    _asynchronous("DualPipe 2018 with SpecTrain, concurrent", name="dualpipe_2018"),
    _asynchronous("PipeOptim", name="pipedream", weights="predict", predict="pipeoptim"),
    _asynchronous("XPipe", optimizer="adam", name="pipedream", weights="predict", predict="xpipe"),
    _asynchronous("PipeMare", name="pipedream", weights="predict", predict="pipemare"),
)
"""The rows of the table; Chimera's closed form holds for as many micro-batches as stages."""


class Times(NamedTuple):
    """Seconds of one stage for one micro-batch; of the chunks of a stage, a share each."""

    forward_s: float = 1.0
    backward_input_s: float = 0.5
    backward_weight_s: float = 0.5


EQUAL_PASSES = Times()


def run(method: Method, stages: int, micro_batches: int, times: Times = EQUAL_PASSES) -> Trace:
    """A run of a method on as many GPUs as stages, two lanes of a GPU beside each other at full speed.

    Raises
    ------
    TwinrailError : the method does not work with so many stages and micro-batches.
    """
    counts = {
        "stages": stages,
        "micro_batches": method.micro_batches(stages, micro_batches),
        "mini_batches": method.mini_batches,
    }
    section = {
        "name": method.title,
        "model": {
            "uniform": {
                **{key[:-2]: f"{seconds / method.chunks} s" for key, seconds in times._asdict().items()},
                "activation": "1 B",
                "parameters": "1 B",
            },
            "batch_size": stages * micro_batches,
        },
        "cluster": {"devices": stages, "link": {"kind": "latency"}, "concurrency": {"shared": 2}},
        "training": {"optimizer": method.optimizer},
        "schedule": {**method.schedule, **{key: count for key, count in counts.items() if count}},
    }
    document = parse_text(dump(section), method.title)
    scenario = parse(document, PLANNERS)
    return load(scenario.backend).execute(*compose(scenario, document))


def compare(stages: int, micro_batches: int, times: Times = EQUAL_PASSES) -> dict[str, Costs]:
    """The costs of every method that works with so many stages and micro-batches, by title."""
    costs: dict[str, Costs] = {}
    for method in METHODS:
        try:
            trace = run(method, stages, micro_batches, times)
        except TwinrailError:
            continue
        costs[method.title] = methods_table.compute(trace)
    return costs
