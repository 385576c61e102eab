"""PipeDream's partitioner, from graph to stages, against its recurrence in plain Python and against the limits set."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, side_by_side
from scenarios.pipedream import read_graph
from sim.antichains import States, graph_states
from sim.graph import ProfileGraph
from sim.pipedream_partitioner import PipeDreamPartition, partition

DATA = Path(__file__).parents[2] / "shared" / "data" / "pipedream"
BYTES_PER_S = 12e9
CASES = (("vgg16", 4, 20.0, "1"), ("resnet50", 16, 300.0, "10"))
"""Profile, machines, the limit in ms, the wanted ratio to plain Python."""


def ours(graph: ProfileGraph, machines: int) -> PipeDreamPartition:
    """Antichain states and partition."""
    return partition(graph_states(graph), machines, BYTES_PER_S)


def plain(states: States, machines: int) -> float:
    """The recurrence as PipeDream writes it, in loops over states found before; returns the bottleneck."""
    columns = states.compute_s, states.parameter_bytes, states.output_bytes
    compute, parameters, output = (column.tolist()[1:] for column in columns)
    before = [[k for k, precedes in enumerate(column) if precedes] for column in states.precedes[1:, 1:].T.tolist()]

    def shared(seconds: float, size: float, count: int) -> float:
        return (seconds + 4 * (count - 1) * size / (BYTES_PER_S * count)) / count

    least: list[list[float]] = []
    for j in range(len(compute)):
        least.append([shared(compute[j], parameters[j], m) for m in range(1, machines + 1)])
        for m in range(1, machines + 1):
            for k in before[j]:
                for count in range(1, m):
                    stage = shared(compute[j] - compute[k], parameters[j] - parameters[k], count)
                    moved = 2 * max(output[k], output[j]) / (BYTES_PER_S * count)
                    slowest = max(least[k][m - count - 1], stage, moved)
                    if slowest < least[j][m - 1]:
                        least[j][m - 1] = slowest
    return least[-1][-1]


def measure() -> list[Row]:
    """Two rows for each profile; none where the profiles are not there."""
    rows: list[Row] = []
    for name, machines, limit_ms, wanted in CASES:
        path = DATA / f"{name}.txt"
        if not path.exists():
            print(f"partitioner: no {path}, nothing measured for {name}", file=sys.stderr)
            continue
        graph = read_graph(path)
        states = graph_states(graph)
        assert abs(ours(graph, machines).bottleneck_s - plain(states, machines)) < 1e-9
        mine, theirs = side_by_side(partial(ours, graph, machines), partial(plain, states, machines), repeats=3)
        case, shown = f"partitioner, {name} on {machines}", f"{1e3 * mine:.1f} ms"
        text = "its recurrence in plain Python"
        rows.append(Row(case, shown, f"{1e3 * theirs:.0f} ms", theirs / mine, wanted, text))
        rows.append(Row(case, shown, f"{limit_ms:.0f} ms", limit_ms / 1e3 / mine, "1", "the limit set"))
    return rows
