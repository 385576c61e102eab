"""What one worker's packets say a step asks for, and what follows for more workers: by simulation, and by theory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from analysis import parameter_server
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import read
from analysis.queueing.demands import describe
from analysis.queueing.prediction import theories
from backends.base import load
from scenarios.compose import Composed
from scenarios.server_testbed import Captured, layout_of
from sim.binding import Binding, Cost
from sim.cluster import Link
from sim.errors import RunFailed
from sim.jitter import Jitter
from sim.ops import OpKind
from sim.program import Layout


class Demands(NamedTuple):
    """Seconds that a step thinks, and asks of each server: of its link out, its link in, and its core."""

    think_s: float
    downlink_s: tuple[float, ...]
    uplink_s: tuple[float, ...]
    apply_s: tuple[float, ...]


def demands(captured: Captured, composed: Composed) -> Demands:
    """From the packets of a run of one worker.

    Raises
    ------
    RunFailed : no whole step is to be seen.
    """
    model_bytes = round(sum(_held_bytes(layout_of(composed), composed.binding)))
    reading = read(io.BytesIO(captured.packets), parse_servers(captured.servers), model_bytes)
    found = [server["demand_s"] for server in reading.result["servers"]]
    if not reading.steps or any(each["downlink"] is None or each["uplink"] is None for each in found):
        raise RunFailed("; ".join(["no step of the one worker was captured", *reading.result["notes"]]))
    return Demands(
        reading.result["think_time_s"]["mean"],
        *(tuple(_mean(each[station]) for each in found) for station in ("downlink", "uplink", "apply")),
    )


def _mean(estimate: Mapping[str, Any] | None) -> float:
    return 0.0 if estimate is None else float(estimate["mean"])


class Predicted(NamedTuple):
    """Steps/s of all workers, by simulation and by theory, and assumptions of the theory that do not hold.

    No theory where steps all wait for each other.
    """

    simulated: float
    theory: float | None
    broken: tuple[str, ...]


def predict(composed: Composed, found: Demands, seed: int) -> Predicted:
    """What follows where every step asks for this: simulated, and by exact mean value analysis or its estimate."""
    plan, binding = composed
    layout = layout_of(composed)
    binding = as_measured(layout, binding, found)
    trace = load("simulated").execute(plan, binding, seed)
    simulated = float(parameter_server.compute(trace)["steps_per_s"])
    if layout.sums:
        return Predicted(simulated, None, ())
    step, broken = describe(layout, binding)
    servers = [binding.devices[device] for device in layout.servers]
    expected = theories(step, layout.workers, servers, layout.snapshot)[-1]
    return Predicted(simulated, expected.throughput_per_s, broken)


def as_measured(layout: Layout, binding: Binding, found: Demands) -> Binding:
    """The figures of a plan with what was measured in their place; of what varied only what a worker computes."""
    seconds = dict(binding.seconds)
    for worker in range(layout.workers):
        seconds[Cost(OpKind.FORWARD, 0, -1, worker)], seconds[Cost(OpKind.BACKWARD, 0, -1, worker)] = found.think_s, 0.0
    for number, part in enumerate(layout.parts):
        seconds[Cost(OpKind.UPDATE, 0, number)] = found.apply_s[part.server]
    held = _held_bytes(layout, binding)
    out, into = dict[str, float](), dict[str, float]()
    for number, device in enumerate(layout.servers):
        name = binding.devices[device]
        out[name], into[name] = held[number] / found.downlink_s[number], held[number] / found.uplink_s[number]
    links = [_link(link, out.get(link.source) or into.get(link.target)) for link in binding.cluster.links]
    return replace(
        binding,
        seconds=seconds,
        cluster=replace(binding.cluster, links=links),
        conditions=replace(binding.conditions, jitter=Jitter(compute=binding.conditions.jitter.compute)),
    )


def _held_bytes(layout: Layout, binding: Binding) -> list[float]:
    """What each server keeps."""
    held = [0.0] * len(layout.servers)
    for number, part in enumerate(layout.parts):
        held[part.server] += binding.payload_bytes[Cost(OpKind.PULL, 0, number)]
    return held


def _link(link: Link, bytes_per_s: float | None) -> Link:
    """A link of a server as fast as it was; what its latency took is in the time that a step thinks."""
    if bytes_per_s is None:
        return replace(link, latency_s=0.0)
    return replace(link, latency_s=0.0, bytes_per_s=bytes_per_s, kind="fair_share")
