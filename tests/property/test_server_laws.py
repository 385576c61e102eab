"""Laws of every run with parameter servers, whatever the consistency, the granularity, the network and the faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import parameter_server, result, served_steps
from analysis.served_steps import Steps
from scenarios.compose import Composed, compose
from scenarios.load import dump, parse_text
from scenarios.schema import parse
from sim.engine.run import run
from sim.ops import OpKind
from sim.planners import PLANNERS
from sim.trace import Trace

LAWS = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
STEPS = 6
TIMES = st.sampled_from([0.1, 0.25, 0.5, 1.0]) | st.floats(0.05, 2)


class Run(NamedTuple):
    """A scenario and what became of it."""

    scenario: dict[str, Any]
    composed: Composed
    trace: Trace
    steps: Steps


def composed(scenario: dict[str, Any]) -> Composed:
    document = parse_text(dump(scenario), "law.yaml")
    return compose(parse(document, PLANNERS), document)


CONSISTENCY: st.SearchStrategy[Any] = st.sampled_from(["asp", "bsp", {"ssp": 0}, {"ssp": 2}, {"backup": 1}])


@st.composite
def scenarios(
    draw: st.DrawFn, consistency: st.SearchStrategy[Any] = CONSISTENCY, faults: bool = True
) -> dict[str, Any]:
    """Small scenarios with servers; transfers and passes take about a second."""
    workers, servers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    layers = [
        {
            "name": f"layer{number}",
            "forward": f"{draw(TIMES)} s",
            "backward": f"{draw(TIMES)} s",
            "output": "0 B",
            "parameters": f"{draw(st.integers(0 if number else 1, 40)) * 10} kB",
        }
        for number in range(draw(st.integers(1, 4)))
    ]
    chosen = draw(consistency)
    if chosen == {"backup": 1}:
        workers = max(workers, 2)
    schedule: dict[str, Any] = {"name": "parameter_server", "mini_batches": STEPS, "consistency": chosen}
    if chosen == "asp" or "ssp" in chosen:
        schedule["start"] = draw(st.sampled_from(["random", "together"]))
        schedule["snapshot"] = draw(st.sampled_from(["on_request", "on_delivery"]))
    kind = draw(st.sampled_from(["fair_share", "fifo", "in_order"]))
    if draw(st.booleans()):
        orders: list[Any] = ["fifo", "reverse", "priority"] + ([{"window": "50 kB"}] if kind == "fair_share" else [])
        schedule |= {"granularity": "layer", "order": draw(st.sampled_from(orders))}
        schedule["bucket"] = draw(st.sampled_from(["1 B", "200 kB"]))
    scenario = {
        "name": "law",
        "model": {"layers": layers, "batch_size": 4},
        "cluster": {
            "workers": workers,
            "servers": servers,
            "nic": {"worker": "800 kB/s", "server": f"{draw(st.sampled_from([300, 1000]))} kB/s"},
            "link": {"kind": kind, "latency": "10 ms"},
        },
        "schedule": schedule,
        "parameter_servers": {
            "sharding": draw(st.sampled_from(["round_robin", "greedy", "even", "best_fit"])),
            "cores": draw(st.integers(1, 2)),
            "discipline": draw(st.sampled_from(["fcfs", "processor_sharing"])),
            "apply": {"per_tensor": f"{draw(st.sampled_from([10, 100, 300]))} ms"},
        },
        "seed": draw(st.integers(0, 3)),
    }
    if draw(st.booleans()):
        scenario["jitter"] = {
            "compute": {"lognormal": 0.3},
            "communication": {"lognormal": 0.2},
            "apply": "exponential",
        }
    if faults and draw(st.booleans()):
        nodes = [*(f"worker{number}" for number in range(workers)), *(f"server{number}" for number in range(servers))]
        scenario["faults"] = [
            {"at": f"{draw(st.floats(0, 1))} s", "node": node, "down": f"{draw(TIMES)} s"}
            for node in draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3, unique=True))
        ]
    return scenario


def played(scenario: dict[str, Any]) -> Run:
    made = composed(scenario)
    trace = run(*made, seed=scenario["seed"])
    return Run(scenario, made, trace, served_steps.compute(trace))


@given(data=st.data())
@LAWS
def test_the_laws(data: st.DataObject) -> None:
    made = played(data.draw(scenarios()))
    every_step_is_done(made)
    steps_of_a_worker_follow_one_another(made)
    updates_are_counted(made)
    reads_are_what_had_been_updated(made)
    no_bound_is_broken(made)
    bytes_that_leave_arrive(made)
    figures = result.compute(made.trace, "law", "law")
    assert figures["parameter_servers"] == parameter_server.compute(made.trace)


def every_step_is_done(made: Run) -> None:
    """Each worker has as many steps applied as it should, or fewer where others stand in for it."""
    workers = made.scenario["cluster"]["workers"]
    done = np.bincount(made.steps.worker, minlength=workers)
    if made.scenario["schedule"]["consistency"] == {"backup": 1}:
        updates = made.trace.ops["kind"] == OpKind.UPDATE
        assert updates.sum() == STEPS * len(made.trace.header["parameter_servers"]["parts"])
        assert (done <= STEPS).all()
    elif made.scenario["schedule"]["consistency"] == "bsp" and "faults" in made.scenario:
        assert (done <= STEPS + 1).all()  # a gradient may have been added before its worker died
    else:
        assert (done >= STEPS).all()
        assert (done <= STEPS + ("faults" in made.scenario)).all()
    assert (made.steps.attempts >= done).all()


def steps_of_a_worker_follow_one_another(made: Run) -> None:
    if "faults" in made.scenario:
        return  # what was on a server goes on beside the next attempt
    steps = made.steps
    for worker in np.unique(steps.worker):
        mine = np.flatnonzero(steps.worker == worker)
        assert (np.diff(steps.number[mine]) > 0).all()
        assert (steps.begin_s[mine][1:] >= steps.done_s[mine][:-1]).all()


def updates_are_counted(made: Run) -> None:
    """Of each part the updates write 1, 2, 3, … in the order in which they end, and what is added is in one of them."""
    ops, end_s = made.trace.ops, made.trace.end_s
    for part in range(len(made.trace.header["parameter_servers"]["parts"])):
        rows = np.flatnonzero((ops["kind"] == OpKind.UPDATE) & (ops["part"] == part))
        rows = rows[np.argsort(ops["writes"][rows])]
        assert ops["writes"][rows].tolist() == list(range(1, len(rows) + 1))
        assert (np.diff(end_s[rows]) >= 0).all()
        added = np.flatnonzero((ops["kind"] == OpKind.ACCUMULATE) & (ops["part"] == part))
        assert (end_s[added] <= end_s[rows][ops["writes"][added] - 1]).all()


def reads_are_what_had_been_updated(made: Run) -> None:
    """A pull reads what had ended by its snapshot; where that is at its request, that is no later than its start."""
    ops, trace = made.trace.ops, made.trace
    delivered = made.scenario["schedule"].get("snapshot") == "on_delivery"
    for part in range(len(trace.header["parameter_servers"]["parts"])):
        updated_s = np.sort(trace.end_s[(ops["kind"] == OpKind.UPDATE) & (ops["part"] == part)])
        pulls = np.flatnonzero((ops["kind"] == OpKind.PULL) & (ops["part"] == part))
        most = np.searchsorted(updated_s, (trace.end_s if delivered else trace.start_s)[pulls], "right")
        assert (ops["reads"][pulls] <= most).all()
        if delivered:
            assert (ops["reads"][pulls] >= np.searchsorted(updated_s, trace.end_s[pulls], "left")).all()
        elif made.scenario["cluster"]["link"]["kind"] != "fifo" and not {"granularity", "faults"} & _said(
            made.scenario
        ):
            assert (ops["reads"][pulls] >= np.searchsorted(updated_s, trace.start_s[pulls], "left")).all()


def _said(scenario: dict[str, Any]) -> set[str]:
    return {*scenario, *scenario["schedule"]}


def no_bound_is_broken(made: Run) -> None:
    consistency, steps = made.scenario["schedule"]["consistency"], made.steps
    assert (steps.staleness >= 0).all()
    if consistency == "bsp" or "backup" in consistency:
        assert set(steps.staleness.ravel().tolist()) <= {0}
    if "ssp" in consistency and "faults" not in made.scenario:
        for worker in range(made.scenario["cluster"]["workers"]):
            done_s = np.sort(steps.done_s[steps.worker == worker])
            done = np.searchsorted(done_s, steps.begin_s, "right")
            assert (steps.number - done <= consistency["ssp"]).all()


def bytes_that_leave_arrive(made: Run) -> None:
    """Every part, down and up again, over the worker's and the server's link, once for each op that moved it."""
    ops, about, flows = made.trace.ops, made.trace.header["parameter_servers"], made.trace.flows
    moving = np.isin(ops["kind"], (OpKind.PULL, OpKind.PUSH))
    size = np.array([part["bytes"] for part in about["parts"]])
    assert flows["bytes"].sum() == 2 * size[ops["part"][moving]].sum()


@given(data=st.data())
@settings(LAWS, max_examples=40)
def test_the_order_in_which_actors_are_made_leaves_no_mark(data: st.DataObject, tmp_path_factory: Any) -> None:
    scenario = data.draw(scenarios())
    folder: Path = tmp_path_factory.mktemp("order")
    plan, binding = composed(scenario)
    files = set()
    for seed in range(3):
        names = random.Random(seed).sample(sorted(plan.work.actors), len(plan.work.actors))  # type: ignore[union-attr]
        shuffled = replace(plan.work, actors={name: plan.work.actors[name] for name in names})  # type: ignore
        run(replace(plan, work=shuffled), binding, scenario["seed"]).save(folder / "trace.npz")
        files.add((folder / "trace.npz").read_bytes())
    assert len(files) == 1


@given(data=st.data(), workers=st.integers(2, 5))
@settings(LAWS, max_examples=40)
def test_a_worker_reads_its_own_update_and_is_as_stale_as_its_cycle_is_long(data: st.DataObject, workers: int) -> None:
    """One server, read on request: a step's staleness is what others did since its worker's last update.

    So over all steps but the first of each worker it adds up to what others did in these cycles, which is why its mean
    is W − 1 in the long run.
    """
    scenario = data.draw(scenarios(st.just("asp"), faults=False))
    scenario["cluster"] |= {"workers": workers, "servers": 1}
    scenario["schedule"] = {"name": "parameter_server", "mini_batches": STEPS, "snapshot": "on_request"}
    scenario["jitter"] = {"compute": "exponential", "communication": "exponential"}  # no two at one instant
    made = played(scenario)
    ops = made.trace.ops
    writes = {
        (int(op["replica"]), int(op["micro_batch"])): int(op["writes"]) for op in ops[ops["kind"] == OpKind.UPDATE]
    }
    for worker, number, stale in zip(made.steps.worker, made.steps.number, made.steps.staleness[:, 0], strict=True):
        if number:
            assert stale == writes[worker, number] - writes[worker, number - 1] - 1


def test_the_same_seed_gives_the_same_trace_and_another_another(play: Callable[..., Trace]) -> None:
    text = dump(
        {
            "name": "seeds",
            "model": {"uniform": {"forward": "1 s", "backward": "1 s", "activation": "0 B", "parameters": "1 MB"}}
            | {"batch_size": 1},
            "cluster": {"workers": 3, "servers": 2, "nic": "1 MB/s"},
            "schedule": {"name": "parameter_server", "mini_batches": 5},
            "parameter_servers": {"apply": {"per_tensor": "10 ms"}},
            "jitter": {"compute": {"lognormal": 0.2}, "communication": "exponential", "apply": {"uniform": 0.5}},
        }
    )
    first, again, other = (play(text, f"seed={seed}") for seed in (1, 1, 2))
    assert first.end_s.tolist() == again.end_s.tolist()
    assert first.end_s.tolist() != other.end_s.tolist()
