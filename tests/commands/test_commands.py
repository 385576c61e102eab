"""The command line as a user and as a machine meet it: contract, exit codes, run folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scenarios.command_line import app
from scenarios.load import shipped

ROOT = Path(__file__).parents[2]
PROFILES = ROOT.parent / "shared" / "data" / "pipedream"
EXAMPLE = """\
name: example
model:
  uniform: {forward: 18.522 ms, backward_input: 18.086 ms, backward_weight: 9.337 ms, activation: 8 MB,
    parameters: 1 MB}
  batch_size: 24
cluster: {devices: 8, link: {kind: latency, latency: 0.601 ms}}
training: {optimizer: momentum, dtype: fp32, momentum: 0.9, learning_rate: 0.01}
schedule: {name: one_f_one_b, stages: 8, micro_batches: 24, mini_batches: 1, weights: latest}
partition: balanced
memory: {capacity: 24 GiB, allocator: counting}
backend: simulated
seed: 0
"""


def twinrail(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


def answer(*arguments: str, given: str | None = None) -> Any:
    result = twinrail(*arguments, "--json", given=given)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_run_prints_the_contract() -> None:
    result = answer("run", "-", given=EXAMPLE)
    assert round(result["bubble"]["longest_stage_span"], 4) == 0.2431  # arXiv 2401.10241, Table 5, 1F1B
    expected = {"scenario", "name", "backend", "seed", "makespan_s", "step_time_s", "steady", "samples_per_s"}
    expected |= {"overall_samples_per_s", "mfu", "why", "bubble", "devices", "links", "staleness", "partition"}
    assert expected | {"provenance"} <= result.keys()
    device = {
        "name",
        "compute_s",
        "recompute_s",
        "communication_s",
        "idle_s",
        "peak_memory_bytes",
        "memory_by_category",
    }
    assert device | {"weight_copies", "predicted_copies", "in_flight"} <= result["devices"][0].keys()
    assert result["partition"] == [[stage, stage] for stage in range(8)]
    assert (result["steady"], result["step_time_s"]) == (False, result["makespan_s"])
    for each in result["devices"]:
        parts = each["compute_s"] + each["communication_s"] + each["idle_s"]
        assert parts == pytest.approx(result["makespan_s"], rel=1e-12)


@pytest.mark.parametrize(
    ("micro_batches", "stages", "times", "published"),
    [
        (24, 8, ("18.522 ms", "18.086 ms", "9.337 ms", "0.601 ms"), 0.2431),
        (32, 8, ("18.513 ms", "18.086 ms", "9.331 ms", "0.626 ms"), 0.1985),
        (64, 8, ("18.546 ms", "18.097 ms", "9.321 ms", "0.762 ms"), 0.1240),
        (48, 16, ("11.347 ms", "11.248 ms", "8.132 ms", "0.377 ms"), 0.2552),
    ],
)
def test_published_bubbles_of_1f1b(micro_batches: int, stages: int, times: tuple[str, ...], published: float) -> None:
    forward, backward_input, backward_weight, latency = times
    sets = [
        f"model.uniform.forward={forward}",
        f"model.uniform.backward_input={backward_input}",
        f"model.uniform.backward_weight={backward_weight}",
        f"cluster.link.latency={latency}",
        f"cluster.devices={stages}",
        f"schedule.stages={stages}",
        f"schedule.micro_batches={micro_batches}",
        f"model.batch_size={micro_batches}",
    ]
    result = answer("run", "-", *(word for text in sets for word in ("--set", text)), given=EXAMPLE)
    assert round(result["bubble"]["longest_stage_span"], 4) == published


def test_sweep_writes_a_run_folder(tmp_path: Path) -> None:
    scenario = str(shipped("library")["vgg16-4gpu-pcie"])
    result = twinrail("sweep", scenario, "--out", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    results = json.loads((tmp_path / "result.json").read_text())
    assert len(results) == 10
    assert all(each["name"] in result.stdout for each in results)
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "traces").glob("*.npz"))) == len(results)
    for events in (tmp_path / "traces").glob("*.json"):
        assert json.loads(events.read_text())["traceEvents"]
    again = answer("sweep", str(tmp_path / "scenario.yaml"))
    assert [each["makespan_s"] for each in again] == [each["makespan_s"] for each in results]
    assert twinrail("diff", str(tmp_path), str(tmp_path)).stdout.strip() == "no difference"
    for trace in (tmp_path / "traces").glob("*.npz"):
        assert twinrail("check", str(trace)).exit_code == 0


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "alexnet", "gnmt"])
def test_the_main_job_on_a_measured_profile(name: str) -> None:
    profile = PROFILES / f"{name}.txt"
    if not profile.exists():
        pytest.skip(f"no {profile}: the shared data are not here")
    results = answer("sweep", str(shipped("library")["vgg16-4gpu-pcie"]), "--set", f"model.profile={profile}")
    assert len(results) == 10
    assert {each["provenance"]["model"]["origin"] for each in results} == {"measured"}
    assert all(each["samples_per_s"] > 0 for each in results)


def test_a_profile_path_is_relative_to_where_it_is_written(tmp_path: Path) -> None:
    if not PROFILES.exists():
        pytest.skip(f"no {PROFILES}: the shared data are not here")
    (tmp_path / "graph.txt").write_bytes((PROFILES / "vgg16.txt").read_bytes())
    text = EXAMPLE.replace(
        EXAMPLE[EXAMPLE.index("  uniform") : EXAMPLE.index("  batch_size")], "  profile: graph.txt\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    assert answer("run", str(tmp_path / "mine.yaml"))["partition"][-1][-1] == 39


@pytest.mark.parametrize("name", sorted(shipped("library").keys() - {"comparison-2018-region"}))
def test_every_shipped_scenario_runs(name: str) -> None:
    """But the one of 1980 points, which the slow test of the pages runs."""
    path = str(shipped("library")[name])
    text = Path(path).read_text()
    command = "sweep" if "\nsweep:" in text else "run"
    assert answer(command, path, *(["--set", "converge=null"] if "\nconverge:" in text else []))


def test_the_starter_runs_and_checks(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert twinrail("init", str(file)).exit_code == 0
    assert twinrail("check", str(file)).exit_code == 0
    assert answer("run", str(file))["samples_per_s"] > 0
    assert twinrail("init", str(file)).exit_code == 2  # never overwrites


def test_longest_path_equals_simulated() -> None:
    simulated, bound = (answer("run", "-", "--backend", name, given=EXAMPLE) for name in ("simulated", "longest_path"))
    assert simulated | {"backend": ""} == bound | {"backend": ""}


def test_show_draws_the_grid() -> None:
    small = [word for text in ("schedule.stages=2", "schedule.micro_batches=2") for word in ("--set", text)]
    drawn = twinrail("show", "-", *small, given=EXAMPLE).stdout
    assert "d0.compute │ 0F0 0F1     0B0     0B1\nd1.compute │     1F0 1B0 1F1 1B1" in drawn


@pytest.mark.parametrize("kind", ["schedules", "models", "clusters", "devices", "scenarios"])
def test_list(kind: str) -> None:
    found = answer("list", kind)
    assert found
    assert all(found.values())


def test_schema_is_json() -> None:
    assert json.loads(twinrail("schema").stdout)["$schema"].startswith("https://json-schema.org")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run", "-", "--set", "schedule.name=gpip"), 2, "did you mean 'gpipe'?"),
        (("run", "-", "--set", "memory.capacity=1 MB"), 1, "out of memory"),
        (("run", str(shipped("library")["vgg16-checkpoints"]), "--set", "memory=null"), 1, "gpu0 is out of memory"),
        (("run", "-", "--set", "schedule.weights=stash"), 2, "has no influence"),
        (
            ("run", "-", "--set", "cluster.link={kind: fifo, bandwidth: 1 GB/s}", "--backend", "longest_path"),
            2,
            "is fifo",
        ),
        (("run", "nowhere.yaml"), 2, "nowhere.yaml"),
        (("sweep", "-"), 2, "no sweep"),
        (("check", str(ROOT)), 2, "directory"),
        (("diff", str(ROOT), str(ROOT)), 2, "no run folder"),
        (("list", "schedule"), 2, "did you mean 'schedules'?"),
        (("run", "-", "--out", "/dev/null/here"), 2, "cannot write"),
    ],
)
def test_errors_are_messages_and_exit_codes(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = twinrail(*arguments, given=EXAMPLE)
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_the_same_scenario_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    """In two processes whose hashes differ, everything in the run folder is byte-identical."""
    folders = []
    for seed in ("1", "2"):
        folders.append(tmp_path / seed)
        command = [sys.executable, "-c", "from scenarios.command_line import main; main()"]
        scenario = str(shipped("library")["vgg16-4gpu-pcie"])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [*command, "sweep", scenario, "--out", str(folders[-1])],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
    first, second = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in folders
    )
    assert first == second


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['twinrail', '--help']\n"
        "from scenarios.command_line import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'pandas', 'networkx', 'simpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def test_another_sim_is_told(tmp_path: Path) -> None:
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "__init__.py").write_text("")
    paths = [str(tmp_path), str(ROOT)]
    code = f"import sys; sys.path[:0] = {paths!r}\nfrom scenarios.command_line import main; main()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "shadows" in done.stderr
