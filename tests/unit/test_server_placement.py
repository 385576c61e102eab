"""Where a synchronous parameter server stands and who updates: times by hand, bytes, versions, memory, refusals."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import memory, occupancy, steady
from analysis.staleness import compute as measure
from scenarios.compose import compose as compose_scenario
from scenarios.load import load_document
from scenarios.schema import parse
from sim.binding import Cost
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.engine.run import run
from sim.errors import ScenarioError, UnsupportedPlan
from sim.memory.buffers import BufferKind
from sim.model import DeviceSpec, Layer
from sim.ops import OpKind
from sim.planners import data_parallel
from sim.program import Program
from sim.trace import Trace
from sim.training import Training

WEIGHTS = 4096.0
"""Bytes of the model: 1024 parameters in fp32."""

MOVED = 12 * 1024
"""Memory traffic of adding up one gradient, and of one update under plain SGD: read two values, write one."""

F, B, LATENCY, BANDWIDTH = 1.0, 2.0, 0.25, 1024.0
ON_HOST, ON_GPU = 0.5, 2.0
"""Seconds of an add, and of an update, on the host and on a GPU."""

PLACES = [(server, update) for server in ("host", "gpu") for update in ("server", "worker")]


def switch(workers: int, kind: LinkKind = "fair_share", bytes_per_s: float = BANDWIDTH) -> Cluster:
    """GPUs and a host around a switch."""

    def node(name: str, moved_s: float) -> Node:
        spec = DeviceSpec(name, 10**12, 2 * MOVED / moved_s, {}, {}, 0.5, "")
        return Node(name, "host" if name == "host" else "gpu", spec)

    leaves = (*(node(f"gpu{k}", ON_GPU) for k in range(workers)), node("host", ON_HOST))
    links = []
    for leaf in leaves:
        links.append(Link(f"{leaf.name}>switch", leaf.name, "switch", kind, LATENCY / 2, bytes_per_s))
        links.append(Link(f"switch>{leaf.name}", "switch", leaf.name, kind, LATENCY / 2, bytes_per_s))
    return Cluster("switch", (*leaves, Node("switch", "switch")), links)


@pytest.fixture(scope="session")
def serve(compose: Any) -> Any:
    """Plan and binding of a program with its server, on a cluster with a host."""

    def serve(
        workers: int,
        server: str,
        update: str,
        mini_batches: int = 3,
        cluster: Cluster | None = None,
        training: str = "sgd",
        layer: Layer | None = None,
    ) -> Any:
        work = data_parallel.plan(workers, mini_batches, "parameter_server", server=server, update=update)  # type: ignore[arg-type]
        layer = layer or Layer("layer", F, B / 2, B / 2, 0.0, 64.0, WEIGHTS)
        assert isinstance(work, Program)
        figures = {"server": work.server, "update_s": None, "training": Training(training)}  # type: ignore[arg-type]
        return compose(work, cluster or switch(workers), [layer], **figures)

    return serve


def ends(trace: Trace, kind: OpKind, step: int = 0) -> list[float]:
    """When the ops of one kind and step end, worker by worker."""
    return list(trace.end_s[(trace.ops["kind"] == kind) & (trace.ops["micro_batch"] == step)].tolist())


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_the_server_on_a_gpu(serve: Any, workers: int) -> None:
    """The other workers share its link; what it adds of its own is added while they are on their way."""
    trace = run(*serve(workers, "gpu", "server"))
    others = workers - 1
    transfer_s = LATENCY + others * WEIGHTS / BANDWIDTH
    pushed_s = 2 * transfer_s + F + B
    assert ends(trace, OpKind.PULL) == pytest.approx([transfer_s] * others, rel=1e-12)
    assert ends(trace, OpKind.PUSH) == pytest.approx([pushed_s] * others, rel=1e-12)
    adds = [F + B + ON_GPU, *(pushed_s + (k + 1) * ON_GPU for k in range(others))]
    assert ends(trace, OpKind.ACCUMULATE) == pytest.approx(adds, rel=1e-12)
    step_s = adds[-1] + ON_GPU
    assert ends(trace, OpKind.UPDATE) == pytest.approx([step_s], rel=1e-12)
    assert trace.makespan_s == pytest.approx(3 * step_s, rel=1e-12)


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_every_worker_updates_its_own_copy(serve: Any, workers: int) -> None:
    """The host only adds; the sum comes back to all at once, and the GPUs update side by side."""
    trace = run(*serve(workers, "host", "worker"))
    transfer_s = LATENCY + workers * WEIGHTS / BANDWIDTH
    summed_s = F + B + transfer_s + workers * ON_HOST
    assert max(ends(trace, OpKind.ACCUMULATE)) == pytest.approx(summed_s, rel=1e-12)
    assert ends(trace, OpKind.PULL) == pytest.approx([summed_s + transfer_s] * workers, rel=1e-12)
    step_s = summed_s + transfer_s + ON_GPU
    assert ends(trace, OpKind.UPDATE) == pytest.approx([step_s] * workers, rel=1e-12)
    assert trace.makespan_s == pytest.approx(3 * step_s, rel=1e-12)


@pytest.mark.parametrize("workers", [2, 4, 7])
def test_the_sum_on_a_gpu_and_every_worker_updates(serve: Any, workers: int) -> None:
    """The worker beside the sum updates at once and is ahead of the others, whom it waits for in the next step."""
    trace = run(*serve(workers, "gpu", "worker"))
    transfer_s = LATENCY + (workers - 1) * WEIGHTS / BANDWIDTH
    summed_s = F + B + transfer_s + (workers - 1) * ON_GPU
    step_s = summed_s + transfer_s + ON_GPU
    assert ends(trace, OpKind.UPDATE) == pytest.approx([summed_s + ON_GPU, *[step_s] * (workers - 1)], rel=1e-12)
    assert max(ends(trace, OpKind.UPDATE, 2)) == pytest.approx(3 * step_s, rel=1e-12)
    assert run(*serve(1, "gpu", "worker")).makespan_s == 3 * (F + B + 2 * ON_GPU)


def test_a_gpu_adds_between_transfers_where_its_link_is_held(serve: Any) -> None:
    """Fifo, three others: pulls, passes and pushes follow one another; two of three adds hide behind the next push."""
    held_s = LATENCY + WEIGHTS / BANDWIDTH
    trace = run(*serve(4, "gpu", "server", 1, switch(4, "fifo")))
    assert ends(trace, OpKind.PULL) == [held_s, 2 * held_s, 3 * held_s]
    pushes = [(k + 2) * held_s + F + B for k in range(3)]
    assert ends(trace, OpKind.PUSH) == pushes
    assert ends(trace, OpKind.ACCUMULATE) == [F + B + ON_GPU, *(pushed + ON_GPU for pushed in pushes)]
    assert ends(trace, OpKind.UPDATE) == [pushes[-1] + 2 * ON_GPU]


TIMES = st.floats(1e-3, 1e3)


@given(place=st.sampled_from(PLACES), workers=st.integers(2, 6), forward_s=TIMES, backward_s=TIMES, bandwidth=TIMES)
@settings(max_examples=80)
def test_a_step_in_closed_form(
    serve: Any, place: tuple[str, str], workers: int, forward_s: float, backward_s: float, bandwidth: float
) -> None:
    """Both passes, two transfers over the server's link, its adds, one update; the GPU's own add is hidden or first.

    A GPU that serves adds its own gradient when its backward is over, and the pushes of the others end later.
    """
    server, update = place
    others = workers - (server == "gpu")
    add_s = ON_GPU if server == "gpu" else ON_HOST
    update_s = ON_HOST if place == ("host", "server") else ON_GPU
    transfer_s = LATENCY + others * WEIGHTS / bandwidth
    pushed_s = forward_s + backward_s + transfer_s * (2 if update == "server" else 1)
    own_s = forward_s + backward_s + add_s if server == "gpu" else 0.0
    added_s = max(pushed_s, own_s) + others * add_s
    step_s = added_s + update_s + (transfer_s if update == "worker" else 0.0)
    layer = Layer("layer", forward_s, backward_s / 2, backward_s / 2, 0.0, 64.0, WEIGHTS)
    trace = run(*serve(workers, *place, 1, switch(workers, bytes_per_s=bandwidth), layer=layer))
    assert trace.makespan_s == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize(("server", "update"), PLACES)
def test_what_each_link_carries(serve: Any, server: str, update: str) -> None:
    trace = run(*serve(3, server, update, mini_batches=2))
    carried = {
        trace.header["links"][link]["name"]: trace.flows["bytes"][trace.flows["link"] == link].sum()
        for link in np.unique(trace.flows["link"]).tolist()
    }
    remote = [f"gpu{k}" for k in range(3) if server == "host" or k]
    expected = {f"{name}>switch": 2 * WEIGHTS for name in remote} | {f"switch>{name}": 2 * WEIGHTS for name in remote}
    at = "gpu0" if server == "gpu" else "host"
    total = 2 * WEIGHTS * len(remote)
    assert carried == expected | {f"{at}>switch": total, f"switch>{at}": total}


@pytest.mark.parametrize(("server", "update"), PLACES)
def test_weights_are_never_stale(serve: Any, server: str, update: str) -> None:
    trace = run(*serve(3, server, update, mini_batches=4))
    measured = measure(trace)  # checks the versions that ops promise against the times of the run
    assert set(measured.staleness.tolist()) == {-1, 0}
    assert occupancy.compute(trace, measured).weight_copies[:3] == (1, 1, 1)
    assert steady.compute(trace).steady
    updates = Counter(trace.ops["source"][trace.ops["kind"] == OpKind.UPDATE].tolist())
    at_server = {0: 4} if server == "gpu" else {3: 4}
    assert updates == (at_server if update == "server" else {0: 4, 1: 4, 2: 4})


W, G, S = BufferKind.WEIGHTS, BufferKind.GRADIENTS, BufferKind.OPTIMIZER


@pytest.mark.parametrize(
    ("server", "update", "on_workers", "on_server"),
    [
        ("host", "server", [W, G], [W, G, S]),
        ("host", "worker", [W, G, S], [G]),
        ("gpu", "server", [W, G], [G, S]),  # the worker there has the weights
        ("gpu", "worker", [W, G, S], [G]),
    ],
)
def test_what_stays_in_memory(
    serve: Any, server: str, update: str, on_workers: list[BufferKind], on_server: list[BufferKind]
) -> None:
    _, binding = serve(2, server, update, training="adam")
    size = {W: 4096, G: 4096, S: 8192}
    held = Counter((each.device, each.kind, each.size_bytes) for each in binding.resident)
    at = 0 if server == "gpu" else 2
    expected = Counter((device, kind, size[kind]) for device in range(2) for kind in on_workers)
    assert held == expected + Counter((at, kind, size[kind]) for kind in on_server)


@pytest.mark.parametrize(("server", "update"), PLACES)
def test_pushed_gradients_take_room_until_they_are_added(serve: Any, server: str, update: str) -> None:
    """All pushes share the link, so all are under way at once; the activations of a worker are gone by then."""
    trace = run(*serve(4, server, update))
    at, pushed = (0, 3) if server == "gpu" else (4, 4)
    resident = trace.memory["bytes"][(trace.memory["op"] == -1) & (trace.memory["device"] == at)].sum()
    peak = memory.compute(trace)[at]
    assert peak.peak_bytes == resident + pushed * WEIGHTS
    assert peak.by_category["communication"] == pushed * WEIGHTS  # type: ignore[index]


def test_who_updates_pays_with_its_own_memory(serve: Any) -> None:
    for server, update in PLACES:
        _, binding = serve(2, server, update)
        assert binding.seconds[Cost(OpKind.ACCUMULATE, 0)] == (ON_GPU if server == "gpu" else ON_HOST)
        assert binding.seconds[Cost(OpKind.UPDATE, 0)] == (
            ON_HOST if (server, update) == ("host", "server") else ON_GPU
        )


@pytest.mark.parametrize(("server", "update"), PLACES)
def test_the_order_in_which_actors_are_made_leaves_no_mark(
    serve: Any, server: str, update: str, tmp_path: Path
) -> None:
    plan, binding = serve(4, server, update)
    files = set()
    for seed in range(4):
        names = random.Random(seed).sample(sorted(plan.work.actors), len(plan.work.actors))
        shuffled = replace(plan.work, actors={name: plan.work.actors[name] for name in names})
        run(replace(plan, work=shuffled), binding).save(tmp_path / "trace.npz")
        files.add((tmp_path / "trace.npz").read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"server": "gpu"}, "schedule.server has no influence without sync: parameter_server"),
        ({"update": "worker"}, "schedule.update has no influence without sync: parameter_server"),
        ({"sync": "parameter_server", "buckets": 2}, "schedule.buckets has no influence without sync: ring"),
    ],
)
def test_a_key_without_influence_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedPlan, match=says):
        data_parallel.plan(2, **keys)


SCENARIO = """\
name: placed
model: {{uniform: {{forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 10 MB}}, batch_size: 8}}
cluster: {{devices: 2, {host}link: {{kind: fifo, bandwidth: 1 GB/s}}}}
schedule: {{name: data_parallel, sync: parameter_server, server: {server}}}
memory: {{capacity: 1 GB}}
"""


def composed(tmp_path: Path, server: str, host: str = "") -> Any:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO.format(server=server, host=host))
    document = load_document(file)
    return compose_scenario(parse(document), document)


def test_the_devices_of_a_scenario(tmp_path: Path) -> None:
    """A server on a GPU needs no host; the memory that a scenario states is that of GPUs."""
    _, on_gpu = composed(tmp_path, "gpu")
    assert (on_gpu.devices, on_gpu.capacity_bytes) == (("gpu0", "gpu1"), (10**9, 10**9))
    _, on_host = composed(tmp_path, "host", "host: host, ")
    assert (on_host.devices, on_host.capacity_bytes) == (("gpu0", "gpu1", "host"), (10**9, 10**9, 256 * 10**9))
    with pytest.raises(ScenarioError, match=r"needs a host.*server: gpu"):
        composed(tmp_path, "host")
