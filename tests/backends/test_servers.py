"""Real parameter servers: against the replay of their trace, plain training, and the end of runs that are disturbed."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis import parameter_server, served_steps
from backends.base import load
from backends.torch import Outcome, run
from backends.torch.servers import Checkpoint, Job, Place
from scenarios.command_line import app
from scenarios.compose import compose
from scenarios.load import apply_sets, parse_text
from scenarios.points import parse_points
from sim.binding import Binding, Cost
from sim.engine.draws import Draws
from sim.errors import BackendFailure, UnsupportedPlan
from sim.ops import OpKind
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.program import Ask, Program
from sim.trace import Trace

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")
zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install twinrail[torch]")

ROOT = Path(__file__).parents[2]
SAMPLES, SEED, RATE, MOMENTUM = 8, 3, 0.05, 0.8
LIMIT_S = 10.0
PASS_S = 0.01
TEXT = f"""
name: small
model: {{name: mlp, batch_size: {SAMPLES}}}
cluster: {{workers: 3, servers: 2, device: p40, host: host, nic: 1 Gbit/s, link: {{kind: fair_share, latency: 50 us}}}}
training: {{optimizer: momentum, learning_rate: {RATE}, momentum: {MOMENTUM}}}
schedule: {{name: parameter_server, mini_batches: 6, consistency: asp, start: together}}
parameter_servers: {{sharding: greedy}}
"""


def composed(*sets: str) -> tuple[Plan, Binding]:
    document = apply_sets(parse_text(TEXT, "small.yaml"), list(sets))
    (point,) = parse_points(document, PLANNERS)
    return compose(point.scenario, point.document)


def lasting(*sets: str, steps: int = 100) -> tuple[Plan, Binding]:
    """Two seconds or more of sleeping workers, which may be disturbed before that."""
    plan, binding = composed("cluster.servers=1", f"schedule.mini_batches={steps}", *sets)
    passes = {cost: PASS_S for cost in binding.seconds if cost.kind in (OpKind.FORWARD, OpKind.BACKWARD)}
    return plan, replace(binding, seconds={**binding.seconds, **passes})


def updates_by_worker(trace: Trace, kind: OpKind = OpKind.UPDATE) -> Counter[int]:
    return Counter(trace.ops["replica"][trace.ops["kind"] == kind].tolist())


def same(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> bool:
    pairs = zip(found[0, 0], expected[0, 0], strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


# --- arithmetic


def replayed(plan: Plan, trace: Trace) -> Any:
    from backends.torch.replay_servers import replay_servers

    torch.set_num_threads(1)
    return replay_servers(plan, trace, SAMPLES, SEED)


MODES = {
    "asp, layer by layer": ("schedule.granularity=layer",),
    "asp": (),
    "asp, by priority in buckets": ("schedule.granularity=layer", "schedule.order=priority", "schedule.bucket=64 KiB"),
    "ssp, in slices": ("schedule.consistency={ssp: 1}", "parameter_servers.sharding=best_fit"),
    "bsp": ("schedule.consistency=bsp",),
    "bsp, layer by layer": ("schedule.consistency=bsp", "schedule.granularity=layer"),
    "one to spare": ("schedule.consistency={backup: 1}",),
}
QUICK = ("asp, layer by layer",)
MARKS = {mode: [pytest.mark.slow] for mode in MODES if mode not in QUICK}


@pytest.mark.parametrize("sets", [pytest.param(MODES[m], id=m, marks=MARKS.get(m, [])) for m in MODES])
def test_a_run_and_its_replay_agree_to_the_last_bit(sets: tuple[str, ...], tmp_path: Path) -> None:
    plan, binding = composed(*sets)
    outcome = run(plan, binding, SEED)
    again = replayed(plan, outcome.trace)
    assert same(outcome.done.weights, again.weights)
    assert again.losses.items() <= outcome.done.losses.items()
    check_trace(plan, outcome.trace, tmp_path)
    hardware = outcome.trace.header["hardware"]
    assert hardware["processes"] == 5
    assert hardware["oversubscribed"] == ((os.cpu_count() or 1) < 5)


def check_trace(plan: Plan, trace: Trace, folder: Path) -> None:
    """What analysis finds in any trace of parameter servers, and what the simulated one has too."""
    assert isinstance(plan.work, Program)
    layout = plan.work.layout
    assert layout is not None
    steps, found = served_steps.compute(trace), parameter_server.compute(trace)
    dropped = found["dropped_steps"]
    assert len(steps.worker) + dropped == steps.attempts.sum()
    assert dropped == 0 or layout.consistency == "backup"
    for part in range(len(layout.parts)):
        writes = trace.ops["writes"][(trace.ops["kind"] == OpKind.UPDATE) & (trace.ops["part"] == part)]
        assert sorted(writes.tolist()) == list(range(1, 1 + (6 if layout.sums else 18)))
    assert steps.staleness.min() == 0
    assert steps.staleness.max() == 0 or not layout.sums
    trace.save(folder / "trace.npz")
    assert np.array_equal(Trace.load(folder / "trace.npz").ops, trace.ops)


def test_ops_run_where_they_do_in_the_simulation() -> None:
    from backends.torch.servers.host import rehearse

    for sets in MODES.values():
        plan, binding = composed(*sets)
        assert isinstance(plan.work, Program)
        trace = load("simulated").execute(plan, binding)
        known = rehearse(plan.work)
        for index, row in enumerate(trace.ops):
            op = known[OpKind(int(row["kind"])), int(row["replica"]), int(row["part"])]
            assert (op.source, op.target) == (row["source"], row["target"])
            assert sorted(op.lanes) == sorted(trace.lanes[lane] for lane in trace.lanes_of[index])


def test_synchronous_workers_train_as_one_on_all_their_batches() -> None:
    from backends.torch.data import initial, inputs, targets

    plan, binding = composed("schedule.consistency=bsp", "cluster.workers=2", "cluster.servers=1")
    outcome = run(plan, binding, SEED, arithmetic="float64")
    assert plan.architecture is not None
    model = initial(plan.architecture, SEED, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for step in range(6):
        numbers = (2 * step, 2 * step + 1)
        x = torch.cat([inputs(plan.architecture, SEED, number, SAMPLES, torch.float64) for number in numbers])
        y = torch.cat([targets(plan.architecture, SEED, number, SAMPLES) for number in numbers])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for mine, parameter in zip(outcome.done.weights[0, 0], model.parameters(), strict=True):
        theirs = parameter.detach().numpy()
        assert mine.dtype == np.float64
        assert float(np.abs(mine - theirs).max()) <= 1e-12 * float(np.abs(theirs).max())


# --- workers that sleep


def test_a_sleeping_worker_holds_the_time_that_the_scenario_lets_it_draw() -> None:
    jitter = "jitter={compute: {lognormal: 0.5}}", "stragglers=[{worker: worker1, factor: 2}]"
    plan, binding = lasting("cluster.workers=2", *jitter, steps=8)
    outcome = run(plan, binding, SEED, compute="sleep")
    trace, draws = outcome.trace, Draws(binding.conditions, SEED)
    passes = np.flatnonzero(np.isin(trace.ops["kind"], (OpKind.FORWARD, OpKind.BACKWARD)))
    factors = [draws.factor(trace.id(op)) for op in passes.tolist()]
    assert len(passes) == 32
    assert len({*factors}) == 16
    assert (trace.end_s[passes] - trace.start_s[passes] >= PASS_S * np.array(factors)).all()
    assert not outcome.done.weights
    assert not trace.header["hardware"]["oversubscribed"]
    assert trace.header["parameter_servers"]["variation"] == {"compute": 0.5, "communication": 0, "apply": 0}


# --- who is lost


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def gone(pids: Mapping[str, int]) -> bool:
    """Whether the processes have ended, or do so in time."""
    deadline_s = time.monotonic() + LIMIT_S
    while any(is_alive(pid) for pid in pids.values()):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


class Disturbed:
    """A run in whose middle a process gets a signal; none is left when it has ended, in time if it fails."""

    def __init__(self, plan: Plan, binding: Binding, device: str, *numbers: signal.Signals, **how: Any) -> None:
        self.pids: dict[str, int] = {}
        self.failure: BackendFailure | None = None
        self.outcome: Outcome | None = None
        struck_s: list[float] = []

        def strike() -> None:
            for pause_s, number in zip((0.3, 5.0), numbers, strict=False):
                time.sleep(pause_s)
                struck_s.append(time.monotonic())
                os.kill(self.pids[device], number)

        def on_start(pids: Mapping[str, int]) -> None:
            self.pids.update(pids)
            threading.Thread(target=strike).start()

        try:
            self.outcome = run(plan, binding, SEED, on_start=on_start, **{"compute": "sleep", **how})
        except BackendFailure as failure:
            self.failure = failure
        assert self.outcome or (time.monotonic() - struck_s[0] < LIMIT_S and BackendFailure.exit_code == 1)
        assert len(struck_s) == len(numbers)
        assert gone(self.pids)


def test_others_train_on_when_a_worker_is_killed_and_do_not_wait_for_it() -> None:
    plan, binding = lasting("schedule.consistency={ssp: 1}")
    outcome = Disturbed(plan, binding, "worker1", signal.SIGKILL).outcome
    assert outcome is not None
    done = updates_by_worker(outcome.trace)
    assert (done[0], done[2]) == (100, 100)
    assert done[1] < 100
    ((at_s, for_s, device),) = outcome.trace.header["parameter_servers"]["outages"]
    assert (device, at_s + for_s) == (1, pytest.approx(outcome.trace.makespan_s))
    (fault,) = parameter_server.compute(outcome.trace)["faults"]
    assert fault["what"] == "worker1 down"


@pytest.mark.slow
def test_what_a_killed_worker_had_pushed_counts() -> None:
    plan, binding = composed("schedule.mini_batches=300", "cluster.servers=1")
    outcome = Disturbed(plan, binding, "worker1", signal.SIGKILL, compute="real").outcome
    assert outcome is not None
    assert 0 < updates_by_worker(outcome.trace)[1] < 300
    assert same(outcome.done.weights, replayed(plan, outcome.trace).weights)


@pytest.mark.slow
def test_a_barrier_ends_with_the_worker_it_waits_for() -> None:
    failure = Disturbed(*lasting("schedule.consistency=bsp"), "worker2", signal.SIGKILL).failure
    assert re.fullmatch(r"worker2 was killed \(SIGKILL\) after 0[PFB]\d+@2.*: bsp waits for it", str(failure))


@pytest.mark.slow
def test_a_worker_to_spare_may_die() -> None:
    plan, binding = lasting("schedule.consistency={backup: 1}")
    outcome = Disturbed(plan, binding, "worker0", signal.SIGKILL).outcome
    assert outcome is not None
    assert updates_by_worker(outcome.trace) == {0: 100}
    assert updates_by_worker(outcome.trace, OpKind.ACCUMULATE).total() == 200


def test_a_killed_server_ends_the_run() -> None:
    failure = Disturbed(*lasting("cluster.workers=1"), "server0", signal.SIGKILL).failure
    assert re.fullmatch(
        r"server0 was killed \(SIGKILL\) after 0[GU]\d+\.0: its part of the parameters is lost", str(failure)
    )


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_a_worker_that_stands_still_for_a_while_recovers(consistency: str) -> None:
    plan, binding = lasting(f"schedule.consistency={consistency}")
    outcome = Disturbed(plan, binding, "worker1", signal.SIGSTOP, signal.SIGCONT).outcome
    assert outcome is not None
    done = updates_by_worker(outcome.trace)
    assert done == ({0: 100} if consistency == "bsp" else {0: 100, 1: 100, 2: 100})


@pytest.mark.slow
def test_a_server_that_hangs_ends_the_run() -> None:
    failure = Disturbed(*lasting("cluster.workers=1"), "server0", signal.SIGSTOP, patience_s=2.0).failure
    assert re.fullmatch(r"nothing moved for 2\.2 s: server0 after 0[GU]\d+\.0; worker0 after 0[PFB]\d+.*", str(failure))


def test_a_gradient_that_a_dead_worker_was_told_to_add_is_added() -> None:
    """The parent alone; the test plays its processes. One of two workers is to spare, so one gradient is an update."""
    from backends.torch.servers.coordinator import Came, Coordinator
    from backends.torch.servers.crew import Member
    from backends.torch.servers.job import Adopt, Finished, Go, Ready, Update

    sets = "cluster.workers=2", "cluster.servers=1", "schedule={name: parameter_server, mini_batches: 1}"
    plan, binding = composed(*sets, "schedule.consistency={backup: 1}")
    pipes = [Pipe() for _ in range(3)]
    first, second, server = (theirs for _, theirs in pipes)
    came: list[Came] = []
    with ExitStack() as stack:
        members = [
            Member(device, binding.devices[device], Mock(), ours, stack.enter_context(tempfile.TemporaryFile()))
            for device, (ours, _) in enumerate(pipes)
        ]
        coordinator = Coordinator(Job(plan, binding, SEED, "sleep"), members, 10.0)
        playing = threading.Thread(target=lambda: came.append(coordinator.run(lambda pids: None)))
        playing.start()
        for line in (first, second):
            line.send(Ready(1, {}))
        server.send(Ready(1, {}, "tcp://nowhere", {0: (0, {})}))
        assert first.recv() == second.recv() == Go({2: "tcp://nowhere"}, 0)
        for request in (Ask("begin", "worker0", 0), Ask("pushed", "worker0", 0, 0)):
            first.send(request)
            assert first.recv().request == request
        first.close()
        for order in (Adopt(0, 0, 0), Update(0, 0)):
            assert server.recv() == order
            server.send(order)
        second.send(Ask("begin", "worker1", 0))
        assert second.recv().answer == 1
        second.send(Finished({}))
        playing.join()
        for line in (second, server, *(ours for ours, _ in pipes)):
            line.close()
    assert [member.name for _, member in came[0].lost] == ["worker0"]


SCRIPT = """
import pickle, sys
from backends.torch import run

with open(sys.argv[1], "rb") as file:
    plan, binding = pickle.load(file)
run(plan, binding, compute="sleep", on_start=lambda pids: print(*pids.values(), flush=True))
"""


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL], ids=["interrupt", "killed parent"]
)
def test_no_process_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    script, pickled = tmp_path / "script.py", tmp_path / "plan.pickle"
    script.write_text(SCRIPT)
    pickled.write_bytes(pickle.dumps(lasting("cluster.workers=2", steps=1000)))
    with subprocess.Popen(
        [sys.executable, script, pickled],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        send = os.killpg if number is signal.SIGINT else os.kill  # as a terminal does, to the whole group
        send(parent.pid, number)
        _, errors = parent.communicate(timeout=LIMIT_S)
    assert parent.returncode == -number
    assert errors.count("Traceback") == (number is signal.SIGINT)  # the parent's own KeyboardInterrupt
    assert gone({str(pid): pid for pid in pids})


# --- checkpoints


class Client:
    """A worker played by the test: it pushes gradients that it can make again."""

    def __init__(self, endpoint: str, elements: int, part: int = 0, unread: int = 0) -> None:
        from backends.torch.servers.wire import connector

        self._socket, self._elements, self._part = connector(zmq.DEALER), elements, part
        self._socket.rcvhwm = unread
        self._socket.routing_id = b"0"
        self._socket.connect(endpoint)

    def gradient(self, number: int) -> Any:
        return np.random.default_rng([SEED, number]).standard_normal(self._elements).astype(np.float32)

    def send(self, number: int) -> None:
        """A gradient that is to be applied."""
        from backends.torch.servers.wire import Change, Head, What, chunks

        for message in chunks(Head(What.GRADIENT, self._part, number, Change.APPLY), self.gradient(number)):
            self._socket.send_multipart(message)

    def push(self, number: int) -> bool:
        """Whether the server said that it is done, before it died."""
        from backends.torch.servers.wire import Head, What, messages

        self.send(number)
        deadline_s = time.monotonic() + 2.0
        while time.monotonic() < deadline_s:
            self._socket.poll(100)
            for first, *_ in messages(self._socket):
                head = Head.unpack(first.buffer)
                if (head.what, head.number) == (What.DONE, number):
                    return True
        return False

    def ask(self) -> None:
        from backends.torch.servers.wire import Head, What

        self._socket.send(Head(What.PULL, self._part, 0).pack())

    def pulled(self) -> Any:
        """What was asked for first, of what has not been read yet."""
        from backends.torch.servers.wire import Head, What, elements

        found: list[Any] = []
        while sum(map(len, found)) < self._elements:
            first, *payload = self._socket.recv_multipart(copy=False)
            if Head.unpack(first.buffer).what == What.VALUES:
                found.append(elements(payload[0], np.dtype("f4")))
        return np.concatenate(found)

    def pull(self) -> Any:
        self.ask()
        return self.pulled()

    def close(self) -> None:
        self._socket.close()


def test_what_is_asked_for_before_an_update_is_sent_as_it_was() -> None:
    """However long it waits on its way: most of it does, but its short last chunk is copied at once."""
    from backends.torch.servers.crew import crew
    from backends.torch.servers.job import elements_of
    from backends.torch.servers.wire import CHUNK_BYTES

    plan, binding = composed("cluster.servers=2", "cluster.workers=1")
    job = Job(plan, binding, SEED, "sleep")
    _, elements = elements_of(job.layout)
    assert 4 * elements % CHUNK_BYTES < zmq.COPY_THRESHOLD < CHUNK_BYTES < 4 * elements
    many = 1 + 100_000_000 // (4 * elements)  # more than any buffer holds on its way
    with crew(job, {}) as (_, _, server):
        client = Client(server.line.recv().endpoint, elements, part=1, unread=1)
        for _ in range(many):
            client.ask()
        client.send(0)
        time.sleep(0.5)
        assert all(not client.pulled().any() for _ in range(many))
        assert client.pull().all()
        client.close()


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_no_acknowledged_update_is_lost_with_a_killed_server(kills: int, tmp_path: Path) -> None:
    from backends.torch.server_state import PartState
    from backends.torch.servers.crew import crew
    from backends.torch.servers.job import elements_of

    plan, binding = composed("cluster.servers=1", "cluster.workers=1")
    job = Job(plan, binding, SEED, "sleep", checkpoint=Checkpoint(tmp_path, every=7))
    (elements,) = elements_of(job.layout)
    acknowledged, version, moments = 0, 0, random.Random(SEED)
    for kill in range(kills + 1):
        with crew(job, {}) as (_, server):
            ready = server.line.recv()
            version, newest = ready.kept[0]
            assert acknowledged <= version <= acknowledged + 1
            assert newest == ({0: version - 1} if version else {})
            acknowledged = version
            client = Client(ready.endpoint, elements)
            if kill < kills:
                killer = threading.Timer(moments.uniform(0.02, 0.3), server.process.kill)
                killer.start()
                while client.push(acknowledged):
                    acknowledged += 1
                killer.join()
            else:
                assert client.push(version - 1)  # a repetition is acknowledged and does not count twice
                found = client.pull()
            client.close()
        job = replace(job, checkpoint=replace(job.checkpoint, resume=True))  # type: ignore[type-var]
    expected = PartState(torch.zeros(elements), plan.training)
    for number in range(version):
        expected.apply(torch.from_numpy(client.gradient(number)))
    assert version > 0
    assert np.array_equal(found, expected.values.numpy())


@pytest.mark.slow
def test_a_run_that_lost_its_server_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    sets = "schedule.consistency=bsp", "cluster.workers=2", "cluster.servers=1", "schedule.mini_batches=300"
    plan, binding = composed(*sets)
    expected = replayed(plan, load("simulated").execute(plan, binding))  # of two gradients either order is the same sum
    folder = tmp_path / "state"
    for resume in (False, True):
        checkpoint = Checkpoint(folder, every=10, resume=resume)
        failure = Disturbed(plan, binding, "server0", signal.SIGKILL, compute="real", checkpoint=checkpoint).failure
        assert f"but for the checkpoint in {folder}: resume from it" in str(failure)
    resumed = run(plan, binding, SEED, checkpoint=Checkpoint(folder, resume=True))
    assert 0 < updates_by_worker(resumed.trace)[0] < 300
    assert same(resumed.done.weights, expected.weights)
    with pytest.raises(BackendFailure, match="has all its steps already: ask for more mini_batches"):
        run(plan, binding, SEED, checkpoint=Checkpoint(folder, resume=True))
    other = replace(plan, training=replace(plan.training, learning_rate=0.1))
    with pytest.raises(BackendFailure, match=r"which is of another training: learning_rate 0\.05, not 0\.1"):
        run(other, binding, SEED, checkpoint=Checkpoint(folder, resume=True))


@pytest.mark.slow
def test_no_step_is_lost_or_counted_twice_over_several_runs(tmp_path: Path) -> None:
    plan, binding = lasting("cluster.servers=2")
    for resume in (False, True):
        checkpoint = Checkpoint(tmp_path, every=10, resume=resume)
        assert Disturbed(plan, binding, "server1", signal.SIGKILL, checkpoint=checkpoint).failure
    run(plan, binding, SEED, compute="sleep", checkpoint=Checkpoint(tmp_path, resume=True))
    for server in range(2):
        with np.load(Checkpoint(tmp_path).files(server)[0]) as archive:
            (part,) = json.loads(archive["header"].tobytes())["parts"].values()
        assert part["version"] == 300
        assert part["newest"] == [[0, 99], [1, 99], [2, 99]]


def stored(folder: Path, resume: bool = False, every: int = 100) -> tuple[Any, Any]:
    """A store of one part of four elements, and the part."""
    from backends.torch.servers.kept import Kept
    from backends.torch.servers.store import Store

    part = Kept(torch.zeros(4), composed()[0].training)
    return Store(Checkpoint(folder, every, resume), 0, {"seed": SEED}, {5: part}), part


def change(part: Any, store: Any, what: Any, number: int) -> None:
    gradient = np.random.default_rng(number).standard_normal(4).astype(np.float32) if what < 3 else None
    part.change(what, 0, number, gradient)
    store.keep(what, 5, 0, number, gradient)


def state(part: Any) -> tuple[Any, ...]:
    about, arrays = part.state()
    return about, {name: array.tolist() for name, array in arrays.items()}


def resumed(folder: Path) -> tuple[Any, ...]:
    store, part = stored(folder, resume=True)
    store.close()
    return state(part)


@pytest.mark.parametrize("every", [100, 2])
def test_a_log_cut_off_anywhere_gives_the_last_whole_change(every: int, tmp_path: Path) -> None:
    from backends.torch.servers.wire import Change

    store, part = stored(tmp_path, every=every)
    states, sizes = [state(part)], [0]
    steps = [Change.ADD, Change.MEAN, Change.APPLY, Change.ADD, Change.APPLY, Change.ADD]
    for number, what in enumerate(steps):
        change(part, store, what, number)
        states.append(state(part))
        sizes.append((tmp_path / "server0.log").stat().st_size)
    store.close()
    kept, log = (tmp_path / "server0.npz").read_bytes(), (tmp_path / "server0.log").read_bytes()
    first = max(index for index, size in enumerate(sizes) if not size)  # what is in the checkpoint
    assert (first > 0) == (every == 2)
    for length in {*range(0, len(log), 17), *(size for size in sizes if size <= len(log)), len(log) - 1}:
        (tmp_path / "server0.npz").write_bytes(kept)
        (tmp_path / "server0.log").write_bytes(log[:length])
        whole = max(index for index in range(first, len(sizes)) if sizes[index] <= length)
        assert resumed(tmp_path) == states[whole]


def test_a_damaged_log_ends_at_the_damage_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    from backends.torch.servers.wire import Change

    store, part = stored(tmp_path)
    change(part, store, Change.APPLY, 0)
    before, log = state(part), (tmp_path / "server0.log").read_bytes()
    change(part, store, Change.APPLY, 1)
    both = (tmp_path / "server0.log").read_bytes()
    store.save()
    after = state(part)
    store.close()
    saved = (tmp_path / "server0.npz").read_bytes()
    (tmp_path / "server0.log").write_bytes(both)  # as a crash between the two leaves it
    assert resumed(tmp_path) == after
    assert log == both[: len(log)]
    stored(tmp_path)[0].close()
    damaged = bytearray(both)
    damaged[-1] ^= 1
    (tmp_path / "server0.log").write_bytes(damaged)
    assert resumed(tmp_path) == before
    (tmp_path / "server0.npz").write_bytes(saved[:-100])
    with pytest.raises(BackendFailure, match=r"cannot read .*server0\.npz: no checkpoint of twinrail"):
        stored(tmp_path, resume=True)


def test_two_runs_cannot_share_a_checkpoint(tmp_path: Path) -> None:
    store, _ = stored(tmp_path)
    with pytest.raises(BackendFailure, match=r"cannot open .*server0\.log: another run is using it"):
        stored(tmp_path)
    store.close()


# --- ends that are told clearly


def failing(plan: Plan, binding: Binding, **how: Any) -> str:
    """How a run fails; no child of ours is left."""
    with pytest.raises(BackendFailure) as caught:
        run(plan, binding, SEED, compute="sleep", **how)
    assert not [path for path in Path("/proc").glob("[0-9]*") if is_child(path)]
    return str(caught.value)


def is_child(process: Path) -> bool:
    try:
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        return int(parent) == os.getpid() and b"torch.servers" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_a_port_in_use_is_named() -> None:
    plan, binding = lasting("cluster.workers=1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failure = failing(plan, binding, places={1: Place(port=port)})
    assert failure == f"server0 cannot listen on tcp://127.0.0.1:{port}: Address already in use"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the checkpoint fits, the log soon does not."""
    plan, binding = lasting("cluster.workers=1")
    blocks = 5 * int(binding.payload_bytes[Cost(OpKind.PUSH, 0, 0)]) // 512
    small = Place(prefix=("sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh"))
    failure = failing(plan, binding, places={1: small}, checkpoint=Checkpoint(tmp_path))
    assert failure == f"server0 cannot write {tmp_path}/server0.log: File too large"


@pytest.mark.slow
def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    plan, binding = lasting("cluster.workers=1")
    failure = failing(plan, binding, places={0: Place(prefix=("no-such-command", "x"))})
    assert failure == "worker0 cannot be started by 'no-such-command': No such file or directory"
    failure = failing(plan, binding, places={1: Place(host="192.0.2.1")})
    assert failure == "server0 cannot listen on tcp://192.0.2.1:*: Cannot assign requested address"
    failure = failing(plan, binding, places={0: Place(prefix=("sh", "-c", "exit 3"))})
    assert failure == "worker0 exited with code 3 while it was set up"


def test_processes_run_where_they_are_placed() -> None:
    plan, binding = lasting("cluster.workers=2", steps=20)
    places = {0: Place("127.0.0.2"), 1: Place("127.0.0.3", prefix=("nice", "-n", "5")), 2: Place("127.0.0.4")}
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            seen.update(connections())

    looking = threading.Thread(target=look)

    def on_start(pids: Mapping[str, int]) -> None:
        assert os.getpriority(os.PRIO_PROCESS, pids["worker1"]) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
        looking.start()

    run(plan, binding, compute="sleep", places=places, on_start=on_start)
    over.set()
    looking.join()
    assert {"127.0.0.2 127.0.0.4", "127.0.0.3 127.0.0.4"} <= seen


def connections() -> set[str]:
    """Local and remote address of every TCP connection of this machine."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {f"{address(row[1])} {address(row[2])}" for row in rows}


def address(text: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text.partition(":")[0])))


REFUSED = {
    "adam": ("training.optimizer=adam", "a server applies sgd or momentum, not adam"),
    "cores": ("parameter_servers.cores=4", "a server applies on one core here, not 4: use 1"),
    "discipline": ("parameter_servers.discipline=processor_sharing", "processor_sharing is only simulated: use fcfs"),
    "snapshot": ("schedule.snapshot=on_delivery", "a server reads what it sends when it is asked: use on_request"),
    "window": (
        "schedule={name: parameter_server, granularity: layer, order: {window: 64 KiB}}",
        "window is only simulated",
    ),
    "stragglers": ("stragglers=[{worker: worker1, factor: 2}]", "takes the time it takes: use compute: sleep"),
    "faults": ("faults=[{at: 1 ms, node: worker1, down: 1 ms}]", "kill a process of the run"),
    "second job": ("background={workers: 1, parameters: 1 MB, compute: 1 ms}", "a second job is only simulated"),
}


@pytest.mark.parametrize(("set_", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(set_: str, message: str) -> None:
    with pytest.raises(UnsupportedPlan, match=re.escape(message)):
        load("torch").execute(*composed(set_))


def test_refuses_what_has_no_influence(mlp_plan: Any, tmp_path: Path) -> None:
    from sim.planners import gpipe

    plan, binding = composed()
    for how, message in (
        ({"count_memory": True}, "count_memory has no influence with parameter servers"),
        ({"accelerator": "cuda"}, "accelerator cuda has no influence with parameter servers"),
        ({"places": {9: Place()}}, "places: the plan has no device 9"),
        ({"places": {0: Place(port=5000)}}, "places: a port has no influence on worker0, a worker"),
        ({"checkpoint": Checkpoint(tmp_path, resume=True)}, "checkpoint: there is no .*/server0.npz to resume from"),
        ({"checkpoint": Checkpoint(tmp_path, every=0)}, "checkpoint: every 0 updates: at least 1"),
        ({"checkpoint": Checkpoint(Path("/proc/x"))}, "checkpoint: /proc/x cannot be used: No such file or directory"),
    ):
        with pytest.raises(UnsupportedPlan, match=message):
            run(plan, binding, **how)  # type: ignore[arg-type]
    (tmp_path / "server1.npz").touch()
    with pytest.raises(UnsupportedPlan, match=r"server1\.npz is one already: resume from it, or name another folder"):
        run(plan, binding, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(
        UnsupportedPlan, match=r"compute: sleep has no influence without schedule\.name: parameter_server"
    ):
        run(*mlp_plan(gpipe.plan(2, 4)), compute="sleep")


RUN = "run", "-", "--json"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compute", "sleep"), "--compute has no influence on backend simulated: use --backend torch\n"),
        (("--compute", "slep"), "--compute: expected real or sleep, got 'slep'\n"),
        (("--resume",), "--resume: has no influence without --checkpoint DIR\n"),
        (
            (
                "--backend",
                "torch",
                "--checkpoint",
                "x",
                "--set",
                "schedule={name: single}",
                "--set",
                "parameter_servers=null",
            ),
            "checkpoint has no influence without schedule.name: parameter_server\n",
        ),
    ],
)
def test_options_without_influence_are_refused(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, [*RUN, *options], input=TEXT)
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.slow
def test_a_scenario_runs_for_real_and_goes_on(tmp_path: Path) -> None:
    for more in ((), ("--resume", "--set", "schedule.mini_batches=9")):
        options = "--backend", "torch", "--compute", "sleep", "--checkpoint", str(tmp_path)
        result = CliRunner().invoke(app, [*RUN, *options, *more], input=TEXT)
        assert result.exit_code == 0, result.stderr
    served = json.loads(result.stdout)["parameter_servers"]
    assert sum(served["staleness"]["histogram"].values()) > 0
    assert served["dropped_steps"] == 0


# --- the parts


def test_a_part_travels_in_chunks_that_say_where_they_belong() -> None:
    from backends.torch.servers.wire import CHUNK_BYTES, Head, What, chunks

    values = np.arange(2 * CHUNK_BYTES // 4 + 5, dtype=np.float32)
    found = np.full_like(values, -1)
    head = Head(What.VALUES, part=3, number=7, version=4, sent_s=0.5)
    sent = list(chunks(head, values))
    for first, chunk in sent:
        read = Head.unpack(first)
        assert read._replace(offset=0) == head
        found[read.offset : read.offset + len(chunk)] = chunk
    assert len(sent) == 3
    assert np.array_equal(found, values)


@pytest.mark.parametrize("sent", [False, True])
def test_an_update_leaves_what_is_on_its_way_as_it_was(sent: bool) -> None:
    from backends.torch.servers.kept import Kept
    from backends.torch.servers.wire import Change

    part = Kept(torch.zeros(4), composed()[0].training)
    snapshot = part.values.numpy()
    part.on_the_way.append(Mock(done=sent))
    part.change(Change.ADD, 0, 0, np.ones(4, np.float32))
    assert np.shares_memory(part.values.numpy(), snapshot)
    part.change(Change.MEAN, 0, 0, None)
    assert part.values.tolist() == pytest.approx([-RATE] * 4)
    assert np.shares_memory(part.values.numpy(), snapshot) == sent
    assert sent or not snapshot.any()


def test_half_a_row_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    from backends.torch.servers import records
    from sim.ops import OpId

    with (tmp_path / "rows").open("w+b") as file:
        assert records.last(file) == "before its first op"
        record = records.Record(file.fileno())
        record.write(OpId.parse("0P3@1.2"), 1.0, 2.0, reads=5)
        record.write(OpId.parse("0U3@1.2"), 2.0, 3.0, writes=6)
        file.truncate(records.ROW.itemsize * 2 - 1)
        assert records.read(file).tolist() == [(OpKind.PULL, 1, 2, 3, 5, -1, 1.0, 2.0)]
        assert records.last(file) == "after 0P3@1.2"
