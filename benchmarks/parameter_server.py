"""Programs of parameter servers: 64 workers on 4 servers, and a closed network beside a bare SimPy model of it."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
import simpy

from backends.base import load
from benchmarks.measure import Row, cpu_seconds, side_by_side
from scenarios.compose import Composed, compose
from scenarios.load import parse_text
from scenarios.schema import parse

WORKERS, STEPS, THINK_S, SERVICE_S, CV = 16, 1000, 3.0, 0.25, 0.3

STAR = """
name: star
model: {name: resnet50, batch_size: 32}
cluster: {workers: 64, servers: 4, device: v100, host: host, nic: 9.4 Gbit/s, link: {latency: 50 us}}
schedule: {name: parameter_server, mini_batches: 100}
parameter_servers: {sharding: greedy}
jitter: {compute: {lognormal: 0.1}, communication: {lognormal: 0.1}}
"""
CLOSED = f"""
name: closed
model:
  uniform: {{forward: {THINK_S / 2} s, backward: {THINK_S / 2} s, activation: 0 B, parameters: 4 B}}
  batch_size: 1
cluster: {{workers: {WORKERS}, servers: 1}}
schedule: {{name: parameter_server, mini_batches: {STEPS}}}
parameter_servers: {{apply: {{per_tensor: {SERVICE_S} s}}}}
jitter: {{compute: {{lognormal: {CV}}}, apply: {{lognormal: {CV}}}}}
"""


def composed(text: str) -> Composed:
    """Plan and binding of a scenario."""
    document = parse_text(text, "parameter_server.yaml")
    return compose(parse(document), document)


def bare() -> float:
    """The closed network as SimPy's documentation models a machine shop: a process per worker, one Resource, times
    drawn one by one, no trace. Returns the time at which all steps are done."""
    env, random = simpy.Environment(), np.random.default_rng(0)
    server = simpy.Resource(env)
    sigma = float(np.sqrt(np.log1p(CV**2)))

    def drawn(mean_s: float) -> float:
        return float(mean_s * np.exp(sigma * random.standard_normal() - sigma**2 / 2))

    def worker() -> Generator[simpy.Event, Any, None]:
        for _ in range(STEPS):
            yield env.timeout(drawn(THINK_S))
            with server.request() as turn:
                yield turn
                yield env.timeout(drawn(SERVICE_S))

    for _ in range(WORKERS):
        env.process(worker())
    env.run()
    return float(env.now)


def measure() -> list[Row]:
    """The rows of this benchmark; a step of ours is five ops of the trace, of the bare model two timeouts."""
    execute = load("simulated").execute
    plan, binding = composed(STAR)
    seconds = cpu_seconds(partial(execute, plan, binding))
    ops = len(execute(plan, binding).ops)
    name = "64 workers x 4 servers x 100 steps"
    rows = [Row(name, f"{seconds:.1f} s, {ops / seconds:,.0f} op/s", "12 s", 12 / seconds, "1", "the limit set")]
    plan, binding = composed(CLOSED)
    assert abs(execute(plan, binding).makespan_s / bare() - 1) < 0.05
    ours, reference = side_by_side(partial(execute, plan, binding), bare)
    steps = WORKERS * STEPS
    rows.append(
        Row(
            f"closed network, {WORKERS} workers",
            f"{steps / ours:,.0f} steps/s, {5 * steps / ours:,.0f} op/s",
            f"{steps / reference:,.0f} steps/s",
            reference / ours,
            "0.08",
            "bare SimPy, no trace",
        )
    )
    return rows
