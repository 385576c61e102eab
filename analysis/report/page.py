"""The page: what stands where in it. Everything that comes from files is escaped, and only our own script may run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from analysis.report import histogram, tracks, words
from analysis.report.points import MOST_ROWS, Sweep
from analysis.report.tables import Column, Row, column, table
from sim.trace import Trace

SCRIPTS = ("view.js", "pane.js", "timeline.js", "levels.js", "sweep.js", "page.js")
DEVICES = (
    Column("name", "device"),
    column("compute_s", "compute"),
    column("recompute_s", "recompute"),
    column("communication_s", "exposed communication"),
    column("idle_s", "idle"),
    column("driver_s", "driver"),
    column("peak_memory_bytes", "most memory in use"),
    column("peak_reserved_bytes", "most reserved"),
    column("capacity_bytes", "capacity"),
    Column("in_flight", "in flight", "micro-batches"),
    Column("weight_copies", "copies of weights"),
    Column("peak_memory_op", "peak reached in"),
)
LINKS = (
    Column("name", "link"),
    Column("kind", "model"),
    column("bytes_per_s", "bandwidth"),
    Column("bytes", "carried", "GB", 1e-9),
    column("busy_s", "busy"),
    Column("utilization", "utilization", "%", 100),
)
BUTTONS = "".join(
    f'<button type="button" data-zoom="{factor}">{text}</button>'
    for factor, text in ((0.6, "Zoom in"), (1 / 0.6, "Zoom out"), (0, "Whole run"))
)
HELP = (
    "Drag to pan. Click a chart, then the wheel zooms, Shift and wheel pan; keys: <kbd>+</kbd> <kbd>−</kbd> zoom, "
    "<kbd>←</kbd> <kbd>→</kbd> pan, <kbd>↑</kbd> <kbd>↓</kbd> lane, <kbd>,</kbd> <kbd>.</kbd> op, "
    "<kbd>0</kbd> whole run. Every other mini-batch is tinted."
)


@dataclass(frozen=True, eq=False)
class Point:
    """What the page shows of one run.

    ``traces`` are drawn one above the other, by title. ``result`` (`analysis.result`) says what came of it; of a
    validation ``sentence`` and ``table`` (HTML) stand in its place.
    """

    name: str
    traces: Mapping[str, Trace]
    result: Mapping[str, Any] | None = None
    sentence: str = ""
    table: str = ""


@dataclass(frozen=True, eq=False)
class Page:
    """A report: its title, what it is of, points with time lines, the scenario, and where it all comes from.

    ``summary`` says what is most important about all points together, ``note`` what was left out.
    """

    title: str
    what: str
    points: Sequence[Point]
    scenario: str
    sweep: Sweep | None = None
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""


def render(page: Page) -> str:
    """The page as HTML; the same input gives the same bytes."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style, data, embedded = _asset("page.css"), _data(page), [*_embedded(page)]
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)} · Twinrail</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{style}</style></head><body>",
        f"<header><h1>{escape(page.title)}</h1><p>{escape(page.what)}</p>",
        '<button type="button" id="theme">Dark</button></header>',
        "<noscript><p>The time lines are drawn by a script; tables and text need none.</p></noscript>",
        *_sweep(page),
        *_points(page),
        *_end(page),
        '<div id="tip" role="status" hidden></div><span id="probe" hidden></span>',
        *embedded,
        _json("data", data),
        f"<script>{script}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _asset(name: str) -> str:
    return files("analysis.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a browser compares with what stands between the tags."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(name: str, value: object) -> str:
    """A block of data that no text in it can end."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _track(point: int, number: int) -> str:
    return f"track-{point}-{number}"


def _embedded(page: Page) -> Iterator[str]:
    for index, point in enumerate(page.points):
        for number, trace in enumerate(point.traces.values()):
            yield _json(_track(index, number), tracks.compute(trace))


def _data(page: Page) -> dict[str, Any]:
    points = [
        {
            "name": point.name,
            "tracks": [{"id": _track(index, number), "title": title} for number, title in enumerate(point.traces)],
        }
        for index, point in enumerate(page.points)
    ]
    sweep = page.sweep and {
        "rows": list(page.sweep.rows),
        "figures": [each._asdict() for each in page.sweep.figures],
        "axes": {axis.key: axis._asdict() for axis in page.sweep.axes},
    }
    return {"kinds": tracks.kinds(), "points": points, "sweep": sweep}


def _sweep(page: Page) -> Iterator[str]:
    """The plot and the table of all points."""
    if (sweep := page.sweep) is None:
        return
    yield f"<h2>All points</h2><p>{escape(page.summary)}</p>" if page.summary else "<h2>All points</h2>"
    yield '<div class="bar">'
    titles = [(each.key, each.title) for each in sweep.figures]
    yield _select("figure", "figure", titles)
    axes = [(axis.key, axis.title) for axis in sweep.axes]
    yield _select("across", "over", [("", "points"), *axes], 1 if sweep.is_grid else 0)
    yield _select("up", "and", [("", "nothing else"), *axes]) + "</div>"
    yield '<div id="plot" class="wide"></div>'
    rows, caption = sweep.best_first, f"{len(sweep.rows):,} points; choose a column to sort by it"
    if len(rows) > MOST_ROWS:
        rows, caption = rows[:MOST_ROWS], f"the best {MOST_ROWS} of {len(rows):,} points; the plot shows all"
    yield table(sweep.columns, rows if len(sweep.rows) > MOST_ROWS else sweep.rows, caption)


def _select(name: str, label: str, options: Sequence[tuple[str, str]], chosen: int = 0) -> str:
    inner = "".join(
        f'<option value="{escape(value)}"{" selected" if index == chosen else ""}>{escape(text)}</option>'
        for index, (value, text) in enumerate(options)
    )
    return f'<label>{label} <select id="{name}">{inner}</select></label>'


def _points(page: Page) -> Iterator[str]:
    """What is said of each point, one at a time; then the place of its time lines."""
    if not page.points:
        return
    if len(page.points) > 1:
        names = [(str(index), point.name) for index, point in enumerate(page.points)]
        yield f'<h2>One point</h2><div class="bar">{_select("point", "point", names)}</div>'
    yield from _one_at_a_time(page, _summary)
    yield f'<h2>Time line</h2><div class="bar">{BUTTONS}<span>{HELP}</span></div><div id="charts"></div>'
    if any(point.result for point in page.points):
        yield "<h2>Devices and links</h2>"
        yield from _one_at_a_time(page, _details)


def _one_at_a_time(page: Page, say: Callable[[Point], Iterator[str]]) -> Iterator[str]:
    """Something about each point, of which the page shows one."""
    for index, point in enumerate(page.points):
        yield f'<div class="point" data-point="{index}"{" hidden" if index else ""}>{"".join(say(point))}</div>'


def _summary(point: Point) -> Iterator[str]:
    if point.sentence:
        yield f"<p>{escape(point.sentence)}</p>"
    yield point.table
    if point.result is not None:
        result, trace = dict(point.result), next(iter(point.traces.values()))
        yield words.tiles(result)
        yield f"<p>{escape(' '.join(words.sentences(trace, result)))}</p>"


def _details(point: Point) -> Iterator[str]:
    if point.result is None:
        return
    result, trace = point.result, next(iter(point.traces.values()))
    yield table(DEVICES, _devices(trace, result), "What each device does")
    yield table(LINKS, _links(trace, result), "Links that carried something")
    if drawn := histogram.draw(result["staleness"]["histogram"]):
        yield f"<h3>Staleness: updates between reading the weights and applying the gradient</h3>{drawn}"


def _devices(trace: Trace, result: Mapping[str, Any]) -> list[Row]:
    limits = {name: tracks.capacity_bytes(trace, index) for index, name in enumerate(trace.header["devices"])}
    return [
        {**device, "capacity_bytes": limits.get(device["name"])} for device in (*result["devices"], *result["hosts"])
    ]


def _links(trace: Trace, result: Mapping[str, Any]) -> list[Row]:
    known = {link["name"]: link for link in trace.header["links"]}
    return [{**known.get(link["name"], {}), **link} for link in result["links"]]


def _end(page: Page) -> Iterator[str]:
    """The scenario and the provenance."""
    if page.note:
        yield f"<p>{escape(page.note)}</p>"
    yield "<h2>Where this comes from</h2>"
    facts = dict(page.facts)
    if page.points:
        facts |= provenance(next(iter(page.points[0].traces.values())))
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in facts.items())
    yield f'<dl class="facts">{listed}</dl>'
    yield f"<details><summary>Scenario</summary><pre>{escape(page.scenario)}</pre></details>"


def provenance(trace: Trace) -> dict[str, str]:
    """What the header of a trace says of where it comes from, by dotted path."""
    names = ("backend", "seed", "hardware", "versions", "allocator", "provenance")
    return dict(_flat("", {name: trace.header[name] for name in names if name in trace.header}))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _flat(f"{path} {key}" if path else str(key), child)
    elif value not in ("", [], None):
        yield path, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
