"""From packets of one worker to throughput of many: without a network, on captures of simulated runs."""

from __future__ import annotations

import io
import json
import random
import re
from collections import Counter
from pathlib import Path

import dpkt
import pytest

from analysis import parameter_server, throughput_plot
from analysis.packets import synthesis
from analysis.packets.merge import merge
from analysis.queueing import exact
from analysis.queueing.network import Network, Station
from backends.base import load
from docs import tables_validation
from scenarios import server_demands, server_testbed, server_validation
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import apply_sets, load_document, parse_text, shipped
from scenarios.run_folder import read_points
from scenarios.schema import parse
from scenarios.server_demands import Demands, Predicted
from scenarios.server_testbed import Captured, Run
from scenarios.server_validation import Alone, Cell
from sim.errors import RunFailed, ScenarioError
from sim.planners import PLANNERS
from sim.program import Program

# The demands: .08 s and .04 s down, as much up, .05 s of thinking, .01 s and .005 s to apply.
TEXT = """
name: two servers
model:
  layers:
    - {name: a, forward: 20 ms, backward: 30 ms, output: 0 B, parameters: 800 kB}
    - {name: b, forward: 0 s, backward: 0 s, output: 0 B, parameters: 400 kB}
  input: 0 B
  batch_size: 1
cluster: {workers: 1, servers: 2, nic: {server: 10 MB/s}, link: {kind: fair_share}}
schedule: {name: parameter_server, mini_batches: 40}
parameter_servers: {sharding: {explicit: {a: 0, b: 1}}, apply: {bandwidth: 80 MB/s}}
jitter: {compute: {lognormal: 0.5}}
"""
SOME = Demands(0.05, (0.08, 0.04), (0.08, 0.04), (0.01, 0.005))


def document(*sets: str) -> Document:
    return apply_sets(parse_text(TEXT, "scenario.yaml"), sets)


def composed(*sets: str) -> Composed:
    made = document(*sets)
    return compose(parse(made, PLANNERS), made)


def captured(made: Composed, seed: int, folder: Path) -> Captured:
    """A simulated run, and the capture that it would have produced."""
    trace = load("simulated").execute(*made, seed)
    transfers = synthesis.of_trace(trace, made.binding.cluster)
    synthesis.write(synthesis.synthesize(transfers), folder / "run.pcap")
    servers = tuple(synthesis.addresses(len(server_testbed.layout_of(made).servers)))
    rate = parameter_server.compute(trace)["steps_per_s"]
    return Captured(Run(trace, rate, 0.1), (folder / "run.pcap").read_bytes(), servers)


def test_demands_are_those_that_were_simulated(tmp_path: Path) -> None:
    made = composed()
    found = server_demands.demands(captured(made, 0, tmp_path), made)
    assert found.downlink_s == pytest.approx(SOME.downlink_s, rel=0.01)
    assert found.uplink_s == pytest.approx(SOME.uplink_s, rel=0.01)
    assert found.apply_s == pytest.approx(SOME.apply_s, rel=0.05)
    assert found.think_s == pytest.approx(SOME.think_s, rel=0.2)  # its mean over 40 steps of cv .5


@pytest.mark.parametrize("workers", [1, 4])
def test_with_its_own_demands_a_simulation_is_what_it_was(workers: int) -> None:
    made = composed(f"cluster.workers={workers}")
    trace = load("simulated").execute(*made, 7)
    again = server_demands.predict(made, SOME, 7).simulated
    assert again == pytest.approx(parameter_server.compute(trace)["steps_per_s"], rel=1e-9)


def test_what_varied_in_the_plan_but_not_for_real_is_left_out() -> None:
    sets = "jitter.communication={lognormal: 1.0}", "jitter.apply={lognormal: 1.0}", "cluster.link.latency=1 s"
    plain, varied = composed("schedule.start=together"), composed("schedule.start=together", *sets)
    assert server_demands.predict(varied, SOME, 7) == server_demands.predict(plain, SOME, 7)


def test_theory_of_one_server_is_exact_mean_value_analysis() -> None:
    made = composed("cluster.servers=1", "cluster.workers=5", "parameter_servers.sharding=greedy")
    stations = tuple(Station(name, demand_s) for name, demand_s in (("down", 0.12), ("up", 0.11), ("core", 0.02)))
    one = Demands(0.05, (0.12,), (0.11,), (0.02,))
    expected = exact.solve(Network(stations, 0.05), 5).throughput_per_s
    assert server_demands.predict(made, one, 0).theory == pytest.approx(expected, rel=1e-9)


def test_theory_says_nothing_where_steps_wait_for_each_other() -> None:
    assert server_demands.predict(composed("schedule.consistency=bsp"), SOME, 0)[1:] == (None, ())


def test_theory_names_the_assumptions_that_do_not_hold() -> None:
    sets = "cluster.workers=4", "jitter=null"
    assert server_demands.predict(composed(*sets), SOME, 0).broken == ("phase_locked", "fcfs_not_exponential")


def test_a_capture_without_a_step_is_a_failed_run(tmp_path: Path) -> None:
    made = composed("schedule.mini_batches=1")
    whole = captured(made, 0, tmp_path)
    with pytest.raises(RunFailed, match=r"no step of the one worker was captured; .*no complete step"):
        server_demands.demands(whole._replace(packets=whole.packets[: len(whole.packets) // 3]), made)


def test_merged_captures_are_the_capture_they_were_part_of(tmp_path: Path) -> None:
    whole = captured(composed(), 0, tmp_path).packets
    with io.BytesIO(whole) as file:
        frames = [*dpkt.pcap.Reader(file)]
    draw, parts = random.Random(0), [io.BytesIO() for _ in range(3)]
    writers = [dpkt.pcap.Writer(part, snaplen=1 << 16, nano=True) for part in parts]
    for time_s, frame in frames:
        draw.choice(writers).writepkt(frame, time_s)
    merged = merge([part.getvalue() for part in parts])
    found = [*dpkt.pcap.Reader(io.BytesIO(merged))]
    assert [time_s for time_s, _ in found] == sorted(time_s for time_s, _ in found)
    assert Counter(frame for _, frame in found) == Counter(frame for _, frame in frames)


# The whole way, with simulated runs in place of real ones.

ALONE = Alone("one", SOME, 0.2)


def cell(
    rates: tuple[float, ...],
    busy: tuple[float, ...] = (0.3,) * 3,
    simulated: float = 9.0,
    theory: float | None = 11.0,
    alone: Alone = ALONE,
) -> Cell:
    runs = tuple(Run(None, *each) for each in zip(rates, busy, strict=True))  # type: ignore[arg-type]
    return Cell("one", 2, alone, Predicted(simulated, theory, ()), runs)


def verdict(*cells: Cell) -> str:
    return server_validation.verdict(server_validation.as_json(cells))


def test_a_cell_counts_the_median_and_half_of_the_range() -> None:
    found = cell((10.0, 12.0, 9.0))
    assert (found.measured, found.spread) == (10.0, pytest.approx(0.15))
    assert found.errors == {"simulated": pytest.approx(-0.1), "theory": pytest.approx(0.1)}
    assert cell((10.0,) * 3, theory=None).errors == {"simulated": pytest.approx(-0.1)}


def test_a_host_that_is_too_busy_makes_a_cell_invalid_not_wrong() -> None:
    assert cell((10.0,) * 3, (0.79, 1.0, 0.5)).is_valid
    assert not cell((10.0,) * 3, (0.81, 1.0, 0.5)).is_valid
    assert not cell((10.0,) * 3, alone=ALONE._replace(busy=0.9)).is_valid
    assert server_validation.rows([cell((10.0,) * 3, (0.9,) * 3)])[0][-2:] == ("90 %", "invalid")


def test_the_verdict_counts_valid_points_and_the_worst_of_steady_ones() -> None:
    good, wild = cell((10.0, 10.1, 9.9), simulated=9.5), cell((10.0, 15.0, 5.0), simulated=20.0)
    hot = cell((10.0,) * 3, (1.0,) * 3, simulated=30.0)
    off = cell((10.0,) * 3, simulated=8.0)
    text = verdict(good, good, wild, hot)
    assert text.startswith(
        "3 of 4 points valid (host at most 80 % busy); simulated: median error 5.0 %, most 5.0 % of 2 "
    )
    assert "within 8 % and 15 %" in text.split("; ")[1]
    assert "outside 8 % and 15 %" in verdict(good, good, off).split("; ")[1]
    assert verdict(hot) == "0 of 1 points valid (host at most 80 % busy)"


def test_one_worker_is_captured_for_each_group_and_repeats_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[int, int, int]] = []

    def run(plan: Composed, seed: int) -> Run:
        layout = server_testbed.layout_of(plan)
        made.append((len(layout.servers), layout.workers, seed))
        trace = load("simulated").execute(*plan, seed)
        return Run(trace, parameter_server.compute(trace)["steps_per_s"], 0.1)

    alone: list[str] = []

    def capture(plan: Composed, seed: int, folder: Path) -> Captured:
        assert server_testbed.layout_of(plan).workers == 1
        alone.append(folder.name)
        return captured(plan, seed, folder)

    monkeypatch.setattr(server_testbed, "run", run)
    monkeypatch.setattr(server_testbed, "capture", capture)
    sweep = "sweep={grid: {cluster.servers: [1, 2], cluster.workers: [2, 4]}}"
    swept = document("parameter_servers.sharding=greedy", "seed=3", sweep)
    points = read_points(swept)
    assert server_validation.is_for(points)
    told: list[str] = []
    found = server_validation.validate(points, tmp_path, 2, told.append)
    assert alone == ["servers=1", "servers=2"]
    assert made == [(*each, seed) for seed in (3, 4) for each in ((1, 2), (1, 4), (2, 2), (2, 4))]
    assert len(told) == server_validation.steps(points, 2)
    for each in found:  # the same simulator, a short run against a long one
        assert abs(each.errors["simulated"]) < 0.15
    table = "\n".join(map(str, server_validation.rows(found)))
    server_validation.write(tmp_path, swept, found, table)
    stored = json.loads((tmp_path / "validation.json").read_text("utf-8"))
    assert [each["name"] for each in stored][:2] == ["servers=1, workers=2", "servers=1, workers=4"]
    assert stored == json.loads(json.dumps(server_validation.as_json(found)))
    assert len([*(tmp_path / "traces").glob("*.npz")]) == 8
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


def test_what_cannot_be_validated_is_named_with_its_line() -> None:
    text = TEXT.replace("cluster: {workers: 1, servers: 2, nic: {server: 10 MB/s}, link: {kind: fair_share}}", GRAPH)
    swept = apply_sets(parse_text(text, "scenario.yaml"), ["schedule.granularity=layer"])
    with pytest.raises(ScenarioError) as refused:
        server_validation.validate(read_points(swept), Path(), 1, lambda _: None)
    assert [fault.path for fault in refused.value.faults] == ["cluster", "--set schedule.granularity"]
    assert refused.value.faults[0].line == 9


GRAPH = """cluster:
  nodes: [{name: worker0, kind: gpu}, {name: server0, kind: host}, {name: server1, kind: host}]
  links:
    - {between: [worker0, server0], kind: fair_share, bandwidth: 10 MB/s}
    - {between: [worker0, server1], kind: fair_share, bandwidth: 10 MB/s}"""


def test_points_of_both_kinds_are_refused() -> None:
    text = """
name: both
model: {uniform: {forward: 1 s, backward: 1 s, activation: 0 B, parameters: 1 MB}, batch_size: 4}
cluster: {devices: 2, host: host, link: {kind: latency}}
schedule: {name: parameter_server}
sweep: {points: [{name: a}, {name: b, schedule: {name: gpipe, stages: 2, micro_batches: 2}}]}
"""
    points = read_points(parse_text(text, "scenario.yaml"))
    assert [server_validation.is_for([point]) for point in points] == [True, False]
    with pytest.raises(ScenarioError, match="validate them apart"):
        server_validation.is_for(points)


def test_the_shipped_scenario_fits_on_a_testbed() -> None:
    """Its whole range: two models, batch sizes, bandwidths and numbers of servers, one to eight workers."""
    from backends.torch import testbed

    points = read_points(load_document(shipped("library")["ps-limited-bandwidth"]))
    assert len(points) == 2**4 * 8
    assert len({server_validation._key(point) for point in points}) == 2**4
    plan, binding = compose(points[-1].scenario, points[-1].document)
    assert isinstance(plan.work, Program)
    assert len(testbed.ports(binding.cluster, binding.devices)) == 8 + 2


def test_the_page_has_a_table_of_what_was_measured(tmp_path: Path) -> None:
    """It is of some machine on some day: here only its form."""
    cells = [cell((10.0,) * 3), cell((20.0,) * 3, (0.9,) * 3, theory=None)._replace(workers=3)]
    cells.append(cells[0])
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for folder, one, batch in zip(folders, cells, (16, 16, 32), strict=True):
        folder.mkdir()
        text = f"model: {{name: net, batch_size: {batch}}}\nsweep: {{grid: {{cluster.workers: [2, 3]}}}}\n"
        (folder / "scenario.yaml").write_text(text)
        (folder / "validation.json").write_text(json.dumps(server_validation.as_json([one])))
    expected = """| model, batch, points | Z | D | 2 | 3 |
| --- | ---: | ---: | ---: | ---: |
| net, 16, one | 50.0 ms | 80.0 ms | 10.0 (-10, +10) | *20.0 (-55)* |
| net, 32, one | 50.0 ms | 80.0 ms | 10.0 (-10, +10) |  |

"""
    assert tables_validation.servers(folders) == f"{expected}{verdict(*cells)}."
    page = tables_validation.PAGE.read_text("utf-8")
    assert len(re.findall(r"^<!-- /?servers -->$", page, re.MULTILINE)) == 2
    for scenario in re.findall(r"scenarios/library/[\w.-]+\.yaml", page):
        assert (tables_validation.PAGE.parents[1] / scenario).is_file()


def test_a_panel_for_each_curve_and_hollow_marks_where_the_host_was_too_busy() -> None:
    curve = throughput_plot.Curve([1, 2], [[1.0, 1.2], [2.0, 2.1]], [True, False], {"theory": [1.1, 2.2]})
    figure = throughput_plot.draw({"a": curve, "b": curve, "c": curve})
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["a", "b", "c"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "theory",
        "measured",
        "measured, host too busy",
    ]
