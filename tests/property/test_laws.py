"""Laws of every run, whatever the planner, the cluster and the sharing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.binding import Binding, Cost
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.costs import seconds_column
from sim.engine.run import run
from sim.longest_path import times
from sim.model import Layer
from sim.ops import COMPUTE_KINDS, TRANSFER_KINDS, OpKind
from sim.plan import Plan
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.program import Program
from sim.schedule import Schedule
from sim.trace import Trace

SECONDS = st.sampled_from([0.1, 0.25, 1 / 3, 1.0, 2.0]) | st.floats(1e-3, 5)
SIZE = st.integers(0, 64).map(float)
SLACK = 1 + 1e-9


def tree(leaves: int, kind: LinkKind, latency_s: float, bytes_per_s: float, gain: float | None, host: bool) -> Cluster:
    """Two switches with half of the leaves each, and one slower link between them."""
    names = [*(f"gpu{k}" for k in range(leaves)), *(["host"] if host else [])]
    nodes = [Node(name, "host" if name == "host" else "gpu", None, gain) for name in names]
    edges = [(name, f"switch{index % 2}", bytes_per_s) for index, name in enumerate(names)]
    edges.append(("switch0", "switch1", bytes_per_s / 2))
    links = [
        Link(f"{source}>{target}", source, target, kind, latency_s / 3, rate)
        for a, b, rate in edges
        for source, target in ((a, b), (b, a))
        for rate in (rate,)
    ]
    return Cluster("tree", (*nodes, Node("switch0", "switch"), Node("switch1", "switch")), links)


class Run(NamedTuple):
    """A plan, its figures and what became of it."""

    plan: Plan
    binding: Binding
    trace: Trace


@st.composite
def runs(draw: st.DrawFn, compose: Any, mesh: Any) -> Run:
    """Any planner on any cluster."""
    stages, micro_batches, mini_batches = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    name = draw(st.sampled_from(["gpipe", "1f1b", "pipedream", "stash", "concurrent", "ring", "server"]))
    buckets = draw(st.integers(1, 3)) if name == "ring" else 1
    asynchronous = (stages, micro_batches, 2 * mini_batches)
    planners: dict[str, Callable[[], Schedule | Program]] = {
        "gpipe": lambda: gpipe.plan(stages, micro_batches, mini_batches),
        "1f1b": lambda: one_f_one_b.plan(stages, micro_batches, mini_batches),
        "pipedream": lambda: pipedream.plan(*asynchronous),
        "stash": lambda: pipedream.plan(*asynchronous),
        "concurrent": lambda: dualpipe_2018.plan(*asynchronous),
        "ring": lambda: data_parallel.plan(stages, mini_batches, buckets=buckets),
        "server": lambda: data_parallel.plan(stages, mini_batches, "parameter_server"),
    }
    work = planners[name]()
    shape = work.shape
    count = shape.stages if shape.stages > 1 else draw(st.integers(3, 5))
    layer = st.builds(Layer, st.just("layer"), SECONDS, SECONDS, SECONDS, SIZE, SIZE, SIZE, st.just(0.0))
    figures = (
        draw(st.sampled_from(["latency", "in_order", "fifo", "fair_share"])),
        draw(st.sampled_from([0.0, 0.25]) | st.floats(0, 2)),
        draw(st.sampled_from([1.0, 16.0]) | st.floats(1, 100)),
        draw(st.sampled_from([None, 1.0, 1.5, 2.0])),
        name == "server",
    )
    plan, binding = compose(
        work,
        draw(st.sampled_from([mesh, tree]))(stages, *figures),
        [draw(layer)] * count if draw(st.booleans()) else draw(st.lists(layer, min_size=count, max_size=count)),
        "stash" if name == "stash" else "latest",
        update_s=draw(st.sampled_from([0.0, 0.1])),
        buckets=buckets,
        server=stages if name == "server" else None,
    )
    return Run(plan, binding, run(plan, binding))


LAWS = settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(data=st.data())
@LAWS
def test_the_laws(compose: Any, mesh: Any, data: st.DataObject) -> None:
    made = data.draw(runs(compose, mesh))
    each_op_runs_once(made)
    nothing_starts_before_what_it_waits_for(made)
    no_bound_is_beaten(made)
    devices_do_no_more_than_they_can(made)
    bytes_that_leave_arrive(made)
    no_link_is_ever_above_its_bandwidth(made)
    memory_returns_to_its_start(made)
    again = run(made.plan, made.binding)
    for column in ("ops", "start_s", "end_s", "flows", "memory"):
        assert getattr(again, column).tobytes() == getattr(made.trace, column).tobytes()


def each_op_runs_once(made: Run) -> None:
    """Each forward and backward of each stage, micro-batch and replica; of a schedule, exactly its ops."""
    work, trace = made.plan.work, made.trace
    if isinstance(work, Schedule):
        assert trace.ops.tobytes() == work.ops.tobytes()
    shape, names = work.shape, Counter(trace.id(op) for op in range(len(trace.ops)))
    assert set(names.values()) == {1}
    everything = shape.stages * shape.total * shape.replicas
    assert sum(op.kind is OpKind.FORWARD for op in names) == everything
    assert sum(op.kind is OpKind.BACKWARD and op.part <= 0 for op in names) == everything


def nothing_starts_before_what_it_waits_for(made: Run) -> None:
    """Data dependencies, and one op at a time on every lane."""
    work, trace = made.plan.work, made.trace
    for row in trace.order:
        assert (trace.start_s[row[1:]] >= trace.end_s[row[:-1]]).all()
    if isinstance(work, Schedule):
        waits_for = work.waits_for
        assert (trace.start_s[waits_for.owners] >= trace.end_s[waits_for.values]).all()


def no_bound_is_beaten(made: Run) -> None:
    """Makespan >= critical path >= busiest lane; no op is faster than alone."""
    work, trace = made.plan.work, made.trace
    if not isinstance(work, Schedule):
        return
    seconds = np.array(seconds_column(work, made.binding))
    assert ((trace.end_s - trace.start_s) * SLACK + 4 * np.spacing(trace.makespan_s) >= seconds).all()
    critical_path_s = max(times(work, seconds.tolist())[1])
    busiest_s = max(float(seconds[row].sum()) for row in work.order if len(row))
    assert trace.makespan_s * SLACK >= critical_path_s
    assert critical_path_s * SLACK >= busiest_s


def devices_do_no_more_than_they_can(made: Run) -> None:
    """Exclusive: no two ops at once. Shared: never more than ``gain`` seconds of work a second."""
    work, trace = made.plan.work, made.trace
    if not isinstance(work, Schedule):
        return
    seconds = np.array(seconds_column(work, made.binding))
    computing = np.isin(trace.ops["kind"], [int(kind) for kind in COMPUTE_KINDS])
    for device, name in enumerate(made.binding.devices):
        mine = np.flatnonzero(computing & (trace.ops["source"] == device) & (seconds > 0))
        mine = mine[np.lexsort([trace.end_s[mine], trace.start_s[mine]])]
        gain = made.binding.cluster.node(name).gain or 1.0
        for first in trace.start_s[mine]:
            for last in trace.end_s[mine][trace.end_s[mine] > first]:
                inside = mine[(trace.start_s[mine] >= first) & (trace.end_s[mine] <= last)]
                assert seconds[inside].sum() <= gain * (last - first) * SLACK + 1e-9
        if made.binding.cluster.node(name).gain is None:
            assert (trace.start_s[mine[1:]] >= trace.end_s[mine[:-1]]).all()


def bytes_that_leave_arrive(made: Run) -> None:
    """The payload of each transfer, whole, on every link of its route; a ring's share on every hop."""
    trace, binding = made.trace, made.binding
    carried: dict[tuple[int, int], float] = defaultdict(float)
    for flow in trace.flows:
        carried[int(flow["op"]), int(flow["link"])] += float(flow["bytes"])
    expected: dict[tuple[int, int], float] = defaultdict(float)
    for number in range(len(trace.ops)):
        op, row = trace.id(number), trace.ops[number]
        if op.kind in TRANSFER_KINDS:
            for link in binding.route(int(row["source"]), int(row["target"])):
                expected[number, link] += binding.payload_bytes[Cost(op.kind, op.stage, op.part)]
        elif op.kind is OpKind.ALL_REDUCE:
            replicas = made.plan.work.shape.replicas
            share = 2 * (replicas - 1) / replicas * binding.payload_bytes[Cost(op.kind, op.stage, op.part)]
            for k in range(replicas):
                for link in binding.route(k, (k + 1) % replicas):
                    expected[number, link] += share
    assert carried == expected
    assert (trace.flows["start_s"] == trace.start_s[trace.flows["op"]]).all()
    assert (trace.flows["end_s"] == trace.end_s[trace.flows["op"]]).all()


def no_link_is_ever_above_its_bandwidth(made: Run) -> None:
    """Between any two instants a shared link carries no more than fits; a fifo link serves one op at a time."""
    for number, link in enumerate(made.binding.cluster.links):
        flows = made.trace.flows[made.trace.flows["link"] == number]
        if link.kind not in ("fifo", "fair_share") or not len(flows):
            continue
        for first in np.unique(flows["start_s"]):
            for last in np.unique(flows["end_s"]):
                inside = (flows["start_s"] >= first) & (flows["end_s"] <= last)
                if inside.any():
                    assert flows["bytes"][inside].sum() <= link.bytes_per_s * (last - first) * SLACK + 1e-6
        if link.kind == "fifo":
            flows = flows[np.lexsort([flows["end_s"], flows["start_s"]])]
            different = flows["op"][1:] != flows["op"][:-1]
            assert (flows["start_s"][1:] >= flows["end_s"][:-1])[different].all()


def memory_returns_to_its_start(made: Run) -> None:
    """What an op allocates some op releases, and never before; at one instant, what ends makes room for what starts."""
    events, start_s = made.trace.memory[made.trace.memory["op"] >= 0], made.trace.start_s
    live: Counter[tuple[int, ...]] = Counter()
    now, started = -1.0, False
    for row in events:
        buffer = tuple(int(row[name]) for name in ("device", "kind", "stage", "number"))
        live[buffer] += int(row["bytes"])
        assert live[buffer] >= 0
        started = row["bytes"] > 0 or (started and row["time_s"] == now)
        assert row["bytes"] > 0 or not started or start_s[row["op"]] == row["time_s"]
        now = row["time_s"]
    assert not any(live.values())
    assert (np.diff(made.trace.memory["time_s"]) >= 0).all()


@given(
    data=st.data(),
    stages=st.integers(2, 4),
    micro_batches=st.integers(1, 2),
    latency_s=st.sampled_from([0.0, 1.0, 2.0]),
)
@settings(max_examples=40)
def test_at_one_instant_ends_come_before_starts(
    compose: Any, mesh: Any, data: st.DataObject, stages: int, micro_batches: int, latency_s: float
) -> None:
    """Whole seconds everywhere and two lanes that wait for each other: most instants are ties."""
    seconds = st.sampled_from([1.0, 2.0, 3.0])
    layer = st.tuples(seconds, seconds).map(lambda s: Layer("layer", s[0], s[1] / 2, s[1] / 2, 1.0, 2.0, 1.0))
    plan, binding = compose(
        dualpipe_2018.plan(stages, micro_batches, 6),
        mesh(stages, "latency", latency_s, 1.0),
        data.draw(st.lists(layer, min_size=stages, max_size=stages)),
    )
    memory_returns_to_its_start(Run(plan, binding, run(plan, binding)))


SCRIPT = """
import hashlib, pathlib, runpy, sys
made = runpy.run_path("tests/conftest.py")
from sim.engine.run import run
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
path = pathlib.Path(sys.argv[1])
for kind in ("latency", "in_order", "fifo", "fair_share"):
    for work, more in (
        (gpipe.plan(3, 4, 2), {}),
        (one_f_one_b.plan(4, 6), {}),
        (pipedream.plan(3, 2, 4), {"weights": "stash"}),
        (dualpipe_2018.plan(3, 1, 8), {}),
        (data_parallel.plan(4, 2), {}),
        (data_parallel.plan(3, 2, "parameter_server"), {"server": 3}),
    ):
        count = work.shape.stages * work.shape.replicas
        cluster = made["_mesh"](count, kind, 0.1, 3.0, 1.5, host="server" in more)
        run(*made["_compose"](work, cluster, **more), seed=7).save(path)
        print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_the_same_seed_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    told = set()
    for hash_seed in ("0", "1", "12345"):
        child = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "trace.npz")],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        told.add(child.stdout)
    assert len(told) == 1
    assert len(set(told.pop().split())) == 24


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_stands_in_the_trace(compose: Any, seed: int) -> None:
    plan, binding = compose(gpipe.plan(2, 2))
    assert run(plan, binding, seed).header["seed"] == seed
