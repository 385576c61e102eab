"""The SimPy backend, trace on, against bare SimPy models of the same 1F1B; and its memory and growth."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from functools import partial
from itertools import pairwise
from typing import Any

import simpy

from backends.base import load
from benchmarks.measure import Row, cpu_seconds, side_by_side
from scenarios.compose import Composed, compose
from scenarios.load import parse_text
from scenarios.schema import parse

FORWARD_S, BACKWARD_S, TRANSFER_S = 1.0, 2.0, 0.1

SCENARIO = """
name: engine
model: {{uniform: {{forward: 1 s, backward: 2 s, activation: 1 GB, parameters: 8 B}}, batch_size: {micro_batches}}}
cluster: {{devices: {stages}, link: {{kind: in_order, bandwidth: 10 GB/s}}}}
schedule: {{name: one_f_one_b, stages: {stages}, micro_batches: {micro_batches}}}
"""


def composed(stages: int, micro_batches: int) -> Composed:
    """A 1F1B of uniform stages whose transfers take 0.1 s."""
    document = parse_text(SCENARIO.format(stages=stages, micro_batches=micro_batches), "engine.yaml")
    return compose(parse(document), document)


def _order(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    warm_up = min(stages - 1 - stage, micro_batches)
    order = [("F", index) for index in range(warm_up)]
    for index in range(micro_batches - warm_up):
        order += [("F", warm_up + index), ("B", index)]
    return order + [("B", index) for index in range(micro_batches - warm_up, micro_batches)]


def bare_stores(stages: int, micro_batches: int) -> float:
    """1F1B as SimPy's own documentation models delays (its "Event Latency" example): a store per cable and direction,
    a process per transfer, no trace. Returns the makespan."""
    env = simpy.Environment()
    forward, backward = ([simpy.Store(env) for _ in range(stages)] for _ in range(2))

    def transfer(store: simpy.Store, micro_batch: int) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(TRANSFER_S)
        store.put(micro_batch)

    def gpu(stage: int) -> Generator[simpy.Event, Any, None]:
        for kind, micro_batch in _order(stage, stages, micro_batches):
            if kind == "F":
                if stage:
                    yield forward[stage].get()
                yield env.timeout(FORWARD_S)
                if stage < stages - 1:
                    env.process(transfer(forward[stage + 1], micro_batch))
            else:
                if stage < stages - 1:
                    yield backward[stage].get()
                yield env.timeout(BACKWARD_S)
                if stage:
                    env.process(transfer(backward[stage - 1], micro_batch))

    for stage in range(stages):
        env.process(gpu(stage))
    env.run()
    return float(env.now)


def bare_events(stages: int, micro_batches: int) -> float:
    """The leanest SimPy we could write: an event per arrival instead of stores. Returns the makespan."""
    env = simpy.Environment()
    arrived = [[[env.event() for _ in range(micro_batches)] for _ in range(stages)] for _ in range(2)]

    def transfer(event: simpy.Event) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(TRANSFER_S)
        event.succeed()

    def gpu(stage: int) -> Generator[simpy.Event, Any, None]:
        for kind, micro_batch in _order(stage, stages, micro_batches):
            direction, step = (0, 1) if kind == "F" else (1, -1)
            if 0 <= stage - step < stages:
                yield arrived[direction][stage][micro_batch]
            yield env.timeout(FORWARD_S if kind == "F" else BACKWARD_S)
            if 0 <= stage + step < stages:
                env.process(transfer(arrived[direction][stage + step][micro_batch]))

    for stage in range(stages):
        env.process(gpu(stage))
    env.run()
    return float(env.now)


_PEAK = """
import resource
from benchmarks.engine import composed
from backends.base import load
plan, binding = composed(64, 3968)
trace = load("simulated").execute(plan, binding)
print(len(trace.ops), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def measure() -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []
    execute = load("simulated").execute
    for stages, micro_batches in ((8, 512), (64, 512)):
        plan, binding = composed(stages, micro_batches)
        trace = execute(plan, binding)
        ops = 2 * stages * micro_batches + 2 * (stages - 1) * micro_batches
        for bare, text in ((bare_stores, "bare SimPy, stores"), (bare_events, "bare SimPy, events only")):
            assert abs(trace.makespan_s - bare(stages, micro_batches)) < 1e-6 * trace.makespan_s
            ours, reference = side_by_side(partial(execute, plan, binding), partial(bare, stages, micro_batches))
            name = f"engine, 1F1B {stages} x {micro_batches}"
            rows.append(
                Row(name, f"{ops / ours:,.0f} op/s", f"{ops / reference:,.0f} op/s", reference / ours, "0.6", text)
            )
    count, peak = (int(word) for word in subprocess.check_output([sys.executable, "-c", _PEAK], text=True).split())
    limit = 1.5 * 2**30
    rows.append(
        Row(f"memory, {count:,} ops", f"{peak / 2**30:.2f} GiB", "1.50 GiB", limit / peak, "1", "the limit set")
    )
    seconds = []
    for micro_batches in (512, 1024, 2048):
        plan, binding = composed(16, micro_batches)
        seconds.append(min(cpu_seconds(partial(execute, plan, binding)) for _ in range(3)))
    growth = max(later / earlier for earlier, later in pairwise(seconds))
    rows.append(Row("growth, ops doubled twice", f"x {growth:.2f} time", "x 2.00", 2 / growth, "0.8", "linear time"))
    return rows
