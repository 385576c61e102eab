"""PyTorch's schedule files: read, checked, run and written back cell for cell; every fault with line and column."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from scenarios import schedule_csv
from scenarios.command_line import app
from scenarios.pytorch_actions import Dialect
from scenarios.schedule_csv import Recorded, read, write
from sim.assembly import ScheduleBuilder
from sim.errors import ScenarioError, UnsupportedPlan
from sim.ops import Lane, OpKind
from sim.planners import PLANNERS
from sim.schedule import Schedule, Shape

SHARED = Path(__file__).parents[3] / "shared" / "data" / "pytorch"
RECORDED = {"zb1p_2rank_2stagep_compute": ("legacy", 2, 4, 8), "dualpipev_4rank_10mb": ("current", 4, 8, 10)}
SECONDS = {"F": 1, "I": 1, "W": 1, "B": 2}

TWO = "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
SPLIT = "0F0,0F1,,0I0,0I1,0W0,0W1\n,1F0,1I0,1F1,1I1,1W0,1W1\n"
PAIRED = "0F0,0F1,1F0,(1F1;1B0)OVERLAP_F_B,1B1,0B0,0B1\n"
TALKING = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD
"""

SCENARIO = """\
name: recorded
model:
  uniform: {forward: 1 s, backward_input: 1 s, backward_weight: 1 s, activation: 1 MB, parameters: 0 B}
  batch_size: 8
cluster: {devices: 4, link: {kind: latency, latency: 0 s}}
schedule:
  csv: step.csv
"""


def recorded_file(name: str) -> Path:
    path = SHARED / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def from_text(folder: Path, text: str, *options: Any, **more: Any) -> Recorded:
    (folder / "step.csv").write_text(text, encoding="utf-8")
    return read(folder / "step.csv", *options, **more)


def twinrail(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def dry_run(text: str) -> float:
    """Makespan of a file's compute with free transfers, told without any of our code."""
    legacy = bool(re.search("W", text)) and not re.search(r"\dI", text)
    ranks = [[re.findall(r"(\d+)([FIWB])(\d+)", cell) for cell in row.split(",") if cell] for row in text.splitlines()]
    end: dict[tuple[str, str, str], float] = {}
    free, done = [0.0] * len(ranks), [0] * len(ranks)
    stages = {stage for row in ranks for cell in row for stage, _, _ in cell}

    def needs(stage: str, kind: str, micro_batch: str) -> list[tuple[tuple[str, str, str], ...]]:
        """Groups of ops, one of each of which must have ended."""
        before, behind = str(int(stage) - 1), str(int(stage) + 1)
        if kind == "F":
            return [((before, "F", micro_batch),)] if before in stages else []
        if kind == "W":
            return [((stage, "B" if legacy else "I", micro_batch),)]
        return [((behind, "I", micro_batch), (behind, "B", micro_batch))] if behind in stages else []

    while any(number < len(row) for number, row in zip(done, ranks, strict=True)):
        progress = False
        for rank, row in enumerate(ranks):
            while done[rank] < len(row):
                cell = row[done[rank]]
                groups = [[end[op] for op in group if op in end] for action in cell for group in needs(*action)]
                if not all(groups):
                    break
                seconds = sum(1 if legacy else SECONDS[kind] for _, kind, _ in cell)
                free[rank] = max([free[rank], *(time for group in groups for time in group)]) + seconds
                end |= dict.fromkeys(cell, free[rank])
                done[rank] += 1
                progress = True
        assert progress, "deadlock"
    return max(free)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_come_back_cell_for_cell(name: str) -> None:
    path, (dialect, ranks, stages, micro_batches) = recorded_file(name), RECORDED[name]
    recorded = read(path)
    assert (recorded.dialect, len(recorded.layout)) == (dialect, ranks)
    assert recorded.schedule.shape[:3] == (stages, micro_batches, 1)
    assert write(*recorded) == path.read_text()
    assert write(*read(path, mini_batches=3)) == path.read_text()


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_run_through_the_command_line(name: str, tmp_path: Path) -> None:
    path = recorded_file(name)
    (tmp_path / "step.csv").write_bytes(path.read_bytes())
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    result = json.loads(twinrail("run", tmp_path / "scenario.yaml", "--json").stdout)
    _, ranks, _, micro_batches = RECORDED[name]
    assert result["makespan_s"] == dry_run(path.read_text())
    assert [device["compute_s"] for device in result["devices"]] == [6.0 * micro_batches] * ranks
    assert result["staleness"]["forward"]["max"] == 0
    assert result["provenance"]["schedule"]["source"] == f"step.csv, {RECORDED[name][0]} dialect"
    assert twinrail("show", tmp_path / "scenario.yaml", "--csv").stdout == path.read_text()
    assert twinrail("show", path, "--csv").stdout == path.read_text()
    assert re.match(rf"{name}.csv\nd0.compute │ +0F0 +0F1 ", twinrail("show", path).stdout)


def test_dualpipe_v_has_the_published_bubble(tmp_path: Path) -> None:
    """(PP/2 - 1)(F&B + B - 3W) with 4 ranks of two stages, F&B = 3, B = 2, W = 1: 6 (facts: "2, 6, 14")."""
    text = recorded_file("dualpipev_4rank_10mb").read_text()
    assert dry_run(text) - 6 * 10 == 6


def test_check_tells_a_schedule_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "anything").write_text(TWO)
    assert "a schedule of 2 ranks, 2 stages, 2 micro-batches" in twinrail("check", tmp_path / "anything").stdout
    found = json.loads(twinrail("check", tmp_path / "anything", "--json").stdout)
    assert (found["dialect"], found["ranks"], found["stages"], found["micro_batches"]) == ("current", 2, 2, 2)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    assert not schedule_csv.is_schedule(tmp_path / "scenario.yaml")
    assert not schedule_csv.is_schedule(tmp_path)
    for options in (("--set", "a=b"), ("--point", "a")):
        refused = twinrail("show", tmp_path / "anything", *options)
        assert (refused.exit_code, "has no influence on a schedule in CSV" in refused.stderr) == (2, True)


@pytest.mark.parametrize("text", [TWO, SPLIT, PAIRED, TALKING])
def test_every_kind_of_action_comes_back(text: str, tmp_path: Path) -> None:
    recorded = from_text(tmp_path, text)
    assert write(*recorded) == text
    assert write(*from_text(tmp_path, text, mini_batches=4)) == text


@pytest.mark.parametrize(
    "written",
    [
        "\ufeff" + TWO,
        TWO.replace("\n", "\r\n") + "\r\n\r\n",
        TWO.replace(",", " , "),
        "".join(",".join(f'"{cell}"' for cell in row.split(",")) + "\n" for row in TWO.splitlines()),
    ],
    ids=["byte order mark", "line ends of Windows", "spaces", "quotes"],
)
def test_what_spreadsheets_make_of_a_file_is_read(written: str, tmp_path: Path) -> None:
    assert write(*from_text(tmp_path, written)) == TWO
    assert schedule_csv.is_schedule(tmp_path / "step.csv")


def test_legacy_b_is_the_input_gradient(tmp_path: Path) -> None:
    legacy = SPLIT.replace("I", "B")
    recorded = from_text(tmp_path, legacy)
    assert recorded.dialect == "legacy"
    assert recorded.schedule.ops.tolist() == from_text(tmp_path, SPLIT).schedule.ops.tolist()
    assert write(*recorded) == legacy
    assert write(recorded.schedule, recorded.layout, "current") == SPLIT
    assert from_text(tmp_path, legacy, "legacy").dialect == "legacy"


def test_each_mini_batch_ends_with_an_update_of_every_stage(tmp_path: Path) -> None:
    schedule = from_text(tmp_path, PAIRED, mini_batches=2).schedule
    names = [str(schedule.id(op)) for op in schedule.order[0].tolist()]
    first = ["0F0", "0F1", "1F0", "(1F1;1B0)", "1B1", "0B0", "0B1", "0U0", "1U0"]
    second = ["0F2", "0F3", "1F2", "(1F3;1B2)", "1B3", "0B2", "0B3", "0U1", "1U1"]
    assert names == first + second


def test_transfers_hold_their_channels_in_the_order_of_the_file(tmp_path: Path) -> None:
    schedule = from_text(tmp_path, TALKING, mini_batches=2).schedule
    lanes = {
        lane: [str(schedule.id(op)) for op in row] for lane, row in zip(schedule.lanes, schedule.order, strict=True)
    }
    activations, gradients = ["0SF0", "0SF1", "0SF2", "0SF3"], ["1SB0", "1SB1", "1SB2", "1SB3"]
    assert lanes[Lane(0, "send>1")] == lanes[Lane(1, "recv<0")] == activations
    assert lanes[Lane(1, "send>0")] == lanes[Lane(0, "recv<1")] == gradients
    waits = {str(schedule.id(op)): {str(schedule.id(other)) for other in row} for op, row in enumerate(schedule.after)}
    assert waits["0SF1"] == {"0F1", "1B0"}  # its receiver comes to it after 1B0
    assert waits["0SF2"] == {"0F2", "1U0"}
    assert waits["1F2"] == {"0SF2"}
    target = {str(schedule.id(op)): (int(row["source"]), int(row["target"])) for op, row in enumerate(schedule.ops)}
    assert (target["0SF0"], target["1SB3"]) == ((0, 1), (1, 0))


def test_a_transfer_over_a_pure_delay_holds_no_lane(tmp_path: Path) -> None:
    schedule = from_text(tmp_path, TALKING).schedule
    assert schedule_csv.without_lanes(schedule, lambda source, target: True) is schedule
    one_way = schedule_csv.without_lanes(schedule, lambda source, target: source == 0)
    assert set(schedule.lanes) - set(one_way.lanes) == {Lane(1, "send>0"), Lane(0, "recv<1")}
    assert one_way.after is schedule.after


def test_stated_communication_runs_on_every_kind_of_link(tmp_path: Path) -> None:
    """Two micro-batches over two ranks, 1 s a transfer; rank 1 posts its second receive after its first backward."""
    (tmp_path / "step.csv").write_text(TALKING)
    makespans = {}
    for link in (
        "{kind: latency, latency: 1 s}",
        "{kind: in_order, bandwidth: 1 MB/s}",
        "{kind: fifo, bandwidth: 1 MB/s}",
    ):
        (tmp_path / "scenario.yaml").write_text(SCENARIO.replace("{kind: latency, latency: 0 s}", link))
        result = twinrail("run", tmp_path / "scenario.yaml", "--json")
        makespans[link] = json.loads(result.stdout)["makespan_s"]
    # 0F0 1, 0SF0 2, 1F0 3, 1B0 5, 0SF1 6, 1F1 7, 1B1 9, 1SB1 10, 0B1 12
    assert set(makespans.values()) == {12.0}


def gpipe_cells(stages: int, micro_batches: int) -> str:
    rows = []
    for stage in range(stages):
        forward = [""] * stage + [f"{stage}F{number}" for number in range(micro_batches)]
        wait = [""] * (2 * (stages - 1 - stage))
        rows.append(",".join([*forward, *wait, *(f"{stage}B{number}" for number in range(micro_batches))]))
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (4, 3), (3, 8)])
def test_our_own_schedules_stand_in_unit_slots(stages: int, micro_batches: int) -> None:
    for mini_batches in (1, 3):
        work = PLANNERS["gpipe"](stages=stages, micro_batches=micro_batches, mini_batches=mini_batches)
        assert isinstance(work, Schedule)
        assert write(work) == gpipe_cells(stages, micro_batches)


def test_our_own_schedules_come_back(tmp_path: Path) -> None:
    work = PLANNERS["one_f_one_b"](stages=4, micro_batches=6, mini_batches=2)
    assert isinstance(work, Schedule)
    again = from_text(tmp_path, write(work), mini_batches=2).schedule
    assert again.ops.tolist() == work.ops.tolist()
    assert [*map(list, again.order)] == [*map(list, work.order)]


def built(*names: str, lanes: tuple[str, ...] = ("compute",)) -> Schedule:
    from sim.ops import OpId

    builder = ScheduleBuilder(Shape(1, 1))
    held = [builder.lane(0, stream) for stream in lanes]
    for place, name in enumerate(names):
        builder.add(held[place % len(held)], OpId.parse(name))
    return builder.build()


@pytest.mark.parametrize(
    ("work", "dialect", "reason"),
    [
        (PLANNERS["dualpipe_2018"](stages=2), "current", "a device has two compute lanes"),
        (PLANNERS["pipedream"](stages=3), "current", "the mini-batches of this schedule overlap"),
        (PLANNERS["data_parallel"](gpus=2), "current", "no letters for all_reduce; a stage is there twice"),
        (PLANNERS["gpipe"](stages=2, micro_batches=2), "legacy", "the legacy dialect has no full backward"),
        (built("0F0", "0R0", "0B0"), "current", "no letters for recompute"),
        (built("0F0", "0B0.0"), "current", "its ops have parts"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(work: Schedule, dialect: Dialect, reason: str) -> None:
    with pytest.raises(UnsupportedPlan, match=reason):
        write(work, None, dialect)


def test_the_layout_of_another_schedule_is_refused(tmp_path: Path) -> None:
    layout = from_text(tmp_path, TWO).layout
    for other in (SPLIT, PAIRED):
        with pytest.raises(UnsupportedPlan, match="that of another schedule"):
            write(from_text(tmp_path, other).schedule, layout)


# text; then (line, column, part of the message) of each fault, column 0 for none
BAD: dict[str, tuple[str, list[tuple[int | None, int, str]]]] = {
    "unknown letter": (TWO.replace("1B0", "1X0"), [(2, 3, "expected an action such as 2F0, 2SEND_F0")]),
    "two slips": (TWO.replace("0F1", "0F-1").replace("1F1", "F1"), [(1, 2, "'0F-1'"), (2, 4, "'F1'")]),
    "other separator": (TWO.replace(",", ";"), [(1, 1, "'0F0;0F1;;0B0;0B1'"), (2, 1, "expected")]),
    "a pair of other kinds": (PAIRED.replace("1F1;1B0", "1B0;1F1"), [(1, 4, "(0F7;7B3)OVERLAP_F_B, got")]),
    "a number too large": (TWO.replace("0F1", "0F1000000"), [(1, 2, "got '0F1000000'")]),
    "twice": (TWO.replace("0B0", "0F1"), [(1, 4, "0F1 is there twice, first in line 1, column 2")]),
    "half of a pair twice": (
        PAIRED.replace("1B1", "1B0"),
        [(1, 5, "1B0 is there twice, first in line 1, column 4")],
    ),
    "a stage on two ranks": (TWO.replace("1F1", "0F2"), [(2, 4, "stage 0 is on rank 1 here, on rank 0 in line 1")]),
    "missing": (TWO.replace("1F1", "").replace("0B1", ""), [(1, 0, "0B1 is missing"), (2, 0, "1F1 is missing")]),
    "a stage left out": (
        TWO.replace("1F", "2F").replace("1B", "2B"),
        [(None, 0, f"{name} is missing") for name in ("1F0", "1B0", "1F1", "1B1")],
    ),
    "a rank without work": (TWO.replace("\n", "\n,,\n", 1), [(2, 0, "rank 1 has nothing to do")]),
    "half a split backward": (
        SPLIT.replace("1I1", "").replace("1W0", ""),
        [(2, 0, "1W0 is missing"), (2, 0, "1I1 is missing")],
    ),
    "whole and in parts": (
        SPLIT.replace(",,0I0", ",0B0,0I0"),
        [(1, 4, "0I0 is a part of 0B0 in line 1, column 3"), (1, 6, "0W0 is a part of 0B0")],
    ),
    "backward before forward": ("0F0,0B1,0F1,0B0\n", [(1, 3, "these ops wait for each other: 0F1 waits for 0B1")]),
    "against the data": (
        "0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n",
        [(1, 2, "0B0 waits for 1B0 waits for 1F0 waits for 1F1 waits for 0F1 waits for 0B0")],
    ),
    "an end missing": (
        TALKING.replace("1RECV_F1", "").replace("1SEND_B0", ""),
        [(2, 0, "1RECV_F1 is missing"), (2, 0, "1SEND_B0 is missing")],
    ),
    "sent past the end": (
        TALKING.replace("1RESHARD", "1SEND_F0"),
        [(2, 10, "1SEND_F0: nothing goes from one rank to another there")],
    ),
    "sent to itself": ("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n", [(1, 2, "0SEND_F0"), (1, 3, "1RECV_F0")]),
    "received too late": (
        TALKING.replace("1RECV_F0,1F0", "1F0,1RECV_F0"),
        [(1, 3, "these ops wait for each other: 0SF0 waits for 1F0 waits for 0SF0")],
    ),
    "crossed on a channel": (
        "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
        [(1, 3, "these ops wait for each other: 0SF0 waits for 0SF1 waits for 0SF0")],
    ),
    "empty": ("", [(None, 0, "nothing in it: expected a row for each rank")]),
    "only blank lines": ("\n \n\n", [(None, 0, "nothing in it")]),
    "quotes left open": ('"0F0,0B0\n', [(1, 0, "no CSV: unexpected end of data")]),
    "a cell without an end": ("0F0," + "0" * 200_000, [(1, 0, "no CSV: field larger than field limit")]),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_fault_has_its_place(kind: str, tmp_path: Path) -> None:
    text, expected = BAD[kind]
    with pytest.raises(ScenarioError) as refused:
        from_text(tmp_path, text)
    faults = refused.value.faults
    assert [(fault.line, fault.path) for fault in faults] == [
        (line, f"column {column}" if column else "") for line, column, _ in expected
    ]
    for fault, (_, _, message) in zip(faults, expected, strict=True):
        assert message in fault.message
        assert fault.file == str(tmp_path / "step.csv")


def test_dialects_at_odds_with_the_file(tmp_path: Path) -> None:
    cases: list[tuple[str, Dialect, str]] = [
        (SPLIT, "legacy", "column 4: not of the legacy dialect"),
        (PAIRED, "legacy", "column 4: not of the legacy dialect"),
        (TWO, "legacy", "0W0 is missing"),
        (SPLIT.replace("I", "B"), "current", "there is W but no I: B is the input gradient (write dialect: legacy)"),
    ]
    for text, dialect, message in cases:
        with pytest.raises(ScenarioError) as refused:
            from_text(tmp_path, text, dialect)
        assert message in str(refused.value)


def test_faults_beyond_number_are_cut_short(tmp_path: Path) -> None:
    for text in ("0F0," + "x," * 5000, "999999F999999\n"):
        with pytest.raises(ScenarioError) as refused:
            from_text(tmp_path, text)
        assert len(refused.value.faults) == schedule_csv.MAX_FAULTS + 1
        assert refused.value.faults[-1].message == "and more faults"


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "step.csv").write_bytes(b"0F0,\xff\xfe")
    (tmp_path / "zero.csv").write_bytes(b"0F0\0,0B0")
    (tmp_path / "large.csv").write_bytes(b"0F0" + b"," * schedule_csv.MAX_BYTES)
    cases = {
        "step.csv": "a binary file: expected a pipeline schedule in CSV, which is text",
        "zero.csv": "a binary file",
        "large.csv": "expected a pipeline schedule in CSV: a text file of at most 8 MiB",
        "stop.csv": "no such file (did you mean 'step.csv'?)",
        ".": "a directory: expected a pipeline schedule in CSV",
        "n" * 300: "cannot be read: File name too long",
    }
    for name, message in cases.items():
        with pytest.raises(ScenarioError) as refused:
            read(tmp_path / name)
        assert message in str(refused.value)
    assert not any(schedule_csv.is_schedule(tmp_path / name) for name in ("stop.csv", ".", "n" * 300))


def test_too_many_repetitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="8 actions x 100000000 mini-batches: the limit is 20000000"):
        from_text(tmp_path, TWO, mini_batches=10**8)


CELLS = [
    "0F0",
    "0F1",
    "1F0",
    "1F1",
    "0B0",
    "1B0",
    "0B1",
    "0I1",
    "0W1",
    "1I1",
    "1W1",
    "",
    "0SEND_F0",
    "1RECV_F0",
    "0UNSHARD",
]
CELLS += ["(0F0;1B0)OVERLAP_F_B", "0F00", "x", '"', "9F9", "1SEND_B0", "0RECV_B0", " 1B1 "]


def outcome(path: Path) -> Recorded | ScenarioError:
    """What is read, or the refusal, which names the file."""
    try:
        return read(path)
    except ScenarioError as error:
        refusal = error
    assert refusal.faults
    assert all(fault.file == str(path) for fault in refusal.faults)
    return refusal


@settings(max_examples=300)
@given(rows=st.lists(st.lists(st.sampled_from(CELLS), max_size=9), max_size=3))
def test_what_is_read_is_written_and_the_rest_refused(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_text("\n".join(",".join(row) for row in rows))
    if isinstance(found := outcome(path), Recorded):
        stripped = [",".join(cell.strip() for cell in row) for row in rows]
        assert write(*found).splitlines() == stripped[: len(found.layout)]


@settings(max_examples=200)
@given(content=st.binary(max_size=60) | st.text("0123FIWBSEND_RECV(;),\n\"'", max_size=60).map(str.encode))
def test_garbage_is_refused_with_a_message(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.csv"
    path.write_bytes(content)
    schedule_csv.is_schedule(path)
    assert isinstance(outcome(path), Recorded | ScenarioError)


# what to replace in SCENARIO, by what; then line, path, message, suggestion
BAD_SCENARIOS: dict[str, tuple[str, str, int, str, str, str]] = {
    "name too": (
        "  csv:",
        "  name: gpipe\n  csv:",
        6,
        "schedule",
        "expected exactly one of name, csv; got name and csv",
        "",
    ),
    "neither": (
        "  csv: step.csv",
        "  mini_batches: 2",
        6,
        "schedule",
        "expected exactly one of name, csv; got none",
        "",
    ),
    "stages": (
        "  csv:",
        "  stages: 2\n  csv:",
        7,
        "schedule.stages",
        "what the file of schedule.csv says",
        "leave it out",
    ),
    "unknown key": ("  csv:", "  dialekt: legacy\n  csv:", 7, "schedule.dialekt", "unknown key 'dialekt'", "'dialect'"),
    "dialect alone": (
        "  csv: step.csv",
        "  name: single\n  dialect: legacy",
        8,
        "schedule.dialect",
        "'dialect' belongs with csv",
        "",
    ),
    "no such dialect": ("  csv:", "  dialect: old\n  csv:", 7, "schedule.dialect", "one of current, legacy", ""),
    "no such file": ("step.csv", "stop.csv", 7, "schedule.csv", "there is no file", "'step.csv'"),
    "a directory": ("step.csv", ".", 7, "schedule.csv", "is a directory: expected a schedule in CSV", ""),
    "too few devices": ("devices: 4", "devices: 1", 7, "schedule.csv", "needs 2 devices, the cluster has 1", ""),
    "cuts": ("schedule:", "partition: {cuts: [1, 2]}\nschedule:", 6, "partition.cuts", "2 cuts make 3 stages", ""),
}


@pytest.mark.parametrize("kind", BAD_SCENARIOS)
def test_scenarios_at_odds_with_a_file(kind: str, tmp_path: Path) -> None:
    old, new, line, path, message, suggestion = BAD_SCENARIOS[kind]
    assert SCENARIO.count(old) == 1
    (tmp_path / "step.csv").write_text(TWO)
    (tmp_path / "scenario.yaml").write_text(SCENARIO.replace(old, new))
    refused = twinrail("check", tmp_path / "scenario.yaml")
    assert refused.exit_code == 2, refused.stdout
    assert f"scenario.yaml:{line}: {path}: " in refused.stderr
    assert message in refused.stderr
    assert suggestion in refused.stderr


def test_a_bad_file_is_named_by_the_scenario_that_uses_it(tmp_path: Path) -> None:
    (tmp_path / "step.csv").write_text(TWO.replace("1B0", "1X0"))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    for command in ("check", "run", "show"):
        refused = twinrail(command, tmp_path / "scenario.yaml")
        assert (refused.exit_code, "step.csv:2: column 3: expected an action" in refused.stderr) == (2, True)


def test_weights_have_no_influence_on_a_file(tmp_path: Path) -> None:
    (tmp_path / "step.csv").write_text(TWO)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    refused = twinrail("check", tmp_path / "scenario.yaml", "--set", "schedule.weights=stash")
    assert (refused.exit_code, "no weights of this 'step' are ever stale" in refused.stderr) == (2, True)


def test_a_file_takes_the_place_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "step.csv").write_text(TWO)
    sets = ("--set", f"schedule.csv={tmp_path / 'step.csv'}", "--set", "schedule.mini_batches=2")
    (tmp_path / "scenario.yaml").write_text(SCENARIO.replace("csv: step.csv", "name: single"))
    result = json.loads(twinrail("run", tmp_path / "scenario.yaml", *sets, "--json").stdout)
    assert (result["name"], result["steady"], result["makespan_s"]) == ("step", True, 2 * dry_run(TWO))


def test_csv_of_a_scenario_of_several_points(tmp_path: Path) -> None:
    sweep = "sweep: {points: [{schedule: {name: gpipe, stages: 2, micro_batches: 2}}, {schedule: {csv: step.csv}}]}\n"
    (tmp_path / "step.csv").write_text(TWO)
    (tmp_path / "scenario.yaml").write_text(SCENARIO + sweep)
    assert (
        "--csv: there are 2 schedules (say which: --point)"
        in twinrail("show", tmp_path / "scenario.yaml", "--csv").stderr
    )
    for point, text in {"gpipe": gpipe_cells(2, 2), "step": TWO}.items():
        assert twinrail("show", tmp_path / "scenario.yaml", "--csv", "--point", point).stdout == text
    refused = twinrail("show", tmp_path / "step.csv", "--csv", "--columns", "3")
    assert (refused.exit_code, "--columns has no influence" in refused.stderr) == (2, True)


def test_transfers_of_our_own_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(
        SCENARIO.replace("csv: step.csv", "name: one_f_one_b\n  stages: 4\n  micro_batches: 8\n  mini_batches: 2")
    )
    text = twinrail("show", tmp_path / "scenario.yaml", "--csv").stdout
    assert {kind for _, kind, _ in re.findall(r"(\d+)([A-Z_]+)(\d+)", text)} == {"F", "B"}
    assert OpKind.SEND_ACTIVATION not in from_text(tmp_path, text).schedule.ops["kind"]
