"""How fast a report of 10⁵ ops is drawn anew, against a plain canvas that draws a rectangle for each op."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Row
from scenarios import report_command, run_folder
from scenarios.load import parse_text
from tests.reports.conftest import NAMES, Browser

REPEATS = 7
SCENARIO = """
name: a long run
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 8 MB}, batch_size: 64}
cluster: {devices: 8, device: a100, link: {kind: in_order, bandwidth: 10 GB/s, latency: 5 us}}
schedule: {name: pipedream, stages: 8, mini_batches: 2650}
"""
REDRAW = "for (const pane of shown.view.panes) { pane.paint(); pane.context.getImageData(0, 0, 1, 1); }"
PLAIN = """
const context = Object.assign(document.createElement("canvas"), {width: 1280, height: 600}).getContext("2d");
for (let op = 0; op < %d; op++) {
  context.fillStyle = op %% 2 ? "#0072b2" : "#e69f00";
  context.fillRect(op * 1280 / %d, op %% 30 * 20, 3, 16);
}
context.getImageData(0, 0, 1, 1);
"""
"""Reading a pixel waits until all is drawn."""


def measure() -> list[Row]:
    """One row for the whole run and one for a thousandth of it; none where no Chromium is installed."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        return []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        document = parse_text(SCENARIO, "report.yaml")
        (point,) = run_folder.read_points(document)
        outcome = run_folder.run_point(point, document.name)
        ops = len(outcome.trace.ops)
        page = Path(folder) / "report.html"
        run_folder.write(Path(folder), document, [outcome], "")
        report_command.write(Path(folder), page)
        home = Path(folder) / "browser"
        home.mkdir()
        browser = Browser(binary, home)
        try:
            browser.open(page)
            return _rows(browser, ops)
        finally:
            browser.close()


def _rows(browser: Browser, ops: int) -> list[Row]:
    plain = PLAIN % (ops, ops)
    reference = f"a canvas with {ops:,} rectangles, without level of detail"
    rows = []
    for share, words in ((1.0, "the whole run"), (0.001, "0.1 % of it")):
        browser.ask(f"shown.view.show(shown.view.from, shown.view.from + (shown.view.to - shown.view.from) * {share})")
        browser.drawn()
        pairs = [(_ms(browser, REDRAW), _ms(browser, plain)) for _ in range(REPEATS)]
        ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        name = f"all charts of a page of {ops:,} ops drawn anew, {words}"
        rows.append(Row(name, f"{ours:.1f} ms", f"{theirs:.1f} ms", theirs / ours, "–", reference))
    return rows


def _ms(browser: Browser, code: str) -> float:
    """How long a piece of script takes in the page."""
    timed = f"const begin = performance.now(); {code}; return performance.now() - begin;"
    return float(browser.ask(f"(() => {{ {timed} }})()"))
