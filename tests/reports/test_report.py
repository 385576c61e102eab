"""The page of a run holds what the run held, no more and no less, and nothing in it can run but our script."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis import compare, links, memory, result, staleness, utilization
from analysis.report import columns, histogram, tables, tracks
from analysis.report.points import Sweep
from scenarios import report_command, report_folder, run_folder, server_validation, validation
from scenarios.command_line import app
from scenarios.load import parse_text
from sim.errors import BadTraceFile, ScenarioError
from sim.op_table import OPS
from sim.trace import Trace

PIPELINE = """
name: a pipeline
model: {name: mlp, batch_size: 8}
cluster:
  devices: 3
  device: v100
  link: {kind: in_order, latency: 5 us, bandwidth: 1 GB/s}
schedule: {name: pipedream, stages: 3, mini_batches: 6}
"""
SHARED = "cluster.link.kind=fair_share"
EVIL = "</script><img src=x onerror=hacked()><script>hacked()</script>\"'&"


class Tags(HTMLParser):
    """What a browser makes of a page: its tags, their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self._script = dict(attrs).get("id") or "ours"
            assert self._script not in self.scripts

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data
        else:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


@pytest.fixture(scope="module")
def trace(play: Callable[..., Trace]) -> Trace:
    return play(PIPELINE)


@pytest.fixture
def folder(tmp_path: Path, trace: Trace) -> Path:
    return _written(tmp_path / "run", {"a pipeline": trace})


def _written(folder: Path, traces: dict[str, Trace], text: str = PIPELINE) -> Path:
    outcomes = [
        run_folder.Outcome(name, trace, result.compute(trace, "a pipeline", name) | {"overrides": {}})
        for name, trace in traces.items()
    ]
    run_folder.write(folder, parse_text(text, "scenario.yaml"), outcomes, "")
    return folder


def _track(page: str, name: str = "track-0-0") -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    track = json.loads(Tags(page).scripts[name])
    return track, lambda place: columns.read(track["columns"], place)


def _render(folder: Path) -> str:
    report_command.write(folder, None)
    return (folder / "report.html").read_text("utf-8")


def test_columns_come_back_as_they_were() -> None:
    packed = columns.Columns()
    given = [
        np.array([1, -(2**31), 2**31 - 1]),
        np.array([0.1, -0.0, 1e300]),
        np.empty(0, np.int64),
        np.array([7], "i1"),
    ]
    places = [packed.add(each) for each in given]
    for place, each in zip(places, given, strict=True):
        assert (
            columns.read(packed.text, place).tobytes()
            == each.astype("<f8" if each.dtype.kind == "f" else "<i4").tobytes()
        )
        assert place["at"] % 8 == 0
    with pytest.raises(OverflowError):
        packed.add(np.array([2**31]))


def test_the_page_holds_exactly_the_ops_of_the_trace(folder: Path, trace: Trace) -> None:
    track, read = _track(_render(folder))
    assert track["count"] == len(trace.ops)
    assert track["end_s"] == trace.makespan_s
    for name in OPS.names or ():
        assert read(track["ops"][name]).tolist() == trace.ops[name].tolist()
    assert read(track["ops"]["start_s"]).tobytes() == trace.start_s.tobytes()
    assert read(track["ops"]["end_s"]).tobytes() == trace.end_s.tobytes()
    sizes = dict(zip(trace.flows["op"].tolist(), trace.flows["bytes"].tolist(), strict=True))
    assert read(track["ops"]["bytes"]).tolist() == [sizes.get(op, 0.0) for op in range(len(trace.ops))]


def test_every_lane_is_a_row_with_its_ops_in_order_of_time(folder: Path, trace: Trace) -> None:
    track, read = _track(_render(folder))
    held = {frozenset(ops.tolist()) for ops in trace.order if len(ops)}
    rows = [read(row["ops"]).tolist() for row in track["rows"]]
    assert {frozenset(ops) for ops in rows} == held
    assert sorted(op for ops in rows for op in ops) == sorted(trace.order.values.tolist())
    assert all(trace.start_s[ops].tolist() == sorted(trace.start_s[ops].tolist()) for ops in rows)
    devices = [row["device"] for row in track["rows"]]
    assert devices == sorted(devices)
    assert [row["label"] for row in track["rows"]][:2] == ["compute", "send > d1"] or track["devices"][1] != "d1"


def test_memory_reaches_the_peak_of_each_device(folder: Path, trace: Trace) -> None:
    track, read = _track(_render(folder))
    peaks = memory.compute(trace)
    assert track["memory"]
    for item in track["memory"]:
        total = sum(read(each["bytes"]) for each in item["categories"])
        assert total.max() == peaks[item["device"]].peak_bytes
        assert (
            read(item["time_s"]).tolist() == trace.memory["time_s"][trace.memory["device"] == item["device"]].tolist()
        )


@pytest.mark.parametrize("kind", ["in_order", "fair_share"])
def test_the_area_under_a_link_is_what_it_carried(play: Callable[..., Trace], kind: str) -> None:
    trace = play(PIPELINE) if kind == "in_order" else play(PIPELINE, SHARED)
    carried = {use.name: use.bytes for use in links.compute(trace)}
    assert carried
    for number in np.unique(trace.flows["link"]).tolist():
        figures = trace.header["links"][number]
        time_s, share = utilization.compute(trace, number)
        assert figures["kind"] == kind
        assert (np.diff(time_s) * share[:-1]).sum() * figures["bytes_per_s"] == pytest.approx(
            carried[figures["name"]], rel=1e-12
        )
        assert share.max() <= 1 + 1e-9
        assert share[-1] == 0


def test_flows_that_slow_each_other_count_together_and_others_alone(trace: Trace) -> None:
    """Of two flows of 3 and 1 bytes from 0 to 2 s and 1 to 2 s over 4 bytes/s: by hand."""
    flows = np.zeros(2, trace.flows.dtype)
    flows["start_s"], flows["end_s"], flows["bytes"] = (0, 1), (2, 2), (3, 1)
    for kind, times, shares in (("in_order", [0, 1, 2], [0.375, 0.625, 0]), ("fair_share", [0, 2], [0.5, 0])):
        header = {**trace.header, "links": [{"name": "a", "kind": kind, "bytes_per_s": 4.0}]}
        time_s, share = utilization.compute(replace(trace, header=header, flows=flows), 0)
        assert (time_s.tolist(), share.tolist()) == (times, shares)


def test_the_same_folder_gives_the_same_bytes(folder: Path) -> None:
    assert _render(folder) == _render(folder)


def test_the_page_says_what_the_result_says(folder: Path, trace: Trace) -> None:
    found, text = result.compute(trace, "", ""), Tags(_render(folder)).text
    assert found["why"] in text
    assert f"{len(trace.ops):,} ops" in text
    assert "3 stages" in text
    assert tables.significant(found["samples_per_s"]) in text
    assert all(link["name"] in text for link in found["links"])
    ages = staleness.compute(trace).forward
    assert f"up to {ages.max} updates old in forward" in text
    drawn = histogram.draw(found["staleness"]["histogram"])
    shown = re.findall(r"<title>forward: (\d+) ops of staleness (\d+)</title>", drawn)
    assert {int(age): int(count) for count, age in shown} == ages.histogram
    assert "<svg" in drawn


def test_a_run_without_staleness_has_no_histogram() -> None:
    assert histogram.draw({"forward": {"0": 9}, "backward": {"0": 9}}) == ""


def test_names_from_files_are_text_and_nothing_else(tmp_path: Path, trace: Trace) -> None:
    devices = [EVIL, *trace.header["devices"][1:]]
    header = {**trace.header, "devices": devices, "model": EVIL, "provenance": {EVIL: EVIL}}
    header["links"] = [{**link, "name": f"{index}{EVIL}"} for index, link in enumerate(header["links"])]
    traces = {EVIL: replace(trace, header=header), "other": trace}
    folder = _written(tmp_path / "run", traces, f"name: {json.dumps(EVIL)}\nmodel: {json.dumps(EVIL)}\n")
    parsed, plain = Tags(_render(folder)), Tags(_render(_written(tmp_path / "plain", {"a": trace, "other": trace})))
    assert "img" not in parsed.tags
    assert set(parsed.tags) == set(plain.tags)
    assert parsed.tags.count("script") == plain.tags.count("script")
    assert parsed.scripts["ours"] == plain.scripts["ours"]
    assert EVIL in parsed.text
    assert json.loads(parsed.scripts["data"])["points"][0]["name"] == EVIL


def test_nothing_is_loaded_and_only_our_script_may_run(folder: Path) -> None:
    parsed = Tags(_render(folder))
    names = {name for name, _ in parsed.attributes}
    assert not names & {"src", "href", "action", "data", "srcset", "style"}
    assert not [name for name in names if name.startswith("on")]
    policy = dict(parsed.attributes)["content"] or ""
    policies = [value for name, value in parsed.attributes if name == "content" and value and "default-src" in value]
    assert policy
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policies[0]
    addresses = set(re.findall(r"https?://[\w./]+", parsed.scripts["ours"]))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nobody looks up


def test_a_sweep_shows_all_points_and_each_of_their_time_lines(tmp_path: Path, play: Callable[..., Trace]) -> None:
    traces = {f"{stages} stages": play(PIPELINE, f"schedule.stages={stages}") for stages in (2, 3)}
    folder = tmp_path / "sweep"
    outcomes = [
        run_folder.Outcome(
            name, each, result.compute(each, "s", name) | {"overrides": {"schedule.stages": each.shape.stages}}
        )
        for name, each in traces.items()
    ]
    run_folder.write(folder, parse_text(PIPELINE, "s"), outcomes, "")
    page = _render(folder)
    data = json.loads(Tags(page).scripts["data"])
    assert [point["name"] for point in data["points"]] == list(traces)
    assert [row["schedule.stages"] for row in data["sweep"]["rows"]] == [2, 3]
    for row, each in zip(data["sweep"]["rows"], traces.values(), strict=True):
        assert row["step_time_s"] == result.compute(each, "", "")["step_time_s"]
    for index, each in enumerate(traces.values()):
        assert _track(page, f"track-{index}-0")[0]["count"] == len(each.ops)


def test_rows_of_a_data_base_are_read_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "results.sqlite"
    base = sqlite3.connect(file)
    base.execute(
        "CREATE TABLE points "
        '(key TEXT, point, name TEXT, "s.stages", "c.rate", "c.rate_bytes_per_s", samples_per_s, error)'
    )
    base.execute("CREATE TABLE about (name, value)")
    base.execute('INSERT INTO about VALUES (\'parameters\', \'["s.stages", "c.rate", "c.rate_bytes_per_s"]\')')
    rates = {1: 10.0, 2: 30.0, 4: None, 8: float("inf")}
    base.executemany(
        "INSERT INTO points VALUES (?1, ?1, ?1, ?1, '1 GB/s', 1e9, ?2, ?3)",
        [(stages, rate, None if rate else EVIL) for stages, rate in rates.items()],
    )
    base.commit()
    base.close()
    before = file.read_bytes()
    parsed = Tags(_render(tmp_path))
    assert file.read_bytes() == before
    sweep = json.loads(parsed.scripts["data"])["sweep"]
    found = [(row["s.stages"], row["c.rate_bytes_per_s"], row["samples_per_s"]) for row in sweep["rows"]]
    assert found == [(1, 1e9, 10.0), (2, 1e9, 30.0), (4, 1e9, None), (8, 1e9, None)]
    assert set(sweep["rows"][0]) == {"name", "s.stages", "c.rate_bytes_per_s", "samples_per_s", "error"}
    assert [figure["key"] for figure in sweep["figures"]] == ["samples_per_s"]
    assert [*sweep["axes"]] == ["s.stages"]
    assert EVIL in parsed.text
    assert parsed.tags.count("option") == 1 + 2 + 2  # the figure; points or stages; nothing or stages: rates stay equal


def test_a_point_that_failed_is_a_row_with_its_error(tmp_path: Path, trace: Trace) -> None:
    found = [
        result.compute(trace, "s", "fine") | {"overrides": {"a.b": 1}},
        {"name": "broken", "error": "out of memory"},
    ]
    (tmp_path / "result.json").write_text(run_folder.to_json(found), "utf-8")
    page = report_command.read(tmp_path)
    assert page.sweep is not None
    assert [row.get("error") for row in page.sweep.rows] == [None, "out of memory"]
    assert page.sweep.columns[-1].key == "error"
    assert page.summary == "1 of 2 points failed. broken: out of memory."


def test_traces_of_an_older_run_are_left_out(tmp_path: Path, trace: Trace) -> None:
    found = [result.compute(trace, "s", "fine"), {"name": "broken", "error": "out of memory"}]
    (tmp_path / "result.json").write_text(run_folder.to_json(found), "utf-8")
    (tmp_path / "traces").mkdir()
    for name in ("01-fine", "01-other", "02-broken", "03-fine"):
        trace.save(tmp_path / "traces" / f"{name}.npz")
    assert [point.name for point in report_command.read(tmp_path).points] == ["fine"]


def test_a_link_without_a_limit_is_shown_as_such(tmp_path: Path, trace: Trace) -> None:
    endless = [{**link, "kind": "latency", "bytes_per_s": float("inf")} for link in trace.header["links"]]
    found = result.compute(trace, "s", "fine")
    (tmp_path / "result.json").write_text(run_folder.to_json([found]), "utf-8")
    (tmp_path / "traces").mkdir()
    replace(trace, header={**trace.header, "links": endless}).save(tmp_path / "traces" / "01-fine.npz")
    assert '<td class="figure" data-value="Infinity">∞</td>' in _render(tmp_path)


def test_a_large_sweep_lists_the_best_and_plots_all() -> None:
    rows = [{"a.b": number, "samples_per_s": float(number)} for number in range(2000)]
    sweep = Sweep(rows, ["a.b"])
    assert [row["a.b"] for row in sweep.best_first[:3]] == [1999, 1998, 1997]
    assert sweep.is_grid


def test_a_validation_shows_predicted_above_measured(tmp_path: Path, trace: Trace) -> None:
    measured = [replace(trace, start_s=trace.start_s * by, end_s=trace.end_s * by) for by in (1.25, 1.1, 1.4)]
    found = validation.Validation("a pipeline", trace, tuple(measured), compare.compute(trace, measured))
    validation.write(tmp_path, parse_text(PIPELINE, "s"), [found], {"a pipeline": ""})
    page = _render(tmp_path)
    assert [_track(page, f"track-0-{index}")[0]["end_s"] for index in (0, 1)] == [
        trace.makespan_s,
        measured[0].makespan_s,
    ]
    text = Tags(page).text
    assert found.verdict in text
    assert "-20.0" in text  # 1 / 1.25 - 1, of the step time
    assert 'class="figure far" data-value="-0.2' in page


def test_a_validation_of_servers_shows_every_cell(tmp_path: Path, trace: Trace) -> None:
    cells = [
        {
            "name": f"{workers} workers",
            "group": "one server",
            "workers": workers,
            "measured_steps_per_s": 2.0 * workers,
            "runs_steps_per_s": [2.0 * workers],
            "spread": 0.01,
            "simulated_steps_per_s": 2.1 * workers,
            "theory_steps_per_s": None,
            "errors": {"simulated": 0.05},
            "cpu_busy": 0.3,
            "valid": True,
            "demands": {},
            "broken": False,
        }
        for workers in (1, 2)
    ]
    traces = tmp_path / "traces"
    traces.mkdir()
    trace.save(traces / "001-1-workers-1.npz")
    (tmp_path / "validation.json").write_text(run_folder.to_json(cells), "utf-8")
    data = json.loads(Tags(_render(tmp_path)).scripts["data"])
    assert [row["measured_steps_per_s"] for row in data["sweep"]["rows"]] == [2.0, 4.0]
    assert [point["name"] for point in data["points"]] == ["1 workers"]
    assert "Simulation is off by 5.0 % in the median, by at most 5.0 %, over 2 points." in Tags(_render(tmp_path)).text
    assert "throughput.svg" in report_command.write(tmp_path, None, tmp_path / "figures")["figures"]
    assert server_validation.COLUMNS  # the folder's other reader


def test_time_lines_beyond_what_a_page_holds_are_left_out_and_said_so(folder: Path, trace: Trace) -> None:
    loader = report_folder.Loader(2 * len(trace.ops))
    file = next((folder / "traces").glob("*.npz"))
    assert [len(loader.load({"a": file})) for _ in range(4)] == [1, 1, 0, 0]
    assert loader.left_out == 2


@pytest.mark.slow
def test_a_hundred_thousand_ops_make_a_page_that_fits_a_mail(tmp_path: Path, play: Callable[..., Trace]) -> None:
    sets = ("schedule={name: one_f_one_b, stages: 3, micro_batches: 32, mini_batches: 320}",)
    trace = play(PIPELINE, *sets)
    assert len(trace.ops) > 100_000
    page = _render(_written(tmp_path / "run", {"large": trace}))
    assert _track(page)[0]["count"] == len(trace.ops)
    assert len(page.encode()) < 6e6


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("result.json", "{", "damaged"),
        ("result.json", "[1]", "valid dictionary"),
        ("result.json", '[{"name": "a"}]', "field required"),
        ("result.json", "[" * 100_000, "damaged"),
        ("result.json", '[{"step_time_s": NaN}]', "damaged"),
        ("results.sqlite", "no data base at all, but long enough to look at" * 9, "no results of a sweep, or damaged"),
        ("validation.json", '[{"name": 3}]', "valid string"),
        ("validation.json", "[]", ""),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path, file: str, content: str, said: str) -> None:
    (tmp_path / file).write_text(content, "utf-8")
    if not said:
        assert report_command.read(tmp_path).points == []
        return
    with pytest.raises(ScenarioError, match=said) as caught:
        report_command.read(tmp_path)
    assert file in str(caught.value)


def test_a_trace_with_a_strange_header_is_refused(tmp_path: Path, trace: Trace) -> None:
    for header in ({"capacity_bytes": ["much"]}, {"devices": [1, 2, 3]}):
        replace(trace, header={**trace.header, **header}).save(tmp_path / "a.npz")
        with pytest.raises(BadTraceFile, match="header"):
            report_folder.load(tmp_path / "a.npz")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> SimpleNamespace:
        done = CliRunner().invoke(app, ["report", *arguments])
        return SimpleNamespace(code=done.exit_code, out=done.output)

    page = tmp_path / "elsewhere.html"
    done = run(str(folder), "--out", str(page), "--figures", str(tmp_path / "figures"), "--json")
    assert done.code == 0, done.out
    found = json.loads(done.out)
    assert found["bytes"] == page.stat().st_size
    assert {"timeline.svg", "links.svg", "staleness.svg"} <= set(found["figures"])
    assert {file.name for file in (tmp_path / "figures").iterdir()} == set(found["figures"])
    assert run(str(folder)).code == 0
    for arguments, said in (
        ((str(tmp_path / "nowhere"),), "holds no result.json"),
        ((str(folder), "--format", "pdf"), "no influence without --figures"),
        ((str(folder), "--figures", str(tmp_path / "f"), "--format", "pgn"), "did you mean 'png'"),
        ((str(folder), "--out", str(tmp_path / "no" / "page.html")), "cannot write there"),
    ):
        done = run(*arguments)
        assert (done.code, said in done.out) == (2, True), done.out


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_figures_are_the_same_bytes_again(folder: Path, tmp_path: Path, ending: str) -> None:
    names = report_command.write(folder, None, tmp_path / "a", ending)["figures"]
    assert report_command.write(folder, None, tmp_path / "b", ending)["figures"] == names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_cells_show_units_and_sort_by_the_whole_value() -> None:
    shown = tables.table(
        [tables.column("busy_s", "busy"), tables.column("size_bytes"), tables.Column("empty", "never shown")],
        [{"busy_s": 0.0123456, "size_bytes": 2**30}, {"busy_s": None, "size_bytes": 3 * 2**29, "empty": None}],
        "caption <b>",
    )
    assert 'data-value="0.0123456">12.3<' in shown
    assert 'busy <span class="unit">ms</span>' in shown
    assert 'size <span class="unit">GiB</span>' in shown
    assert ">1.50<" in shown
    assert f">{tables.NONE}<" in shown
    assert "never shown" not in shown
    assert "caption &lt;b&gt;" in shown


def test_kinds_look_as_in_the_gantt_charts() -> None:
    from analysis.gantt import STYLES
    from sim.ops import OpKind

    assert [(kind["text"], kind["colour"]) for kind in tracks.kinds()] == [
        (kind.text, STYLES[kind].colour) for kind in OpKind
    ]
