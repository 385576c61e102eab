"""``twinrail queue solve`` and ``predict``: the contract, all faults at once, and theory beside simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from analysis.queueing import predict_plot
from scenarios.command_line import app

CASES = Path(__file__).parents[3] / "shared" / "data" / "mva_cases.json"


def twinrail(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(app, ["queue", *arguments], input=given)


def solved(network: Any) -> Any:
    result = twinrail("solve", "-", "--json", given=json.dumps(network))
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def case(beginning: str) -> dict[str, Any]:
    if not CASES.is_file():
        pytest.skip(f"no {CASES}")
    return next(each for each in json.loads(CASES.read_text()) if each["name"].startswith(beginning))


def network(known: dict[str, Any], **others: Any) -> dict[str, Any]:
    service = [
        {"name": f"s{index}", "service_time": each, "visits": visits}
        for index, (each, visits) in enumerate(zip(known["S"], known["V"], strict=True))
    ]
    return {"population": known["N"], "think_time": known.get("Z", 0), "stations": service, **others}


def test_solve_prints_the_contract() -> None:
    known = case("Jain")
    result = solved(network(known))
    assert {"throughput", "response_time", "stations", "bounds", "method", "warnings"} <= result.keys()
    assert result["method"] == "exact"
    assert result["warnings"] == []
    computed = known["computed"]
    assert result["throughput"] == pytest.approx(computed["X_sys"], rel=1e-12)
    assert result["response_time"] == pytest.approx(computed["R_sys"], rel=1e-12)
    for station, per_visit, queue, visits in zip(
        result["stations"], computed["R_k"], computed["Q_k"], known["V"], strict=True
    ):
        assert station["response_time"] == pytest.approx(per_visit, rel=1e-12)
        assert station["residence_time"] == pytest.approx(visits * per_visit, rel=1e-12)
        assert station["queue_length"] == pytest.approx(queue, rel=1e-12)
    limits = result["bounds"]["throughput"], result["bounds"]["balanced"]["throughput"]
    assert all(limit["lower"] <= result["throughput"] <= limit["upper"] for limit in limits)


def test_solve_approximately_and_by_bounds() -> None:
    known = case("Lazowska p117 Bard")
    stations = [{"name": str(index), "demand": demand} for index, demand in enumerate(known["D"])]
    asked = {"population": known["N"], "think_time": known["Z"], "stations": stations}
    result = solved({**asked, "method": "schweitzer"})
    assert result["throughput"] == pytest.approx(known["computed"]["X"], rel=1e-10)
    assert "approximate" in result["warnings"][0]
    limits = solved({**asked, "method": "bounds"})
    assert limits["throughput"] is None
    assert limits["bounds"] == result["bounds"]


def test_solve_several_servers_and_a_delay() -> None:
    known = case("Bolch")
    asked = network(known)
    for station, servers in zip(asked["stations"], known["servers"], strict=True):
        station |= {"kind": "delay"} if servers == "IS" else {"servers": servers}
    result = solved(asked)
    queues = [station["queue_length"] for station in result["stations"]]
    assert queues == pytest.approx(known["published"]["Q"], abs=known["tol"])
    assert result["bounds"]["balanced"] is None


def test_solve_two_classes() -> None:
    known, names = case("Two-class"), ("a", "b")

    def by_class(values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(names, values, strict=True))

    stations = [
        {"name": f"s{index}", "service_time": by_class(service), "visits": by_class(visits)}
        for index, (service, visits) in enumerate(
            zip(zip(*known["S"], strict=True), zip(*known["V"], strict=True), strict=True)
        )
    ]
    result = solved({"population": by_class(known["N"]), "think_time": by_class([0, 0]), "stations": stations})
    assert result["throughput"] == pytest.approx(by_class(known["published"]["X"]), rel=1e-12)
    for index, station in enumerate(result["stations"]):
        residence = [row[index] for row in known["published"]["residence"]]
        assert station["residence_time"] == pytest.approx(by_class(residence), rel=1e-12)
    assert all(result["bounds"][name]["throughput"]["upper"] >= result["throughput"][name] for name in names)


def test_solve_has_a_table_for_people() -> None:
    text = twinrail("solve", "-", given="{population: 2, think_time: 1, stations: [{name: cpu, demand: 1}]}").stdout
    assert "throughput X = 0.800, bounds 0.667 to 1.00" in text
    assert "queues dominate beyond N* = 2.00 customers" in text


FAULTY = """\
population: {a: 1, b: 0}
think_time: {a: 1, c: 2}
metod: exact
stations:
  - {name: cpu, service_time: {a: 0.1, b: -0.4}, servers: 2, kind: delay}
  - {name: cpu, demand: {a: 10 ms}, service_time: {a: 1, b: 1}}
"""


def test_all_faults_of_a_network_at_once(tmp_path: Path) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(FAULTY)
    result = twinrail("solve", str(file))
    assert result.exit_code == 2
    told = [line.removeprefix(f"{file}:") for line in result.stderr.splitlines()]
    assert [line[0] for line in told] == sorted(line[0] for line in told)
    for line in (
        "1: population.b: must be at least 1, got 0",
        "2: think_time.c: no class 'c' (classes: a, b)",
        "3: metod: unknown key 'metod' (did you mean 'method'?)",
        "5: stations.0.service_time.b: must be at least 0.0, got -0.4",
        "5: stations.0.servers: servers say nothing of a delay, where nobody waits",
        "6: stations.1.demand.a: expected a number, got '10 ms'",
        "6: stations.1.name: a second station 'cpu' (give each station a name of its own)",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{population: 2, stations: [{name: a, demand: 0}]}", "throughput would have no limit"),
        ("{population: 2, stations: []}", "is empty"),
        ("{population: 0, stations: [{name: a, demand: 1}]}", "must be at least 1"),
        ("{population: 2.5, stations: [{name: a, demand: 1}]}", "expected a whole number"),
        ("{population: 2, stations: [{name: a, demand: .inf}]}", "finite"),
        ("{population: 2, stations: [{name: a, demand: 1e-300}]}", "at least 1e-18"),
        ("{population: 2, stations: [{name: a, demand: 1, rates: [1, 0]}]}", "must be above 0"),
        ("{population: 2, stations: [{name: a, demand: 1, visits: 3}]}", "belongs with service_time"),
        ("{population: 2, stations: [{name: a, demand: 1, servers: 2, rates: [1]}]}", "servers or rates"),
        ("{population: 2, method: schweitzer, stations: [{name: a, demand: 1, rates: [1]}]}", "use method: exact"),
        ("{population: {a: 2}, stations: [{name: a, demand: 3}]}", "stations.0.demand: expected keys and values"),
        ("{population: {a: 2}, stations: [{name: a, demand: {a: 3}, servers: 2}]}", "use method: schweitzer"),
        ("{population: {a: 999999, b: 999999}, stations: [{name: a, demand: {a: 3, b: 1}}]}", "use schweitzer"),
        ("[1]", "expected keys and values"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    result = twinrail("solve", "-", given=text)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


SCENARIO = """\
name: facts
model: {uniform: {forward: 0.2 s, backward: 0.4 s, activation: 1 B, parameters: 200 MB, update: 0 s}, batch_size: 1}
cluster: {workers: 4, servers: 1, nic: {server: 1 GB/s}, link: {kind: fair_share}}
schedule: {name: parameter_server, mini_batches: 150}
parameter_servers: {sharding: even}
jitter: {compute: {lognormal: 0.5}, communication: {lognormal: 0.5}}
"""


def predicted(*arguments: str, scenario: str = SCENARIO) -> Any:
    result = twinrail("predict", "-", "--json", *arguments, given=scenario)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_predict_sets_theory_beside_simulation() -> None:
    result = predicted("--workers", "1..4", "--servers", "1,2", "--steps", "400")
    assert [(each["servers"], each["workers"]) for each in result["predictions"]] == [
        (servers, workers) for servers in (1, 2) for workers in (1, 2, 3, 4)
    ]
    one, two = result["networks"]
    assert one["demands_s"] == [{"server": "server0", "link_out": 0.2, "link_in": 0.2, "cores": 0.0}]
    assert [each["link_out"] for each in two["demands_s"]] == pytest.approx([0.1, 0.1])
    assert one["think_time_s"] == pytest.approx(0.6)
    assert one["knee"] == pytest.approx(5)
    assert result["broken_assumptions"] == {}
    for each in result["predictions"]:
        theory, simulated = each["theory"], each["simulated"]
        assert theory["method"] == ("mva" if each["servers"] == 1 else "fork_join")
        assert each["difference"] == pytest.approx(theory["steps_per_s"] / simulated["steps_per_s"] - 1)
        assert abs(each["difference"]) < 0.05
        assert each["bounds"]["lower"] <= theory["steps_per_s"] <= each["bounds"]["upper"] * (1 + 1e-12)
        assert theory["staleness"] == pytest.approx(simulated["staleness"], abs=0.15)
    four = result["predictions"][3]["theory"]
    assert four["steps_per_s"] == pytest.approx(3.0902, abs=5e-4)
    assert four["staleness"] == pytest.approx(3, rel=1e-12)


def test_predict_says_how_many_servers() -> None:
    result = predicted("--workers", "4", "--target", "0.9")
    (answer,) = result["target"]["answers"]
    assert answer["efficiency"] >= 0.9
    assert answer["simulated_efficiency"] == pytest.approx(answer["efficiency"], abs=0.05)
    assert answer["servers"] > 1
    fewer = predicted("--workers", "1,4", "--servers", str(answer["servers"] - 1))["predictions"]
    assert fewer[1]["theory"]["steps_per_s"] / (4 * fewer[0]["theory"]["steps_per_s"]) < 0.9


def test_what_nearly_constant_times_depend_on() -> None:
    constant = SCENARIO.replace("lognormal: 0.5", "lognormal: 0.02")
    result = predicted("--workers", "4", "--steps", "30", scenario=constant)
    (found,) = result["predictions"]
    assert list(result["broken_assumptions"]) == ["phase_locked"]
    assert found["simulated"]["starts"] == 8
    low, high = found["simulated"]["interval"]
    assert low < found["simulated"]["steps_per_s"] < high
    assert high / low > 1.05


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (("jitter:", "stragglers: [{probability: 0.1, factor: 3}]\njitter:"), "stragglers"),
        (("jitter:", "stragglers: [{worker: worker0, factor: 2}]\njitter:"), "heterogeneous_workers"),
        (("jitter:", "faults: [{at: 20 s, node: worker0, down: 5 s}]\njitter:"), "faults"),
        (("mini_batches", "consistency: {ssp: 4}, mini_batches"), "stale_synchronous"),
        (("kind: fair_share", "kind: fifo"), "fcfs_not_exponential"),
        (("update: 0 s", "update: 50 ms"), "fcfs_not_exponential"),
        (("server: 1 GB/s", "server: 1 GB/s, worker: 500 MB/s"), "worker_nic_binds"),
        (("mini_batches", "granularity: layer, mini_batches"), ""),
    ],
)
def test_assumptions_that_a_scenario_breaks(change: tuple[str, str], broken: str) -> None:
    result = predicted(scenario=SCENARIO.replace(*change).replace("workers: 4", "workers: 3"))
    assert list(result["broken_assumptions"]) == ([broken] if broken else [])


def test_a_narrow_link_of_the_worker_itself() -> None:
    """Alone a step needs 0.4 s each way on its own link, and two of them go on at once on the server's."""
    result = predicted(
        "--workers", "1,4", scenario=SCENARIO.replace("server: 1 GB/s", "server: 1 GB/s, worker: 500 MB/s")
    )
    alone, four = result["predictions"]
    assert alone["theory"]["steps_per_s"] == pytest.approx(1 / 1.4, rel=1e-12)
    assert abs(alone["difference"]) < 0.03
    assert abs(four["difference"]) < 0.05


def test_overlap_is_taken_off_the_think_time() -> None:
    """Layer by layer transfers go on beside the passes; a step of one worker alone then tells what they hide."""
    layers = ", ".join(
        f"{{name: layer{n}, forward: 50 ms, backward: 100 ms, output: 1 B, parameters: 50 MB}}" for n in range(4)
    )
    model = f"model: {{layers: [{layers}], input: 1 B, batch_size: 1}}"
    scenario = SCENARIO.replace(SCENARIO.splitlines()[1], model).replace(
        "mini_batches", "granularity: layer, mini_batches"
    )
    result = predicted("--workers", "1,4", scenario=scenario)
    assert "layer_overlap" in result["broken_assumptions"]
    alone, four = result["predictions"]
    assert result["networks"][0]["think_time_s"] < 0.45
    assert abs(alone["difference"]) < 0.01
    assert abs(four["difference"]) < 0.15


def test_a_run_folder_and_its_picture(tmp_path: Path) -> None:
    result = twinrail("predict", "-", "--workers", "2", "--out", str(tmp_path / "run"), given=SCENARIO)
    assert result.exit_code == 0, result.stderr
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["result.json", "table.txt", "throughput.png"]
    assert "queues dominate beyond N* = 5.00 workers" in result.stdout
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    left, right = predict_plot.draw(found).axes
    assert left.get_ylabel() == "steps/s of all workers"
    assert right.get_ylabel() == "mean staleness (updates by others)"


@pytest.mark.parametrize(
    ("arguments", "scenario", "message"),
    [
        (["--workers", "4..2"], SCENARIO, "--workers: expected numbers from 1 to 256, upwards, got '4..2'"),
        (["--workers", "two"], SCENARIO, "--workers: expected numbers such as 1..8 or 1,2,4, got 'two'"),
        (["--target", "1.5"], SCENARIO, "--target: must be below 1.0"),
        (["--steps", "2"], SCENARIO, "--steps: must be at least 20"),
        (
            [],
            SCENARIO.replace("mini_batches", "consistency: bsp, mini_batches"),
            "are no queueing network (asp or ssp)",
        ),
        (
            ["--servers", "2"],
            SCENARIO.replace("even", "even, count: 1"),
            "--servers: parameter_servers.count says how many",
        ),
        (
            ["--workers", "2"],
            SCENARIO + "stragglers: [{worker: worker0, factor: 2}]\n",
            "--workers: faults and stragglers",
        ),
        ([], SCENARIO + "sweep: {grid: {cluster.workers: [2, 3]}}\n", "--point: a sweep of 2 points: choose one"),
        ([], "name: x\n", "missing"),
    ],
)
def test_what_predict_refuses(arguments: list[str], scenario: str, message: str) -> None:
    result = twinrail("predict", "-", *arguments, given=scenario)
    assert result.exit_code == 2
    assert message in result.stderr


def test_other_methods_are_no_queueing_network() -> None:
    pipeline = (
        "name: p\nmodel: {name: vgg16, batch_size: 32}\ncluster: {devices: 2, device: v100, link: {kind: latency}}\n"
    )
    result = twinrail("predict", "-", given=pipeline + "schedule: {name: data_parallel}\n")
    assert result.exit_code == 2
    assert "expected parameter_server" in result.stderr
