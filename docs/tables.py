"""The tables of these pages, computed and filled in between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

``python -m docs.tables`` does the quick ones, ``python -m docs.tables region`` those of the sweep (some minutes);
``--check`` writes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analysis import factors, methods_table, table
from analysis.factors import Axes, Factor, Place, Wanted
from analysis.text import significant
from scenarios import methods
from scenarios.load import apply_sets, load_document, shipped
from scenarios.points import parse_points
from scenarios.run_folder import run_point
from sim.planners import PLANNERS

Results = list[dict[str, Any]]

FIGURES = {15.77: "thesis, over data parallelism", 8.91: "arXiv 1809.02839, over data parallelism"}
EARLIER = 2.18
"""Published factors: both of the first kind are over data parallelism, this one over the best earlier pipeline."""

MODELS = {
    "VGG16": "vgg16",
    "ResNet-152": "resnet152",
    "Inception-v4": "inception-v4",
    "SNN": "snn",
    "Transformer": "transformer",
    "residual LSTM": "residual-lstm",
}

SPECTRAIN: Wanted = {"name": "dualpipe_2018"}
SERVERS: dict[str, Wanted] = {
    "PS host/host": {"server": "host", "update": "server"},
    "PS host/GPUs": {"server": "host", "update": "worker"},
    "PS GPU/GPU": {"server": "gpu", "update": "server"},
    "PS GPU/GPUs": {"server": "gpu", "update": "worker"},
}
"""Where the parameter server sums, and who updates."""

PIPELINES: dict[str, Wanted] = {"1F1B": {"name": "pipedream"}, "split": {"name": "split_2018"}}
BASELINES: dict[str, Wanted] = {"single": {"name": "single"}, **SERVERS, "ring": {"sync": "ring"}, **PIPELINES}

P40_BYTES = 24e9
AXES = Axes("model.name", "cluster.link.bandwidth", "model.batch_size")
INPUTS = [
    (f"{model}-cifar{wide}", model) for model, wide in (("vgg16", "-wide"), ("resnet152", ""), ("inception-v4", ""))
]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


@cache
def _sweep(name: str) -> Results:
    document = load_document(shipped("library")[name])
    return [run_point(point, name).result for point in parse_points(document, PLANNERS)]


def _comparison(column: str) -> str:
    """One column of the sweeps' tables, models down and methods across."""
    rows, names = [], list[str]()
    for model, scenario in MODELS.items():
        columns, cells = table.rows(_sweep(f"comparison-2018-{scenario}"))
        names = [row[0] for row in cells]
        rows.append([model, *(row[columns.index(column)] for row in cells)])
    return markdown(["model", *names], rows)


def headlines() -> str:
    """How much faster SpecTrain is than each kind of baseline, the faster of its time lines."""
    rows = []
    for model, scenario in MODELS.items():
        speeds = {result["name"]: result["samples_per_s"] for result in _sweep(f"comparison-2018-{scenario}")}
        ours = max(speed for name, speed in speeds.items() if name.startswith("SpecTrain"))
        earlier = max(speeds["vanilla async"], speeds["PipeDream"])
        baselines = speeds["DP server"], speeds["DP ring"], earlier, speeds["split"], speeds["single GPU"]
        rows.append([model, *(f"{ours / theirs:.2f}" for theirs in baselines)])
    published = ["published, up to", " and ".join(map(str, FIGURES)), "", str(EARLIER), "", ""]
    columns = ["over", "DP server", "DP ring", "the better 1F1B", "split", "single GPU"]
    return markdown(columns, [*rows, published])


@cache
def _region() -> list[Factor]:
    return factors.compute(_sweep("comparison-2018-region"), AXES, SPECTRAIN, BASELINES, P40_BYTES)


@cache
def _region_at_full_gain() -> list[Factor]:
    """Factors over pipelines where forward and backward of one GPU do not slow each other; nothing else has both."""
    name = "comparison-2018-region"
    document = apply_sets(load_document(shipped("library")[name]), ["cluster.concurrency={shared: 2.0}"])
    concurrent = {"name": "dualpipe_2018", "stages": 4}
    points = [point for point in parse_points(document, PLANNERS) if point.overrides["schedule"] == concurrent]
    others = [result for result in _sweep(name) if result["overrides"]["schedule"] != concurrent]
    results = [*others, *(run_point(point, name).result for point in points)]
    return factors.compute(results, AXES, SPECTRAIN, PIPELINES, P40_BYTES)


def region_ranges() -> str:
    """Least, median and largest factor of each model over each baseline."""
    found = factors.ranges(_region())
    rows = []
    for model in dict.fromkeys(group for group, _ in found):
        ranges = [found[model, baseline] for baseline in BASELINES]
        cells = (" / ".join(f"{value:.3g}" for value in one[:3]) for one in ranges)
        rows.append([model, str(max(one.points for one in ranges)), *cells])
    return markdown(["model", "points", *BASELINES], rows)


def region_figures() -> str:
    """Between which mini-batches each published factor lies, for each bandwidth."""
    parallel = [factor for factor in _region() if factor.baseline in SERVERS or factor.baseline == "ring"]
    sections = [figure_of(f"{figure}x ({of})", parallel, figure) for figure, of in FIGURES.items()]
    for gain, found in ((1, _region()), (2, _region_at_full_gain())):
        pipelines = [factor for factor in found if factor.baseline in PIPELINES]
        title = f"{EARLIER}x (thesis, over the best earlier pipeline), gain {gain} of concurrent passes"
        sections.append(figure_of(title, pipelines, EARLIER))
    return "\n\n".join(sections)


def figure_of(title: str, found: Sequence[Factor], figure: float) -> str:
    """A row for each model and set of baselines on whose lines the figure lies; the others in one line."""
    rows: dict[tuple[str, ...], list[str]] = {}
    beside: dict[str, dict[str, list[str]]] = {"above": {}, "below": {}}
    lines = list(dict.fromkeys(factor.line for factor in found))
    baselines = list(dict.fromkeys(factor.baseline for factor in found))
    for (model, baseline), places in factors.places(found, figure).items():
        cells = [_place(places.get(line)) for line in lines]
        if set(cells) <= {"above", "–"} or set(cells) <= {"below", "–"}:
            beside["above" if "above" in cells else "below"].setdefault(model, []).append(baseline)
        else:
            rows.setdefault((model, *cells), []).append(baseline)
    text = [f"**{title}.**"]
    for side, models in beside.items():
        alike: dict[str, list[str]] = {}
        for model, named in models.items():
            alike.setdefault("all" if named == baselines else ", ".join(named), []).append(model)
        over = (f"{', '.join(these)} over {named}" for named, these in alike.items())
        text.append(f"Everywhere {side}: {'; '.join(over) or 'nothing'}.")
    if rows:
        text.append(markdown(["model", *lines, "baseline"], [[*key, ", ".join(named)] for key, named in rows.items()]))
    return "\n\n".join(text)


def _place(place: Place | None) -> str:
    if place is None or isinstance(place, str):
        return place or "–"
    return ", ".join(f"{low:g}–{high:g}" for low, high in place)


def region_effects() -> str:
    """What each assumption multiplies the factor over a parameter server by."""
    parallel = [factor for factor in _region() if factor.baseline in SERVERS or factor.baseline == "ring"]
    servers = [factor for factor in parallel if factor.baseline in SERVERS]
    effects = {
        "a mini-batch of 16 instead of 512": factors.effect(servers, "at", [(16, 512)]),
        "CIFAR instead of ImageNet input": factors.effect(servers, "group", INPUTS),
        "a parameter server on the host instead of a ring": factors.effect(
            parallel, "baseline", [("PS host/host", "ring")]
        ),
        "3 instead of 12 GB/s": factors.effect(servers, "line", [("3 GB/s", "12 GB/s")]),
        "the server on the host instead of a GPU": factors.effect(
            servers, "baseline", [("PS host/host", "PS GPU/GPU"), ("PS host/GPUs", "PS GPU/GPUs")]
        ),
        "updates by the host instead of the workers": factors.effect(
            servers, "baseline", [("PS host/host", "PS host/GPUs")]
        ),
    }
    rows = [[name, *(significant(value) for value in found[:3]), str(found.points)] for name, found in effects.items()]
    return markdown(["assumption", "least", "median", "most", "pairs"], rows)


def distances() -> str:
    """How many updates ahead SpecTrain predicts on each stage: as published, planned, and exact for VGG16."""
    results = {result["name"]: result for result in _sweep("comparison-2018-vgg16")}
    found = [results[f"SpecTrain {timeline}"]["prediction"] for timeline in ("alternating", "concurrent")]
    columns = [pairs[key] for pairs in found for key in ("distances", "realised")]
    stages = len(columns[0])
    published = [(stage // 2 + stages - stage - 1, stage // 2) for stage in range(stages)]
    names = ["published", "alternating: planned", "realised", "concurrent: planned", "realised"]
    rows = [
        [str(stage), *(f"{f} / {b}" for f, b in row)] for stage, row in enumerate(zip(published, *columns, strict=True))
    ]
    return markdown(["stage", *names], rows)


QUICK: dict[str, Callable[[], str]] = {
    "methods-table": lambda: methods_table.text(methods.compare(4, 8)).rstrip(),
    "throughput": lambda: _comparison("samples/s"),
    "breakdown": lambda: _comparison("compute/comm/idle %"),
    "headlines": headlines,
    "distances": distances,
}
SLOW: dict[str, Callable[[], str]] = {
    "region-effects": region_effects,
    "region-figures": region_figures,
    "region-ranges": region_ranges,
}
TABLES: dict[str, Callable[[], str]] = {**QUICK, **SLOW}


def fill(page: str, texts: Mapping[str, str]) -> str:
    """The page with these tables in their places, where it has them."""
    for name, text in texts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin in page and end in page:
            before, behind = page.split(begin)[0], page.split(end)[1]
            page = f"{before}{begin}\n{text}\n\n{end}{behind}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Print tables and fill the pages beside this file with them; under ``--check`` how many are out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.tables", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TABLES))
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is out of date")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if not any(known.startswith(name) for known in TABLES)]
    if unknown:
        parser.error(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    names = [name for name in TABLES if any(name.startswith(wanted) for wanted in given.names or QUICK)]
    texts = {name: TABLES[name]() for name in names}
    stale = [
        path
        for path in sorted(Path(__file__).parent.glob("*.md"))
        if fill(path.read_text("utf-8"), texts) != path.read_text("utf-8")
    ]
    if given.check:
        print("".join(f"{path.name} is out of date\n" for path in stale), end="")
        return len(stale)
    print("\n\n".join(f"{name}\n\n{text}" for name, text in texts.items()))
    for path in stale:
        path.write_text(fill(path.read_text("utf-8"), texts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
