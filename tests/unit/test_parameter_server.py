"""The synchronous parameter server: times by hand, order of equals, versions, memory, and the barrier itself."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.memory.buffers import BufferKind
from sim.model import DeviceSpec, Layer
from sim.ops import Lane, OpId, OpKind
from sim.passes.weight_versions import staleness
from sim.planners import data_parallel
from sim.policies import BulkSynchronous
from sim.program import Actor, Ask, Do, Op, Program, Released
from sim.trace import Trace
from sim.training import Training

WEIGHTS = 4096.0
"""Bytes of the model: 1024 parameters in fp32."""

MOVED = 12 * 1024
"""Memory traffic of adding up one gradient, and of one update under plain SGD: read two values, write one."""

F, B = 1.0, 2.0
LATENCY = 0.25


def star(workers: int, kind: LinkKind, bytes_per_s: float, memory_bytes_per_s: float = 0.0) -> Cluster:
    """GPUs and a host around a switch: all pulls share the host's one way out, all pushes its one way in."""
    spec = DeviceSpec("host", 10**12, memory_bytes_per_s, {}, {}, 0.5, "") if memory_bytes_per_s else None
    leaves = (*(Node(f"gpu{k}", "gpu") for k in range(workers)), Node("host", "host", spec))
    links = []
    for leaf in leaves:
        links.append(Link(f"{leaf.name}>switch", leaf.name, "switch", kind, LATENCY / 2, bytes_per_s))
        links.append(Link(f"switch>{leaf.name}", "switch", leaf.name, kind, LATENCY / 2, bytes_per_s))
    return Cluster("star", (*leaves, Node("switch", "switch")), links)


@pytest.fixture(scope="session")
def serve(simulate: Any) -> Any:
    """The trace of a run with a server."""

    def serve(workers: int, cluster: Cluster, mini_batches: int = 1, program: Program | None = None) -> Trace:
        work = program or data_parallel.plan(workers, mini_batches, "parameter_server")
        layer = Layer("layer", F, B / 2, B / 2, 0.0, 64.0, WEIGHTS)
        trace: Trace = simulate(work, cluster, [layer], server=workers, update_s=None)
        return trace

    return serve


def ends(trace: Trace, kind: OpKind, step: int = 0) -> list[float]:
    """When the ops of one kind and step end, worker by worker."""
    return list(trace.end_s[(trace.ops["kind"] == kind) & (trace.ops["micro_batch"] == step)].tolist())


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_a_step_over_a_fairly_shared_host_link(serve: Any, workers: int) -> None:
    """Pulls share the host's link and end together, and so do pushes; then the host adds and updates, one by one."""
    trace = serve(workers, star(workers, "fair_share", 1024.0, memory_bytes_per_s=2 * MOVED), mini_batches=3)
    transfer_s, add_s, update_s = LATENCY + workers * WEIGHTS / 1024.0, 1.0, 1.0
    step_s = 2 * transfer_s + F + B + workers * add_s + update_s
    for step in range(3):
        begin = step * step_s
        assert ends(trace, OpKind.PULL, step) == pytest.approx([begin + transfer_s] * workers, rel=1e-12)
        pushed = begin + 2 * transfer_s + F + B
        assert ends(trace, OpKind.PUSH, step) == pytest.approx([pushed] * workers, rel=1e-12)
        adds = [pushed + (k + 1) * add_s for k in range(workers)]
        assert ends(trace, OpKind.ACCUMULATE, step) == pytest.approx(adds, rel=1e-12)
    assert trace.makespan_s == pytest.approx(3 * step_s, rel=1e-12)


def test_a_step_over_a_host_link_that_is_held(serve: Any) -> None:
    """Fifo: worker k starts k pulls later, its push finds the other way free, and adding hides behind the next push."""
    workers, transfer_s = 4, LATENCY + WEIGHTS / 1024.0
    trace = serve(workers, star(workers, "fifo", 1024.0, memory_bytes_per_s=2 * MOVED))
    assert ends(trace, OpKind.PULL) == [(k + 1) * transfer_s for k in range(workers)]
    pushes = [(k + 2) * transfer_s + F + B for k in range(workers)]
    assert ends(trace, OpKind.PUSH) == pushes
    assert ends(trace, OpKind.ACCUMULATE) == [pushed + 1.0 for pushed in pushes]
    assert ends(trace, OpKind.UPDATE) == [pushes[-1] + 2.0]


def test_adding_is_the_bottleneck_of_a_slow_host(serve: Any) -> None:
    """Adds queue at the one core in the order in which pushes ended."""
    trace = serve(3, star(3, "fifo", 4096.0, memory_bytes_per_s=MOVED / 4))  # 8 s an add
    pushed = 2 * (LATENCY + 1.0) + F + B
    assert ends(trace, OpKind.ACCUMULATE) == [pushed + 8, pushed + 16, pushed + 24]
    assert ends(trace, OpKind.UPDATE) == [pushed + 32]


def test_bytes_that_leave_arrive(serve: Any) -> None:
    trace = serve(3, star(3, "fair_share", 1024.0), mini_batches=2)
    carried = np.bincount(trace.flows["link"], trace.flows["bytes"], minlength=8)
    assert carried.tolist() == [2 * WEIGHTS] * 6 + [6 * WEIGHTS] * 2  # each GPU's two links, then the host's


def test_every_worker_reads_the_newest_weights(serve: Any, compose: Any) -> None:
    trace = serve(3, star(3, "fair_share", 1024.0), mini_batches=4)
    reads = trace.ops["reads"][np.isin(trace.ops["kind"], (OpKind.PULL, OpKind.FORWARD, OpKind.BACKWARD))]
    assert reads.tolist() == np.repeat(np.arange(4), 9).tolist()
    assert set(staleness(trace.as_schedule()).tolist()) == {-1, 0}


def test_the_optimizer_lives_on_the_host(compose: Any) -> None:
    work = data_parallel.plan(2, 1, "parameter_server")
    _, binding = compose(
        work,
        star(2, "fifo", 1.0),
        [Layer("layer", F, B / 2, B / 2, 0.0, 0.0, WEIGHTS)],
        server=2,
        training=Training("adam"),
    )
    held = {(each.device, each.kind): each.size_bytes for each in binding.resident}
    every = {(device, kind): 4096 for device in range(3) for kind in (BufferKind.WEIGHTS, BufferKind.GRADIENTS)}
    assert held == {**every, (2, BufferKind.OPTIMIZER): 8192}


@pytest.mark.parametrize("kind", ["fair_share", "fifo", "in_order", "latency"])
def test_the_order_in_which_actors_are_made_leaves_no_mark(serve: Any, kind: LinkKind, tmp_path: Path) -> None:
    """Every instant of this run is a tie between workers; the trace is the same to the byte."""
    program = data_parallel.plan(4, 3, "parameter_server")
    assert isinstance(program, Program)
    files = set()
    for seed in range(6):
        names = random.Random(seed).sample(sorted(program.actors), len(program.actors))
        shuffled = replace(program, actors={name: program.actors[name] for name in names})
        serve(4, star(4, kind, 1024.0, 2 * MOVED), program=shuffled).save(tmp_path / "trace.npz")
        files.add((tmp_path / "trace.npz").read_bytes())
    assert len(files) == 1


def test_who_asks_for_a_lane_at_one_instant_is_served_by_name(compose: Any) -> None:
    """No policy, no transfer: three actors want one core at time 0."""

    def actor(number: int) -> Any:
        def play() -> Actor:
            yield Do(Op(OpId(OpKind.FORWARD, 0, number), (Lane(0, "core"),), 0))

        return play

    plan, binding = compose(data_parallel.plan(1, 3), layers=[Layer("layer", F, B / 2, B / 2, 0.0, 0.0, 0.0)])
    for order in permutations(range(3)):
        program = Program(plan.work.shape, {(0, 0): 0}, {f"a{k}": actor(k) for k in order}, partial(BulkSynchronous, 1))
        trace = run(replace(plan, work=program), binding)
        assert trace.start_s.tolist() == [0.0, 1.0, 2.0]


def test_an_op_without_a_lane_waits_for_nobody(compose: Any) -> None:

    def play() -> Actor:
        yield Do(Op(OpId(OpKind.FORWARD, 0, 0), (), 0))

    plan, binding = compose(data_parallel.plan(1))
    program = Program(plan.work.shape, {(0, 0): 0}, {"alone": play}, partial(BulkSynchronous, 1))
    assert run(replace(plan, work=program), binding).end_s.tolist() == [1.0]


def test_the_barrier_step_by_step() -> None:
    barrier = BulkSynchronous(2)
    first, second = Ask("applied", "worker0", 0), Ask("applied", "worker1", 0)
    gathered, updated = Ask("gathered", "server", 0), Ask("updated", "server", 0)
    assert barrier.on(first) == []
    assert barrier.on(gathered) == []
    barrier = pickle.loads(pickle.dumps(barrier))
    assert barrier.on(second) == [Released(gathered)]
    assert barrier.on(updated) == [Released(first), Released(second), Released(updated)]
    late = BulkSynchronous(1)
    assert late.on(first) == []
    assert late.on(gathered) == [Released(gathered)]
