"""Programs of parameter servers in the simulator: times by hand, versions, orders of sending, faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import parameter_server, served_steps, staleness, steady
from sim.errors import Deadlock, ScenarioError, UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.trace import Trace

Play = Callable[..., Trace]

ONE = """\
name: one
model: {uniform: {forward: 1 s, backward: 2 s, activation: 0 B, parameters: 4 MB, update: 0.5 s}, batch_size: 8}
cluster: {workers: 1, servers: 1, nic: 1 MB/s, link: {latency: 250 ms}}
schedule: {name: parameter_server, mini_batches: 3, start: together}
"""
"""A pull or a push takes 250 ms and 4 s, the passes 3 s, an update half a second."""

LAYERS = """\
name: layers
model:
  layers:
    - {name: a, forward: 1 s, backward: 2 s, output: 0 B, parameters: 1 MB}
    - {name: b, forward: 1 s, backward: 2 s, output: 0 B, parameters: 2 MB}
    - {name: c, forward: 1 s, backward: 2 s, output: 0 B, parameters: 3 MB}
  batch_size: 1
cluster: {workers: 1, servers: 1, nic: 1 MB/s}
schedule: {name: parameter_server, mini_batches: 2, granularity: layer, start: together}
"""


def when(trace: Trace, name: str) -> tuple[float, float]:
    """Start and end of an op."""
    names = [str(trace.id(op)) for op in range(len(trace.ops))]
    op = names.index(name)
    return float(trace.start_s[op]), float(trace.end_s[op])


def test_one_worker_by_hand(play: Play) -> None:
    trace = play(ONE)
    for step in range(3):
        begin = step * 12.0
        assert when(trace, f"0P{step}.0") == (begin, begin + 4.25)
        assert when(trace, f"0F{step}") == (begin + 4.25, begin + 5.25)
        assert when(trace, f"0B{step}") == (begin + 5.25, begin + 7.25)
        assert when(trace, f"0G{step}.0") == (begin + 7.25, begin + 11.5)
        assert when(trace, f"0U{step}.0") == (begin + 11.5, begin + 12)
    pulls, updates = (trace.ops[trace.ops["kind"] == kind] for kind in (OpKind.PULL, OpKind.UPDATE))
    assert pulls["reads"].tolist() == [0, 1, 2]
    assert updates["writes"].tolist() == [1, 2, 3]
    assert parameter_server.compute(trace)["steps_per_s"] == pytest.approx(1 / 12, rel=1e-12)


def test_what_the_result_says_of_one_worker(play: Play) -> None:
    trace = play(ONE, "schedule.mini_batches=41")
    found, over = parameter_server.compute(trace), steady.compute(trace)
    assert found["phases"] == pytest.approx(
        {"download_s": 4.25, "compute_s": 3.0, "upload_s": 4.25, "apply_s": 0.5}, rel=1e-9
    )
    assert (over.step_time_s, over.samples_per_s) == pytest.approx((12, 8 / 12), rel=1e-9)
    assert {link["name"]: link["utilization"] for link in found["links"]} == pytest.approx(
        dict.fromkeys(("server0>switch", "switch>server0", "worker0>switch", "switch>worker0"), 1 / 3), rel=0.01
    )
    assert found["servers"][0]["utilization"] == pytest.approx(1 / 24, rel=1e-9)
    assert found["staleness"]["histogram"] == {"0": 36}
    assert found["steps_per_s_interval"] is None  # 36 steps are too few


SYNCHRONOUS = """\
name: both
model: {uniform: {forward: 1 s, backward: 2 s, activation: 0 B, parameters: 4 MB, update: 0.5 s}, batch_size: 8}
cluster:
  nodes:
    - {name: gpu0, kind: gpu}
    - {name: gpu1, kind: gpu}
    - {name: gpu2, kind: gpu}
    - {name: switch, kind: switch}
    - {name: host, kind: host, device: host}
  links:
    - {between: [gpu0, switch], kind: KIND, bandwidth: 1 MB/s, latency: 20 ms}
    - {between: [gpu1, switch], kind: KIND, bandwidth: 2 MB/s, latency: 20 ms}
    - {between: [gpu2, switch], kind: KIND, bandwidth: 3 MB/s, latency: 20 ms}
    - {between: [host, switch], kind: KIND, bandwidth: 4 MB/s, latency: 10 ms}
"""


@pytest.mark.parametrize("kind", ["fair_share", "fifo", "in_order", "latency"])
def test_bsp_with_one_server_is_data_parallel_with_a_parameter_server(play: Play, kind: str) -> None:
    """The same pulls, passes, pushes, adds and updates, at the same times."""
    text = SYNCHRONOUS.replace("KIND", kind)
    served = play(f"{text}schedule: {{name: parameter_server, mini_batches: 4, consistency: bsp}}\n")
    classic = play(f"{text}schedule: {{name: data_parallel, sync: parameter_server, mini_batches: 4, scaling: weak}}\n")
    for name in ("kind", "micro_batch", "replica", "source", "target"):
        assert served.ops[name].tolist() == classic.ops[name].tolist()
    assert served.start_s.tolist() == classic.start_s.tolist()
    assert served.end_s.tolist() == classic.end_s.tolist()
    updates, pulls = (served.ops[served.ops["kind"] == kind] for kind in (OpKind.UPDATE, OpKind.PULL))
    assert updates["writes"].tolist() == [1, 2, 3, 4]
    assert pulls["reads"].tolist() == np.repeat(np.arange(4), 3).tolist()
    assert steady.compute(served).samples_per_s == pytest.approx(steady.compute(classic).samples_per_s, rel=1e-12)


def test_layers_are_pulled_in_turn_and_computed_as_they_arrive(play: Play) -> None:
    """Pulls end at 1, 3 and 6 s; forwards wait for them, gradients leave as they are made, the last first."""
    trace = play(LAYERS)
    assert [when(trace, f"0P0.{part}") for part in range(3)] == [(0, 1), (1, 3), (3, 6)]
    assert [when(trace, f"0F0.{part}") for part in range(3)] == [(1, 2), (3, 4), (6, 7)]
    assert [when(trace, f"0B0.{part}") for part in (2, 1, 0)] == [(7, 9), (9, 11), (11, 13)]
    assert [when(trace, f"0G0.{part}") for part in (2, 1, 0)] == [(9, 12), (12, 14), (14, 15)]
    assert when(trace, "0P1.0")[0] == 15
    flows = trace.flows[trace.flows["link"] == 0]  # worker0>switch
    assert flows["bytes"].sum() == 2 * 6e6


def test_the_last_layer_first(play: Play) -> None:
    trace = play(LAYERS, "schedule.order=reverse")
    assert [when(trace, f"0P0.{part}") for part in (2, 1, 0)] == [(0, 3), (3, 5), (5, 6)]
    assert when(trace, "0F0.0")[0] == 6
    assert [when(trace, f"0G0.{part}")[0] for part in (2, 1, 0)] == [11, 14, 16]


def test_what_is_needed_first_goes_first(play: Play) -> None:
    """On a link a third as fast, the gradients of both other layers wait for that of the last: the first overtakes."""
    sets = ("cluster.nic={worker: 333333 B/s}", "schedule.mini_batches=1")
    first, second = (play(LAYERS, *sets, f"schedule.order={order}") for order in ("fifo", "priority"))
    assert when(first, "0G0.1")[0] < when(first, "0G0.0")[0]
    assert when(second, "0G0.0")[0] < when(second, "0G0.1")[0]
    assert when(first, "0G0.2")[0] == when(second, "0G0.2")[0]  # it left before there was a choice


def test_windows_send_all_at_once_each_a_window_a_round_trip(play: Play) -> None:
    """100 kB in a round trip of 1 s: each stream at 100 kB/s, three of them below the link's 1 MB/s."""
    sets = ("cluster.link={latency: 500 ms}", "schedule.order={window: 100 kB}")
    trace = play(LAYERS, *sets)
    assert [when(trace, f"0P0.{part}") for part in range(3)] == [
        (0, pytest.approx(0.5 + size / 0.1)) for size in (1, 2, 3)
    ]
    wide = play(LAYERS, sets[0], "schedule.order={window: 10 MB}")  # the link limits: shares of a third, a half, all
    assert [when(wide, f"0P0.{part}")[1] for part in range(3)] == pytest.approx([3.5, 5.5, 6.5])


def test_buckets_travel_as_one(play: Play) -> None:
    trace = play(LAYERS, "schedule.bucket=3 MB")
    assert [when(trace, f"0P0.{part}") for part in range(2)] == [(0, 3), (3, 6)]
    assert when(trace, "0F0.0")[0] == when(trace, "0P0.0")[1]
    assert when(trace, "0G0.0")[0] == when(trace, "0B0.0")[1]  # its bucket is whole when the first layer is done


def test_a_server_with_several_cores(play: Play) -> None:
    """Three gradients arrive at once: two cores take one each, then the third; shared by all, they end together."""
    sets = ("cluster={workers: 3, servers: 1}", "schedule.mini_batches=1", "parameter_servers.cores=2")
    apply = ("model.uniform.update=null", "parameter_servers.apply.per_tensor=2 s")
    trace = play(ONE, *sets, *apply)
    ends = trace.end_s[trace.ops["kind"] == OpKind.UPDATE]
    assert ends.tolist() == [5, 5, 7]
    shared = play(ONE, *sets, *apply, "parameter_servers.discipline=processor_sharing")
    assert shared.end_s[shared.ops["kind"] == OpKind.UPDATE].tolist() == [6, 6, 6]


def test_what_applying_takes(play: Play) -> None:
    """Bytes at a rate, and a time for each of two tensors."""
    sets = ("model.uniform.update=null", "parameter_servers.apply={bandwidth: 8 MB/s, per_tensor: 1 s}")
    start, end = when(play(ONE, *sets), "0U0.0")
    assert end - start == pytest.approx(4 / 8 + 1)
    layered = play(LAYERS, "schedule.granularity=step", "parameter_servers.apply={bandwidth: 6 MB/s, per_tensor: 1 s}")
    start, end = when(layered, "0U0.0")
    assert end - start == pytest.approx(6 / 6 + 3)


def test_a_cores_share_of_its_hosts_memory(play: Play) -> None:
    """fp32 with momentum moves 20 bytes a parameter; a core of four has a quarter of 153.6 GB/s at 75 %."""
    text = LAYERS.replace("step: together", "")
    trace = play(text, "cluster.host=host", "schedule.granularity=step", "parameter_servers.cores=4")
    start, end = when(trace, "0U0.0")
    assert end - start == pytest.approx(1.5e6 * 20 * 4 / (153.6e9 * 0.75))


def test_a_second_job_takes_its_share_and_ends_with_the_first(play: Play) -> None:
    """Two workers, one of another job with the same bytes and times: each gets half of the server's link."""
    sets = ("cluster={workers: 2, servers: 1, nic: {server: 1 MB/s}}", "model.uniform.update=null")
    other = "background={workers: 1, parameters: 4 MB, compute: 3 s}"
    trace = play(ONE, *sets, other)
    assert when(trace, "0P0.0") == (0, 8)
    assert when(trace, "1P0@1.0") == (0, 8)
    assert trace.makespan_s == when(trace, "0U2.0")[1]
    assert (trace.ops["stage"] == 1).any()
    found = parameter_server.compute(trace)
    assert [worker["name"] for worker in found["staleness"]["workers"]] == ["worker0"]
    assert found["staleness"]["max"] == 0  # updates of the other job are no updates of these parameters


def test_workers_of_their_own_kinds(play: Play) -> None:
    """A layer table on two devices: each worker computes as fast as its own."""
    trace = play(
        "name: mixed\n"
        "model: {name: alexnet, batch_size: 8}\n"
        "cluster: ethernet-mixed-ps\n"
        "schedule: {name: parameter_server, mini_batches: 1}\n"
    )
    taken = {
        trace.header["devices"][int(op["replica"])]: float(trace.end_s[row] - trace.start_s[row])
        for row, op in enumerate(trace.ops)
        if op["kind"] == OpKind.FORWARD
    }
    kinds = [
        [taken[name] for name in names] for names in (("p100-0", "p100-1"), ("k80-0", "k80-3"), ("cpu-0", "cpu-1"))
    ]
    assert all(first == pytest.approx(second) for first, second in kinds)
    assert kinds[0][0] < kinds[1][0] < kinds[2][0]


def test_stragglers(play: Play) -> None:
    named = play(ONE, "cluster.workers=2", "stragglers=[{worker: worker1, factor: 3}]")
    for worker, seconds in (("", 1.0), ("@1", 3.0)):
        start, end = when(named, f"0F0{worker}")
        assert end - start == pytest.approx(seconds)
    often = play(ONE, "schedule.mini_batches=2000", "stragglers=[{probability: 0.25, factor: 3}]")
    forward = often.ops["kind"] == OpKind.FORWARD
    slow = (often.end_s - often.start_s)[forward] > 2
    backward = (often.end_s - often.start_s)[often.ops["kind"] == OpKind.BACKWARD] > 4
    assert slow.tolist() == backward.tolist()  # a step is slow as a whole
    assert slow.mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 2000) ** 0.5)


def test_a_transfer_may_be_faster_than_its_link_says(play: Play) -> None:
    """Where transfers vary about their mean, some beat the bandwidth: no law is broken."""
    for seed in range(8):
        trace = play(ONE, f"seed={seed}", "schedule.mini_batches=1", "jitter={communication: exponential}")
        start, end = when(trace, "0P0.0")
        assert trace.flows["bytes"].tolist() == [4e6] * 4
        if end - start < 4:
            return
    raise AssertionError("no transfer of eight was faster than the mean")


def test_workers_start_at_random_phases_of_a_step(play: Play) -> None:
    text = ONE.replace(", start: together", "")
    first_s = [
        play(text, f"seed={seed}", "cluster.workers=4", "cluster.nic=null").start_s.reshape(-1) for seed in (1, 1, 2)
    ]
    begins = [sorted(start_s.tolist())[:4] for start_s in first_s]
    assert begins[0] == begins[1] != begins[2]
    step_s = 2 * 0.25 + 3 + 0.5
    assert all(0 <= begin < step_s for begin in begins[0])
    assert len(set(begins[0])) == 4


FAULTY = ("cluster={workers: 2, servers: 1, nic: 4 MB/s}", "schedule.mini_batches=4", "model.uniform.update=1 s")
"""Alone a worker pulls for 1 s, computes for 3 s, pushes for 1 s; the server updates for 1 s."""


def test_a_worker_that_dies_begins_its_step_anew(play: Play) -> None:
    trace = play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 8500 ms, node: worker0, down: 2 s}]")
    assert when(trace, "0F1") == (7, 8)  # its pull is read again, its backward was lost
    assert when(trace, "0P2.0") == (10.5, 11.5)
    assert when(trace, "0U2.0") == (15.5, 16.5)
    names = {str(trace.id(op)) for op in range(len(trace.ops))}
    assert "0B1" not in names
    assert {"0U0.0", "0U2.0", "0U3.0", "0U4.0"} <= names  # four steps all the same
    found = parameter_server.compute(trace)
    assert found["dropped_steps"] == 1
    assert found["faults"][0]["what"] == "worker0 down"
    assert found["faults"][0]["steps_per_s"]["during"] == 0


def test_a_gradient_that_has_arrived_is_applied_though_its_worker_died(play: Play) -> None:
    """The server is at it when the worker dies; the step is done again all the same."""
    trace = play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 5500 ms, node: worker0, down: 2 s}]")
    assert when(trace, "0U0.0") == (5, 6)
    assert when(trace, "0P1.0") == (7.5, 8.5)
    pulls = trace.ops[trace.ops["kind"] == OpKind.PULL]
    assert pulls["reads"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["fair_share", "fifo"])
def test_what_is_lost_leaves_its_links_to_others(play: Play, kind: str) -> None:
    """Two pulls of 4 MB at 4 MB/s in all; one worker dies half a second on: the other has the link to itself."""
    fault = "faults=[{at: 500 ms, node: worker0, down: 100 s}]"
    nic = "cluster={workers: 2, servers: 1, nic: {server: 4 MB/s}}"
    trace = play(ONE, nic, "schedule.mini_batches=1", f"cluster.link.kind={kind}", fault)
    assert when(trace, "0P0@1.0")[1] == pytest.approx(0.5 + (3.0 if kind == "fair_share" else 4.0) / 4)


def test_a_server_that_dies_is_asked_again(play: Play) -> None:
    """What was on its way, or asked of it while it was down, starts when it is back."""
    trace = play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 500 ms, node: server0, down: 2 s}]")
    assert when(trace, "0P0.0") == (2.5, 3.5)
    during = play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 5500 ms, node: server0, down: 2 s}]")
    assert when(during, "0U0.0") == (7.5, 8.5)
    asked = play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 2 s, node: server0, down: 10 s}]")
    assert when(asked, "0G0.0") == (12, 13)
    assert trace.ops.tolist() == during.ops.tolist() == asked.ops.tolist()


@pytest.mark.parametrize("consistency", ["bsp", "{ssp: 0}", "{ssp: 2}"])
def test_others_wait_for_a_dead_worker_where_they_must(play: Play, consistency: str) -> None:
    trace = play(
        ONE.replace(", start: together", ""),
        *FAULTY,
        f"schedule.consistency={consistency}",
        "schedule.mini_batches=20",
        "faults=[{at: 30 s, node: worker1, down: 100 s}]",
    )
    steps = served_steps.compute(trace)
    others = np.sort(steps.done_s[steps.worker == 0])
    during = int(((others > 40) & (others < 130)).sum())
    assert during <= (2 if "2" in consistency else 1)
    assert len(others) == 20


def test_a_spare_worker_stands_in_for_a_dead_one(play: Play) -> None:
    trace = play(
        ONE.replace(", start: together", ""),
        *FAULTY,
        "cluster.workers=3",
        "schedule.consistency={backup: 1}",
        "schedule.mini_batches=20",
        "faults=[{at: 30 s, node: worker1, down: 100 s}]",
    )
    steps = served_steps.compute(trace)
    assert ((steps.done_s > 40) & (steps.done_s < 130)).sum() >= 16
    assert int((trace.ops["kind"] == OpKind.UPDATE).sum()) == 20
    assert set(steps.staleness.ravel().tolist()) == {0}


def test_dead_from_the_start(play: Play) -> None:
    late = play(ONE, *FAULTY, "faults=[{at: 0 s, node: worker1, down: 5 s}]")
    assert when(late, "0P1@1.0")[0] == 5  # what it had asked for is lost
    random = play(ONE.replace(", start: together", ""), *FAULTY, "faults=[{at: 0 s, node: worker1, down: 1 ms}]")
    assert when(random, "0P0@1.0")[0] > 1e-3  # it would have started later anyway


@pytest.mark.parametrize("kind", ["fair_share", "fifo"])
def test_a_link_that_degrades(play: Play, kind: str) -> None:
    """4 MB at 4 MB/s, of which half a second at a tenth: 2 MB, 0.2 MB, then 1.8 MB."""
    fault = "faults=[{at: 500 ms, link: [server0, switch], bandwidth: 0.4 MB/s, for: 500 ms}]"
    trace = play(ONE, *FAULTY, "cluster.workers=1", f"cluster.link.kind={kind}", fault)
    assert when(trace, "0P0.0") == (0, pytest.approx(0.5 + 0.5 + 1.8 / 4))
    assert parameter_server.compute(trace)["faults"][0]["what"] == "server0>switch at 10 %"


def test_a_fault_after_the_end_says_so(play: Play) -> None:
    with pytest.raises(UnsupportedPlan, match=r"faults: one at 100 s has no influence: the run ends at 24 s"):
        play(ONE, *FAULTY, "cluster.workers=1", "faults=[{at: 100 s, node: worker0, down: 1 s}]")


def test_a_deadlock_names_the_branch(compose: Any, mesh: Any) -> None:
    """A worker of a barrier for two that never sees the other."""
    from dataclasses import replace
    from functools import partial

    from sim.engine.run import run
    from sim.planners import data_parallel
    from sim.policies import BulkSynchronous

    plan, binding = compose(data_parallel.plan(1, 1, "parameter_server"), mesh(1, host=True), server=1)
    lonely = replace(plan.work, policy=partial(BulkSynchronous, 2))
    with pytest.raises(Deadlock, match="worker0 waits for the release of 'applied' at step 0"):
        run(replace(plan, work=lonely), binding)


def test_the_trace_survives_its_file(play: Play, tmp_path: Path) -> None:
    trace = play(ONE, *FAULTY, "background={workers: 1, parameters: 1 MB, compute: 1 s}")
    trace.save(tmp_path / "trace.npz")
    again = Trace.load(tmp_path / "trace.npz")
    assert parameter_server.compute(again) == parameter_server.compute(trace)
    assert OpId.parse("1U3@1.0").stage == 1


def test_staleness_of_passes_is_that_of_the_stalest_part(play: Play) -> None:
    text = LAYERS.replace(", start: together", "")
    trace = play(text, "cluster.workers=3", "schedule.mini_batches=30", "jitter={compute: exponential}")
    steps, measured = served_steps.compute(trace), staleness.compute(trace)
    forward = trace.ops["kind"] == OpKind.FORWARD
    by_step = {
        (int(worker), int(number)): int(stale.max())
        for worker, number, stale in zip(steps.worker, steps.number, steps.staleness, strict=True)
    }
    expected = [by_step[int(op["replica"]), int(op["micro_batch"])] for op in trace.ops[forward]]
    assert measured.staleness[forward].tolist() == expected
    assert measured.forward.max == max(expected)


def test_too_many_transfers_name_the_bucket_that_fits(play: Play) -> None:
    text = (
        "name: many\nmodel: {name: resnet50, batch_size: 8}\n"
        "cluster: {workers: 64, servers: 4, device: v100, nic: 1 GB/s}\n"
        "schedule: {name: parameter_server, mini_batches: 200, granularity: layer}\n"
    )
    message = r"scenario.yaml:4: schedule.bucket: 4,121,600 transfers: the limit is 2,000,000 \(bucket: 1.00 MiB fits\)"
    with pytest.raises(ScenarioError, match=message):
        play(text)
    with pytest.raises(ScenarioError, match=r"the limit is 2,000,000 \(bucket: 2.00 MiB fits\)"):
        play(text, "schedule.mini_batches=260")
    with pytest.raises(ScenarioError, match=r"schedule.mini_batches: 5,120,000 transfers.*at most 3,906"):
        play(text, "schedule.granularity=step", "schedule.mini_batches=10000")
