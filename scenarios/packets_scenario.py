"""A scenario with what a capture tells: its demands as links, its think time as a layer, ready to run or to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from analysis.packets.reading import Reading

STEPS = 200
LEAST_VARIATION = 0.01
"""Below this coefficient of variation compute times are taken to be constant."""


def loaded_servers(reading: Reading) -> list[dict[str, Any]]:
    """The servers whose demands in both directions are known, as the result has them."""
    return [each for each in reading.result["servers"] if each["demand_s"]["downlink"] and each["demand_s"]["uplink"]]


def scenario_of(reading: Reading, source: str) -> dict[str, Any]:
    """Workers and servers around a switch, each server's links as fast as its demands say, one layer on each server.

    ``reading`` has at least one of `loaded_servers`.
    """
    result, workers, servers = reading.result, len(reading.steps), loaded_servers(reading)
    shares = np.array([each["bytes_down"] for each in servers], float)
    sizes = result["step_bytes"]["down"] * shares / shares.sum()
    think_s = np.concatenate([each.think_s[reading.dropped[name] :] for name, each in reading.steps.items()])
    found: dict[str, Any] = {
        "name": f"demands of {PurePath(source).name}"[:100],
        "model": {
            "layers": [
                {
                    "name": f"shard{number}",
                    "forward": _s(float(think_s.mean()) if number == 0 else 0.0),
                    "backward": "0 s",
                    "output": "0 B",
                    "parameters": f"{size:.0f} B",
                }
                for number, size in enumerate(sizes)
            ],
            "input": "0 B",
            "batch_size": 1,
        },
        "cluster": {"nodes": _nodes(workers, len(servers)), "links": _links(workers, servers, sizes)},
        "schedule": {"name": "parameter_server", "mini_batches": STEPS},
        "parameter_servers": {"sharding": {"explicit": {f"shard{number}": number for number in range(len(servers))}}},
    }
    applied = [each["demand_s"]["apply"]["mean"] for each in servers if each["demand_s"]["apply"]]
    if len(applied) == len(servers) and sum(applied) > 0:
        found["parameter_servers"]["apply"] = {"bandwidth": f"{sizes.sum() / sum(applied):.0f} B/s"}
    variation = float(think_s.std() / think_s.mean()) if think_s.mean() > 0 else 0.0
    if variation >= LEAST_VARIATION:
        found["jitter"] = {"compute": {"lognormal": round(min(variation, 10.0), 3)}}
    return found


def _nodes(workers: int, servers: int) -> list[dict[str, str]]:
    nodes = [{"name": f"worker{number}", "kind": "gpu"} for number in range(workers)]
    nodes += [{"name": f"server{number}", "kind": "host"} for number in range(servers)]
    return [*nodes, {"name": "switch", "kind": "switch"}]


def _links(
    workers: int, servers: Sequence[Mapping[str, Any]], sizes: np.ndarray[Any, np.dtype[np.float64]]
) -> list[Any]:
    """A worker's own link is no limit; a server's moves its share in the time that was measured."""
    links: list[Any] = [{"between": [f"worker{number}", "switch"], "kind": "latency"} for number in range(workers)]
    for number, (server, size) in enumerate(zip(servers, sizes, strict=True)):
        for station, ends in (("downlink", (f"server{number}", "switch")), ("uplink", ("switch", f"server{number}"))):
            demand_s = server["demand_s"][station]["mean"]
            rate = f"{size / demand_s:.0f} B/s"
            links.append({"from": ends[0], "to": ends[1], "kind": "fair_share", "bandwidth": rate})
    return links


def _s(seconds: float) -> str:
    return f"{seconds:.9f} s"
