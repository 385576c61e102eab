"""The page as a reader meets it: opened from a file, zoomed, hovered, sorted, in the dark, on paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import compare, memory, result
from scenarios import report_command, run_folder, validation
from scenarios.load import parse_text
from sim.ops import OpKind
from sim.trace import Trace

TEXT = """
name: a pipeline
model: {name: mlp, batch_size: 8}
cluster: {devices: 3, device: v100, link: {kind: fair_share, latency: 5 us, bandwidth: 1 GB/s}}
schedule: {name: pipedream, stages: 3, mini_batches: 6}
"""
EVIL = "</script><img src=x onerror=hacked=1><script>hacked=1</script>"
PANE = "shown.view.panes[0]"


@pytest.fixture(scope="module")
def trace(play: Callable[..., Trace]) -> Trace:
    return play(TEXT)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, trace: Trace, play: Callable[..., Trace]) -> Path:
    """A sweep over stages and micro-batches whose names and device try to be more than text."""
    header = {**trace.header, "devices": [EVIL, *trace.header["devices"][1:]]}
    traces = [replace(trace, header=header), play(TEXT, "schedule.stages=2"), play(TEXT, "schedule.mini_batches=3")]
    outcomes = [
        run_folder.Outcome(
            f"{number}{EVIL}",
            each,
            result.compute(each, "s", f"{number}{EVIL}")
            | {"overrides": {"schedule.stages": each.shape.stages, "schedule.mini_batches": each.shape.mini_batches}},
        )
        for number, each in enumerate(traces)
    ]
    folder = tmp_path_factory.mktemp("sweep")
    run_folder.write(folder, parse_text(TEXT, "s"), outcomes, "")
    report_command.write(folder, None)
    return folder / "report.html"


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page, which must not complain, load or run anything, whatever a test does with it."""
    browser.prefer("light")
    browser.open(page)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.ask("typeof hacked") == "undefined"


def _place(opened: Any, trace: Trace, op: int) -> tuple[int, int]:
    """Where the middle of an op's bar is in the window."""
    opened.ask("document.querySelector('.pane').scrollIntoView()")
    lane = int(trace.lanes_of[op][0])
    label, device = trace.lanes[lane].stream, trace.lanes[lane].device
    assert label == "compute"
    row = f"{PANE}.rows.find((row) => row.device === {device} && row.label === 'compute')"
    middle_s = float(trace.start_s[op] + trace.end_s[op]) / 2
    x, y = opened.ask(
        f"(() => {{ const box = {PANE}.canvas.getBoundingClientRect(), row = {row};"
        f"return [box.left + {PANE}.x({middle_s!r}), box.top + AXIS + row.y + row.height / 2]; }})()"
    )
    return round(x), round(y)


def _range(opened: Any) -> tuple[float, float]:
    start_s, end_s = opened.ask("[shown.view.from, shown.view.to]")
    return start_s, end_s


def _computing(trace: Trace) -> int:
    """The longest forward of the first lane."""
    ops = trace.order[next(number for number, lane in enumerate(trace.lanes) if lane.computes)]
    ops = ops[trace.ops["kind"][ops] == OpKind.FORWARD]
    return int(ops[np.argmax((trace.end_s - trace.start_s)[ops])])


def test_the_whole_run_is_shown_at_first(opened: Any, trace: Trace) -> None:
    assert _range(opened) == (0, trace.makespan_s)
    assert opened.ask(f"{PANE}.track.count") == len(trace.ops)
    assert opened.ask("document.querySelectorAll('canvas').length") == 3
    assert opened.ask("document.images.length") == 0


def test_the_tooltip_names_the_op_under_the_pointer(opened: Any, trace: Trace) -> None:
    op = _computing(trace)
    opened.mouse("mouseMoved", *_place(opened, trace, op))
    assert opened.ask("document.getElementById('tip').hidden") is False
    told = opened.ask("document.getElementById('tip').innerText")
    assert told.startswith(f"{trace.id(op)} ")
    assert f"{trace.ops['reads'][op]}" in told
    for name in ("stage", "micro-batch", "start", "duration", "reads version"):
        assert name in told
    assert opened.ask(f"{PANE}.hovered") == op
    opened.mouse("mouseMoved", 2, 2)
    assert opened.ask("document.getElementById('tip').hidden") is True


def test_every_op_has_the_name_it_has_in_python(opened: Any, trace: Trace) -> None:
    names = opened.ask(f"Array.from({{length: {len(trace.ops)}}}, (_, op) => {PANE}.name(op))")
    assert names == [str(trace.id(op)) for op in range(len(trace.ops))]


def test_ops_of_a_micro_batch_light_up_together(opened: Any, trace: Trace) -> None:
    op = _computing(trace)
    alike = opened.ask(f"Array.from({{length: {len(trace.ops)}}}, (_, other) => {PANE}.alike(other, {op}))")
    passes = (str(trace.id(other)) for other in range(len(trace.ops)))
    number = trace.ops["micro_batch"][op]
    assert alike == [re.fullmatch(rf"\d+(F|SF|B|SB){number}", name) is not None for name in passes]
    assert sum(alike) == 3 + 3 + 2 + 2  # a forward and a backward of three stages, and what travels between them


def test_the_wheel_zooms_about_the_pointer_once_the_chart_was_chosen(opened: Any, trace: Trace) -> None:
    x, y = _place(opened, trace, _computing(trace))
    opened.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    assert _range(opened) == (0, trace.makespan_s)
    x, y = _place(opened, trace, _computing(trace))
    opened.click(x, y)
    left = opened.ask(f"{PANE}.canvas.getBoundingClientRect().left")
    under = f"{PANE}.time({x - left!r})"
    before = opened.ask(under)
    opened.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    start_s, end_s = _range(opened)
    assert end_s - start_s == pytest.approx(trace.makespan_s * np.exp(-120 / 300))
    assert opened.ask(under) == pytest.approx(before)


def test_dragging_pans_as_far_as_the_pointer(opened: Any, trace: Trace) -> None:
    opened.ask("shown.view.show(0, shown.view.end / 2)")
    x, y = _place(opened, trace, _computing(trace))
    by = opened.ask(f"{PANE}.time(300) - {PANE}.time(200)")
    opened.mouse("mousePressed", x, y, button="left", clickCount=1)
    opened.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
    opened.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)
    assert _range(opened) == pytest.approx((by, by + trace.makespan_s / 2))


def test_keys_zoom_pan_and_go_from_op_to_op(opened: Any, trace: Trace) -> None:
    opened.ask(f"{PANE}.canvas.focus()")
    opened.key("+")
    start_s, end_s = _range(opened)
    assert end_s - start_s == pytest.approx(0.7 * trace.makespan_s)
    opened.key("ArrowRight")
    assert _range(opened)[0] == pytest.approx(start_s + 0.15 * (end_s - start_s))
    opened.key("0")
    assert _range(opened) == (0, trace.makespan_s)
    opened.key("ArrowUp")
    row = opened.ask(f"Array.from({PANE}.rows[0].ops)")
    assert opened.ask(f"{PANE}.hovered") == row[0]
    opened.key(".")
    assert opened.ask(f"{PANE}.hovered") == row[1]
    assert opened.ask("document.getElementById('tip').innerText").startswith(str(trace.id(row[1])))


def test_memory_under_the_pointer_adds_up(opened: Any, trace: Trace) -> None:
    pane, (peak, *_) = "shown.view.panes[1]", memory.compute(trace)
    assert opened.ask(f"{pane}.items[0].peak") == peak.peak_bytes
    lines = dict(opened.ask(f"{pane}.at({pane}.x({peak.time_s!r}) + 0.01, {pane}.items[0].y + 5)"))
    assert opened.ask(f"size({peak.peak_bytes})") == lines["in use"]


def test_a_table_sorts_by_numbers_and_turns_round(opened: Any) -> None:
    column = (
        "(() => { const table = document.querySelector('table.sorts'), heads = [...table.tHead.rows[0].cells];"
        "const index = heads.findIndex((head) => head.textContent.startsWith('step time'));"
        "heads[index].querySelector('button').click();"
        "return [heads[index].getAttribute('aria-sort'),"
        "[...table.tBodies[0].rows].map((row) => Number(row.cells[index].dataset.value))]; })()"
    )
    for wanted in ("descending", "ascending"):
        order, values = opened.ask(column)
        assert order == wanted
        assert values == sorted(values, reverse=wanted == "descending")
        assert len(set(values)) > 1


def test_another_point_shows_its_own_time_line(opened: Any, play: Callable[..., Trace]) -> None:
    select = "document.getElementById('point')"
    opened.ask(f"({select}.selectedIndex = 1, show(data.points[1]))")
    assert opened.ask(f"{PANE}.track.count") == len(play(TEXT, "schedule.stages=2").ops)
    shown = "[...document.querySelectorAll('.point')].filter((each) => !each.hidden).map((each) => each.dataset.point)"
    assert set(opened.ask(shown)) == {"1"}


def test_the_sweep_is_drawn_as_bars_dots_and_a_map(opened: Any) -> None:
    shapes = "['rect', 'circle'].map((name) => document.querySelectorAll(`#plot ${name}`).length)"
    choose = (
        "(id, value) => { const all = document.getElementById(id); "
        "all.value = value; all.dispatchEvent(new Event('change')); }"
    )
    found = []
    for across, up in (("", ""), ("schedule.stages", ""), ("schedule.stages", "schedule.mini_batches")):
        opened.ask(f"(({choose})('across', '{across}'), ({choose})('up', '{up}'))")
        found.append(opened.ask(shapes))
    assert found == [[3, 0], [0, 3], [3, 0]]


def test_dark_is_what_the_user_wishes_until_the_button_says_otherwise(opened: Any, page: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = opened.ask(paper)
    opened.ask("document.getElementById('theme').click()")
    dark = opened.ask(paper)
    assert dark != light
    opened.prefer("dark")
    opened.open(page)
    assert opened.ask(paper) == dark
    opened.ask("document.getElementById('theme').click()")
    assert opened.ask(paper) == light


def test_it_prints(opened: Any, tmp_path: Path) -> None:
    opened.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_predicted_stands_above_measured_on_one_axis(browser: Any, tmp_path: Path, trace: Trace) -> None:
    measured = [replace(trace, start_s=trace.start_s * 1.25, end_s=trace.end_s * 1.25)]
    found = validation.Validation("p", trace, tuple(measured), compare.compute(trace, measured))
    validation.write(tmp_path, parse_text(TEXT, "s"), [found], {"p": ""})
    report_command.write(tmp_path, None)
    browser.open(tmp_path / "report.html")
    ends = browser.ask("shown.view.panes.map((pane) => pane.x(pane.track.end_s))")
    left, right = browser.ask("[GUTTER, shown.view.panes[0].right]")
    assert ends == pytest.approx([left + (right - left) / 1.25, right])
    assert browser.complaints == []
