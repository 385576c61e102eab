"""Sweeps as rows: each equals a run of its point, whatever ran it; what fails, is resumed, damaged or queried."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import sim
from scenarios import results_table, sweep_engines, sweep_row, sweep_work
from scenarios.command_line import app
from scenarios.load import parse_text
from scenarios.points import expand
from scenarios.sweep_work import Task, run_task
from sim.errors import BackendFailure, TwinrailError
from tests.commands.conftest import rows

BASE = """\
name: swept
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 8 MB}, batch_size: 64}
cluster: {devices: 4, device: a100, link: {kind: in_order, bandwidth: 10 GB/s, latency: 5 us}}
schedule: {name: gpipe, stages: 4, micro_batches: 8}
"""
GRID = """\
sweep:
  grid:
    schedule.name: [gpipe, one_f_one_b, pipedream]
    schedule.micro_batches: [1, 4]
    cluster.link.bandwidth: [1 GB/s, 8 Gbit/s, 2.5 GB/s]
    cluster.link.kind: [latency, in_order]
  skip: [{cluster.link.bandwidth: 8 Gbit/s, cluster.link.kind: latency}]
"""
FAILING = """\
sweep:
  points: [{name: a}, {name: b, memory: {capacity: 1 kB}}, {name: c, seed: 3}]
"""


def twinrail(*arguments: str, text: str = BASE) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def test_each_row_equals_a_run_of_its_point(tmp_path: Path) -> None:
    text = BASE.replace("schedule: {name: gpipe, stages: 4, micro_batches: 8}", "schedule: {name: gpipe, stages: 4}")
    text = text.replace("devices: 4", "devices: 5")
    done = twinrail("sweep", "-", "--out", str(tmp_path), text=text + GRID.replace("pipedream", "zb_h1"))
    assert done.exit_code == 0, done.output
    found = rows(tmp_path)
    assert len(found) == 3 * 2 * 4
    for row in found:
        paths = ("schedule.name", "schedule.micro_batches", "cluster.link.bandwidth", "cluster.link.kind")
        sets = [word for path in paths for word in ("--set", f"{path}={row[path]}")]
        ran = json.loads(twinrail("run", "-", *sets, "--json", text=text).stdout)
        assert ran.pop("name") != row["name"]
        scalars = {name: value for name, value in ran.items() if not isinstance(value, dict | list)}
        assert {name: row[name] for name in scalars} == scalars
        assert row["bubble_of_total"] == ran["bubble"]["of_total"]
        assert row["staleness_forward_mean"] == ran["staleness"]["forward"]["mean"]
        for name in ("compute_s", "idle_s", "peak_memory_bytes", "in_flight"):
            assert row[f"max_device_{name}"] == max(device[name] for device in ran["devices"])
        assert row["max_link_busy_s"] == max(link["busy_s"] for link in ran["links"])
        assert row["error"] is None
    bandwidths = {row["cluster.link.bandwidth"]: row["cluster.link.bandwidth_bytes_per_s"] for row in found}
    assert bandwidths == {"1 GB/s": 1e9, "8 Gbit/s": 1e9, "2.5 GB/s": 2.5e9}
    assert len({row["key"] for row in found}) == len(found)


def test_rows_are_the_same_in_processes(tmp_path: Path) -> None:
    text = BASE + GRID.replace("pipedream", "zb_h1")
    for jobs in ("1", "2"):
        assert twinrail("sweep", "-", "--jobs", jobs, "--out", str(tmp_path / jobs), text=text).exit_code == 0
    assert rows(tmp_path / "1") == rows(tmp_path / "2")


@settings(max_examples=8)
@given(
    names=st.lists(
        st.sampled_from(["gpipe", "one_f_one_b", "zb_h1", "pipedream", "model_parallel"]), min_size=1, unique=True
    ),
    forwards=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    kind=st.sampled_from(["latency", "in_order", "fifo", "fair_share"]),
    backend=st.sampled_from(["simulated", "longest_path"]),
)
def test_columns_equal_points_run_alone(names: list[str], forwards: list[int], kind: str, backend: str) -> None:
    backend = "simulated" if kind in ("fifo", "fair_share") else backend
    counted, rest = ("gpipe", "one_f_one_b", "zb_h1"), "backward: 2 ms, activation: 1 MB, parameters: 8 MB"
    points = [
        f"{{name: {name} {ms}, backend: {backend}, "
        f"model: {{uniform: {{forward: {ms} ms, {rest}}}, batch_size: {64 * ms}}}, "
        f"schedule: {{name: {name}, stages: 4{', micro_batches: 4' * (name in counted)}}}}}"
        for name in names
        for ms in forwards
    ]
    text = BASE.replace("kind: in_order", f"kind: {kind}") + f"sweep: {{points: [{', '.join(points)}]}}\n"
    expansion = expand(parse_text(text, "x.yaml"))
    numbered = tuple(enumerate(expansion.changes()))
    together = run_task(Task(expansion.base, "x", numbered, False, {}, sim.VERSION))[0]
    alone = [run_task(Task(expansion.base, "x", (each,), False, {}, sim.VERSION))[0][0] for each in reversed(numbered)]
    assert together == alone[::-1]
    assert not any(done.error for done in together)


@settings(max_examples=4)
@given(
    methods=st.lists(st.sampled_from(["gpipe", "one_f_one_b", "zb_h1"]), min_size=1, max_size=2, unique=True),
    batches=st.lists(st.integers(1, 99), min_size=2, max_size=2, unique=True),
    kind=st.sampled_from(["latency", "in_order"]),
    checkpoint=st.booleans(),
)
def test_columns_equal_runs_of_each_point(methods: list[str], batches: list[int], kind: str, checkpoint: bool) -> None:
    text = BASE.replace("in_order", kind) + "memory: {checkpoint: {method: sqrt_n}}\n" * checkpoint
    expansion = expand(
        parse_text(f"{text}sweep: {{grid: {{schedule.name: {methods}, model.batch_size: {batches}}}}}\n", "x.yaml")
    )
    numbered = tuple(enumerate(expansion.changes()))
    found, _ = run_task(Task(expansion.base, "swept", numbered, True, {}, sim.VERSION))
    for done in found:
        assert done.result is not None
        overrides = done.result["overrides"]
        sets = [word for path, value in overrides.items() for word in ("--set", f"{path}={value}")]
        ran = json.loads(twinrail("run", "-", *sets, "--json", text=text).stdout)
        ran |= {"name": done.name, "overrides": overrides}
        assert json.loads(json.dumps(done.result)) == ran
        assert done.figures == sweep_row.scalars(ran)
    assert len(found) == len(methods) * len(batches)


def test_a_failing_point_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    done = twinrail("sweep", "-", "--out", str(tmp_path), text=BASE + FAILING)
    assert done.exit_code == 1
    assert "1 of 3 points failed" in done.stderr
    assert "out of memory" in done.stderr
    found = rows(tmp_path)
    assert [row["name"] for row in found] == ["a", "b", "c"]
    assert [bool(row["error"]) for row in found] == [False, True, False]
    assert found[1]["makespan_s"] is None
    assert "out of memory" in found[1]["error"]
    assert [each["name"] for each in json.loads((tmp_path / "result.json").read_text())] == ["a", "b", "c"]
    assert len(list((tmp_path / "traces").glob("*.npz"))) == 2


def test_fail_fast_stops_at_the_first_and_resume_runs_the_rest(tmp_path: Path) -> None:
    text = BASE + FAILING
    done = twinrail("sweep", "-", "--fail-fast", "--out", str(tmp_path), text=text)
    assert done.exit_code == 1
    assert [row["name"] for row in rows(tmp_path)] == ["a", "b"]
    done = twinrail("sweep", "-", "--resume", "--out", str(tmp_path), text=text)
    assert done.exit_code == 1
    assert "3 points, 1 run now" in done.stderr
    whole = tmp_path / "whole"
    twinrail("sweep", "-", "--out", str(whole), text=text)
    assert rows(tmp_path) == rows(whole)
    assert (tmp_path / "result.json").read_bytes() == (whole / "result.json").read_bytes()


def test_only_changed_points_are_run_again(tmp_path: Path) -> None:
    text = BASE + "sweep: {grid: {seed: [1, 2, 3], schedule.micro_batches: [4, 8]}}\n"
    twinrail("sweep", "-", "--out", str(tmp_path), text=text)
    before = {row["key"] for row in rows(tmp_path)}
    done = twinrail("sweep", "-", "--resume", "--out", str(tmp_path), text=text)
    assert "6 points, 0 run now" in done.stderr
    changed = text.replace("[1, 2, 3]", "[1, 2, 7]")
    done = twinrail("sweep", "-", "--resume", "--out", str(tmp_path), text=changed)
    assert "6 points, 2 run now" in done.stderr
    assert "2 rows of points that are not in this sweep" in done.stderr
    assert len(before & {row["key"] for row in rows(tmp_path)}) == 4
    twinrail("sweep", "-", "--out", str(tmp_path / "new"), text=changed)
    assert rows(tmp_path) == rows(tmp_path / "new")


def test_rows_of_another_version_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = BASE + "sweep: {grid: {seed: [1, 2]}}\n"
    monkeypatch.setattr(sim, "VERSION", "0.0.0")
    twinrail("sweep", "-", "--out", str(tmp_path), text=text)
    monkeypatch.undo()
    assert sweep_row.sim.VERSION == results_table.sim.VERSION == sweep_work.sim.VERSION != "0.0.0"
    done = twinrail("sweep", "-", "--resume", "--out", str(tmp_path), text=text)
    assert "2 points, 2 run now" in done.stderr
    assert "2 rows" in done.stderr


def test_equal_samples_share_a_row(tmp_path: Path) -> None:
    text = BASE + "sweep: {random: {samples: 40, axes: {seed: [1, 2, 3]}}}\n"
    assert twinrail("sweep", "-", "--out", str(tmp_path), text=text).exit_code == 0
    assert sorted(row["seed"] for row in rows(tmp_path)) == [1, 2, 3]


def test_a_large_sweep_keeps_rows_only(tmp_path: Path) -> None:
    text = BASE + f"sweep: {{grid: {{seed: {list(range(33))}}}}}\n"
    done = twinrail("sweep", "-", "--out", str(tmp_path), "--json", text=text)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == rows(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"scenario.yaml", "results.sqlite"}


class Fatal:
    """Ends the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def test_what_an_older_sweep_left_goes(tmp_path: Path) -> None:
    def left(*values: int) -> list[str]:
        grid = f"sweep: {{grid: {{seed: [{', '.join(map(str, values))}]}}}}\n"
        assert twinrail("sweep", "-", "--out", str(tmp_path), "--resume", text=BASE + grid).exit_code == 0
        return sorted(file.name for file in (tmp_path / "traces").glob("*.npz"))

    assert left(1, 2, 3) == ["01-seed=1.npz", "02-seed=2.npz", "03-seed=3.npz"]
    assert left(3, 2) == ["01-seed=3.npz", "02-seed=2.npz"]
    assert left(*range(40)) == []
    assert {file.name for file in tmp_path.iterdir()} == {"scenario.yaml", "results.sqlite", "traces"}
    assert twinrail("report", str(tmp_path), "--json").stdout.count('"time_lines": 0')


def test_reports_and_explains_points_that_ran_beside_equal_and_failed_ones(tmp_path: Path) -> None:
    """Ten samples of three values: traces bear the numbers of the samples, results follow one another."""
    axes = "{memory.capacity: [1 kB, 1 GB, 2 GB], training.optimizer: [sgd, adam]}"
    text = BASE + f"sweep: {{random: {{samples: 20, axes: {axes}}}}}\n"
    assert twinrail("sweep", "-", "--out", str(tmp_path), text=text).exit_code == 1
    found = rows(tmp_path)
    ran = [row["name"] for row in found if row["error"] is None]
    assert [row["point"] for row in found] != [*range(len(found))]
    explained = json.loads(twinrail("explain", str(tmp_path), "--json").stdout)
    assert [each["name"] for each in explained["points"]] == ran
    assert all(each["sensitivities"] for each in explained["points"])
    assert explained["failed"] == {row["name"]: row["error"] for row in found if row["error"]}
    assert json.loads(twinrail("report", str(tmp_path), "--json").stdout)["time_lines"] == len(ran)
    failed = twinrail("explain", str(tmp_path), "--point", next(iter(explained["failed"])))
    assert (failed.exit_code, "failed: " in failed.stderr) == (2, True)


def test_a_worker_that_dies_ends_the_sweep() -> None:
    task: Any = sweep_work.Task(Fatal(), "x", (), False, {}, sim.VERSION)  # type: ignore[arg-type]
    with pytest.raises(BackendFailure, match="--resume goes on"):
        list(sweep_engines.run_tasks(iter([task]), "local", 2, None))


def test_a_worker_of_another_version_is_refused() -> None:
    task: Any = sweep_work.Task(None, "x", (), False, {}, "0.0.0")  # type: ignore[arg-type]
    with pytest.raises(TwinrailError, match="a worker has twinrail"):
        list(sweep_engines.run_tasks(iter([task]), "local", 1, None))


def test_two_sweeps_into_one_folder_are_refused(tmp_path: Path) -> None:
    with results_table.locked(tmp_path):
        done = twinrail("sweep", "-", "--out", str(tmp_path), text=BASE + FAILING)
    assert (done.exit_code, "another sweep writes there" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--engine", "dusk"), 2, "did you mean 'dask'?"),
        (("--address", "x:1"), 2, "--address has no influence on --engine local"),
        (("--address", "x:1", "--engine", "dask", "--jobs", "2"), 2, "--jobs has no influence with --address"),
        (("--resume", "--json"), 2, "--resume has no influence"),
        (("--compute", "sleep"), 2, "--compute has no influence on backend simulated"),
        (("--backend", "torch", "--jobs", "2"), 2, "backend torch measures"),
        (("--out", "/proc/none"), 2, "cannot write there"),
    ],
)
def test_options_without_influence_and_folders_that_are_none(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = twinrail("sweep", "-", *arguments, text=BASE + FAILING)
    assert done.exit_code == code
    assert says in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    assert twinrail("sweep", "-", "--out", str(folder), text=BASE + GRID.replace("pipedream", "zb_h1")).exit_code == 0
    return folder


def test_results_as_json_csv_and_table(folder: Path) -> None:
    found = rows(folder)
    assert json.loads(twinrail("results", str(folder), "--json").stdout) == found
    table = list(csv.DictReader(io.StringIO(twinrail("results", str(folder / "results.sqlite"), "--csv").stdout)))
    assert [float(row["makespan_s"]) for row in table] == [row["makespan_s"] for row in found]
    assert "24 points, 0 failed" in twinrail("results", str(folder)).stdout


@pytest.mark.parametrize(("metric", "pick"), [("samples_per_s", max), ("step_time_s", min)])
def test_the_best_comes_first(folder: Path, metric: str, pick: Any) -> None:
    first = json.loads(twinrail("results", str(folder), "--best", metric, "--json").stdout)[0]
    assert first[metric] == pick(row[metric] for row in rows(folder))


def test_queries_read_and_never_write(folder: Path, tmp_path: Path) -> None:
    found = twinrail("results", str(folder), "--sql", "SELECT count(*) AS n, max(makespan_s) FROM points", "--json")
    assert json.loads(found.stdout) == [{"n": 24, "max(makespan_s)": max(row["makespan_s"] for row in rows(folder))}]
    before = (folder / "results.sqlite").read_bytes()
    new = tmp_path / "new.sqlite"
    for sql in (
        "DELETE FROM points",
        f"ATTACH '{new}' AS x",
        "DROP TABLE points",
        "PRAGMA user_version=3",
        "VACUUM",
        "x",
    ):
        done = twinrail("results", str(folder), "--sql", sql)
        assert (done.exit_code, done.stderr[:10]) == (2, str(folder)[:10]), sql
        assert "SQL" in done.stderr
    assert (folder / "results.sqlite").read_bytes() == before
    assert not new.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--best", "sample_per_s"), "did you mean 'samples_per_s'?"),
        (("--best", "schedule.name"), "was swept, it is no metric"),
        (("--plot", "schedule.name,micro_batches", "--out", "x.txt"), "expected .png, .svg or .pdf"),
        (("--plot", "makespan_s,schedule.name", "--out", "x.png"), "was not swept: it is no axis"),
        (("--plot", "a", "--out", "x.png"), "expected x,y"),
        (("--plot", "schedule.name,mfu"), "goes with --out"),
        (("--csv", "--json"), "give one of"),
        (("--best", "why"), "no point has a number for 'why'"),
        (("--plot", "schedule.name,why", "--out", "x.png"), "no point has a number for 'why'"),
        (("--sql", "SELECT 'a\udcff'"), "SQL: "),
        (("--sql", "SELECT 9e999", "--json"), "a figure is infinite"),
        (("--sql", "SELECT point, point FROM points", "--json"), "two columns are named 'point'"),
    ],
)
def test_results_that_cannot_be_told(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    done = twinrail("results", str(folder), *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_bytes_of_a_query_are_digits(folder: Path) -> None:
    query = "results", str(folder), "--sql", "SELECT x'00ff' AS b"
    assert json.loads(twinrail(*query, "--json").stdout) == [{"b": "00ff"}]
    assert twinrail(*query, "--csv").stdout == "b\n00ff\n"


def test_a_table_of_more_rows_than_are_shown(folder: Path) -> None:
    done = twinrail("results", str(folder), "--sql", "SELECT point FROM points")
    assert (done.stdout.splitlines()[-1], done.stderr) == ("…", "")


@pytest.mark.parametrize(
    "axes", ["bandwidth,micro_batches,bubble_of_total", "bandwidth,samples_per_s", "schedule.name,kind"]
)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures(folder: Path, tmp_path: Path, axes: str, suffix: str) -> None:
    image = tmp_path / f"x.{suffix}"
    done = twinrail("results", str(folder), "--plot", axes, "--out", str(image))
    assert done.exit_code == 0, done.output
    assert image.stat().st_size > 4000


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"x" * 4096])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.sqlite").write_bytes(content)
    for arguments in (("results", str(tmp_path)), ("sweep", "-", "--resume", "--out", str(tmp_path))):
        done = twinrail(*arguments, text=BASE + FAILING)
        if arguments[0] == "sweep" and not content:
            continue  # an empty file is an empty database
        assert done.exit_code == 2
        assert f"{tmp_path / 'results.sqlite'}: " in done.stderr
    assert twinrail("results", str(tmp_path / "none")).exit_code == 2


def test_parquet(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: see the extra 'engines'")
    assert twinrail("results", str(folder), "--parquet", str(tmp_path / "x.parquet")).exit_code == 0
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == rows(folder)


def test_points_of_long_names_have_files_of_their_own(tmp_path: Path) -> None:
    """Such a name is too long for a file: it is cut, and stays apart from others."""
    name = "n" * 95
    text = f"{BASE}sweep: {{points: [{{name: {name}a}}, {{name: {name}b}}]}}\n"
    done = twinrail("sweep", "-", "--out", str(tmp_path), text=text)
    assert done.exit_code == 0, done.output
    files = sorted(file.name for file in (tmp_path / "traces").glob("*.npz"))
    assert len(files) == len({file[3:] for file in files}) == 2
    assert all(len(file) < 110 for file in files)


def test_a_run_does_not_stand_among_the_results_of_a_sweep(tmp_path: Path) -> None:
    assert twinrail("sweep", "-", "--out", str(tmp_path), text=BASE + FAILING).exit_code == 1
    before = rows(tmp_path)
    done = twinrail("run", "-", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "holds the results of a sweep" in done.stderr
    assert rows(tmp_path) == before
