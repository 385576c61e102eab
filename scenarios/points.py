"""The points of a sweep: one document for each, whose faults still name their line in the sweep."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scenarios.consistency import Planners
from scenarios.document import Document, KeyPath, Node, assign, dotted, split, written_out
from scenarios.quantities import WrongValue
from scenarios.schema import MAX_POINTS, Samples, Scenario, Sweep, parse
from scenarios.strict import Wrong, check, in_order, placed
from scenarios.sweep_conditions import Condition
from scenarios.sweep_values import Choices
from sim.errors import Fault, ScenarioError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Point(NamedTuple):
    """One scenario of a sweep: what differs, as it was written, and the whole."""

    overrides: dict[str, Any]
    document: Document
    scenario: Scenario


class Change(NamedTuple):
    """A value at a path, and where in the sweep it stands."""

    path: KeyPath
    value: Node
    written: KeyPath


Changes = tuple[Change, ...]
"""What makes a point of what all share."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """A sweep that is worked out point by point: what all points share, and what each changes."""

    base: Document
    sweep: Sweep | None
    written: Node | None

    @property
    def drawn(self) -> bool:
        """Whether the points are samples."""
        return self.sweep is not None and self.sweep.grid is None and self.sweep.points is None

    def changes(self) -> Iterator[Changes]:
        """What each point changes, those left out that ``only_if`` and ``skip`` leave out.

        Raises
        ------
        ScenarioError : at the end, where a condition left out nothing, or all was left out.
        """
        if self.sweep is None:
            yield ()
            return
        if not (self.sweep.only_if or self.sweep.skip):
            yield from self._all()
            return
        wanted, unwanted = self.sweep.only_if or (), self.sweep.skip or ()
        met, kept = dict[tuple[str, int], bool](), 0
        for changes in self._all():
            data = written_out(point_of(self.base, changes)[1]).data
            holds = [_holding(met, "only_if", wanted, data), _holding(met, "skip", unwanted, data)]
            if (holds[0] or not wanted) and not holds[1]:
                kept += 1
                yield changes
        _refuse(self.base_with_sweep, _idle(met, {"only_if": len(wanted), "skip": len(unwanted)}, kept))

    @property
    def base_with_sweep(self) -> Document:
        """The whole document, to say where in the sweep something stands."""
        assert self.written is not None
        root = self.base.root
        return replace(self.base, root=replace(root, value={**_parts(root), "sweep": self.written}))

    def _all(self) -> Iterator[Changes]:
        assert self.sweep is not None
        assert self.written is not None
        if self.sweep.grid is not None:
            yield from _of_grid(_parts(self.written.child("grid")))
        elif self.sweep.points is not None:
            yield from _of_points(self.written.child("points"))
        else:
            name = "random" if self.sweep.random is not None else "latin_hypercube"
            samples, node = self.sweep.random or self.sweep.latin_hypercube, self.written.child(name)
            assert samples is not None
            assert node is not None
            yield from _of_samples(samples, name, _parts(node.child("axes")))


def _holding(
    met: dict[tuple[str, int], bool], name: str, conditions: Sequence[Condition], data: Mapping[str, Any]
) -> bool:
    """Whether any holds for a point; ``met`` keeps which ever did."""
    holding = [number for number, condition in enumerate(conditions) if condition.holds(data)]
    met.update(dict.fromkeys(((name, number) for number in holding), True))
    return bool(holding)


def _idle(met: Mapping[tuple[str, int], bool], counts: Mapping[str, int], kept: int) -> Iterator[Wrong]:
    """Conditions that hold for no point: most often a slip in a path."""
    for name, count in counts.items():
        for number in (number for number in range(count) if (name, number) not in met):
            yield Wrong(("sweep", name, number), "has no influence: it holds for no point")
    if not kept and met:
        yield Wrong(
            ("sweep",), "no point is left: " + " and ".join(sorted({name for name, _ in met})) + " hold for all"
        )


def parse_points(document: Document, planners: Planners | None = None) -> list[Point]:
    """Every scenario of a document's sweep; the one scenario where there is no sweep.

    Raises
    ------
    ScenarioError : the faults of all points, each once.
    """
    return [point for _, point in each_point(sound_sweep(document, planners), planners)]


def sound_sweep(document: Document, planners: Planners | None) -> Expansion:
    """See `expand`.

    Raises
    ------
    ScenarioError : what is wrong with the sweep, and with the sections beside it.
    """
    try:
        return expand(document)
    except ScenarioError as error:
        raise ScenarioError.of(in_order([*error.faults, *_base_faults(document, planners)])) from None


def each_point(expansion: Expansion, planners: Planners | None) -> Iterator[tuple[int, Point]]:
    """Every point that is right, one after another, with its number.

    Raises
    ------
    ScenarioError : at the end, the faults of all others, each once.
    """
    faults = dict[Fault, None]()
    try:
        for number, changes in enumerate(expansion.changes()):
            try:
                point = made(expansion.base, changes, planners)
            except ScenarioError as error:
                faults |= dict.fromkeys(error.faults)
            else:
                yield number, point
    except ScenarioError as error:
        faults |= dict.fromkeys(error.faults)
    if faults:
        raise ScenarioError.of(in_order(faults))


def made(base: Document, changes: Changes, planners: Planners | None) -> Point:
    """A point of a sweep.

    Raises
    ------
    ScenarioError : what is wrong with it.
    """
    overrides, document = point_of(base, changes)
    return Point(overrides, document, parse(document, planners))


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

    Raises
    ------
    ScenarioError : see `expand`.
    """
    expansion = expand(document)
    return [point_of(expansion.base, changes) for changes in expansion.changes()]


def expand(document: Document) -> Expansion:
    """The points of a document's sweep, one after another; the document itself where there is no sweep.

    A point of ``points`` replaces the values of the keys it names; a grid is every combination of the values at its
    dotted paths, the last path varying fastest; ``random`` and ``latin_hypercube`` draw a value for each path.

    Raises
    ------
    ScenarioError : the sweep is malformed or empty, or a ``--set`` has no effect because every point replaces it.
    """
    if "sweep" not in document.data:
        return Expansion(document, None, None)
    sweep, wrongs = check(Sweep, document.data["sweep"])
    _refuse(document, [wrong._replace(path=("sweep", *wrong.path)) for wrong in wrongs])
    node = document.root.child("sweep")
    assert sweep is not None
    assert node is not None
    _refuse(document, _wrong_paths(node))
    base = {key: child for key, child in _parts(document.root).items() if key != "sweep"}
    expansion = Expansion(replace(document, root=replace(document.root, value=base)), sweep, node)
    if lost := [path for path in document.sets if all(_replaced(path, point) for point in expansion._all())]:
        message = "has no effect: every point of the sweep replaces"
        raise ScenarioError.of([Fault(f"{message} '{path[0]}'", f"--set {dotted(path)}") for path in lost])
    return expansion


def _refuse(document: Document, wrongs: Iterable[Wrong]) -> None:
    if faults := placed(document, wrongs):
        raise ScenarioError.of(in_order([*document.faults, *faults]))


def _parts(node: Node | None) -> dict[str, Node]:
    return node.value if node and isinstance(node.value, dict) else {}


def _items(node: Node | None) -> list[Node]:
    return node.value if node and isinstance(node.value, list) else []


def _wrong_paths(sweep: Node) -> Iterator[Wrong]:
    """What is wrong with the paths that a sweep changes, and with their number."""
    for index, point in enumerate(_items(sweep.child("points"))):
        if "sweep" in _parts(point):
            yield Wrong(("sweep", "points", index, "sweep"), "a point holds no sweep")
    grid = _parts(sweep.child("grid"))
    size = math.prod(len(_items(axis)) for axis in grid.values())
    if size > MAX_POINTS:
        yield Wrong(("sweep", "grid"), f"{size} points: the limit is {MAX_POINTS}")
    for place in (("grid",), ("random", "axes"), ("latin_hypercube", "axes")):
        node: Node | None = sweep
        for key in place:
            node = node.child(key) if node else None
        yield from _wrong_axes(_parts(node), ("sweep", *place))


def _wrong_axes(axes: Mapping[str, Node], place: KeyPath) -> Iterator[Wrong]:
    for key in axes:
        if not all(key.split(".")):
            yield Wrong((*place, key), "expected a path such as cluster.link.bandwidth")
        if key.split(".")[0] == "sweep":
            yield Wrong((*place, key), "a point holds no sweep")
        if others := [other for other in axes if f"{key}.".startswith(f"{other}.") and other != key]:
            yield Wrong((*place, key), f"is part of '{others[0]}', which is in {place[1]} too")


def _of_points(points: Node | None) -> Iterator[Changes]:
    for index, point in enumerate(_items(points)):
        yield tuple(Change((key,), value, ("sweep", "points", index, key)) for key, value in _parts(point).items())


def _of_grid(grid: Mapping[str, Node]) -> Iterator[Changes]:
    return itertools.product(
        *([Change(split(key), value, ("sweep", "grid", key)) for value in _items(axis)] for key, axis in grid.items())
    )


def _of_samples(samples: Samples, name: str, axes: Mapping[str, Node]) -> Iterator[Changes]:
    written = {path: ("sweep", name, "axes", path) for path in axes}
    for shares in _shares(samples, name == "latin_hypercube"):
        yield tuple(
            Change(split(path), _drawn(samples.axes[path], node, float(share)), written[path])
            for (path, node), share in zip(axes.items(), shares, strict=True)
        )


def _drawn(axis: Any, node: Node, share: float) -> Node:
    return _items(node)[axis.index(share)] if isinstance(axis, Choices) else Node(axis.at(share), node.place)


def _shares(samples: Samples, latin: bool) -> NDArray[np.float64]:
    """Where on each axis each sample lies: [samples, axes], in [0, 1].

    Of a Latin hypercube one lies in each of as many strata of an axis as there are samples (McKay, Beckman & Conover
    1979).
    """
    import numpy as np

    random = np.random.Generator(np.random.PCG64(samples.seed))
    if not latin:
        return random.random((samples.samples, len(samples.axes)))
    from scipy.stats import qmc

    drawn: NDArray[np.float64] = qmc.LatinHypercube(len(samples.axes), rng=random).random(samples.samples)
    return drawn


def _replaced(path: KeyPath, point: Sequence[Change]) -> bool:
    return any(path[: len(change.path)] == change.path for change in point)


def point_of(base: Document, changes: Changes) -> tuple[dict[str, Any], Document]:
    """What a point changes, as it was written, and its document.

    Raises
    ------
    ScenarioError : a path leads through a value that has no such keys.
    """
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
