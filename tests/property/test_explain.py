"""What ``twinrail explain`` says: paths against networkx and closed forms, shares that add up, Graphs against runs."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner

from analysis import critical_path, steady
from analysis.critical_path import Cause
from backends.base import load
from scenarios.command_line import app
from scenarios.compose import Composed, compose
from scenarios.explain_command import Graph, changes, explain
from scenarios.load import parse_text
from scenarios.schema import parse
from sim.costs import seconds_column
from sim.planners import PLANNERS
from sim.schedule import Schedule
from sim.trace import Trace

UNIFORM = """\
name: uniform
model:
  uniform: {{forward: {forward} ms, backward: {backward} ms, activation: {size} MB, parameters: 1 MB}}
  batch_size: 8
cluster: {{devices: 4, link: {{kind: {kind}, latency: {latency} us, bandwidth: {bandwidth} MB/s}}}}
schedule: {schedule}
"""
SCHEDULES = (
    "{name: gpipe, stages: 4, micro_batches: 4, mini_batches: 3}",
    "{name: one_f_one_b, stages: 4, micro_batches: 8, mini_batches: 3}",
    "{name: interleaved_1f1b, stages: 2, micro_batches: 4, mini_batches: 3}",
    "{name: zb_h1, stages: 4, micro_batches: 8, mini_batches: 3}",
    "{name: pipedream, stages: 3}",
    "{name: pipedream, stages: 2, replicas: [3, 1]}",
    "{name: pipedream_2bw, stages: 2, micro_batches: 4}",
    "{name: data_parallel, buckets: 1, mini_batches: 3}",
)


def plan(schedule: str, kind: str = "in_order", seed: int = 0) -> Composed:
    draw = random.Random(seed)
    text = UNIFORM.format(
        forward=round(draw.uniform(1, 9), 3),
        backward=round(draw.uniform(1, 19), 3),
        size=draw.randint(1, 9),
        kind=kind,
        latency=draw.randint(1, 900),
        bandwidth=draw.randint(500, 9000),
        schedule=schedule,
    )
    document = parse_text(text, "uniform.yaml")
    return compose(parse(document, PLANNERS), document)


def simulated(composed: Composed) -> Trace:
    return load("simulated").execute(*composed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_as_long_as_the_longest_path_that_networkx_finds(schedule: str, seed: int) -> None:
    composed = plan(schedule, seed=seed)
    work = composed.plan.work
    assert isinstance(work, Schedule)
    seconds = seconds_column(work, composed.binding)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(-1, len(work)))
    for op in range(len(work)):
        graph.add_weighted_edges_from((int(earlier), op, seconds[op]) for earlier in [-1, *work.waits_for[op]])
    trace = simulated(composed)
    ops = [piece.op for piece in critical_path.compute(trace, seconds)]
    assert all(nx.has_path(graph, earlier, later) for earlier, later in pairwise(ops))  # ops of no length are left out
    length_s = nx.dag_longest_path_length(graph)
    assert sum(seconds[op] for op in dict.fromkeys(ops)) == pytest.approx(length_s, rel=1e-12)
    assert trace.makespan_s == pytest.approx(length_s, rel=1e-12)


@pytest.mark.parametrize("kind", ["latency", "in_order", "fifo", "fair_share"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pieces_tile_the_run_and_shares_add_up_exactly(schedule: str, kind: str) -> None:
    trace = simulated(plan(schedule, kind))
    pieces = critical_path.compute(trace)
    assert pieces[0].start_s == 0
    assert pieces[-1].end_s == trace.makespan_s
    assert all(before.end_s == after.start_s for before, after in pairwise(pieces))
    assert not [piece for piece in pieces if piece.cause.kind == "waiting"]
    over = steady.compute(trace)
    for start_s, end_s in ((0.0, trace.makespan_s), (over.start_s, over.end_s)):
        parts = critical_path.parts(pieces, start_s, end_s)
        assert sum(part.share for part in parts) == 1
        assert sum(Fraction(part.seconds) for part in parts) == Fraction(end_s - start_s)


def test_one_device_only_computes() -> None:
    composed = plan("{name: single, mini_batches: 2}")
    causes = {part.cause for part in critical_path.parts(critical_path.compute(simulated(composed)), 0.0, 1e9)}
    assert causes == {Cause("compute", "stage 0 forward"), Cause("compute", "stage 0 backward")}


def test_equal_stages_of_1f1b() -> None:
    """Free transfers: a mini-batch takes (T + N − 1)(F + B), so T + N − 1 of each pass are on the path."""
    document = parse_text(
        UNIFORM.format(
            forward=2, backward=4, size=1, kind="latency", latency=0, bandwidth=1, schedule=SCHEDULES[1]
        ).replace(", bandwidth: 1 MB/s", ""),
        "equal.yaml",
    )
    trace = simulated(compose(parse(document, PLANNERS), document))
    over = steady.compute(trace)
    parts = critical_path.parts(critical_path.compute(trace), over.start_s, over.end_s)
    spent = {
        kind: sum(part.seconds for part in parts if kind in part.cause.what) / 2 for kind in ("forward", "backward")
    }
    assert spent == {"forward": pytest.approx(11 * 2e-3), "backward": pytest.approx(11 * 4e-3)}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_slopes_agree_with_runs(schedule: str, seed: int) -> None:
    """1 % more of each part: what the step gains to first order is within 1 % of the step of what a run gains, and the
    graph says exactly what the run does. Where the path stays the same, the gain itself agrees within 2 %.
    """
    composed = plan(schedule, seed=seed)
    base_s = steady.compute(simulated(composed)).step_time_s
    for change in changes(composed.binding):
        changed = Composed(composed.plan, change.apply(composed.binding, 0.01))
        again_s = steady.compute(simulated(changed)).step_time_s
        assert steady.compute(load("longest_path").execute(*changed)).step_time_s == again_s
        linear_s = base_s + 0.01 * Graph.of(composed).slope(change)
        assert abs(linear_s - again_s) <= 0.01 * base_s
        if schedule in SCHEDULES[:4]:  # a synchronous step has one path
            assert linear_s - base_s == pytest.approx(again_s - base_s, rel=0.02, abs=1e-12)


def run(scenario: str, folder: Path, *sets: str) -> Any:
    file = folder / "scenario-in.yaml"
    file.write_text(scenario)
    options = [word for text in sets for word in ("--set", text)]
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(folder / "run"), *options])
    assert done.exit_code == 0, done.stderr
    answer = CliRunner().invoke(app, ["explain", str(folder / "run"), "--json"])
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)["points"][0]


WRITTEN = UNIFORM.format(
    forward=2, backward=4, size=2, kind="in_order", latency=50, bandwidth=900, schedule=SCHEDULES[1]
)


def test_the_graph_is_checked_by_running_again(tmp_path: Path) -> None:
    point = run(WRITTEN, tmp_path)
    assert point["notes"] == []
    parts = {each["part"]: each for each in point["sensitivities"]}
    assert [*parts] == ["bandwidth of in_order links of 0.900 GB/s", "speed of the devices"]
    for each in parts.values():
        assert each["graph_step_time_s"] == each["simulated_step_time_s"] < each["step_time_s"]
    assert sum(each["share"] for each in point["shares"]) == 1


def test_latency_and_bytes_of_transfers_are_told_apart(tmp_path: Path) -> None:
    """2 MB at 900 MB/s behind 50 µs, op by op."""
    spent = dict.fromkeys(("latency", "transfer"), 0.0)
    for each in run(WRITTEN, tmp_path)["run_shares"]:
        if each["cause"] in spent:
            spent[each["cause"]] += each["seconds"]
    assert spent["latency"] / spent["transfer"] == pytest.approx(50e-6 / (2e6 / 900e6))


def test_where_links_are_shared_only_runs_tell(tmp_path: Path) -> None:
    point = run(WRITTEN, tmp_path, "cluster.link.kind=fair_share", "memory.capacity=1 GB")
    assert "fair_share" in point["notes"][0]
    assert len(point["sensitivities"]) == 3
    assert all("slope_s" not in each and each["speedup"] >= 1 for each in point["sensitivities"])


def test_an_order_that_depends_on_time_has_a_path_too(tmp_path: Path) -> None:
    text = """\
name: served
model: {name: alexnet, batch_size: 8}
cluster: {workers: 2, servers: 2, device: p40, nic: 1 GB/s}
schedule: {name: parameter_server, consistency: bsp, mini_batches: 4}
"""
    point = run(text, tmp_path)
    assert sum(each["share"] for each in point["run_shares"]) == 1
    assert {"compute", "transfer"} <= {each["cause"] for each in point["run_shares"]}


def test_allocators_stand_on_the_path(tmp_path: Path) -> None:
    text = "name: a\nmodel: {name: alexnet, batch_size: 8}\ncluster: {devices: 1, device: p40}\n"
    text += "schedule: {name: single, mini_batches: 2}\nmemory: {allocator: caching}\n"
    point = run(text, tmp_path)
    assert {"allocator", "compute", "update"} == {each["cause"] for each in point["run_shares"]}


def test_no_such_run_or_point(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert (answer.exit_code, "no run folder" in answer.stderr) == (2, True)
    run(WRITTEN, tmp_path)
    answer = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--point", "other"])
    assert (answer.exit_code, "there are one_f_one_b" in answer.stderr) == (2, True)
    assert explain(tmp_path / "run", "one_f_one_b", more=0.01)["points"][0]["sensitivities"][0]["more"] == 0.01


@pytest.mark.parametrize(
    ("content", "says"),
    [("[]", "holds no point"), ('[{"name": ["a"]}]', "no trace of"), ('[{"name": 3}]', "no trace of")],
)
def test_damaged_results_are_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "result.json").write_text(content)
    (tmp_path / "scenario.yaml").write_text(ONE_OP)
    done = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert (done.exit_code, says in done.stderr) == (2, True)


def test_a_run_in_which_nothing_takes_time(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["run", "-", "--out", str(tmp_path)], input=ONE_OP).exit_code == 0
    assert CliRunner().invoke(app, ["explain", str(tmp_path)]).stdout.startswith("single: nothing takes time\n")


ONE_OP = """\
name: nothing
model: {uniform: {forward: 0 s, backward: 0 s, activation: 0 B, parameters: 0 B}, batch_size: 1}
cluster: {devices: 1}
schedule: {name: single}
"""


def test_faster_hardware_may_run_out_of_memory(tmp_path: Path) -> None:
    """A plan that just fits: what no longer does is told of that part, and the others have their figures."""
    assert CliRunner().invoke(app, ["run", "-", "--out", str(tmp_path)], input=FULL).exit_code == 0
    explained = json.loads(CliRunner().invoke(app, ["explain", str(tmp_path), "--json"]).stdout)
    told = explained["points"][0]["sensitivities"]
    failed = [each for each in told if "error" in each]
    assert 0 < len(failed) < len(told)
    assert all("out of memory" in each["error"] and "simulated_step_time_s" not in each for each in failed)


FULL = """\
name: x
model:
  batch_size: 24
  input: 1 MB
  layers:
  - {name: l0, forward: 4.6 ms, backward: 16.0 ms, output: 1 MB, saved: 3 MB, parameters: 4 MB}
  - {name: l1, forward: 3.2 ms, backward: 17.3 ms, output: 4 MB, saved: 3 MB, parameters: 3 MB}
  - {name: l2, forward: 7.0 ms, backward: 6.4 ms, output: 8 MB, saved: 3 MB, parameters: 1 MB}
  - {name: l3, forward: 5.2 ms, backward: 13.7 ms, output: 1 MB, saved: 3 MB, parameters: 4 MB}
  - {name: l4, forward: 5.9 ms, backward: 9.3 ms, output: 1 MB, saved: 3 MB, parameters: 3 MB}
  - {name: l5, forward: 7.3 ms, backward: 7.0 ms, output: 5 MB, saved: 3 MB, parameters: 6 MB}
partition: {cuts: [2, 4]}
cluster: {devices: 3, link: {kind: in_order, latency: 0 us, bandwidth: 100000000.0 B/s}}
schedule: {name: one_f_one_b, stages: 3, micro_batches: 6, mini_batches: 3}
memory: {capacity: 28333334 B}
"""
