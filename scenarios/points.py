"""The points of a sweep: one document for each, whose faults still name their line in the sweep."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scenarios.consistency import Planners
from scenarios.document import Document, KeyPath, Node, assign, dotted, split
from scenarios.quantities import WrongValue
from scenarios.schema import MAX_POINTS, Scenario, Sweep, parse
from scenarios.strict import Wrong, check, in_order, placed
from sim.errors import Fault, ScenarioError


class Point(NamedTuple):
    """One scenario of a sweep: what differs, as it was written, and the whole."""

    overrides: dict[str, Any]
    document: Document
    scenario: Scenario


class _Change(NamedTuple):
    """A value at a path, and where in the sweep it stands."""

    path: KeyPath
    value: Node
    written: KeyPath


def parse_points(document: Document, planners: Planners | None = None) -> list[Point]:
    """Every scenario of a document's sweep; the one scenario where there is no sweep.

    Raises
    ------
    ScenarioError : the faults of all points, each once.
    """
    parsed, faults = list[Point](), list[Fault]()
    try:
        documents = points(document)
    except ScenarioError as error:
        raise ScenarioError.of(in_order([*error.faults, *_base_faults(document, planners)])) from None
    for overrides, point in documents:
        try:
            parsed.append(Point(overrides, point, parse(point, planners)))
        except ScenarioError as error:
            faults += error.faults
    if faults:
        raise ScenarioError.of(in_order(faults))
    return parsed


def _base_faults(document: Document, planners: Planners | None) -> list[Fault]:
    """What is wrong with the sections that stand outside the sweep; the points may bring others."""
    try:
        parse(document, planners)
    except ScenarioError as error:
        known = (*document.data, "--set")
        return [fault for fault in error.faults if re.split("[. ]", fault.path)[0] in known]
    return []


def points(document: Document) -> list[tuple[dict[str, Any], Document]]:
    """The documents of a sweep with what differs in each; the document itself where there is no sweep.

    A point replaces the values of the keys it names; a grid is every combination of the values at its dotted paths, the
    last path varying fastest.

    Raises
    ------
    ScenarioError : the sweep is malformed or empty, or a ``--set`` has no effect because every point replaces it.
    """
    if "sweep" not in document.data:
        return [({}, document)]
    _, wrongs = check(Sweep, document.data["sweep"])
    _refuse(document, [wrong._replace(path=("sweep", *wrong.path)) for wrong in wrongs])
    sweep = document.root.child("sweep")
    grid = sweep.child("grid") if sweep else None
    _refuse(document, _wrong_grid(_parts(grid)))
    changes = _of_grid(_parts(grid)) if grid else _of_points(sweep.child("points") if sweep else None)
    nested = (change for point in changes for change in point if change.path[0] == "sweep")
    _refuse(document, (Wrong(change.written, "a point holds no sweep") for change in nested))
    if lost := [path for path in document.sets if all(_replaced(path, point) for point in changes)]:
        message = "has no effect: every point of the sweep replaces"
        raise ScenarioError.of([Fault(f"{message} '{path[0]}'", f"--set {dotted(path)}") for path in lost])
    base = {key: node for key, node in _parts(document.root).items() if key != "sweep"}
    return [_point(replace(document, root=replace(document.root, value=base)), point) for point in changes]


def _refuse(document: Document, wrongs: Iterable[Wrong]) -> None:
    if faults := placed(document, wrongs):
        raise ScenarioError.of(in_order([*document.faults, *faults]))


def _parts(node: Node | None) -> dict[str, Node]:
    return node.value if node and isinstance(node.value, dict) else {}


def _items(node: Node | None) -> list[Node]:
    return node.value if node and isinstance(node.value, list) else []


def _wrong_grid(grid: Mapping[str, Node]) -> Iterator[Wrong]:
    size = math.prod(len(_items(axis)) for axis in grid.values())
    if size > MAX_POINTS:
        yield Wrong(("sweep", "grid"), f"{size} points: the limit is {MAX_POINTS}")
    for key in grid:
        if not all(key.split(".")):
            yield Wrong(("sweep", "grid", key), "expected a path such as cluster.link.bandwidth")
        if others := [other for other in grid if f"{key}.".startswith(f"{other}.") and other != key]:
            yield Wrong(("sweep", "grid", key), f"is part of '{others[0]}', which is in the grid too")


def _of_points(points: Node | None) -> list[list[_Change]]:
    return [
        [_Change((key,), value, ("sweep", "points", index, key)) for key, value in _parts(point).items()]
        for index, point in enumerate(_items(points))
    ]


def _of_grid(grid: Mapping[str, Node]) -> list[list[_Change]]:
    axes = [
        [_Change(split(key), value, ("sweep", "grid", key)) for value in _items(axis)] for key, axis in grid.items()
    ]
    return [list(point) for point in itertools.product(*axes)]


def _replaced(path: KeyPath, point: Sequence[_Change]) -> bool:
    return any(path[: len(change.path)] == change.path for change in point)


def _point(base: Document, changes: Sequence[_Change]) -> tuple[dict[str, Any], Document]:
    root = base.root
    for change in changes:
        place = change.value.place
        value = replace(change.value, place=place._replace(path=place.path or dotted(change.written)))
        try:
            root = assign(root, change.path, value)
        except WrongValue as error:
            fault = Fault(str(error), dotted(change.written), place.file, place.line, error.suggestion)
            raise ScenarioError.of([fault]) from None
    return {dotted(change.path): change.value.plain() for change in changes}, replace(base, root=root)
