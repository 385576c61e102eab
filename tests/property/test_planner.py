"""The planner against trying everything: bounds that hold, the same best plan, the same front."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scenarios import plan_command
from scenarios.document import Document
from scenarios.load import apply_sets, dump, parse_text
from scenarios.plan_search import OBJECTIVES, Bounded, Options, Refused, bounded, refined, simulate
from scenarios.plan_space import Space
from scenarios.planned import Planned
from scenarios.schema import parse
from sim.errors import InfeasibleBudget
from sim.planners import PLANNERS

INSTANCES = 60
ROUNDING = 1e-12


def instance(seed: int) -> Document:
    """A random model of 3 to 6 layers on 2 or 3 devices of finite memory, and a space of some hundred plans."""
    draw = random.Random(seed)
    layers = [
        {
            "name": f"layer{index}",
            "forward": f"{draw.uniform(1, 10):.3f} ms",
            "backward": f"{draw.uniform(2, 20):.3f} ms",
            "output": f"{draw.randint(1, 400)} kB",
            "saved": f"{draw.randint(100, 4000)} kB",
            "parameters": f"{draw.randint(1, 4000)} kB",
        }
        for index in range(draw.randint(3, 6))
    ]
    kind = draw.choice(["latency", "in_order", "fifo", "fair_share"])
    link: dict[str, Any] = {"kind": kind, "latency": f"{draw.choice([0, 100, 2000])} us"}
    link |= {} if kind == "latency" else {"bandwidth": f"{draw.choice([20, 100, 1000])} MB/s"}
    devices, p40 = draw.randint(2, 3), draw.random() < 0.5
    cluster: dict[str, Any] = {"devices": devices, "link": link} | ({"device": "p40"} if p40 else {})
    if draw.random() < 0.3 and kind == "fair_share":  # all through one switch
        nodes = [{"name": f"gpu{k}", "kind": "gpu"} for k in range(devices)]
        links = [{"between": [node["name"], "switch"], **link} for node in nodes]
        cluster = {"nodes": [*nodes, {"name": "switch", "kind": "switch"}], "links": links}
    gain = random.Random(-seed).choice([None, 1.0, 1.5])  # of lanes that share a GPU, else exclusive
    cluster |= {"concurrency": {"shared": gain}} if gain and "nodes" not in cluster else {}
    cluster |= {"cores": 2} if random.Random(-seed).random() < 0.2 and "nodes" not in cluster and not p40 else {}
    methods = draw.sample([name for name in PLANNERS if name not in ("parameter_server", "split_2018")], 5)
    data: dict[str, Any] = {
        "name": f"instance {seed}",
        "model": {"layers": layers, "batch_size": 8, "input": f"{draw.randint(1, 400)} kB"},
        "cluster": cluster,
        "training": {"optimizer": draw.choice(["sgd", "momentum", "adam"])},
        "schedule": {"name": "single"},
        "memory": {"capacity": f"{draw.choice([12, 20, 30, 60, 120])} MB"},
        "plan": {"schedules": methods, "micro_batches": [1, 2, 4, 8][draw.randint(0, 1) :: 2]},
    }
    return parse_text(dump(data), "instance.yaml")


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 30))])
def test_no_simulated_plan_beats_its_bounds(seed: int) -> None:
    """Of what does not fit, memory can only be bounded: it is tried without a limit."""
    document, planned = apply_sets(instance(seed), ["memory.capacity=1 TB"]), Planned()
    simulated, orders = 0, dict[str, list[Bounded]]()
    for number, choice in enumerate(Space(parse(document, PLANNERS), document).choices()):
        orders.setdefault(choice.order or str(number), []).append(bounded(number, choice, Options()))
    for order, group in orders.items():
        outcomes = [simulate(document, planned, each.overrides) for each in group]
        tighter = refined(document, planned, group, Options()) if not order.isdigit() else group
        for each, more, found in zip(group, tighter, outcomes, strict=True):
            if isinstance(found, Refused):
                continue
            simulated += 1
            assert not more.short_of
            assert each.best.no_worse(more.best)
            assert found["samples_per_s"] <= -more.best.slowness * (1 + ROUNDING), more.overrides
            assert found["peak_memory_bytes"] >= more.best.peak_bytes, more.overrides
            assert found["staleness"] >= more.best.staleness, more.overrides
    assert simulated


def values(found: dict[str, Any], key: str) -> Any:
    plans = found[key] if isinstance(found[key], list) else [found[key]]
    return [(plan["samples_per_s"], plan["peak_memory_bytes"], plan["staleness"]) for plan in plans]


def outcome(document: Document, options: Options) -> dict[str, Any] | None:
    try:
        return plan_command.plan(document, options)
    except InfeasibleBudget:
        return None


QUICK = range(3)
SLOW = [pytest.param(range(low, low + 10), marks=pytest.mark.slow) for low in range(0, INSTANCES, 10)]


@pytest.mark.parametrize("seeds", [QUICK, *SLOW])
def test_equal_to_trying_everything(seeds: range) -> None:
    """The best by each objective, those behind it and the front, on 60 instances; where nothing fits, both say so."""
    pruned = 0
    for seed in seeds:
        document = instance(seed)
        objective = OBJECTIVES[seed % 3]
        limit = None if seed % 4 else 1
        found, everything = (
            outcome(document, Options(objective, limit, top=3, prune=prune)) for prune in (True, False)
        )
        assert (found is None) == (everything is None), seed
        if found is None or everything is None:
            continue
        for key in ("best", "runners_up", "pareto"):
            assert values(found, key) == values(everything, key), (seed, key)
        assert everything["searched"] == everything["simulated"] + everything["refused"] == found["searched"]
        assert found["searched"] == found["simulated"] + found["refused"] + sum(found["pruned"].values())
        pruned += found["searched"] - found["simulated"]
    assert pruned
