"""A document: a tree of values that remember where they were written.

So every fault, found by whatever check, can name its file and line, also where ``--set`` or a sweep changed the tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from scenarios.quantities import WrongValue, printable, shown
from sim.errors import Fault, nearest

MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]

ALTERNATIVES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "model": (("name",), ("profile",), ("file",), ("layers",), ("uniform",), ("huggingface", "sequence")),
    "uniform": (("backward",), ("backward_input", "backward_weight")),
    "cluster": (("preset",), ("file",), ("devices",), ("workers",), ("nodes", "links")),
    "schedule": (("name",), ("csv",)),
    "partition": (("method",), ("cuts",)),
    "sweep": (("points",), ("grid",), ("random",), ("latin_hypercube",)),
    "jitter": (("lognormal",), ("uniform",), ("compute", "communication", "apply")),
    **dict.fromkeys(
        ("compute", "communication", "apply"), (("lognormal",), ("uniform",), ("exponential",), ("empirical",))
    ),
}
"""Keys of which exactly one group may stand in the mapping of that name: setting one removes the other groups."""
SHORT_FORMS: Mapping[str, str] = {"cluster": "preset", "partition": "method"}
"""Mappings that may be written as one word, which stands for the value of this key of theirs."""
_TIMES = "a file of measured times, one a line"
NAMED_FILES: Mapping[KeyPath, str] = {
    ("model", "profile"): "a PipeDream profile",
    ("model", "file"): "a model of twinrail profile or twinrail import",
    ("model", "measured"): "a profile of twinrail profile",
    ("model", "huggingface"): "the config.json of a Hugging Face model",
    ("schedule", "csv"): "a schedule in CSV",
    ("cluster", "file"): "a cluster of twinrail import",
    ("jitter", "compute", "empirical"): _TIMES,
    ("jitter", "communication", "empirical"): _TIMES,
    ("jitter", "apply", "empirical"): _TIMES,
}
"""Where a scenario may name a file, from the folder of the file that says so, and what that is."""


class Place(NamedTuple):
    """Where a value was written. ``path`` replaces its path in the document where that differs: ``--set a.b``."""

    file: str | None
    line: int | None
    path: str | None = None

    @property
    def folder(self) -> Path:
        """What a file name written here is relative to: the file's folder, or the current one for ``--set``."""
        return Path(self.file).parent if self.file and self.file != "<stdin>" else Path()


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written: a mapping at its key, a scalar at itself. Documents may share nodes."""

    value: dict[str, Node] | list[Node] | str | int | float | bool | None
    place: Place

    def child(self, key: str | int) -> Node | None:
        """What stands under a key or an index, if anything."""
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            return self.value[key]
        return None

    @property
    def height(self) -> int:
        """Levels of mappings and lists, 0 for a scalar."""
        if not isinstance(self.value, dict | list):
            return 0
        children = self.value.values() if isinstance(self.value, dict) else self.value
        return 1 + max((node.height for node in children), default=0)

    def plain(self) -> Any:
        """Dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value


@dataclass(frozen=True)
class Document:
    """What a YAML file says and where.

    ``faults`` are those of the text itself that did not keep it from being read (doubled keys, tags); whoever checks
    the contents reports them too. ``sets`` are the paths given by ``--set``.
    """

    root: Node
    file: str
    faults: tuple[Fault, ...] = ()
    sets: tuple[KeyPath, ...] = ()

    @cached_property
    def data(self) -> dict[str, Any]:
        """The contents as plain dicts, lists and scalars."""
        data: dict[str, Any] = self.root.plain()
        return data

    @property
    def name(self) -> str:
        """What the scenario is called."""
        return str(self.data.get("name", "run"))

    def place(self, path: KeyPath) -> Place:
        """File, line and written path of a value; of what surrounds it, where there is no such value."""
        node: Node | None = self.root
        place, parts = self.root.place, list[str | int]()
        for key in path:
            parts.append(key)
            node = node.child(key) if node else None
            if node:
                place = node.place
                parts = [place.path] if place.path else parts
        return Place(place.file, place.line, dotted(parts))

    def fault(self, path: KeyPath | str, message: str, suggestion: str | None = None) -> Fault:
        """A fault at a path, with file and line."""
        place = self.place(split(path) if isinstance(path, str) else path)
        file = printable(place.file) if place.file else None
        return Fault(message, place.path or "", file, place.line, suggestion)

    def placed(self, fault: Fault) -> Fault:
        """A fault that knows only its path, with file and line; any other as it is."""
        if fault.file or fault.path.startswith("--set"):
            return fault
        return self.fault(fault.path, fault.message, fault.suggestion)

    def directory(self, path: KeyPath | str) -> Path:
        """What a file name written at ``path`` is relative to: see `Place.folder`."""
        return self.place(split(path) if isinstance(path, str) else path).folder

    def with_full_paths(self) -> Document:
        """The same with every file that it names by its full path, so that it means the same in any folder."""
        return replace(self, root=_with_full_paths(self.root, ()))


def dotted(path: Sequence[str | int]) -> str:
    """A path as messages show it: ``sweep.points.0.name``."""
    return ".".join(printable(str(key)) for key in path)


def split(path: str) -> KeyPath:
    """The parts of a dotted path, indices as numbers."""
    return tuple(int(key) if re.fullmatch("[0-9]{1,9}", key) else key for key in path.split(".")) if path else ()


def assign(node: Node, path: KeyPath, value: Node | None, name: str = "") -> Node:
    """``node`` (the value of the key ``name``) with ``value`` at ``path``, made where needed; ``None`` removes.

    `SHORT_FORMS` are written out where a key is set in them, and `ALTERNATIVES` give way.

    Raises
    ------
    WrongValue : the path leads through a value that has no such keys or items, or there is nothing to remove.
    """
    if len(path) > MAX_DEPTH:
        raise WrongValue(f"a path of more than {MAX_DEPTH} keys")
    listed, children = isinstance(node.value, list), _children(node, name)
    key, rest = str(path[0]), path[1:]
    if key not in children and (value is None or listed):
        raise WrongValue(f"there is no {shown(key)} in {name or 'the document'}", nearest(key, children))
    if rest:
        value = assign(children.get(key) or _made_for(value, len(rest)), rest, value, key)
    if value is None:
        del children[key]
    else:
        children[key] = value
        groups = ALTERNATIVES.get(name, ())
        rivals = {rival for group in groups if key not in group for rival in group} if key in chain(*groups) else set()
        children = {known: child for known, child in children.items() if known not in rivals}
    return Node(list(children.values()) if listed else children, node.place)


def written_out(document: Document) -> Document:
    """The document with `SHORT_FORMS` replaced by mappings."""
    parts = {
        key: replace(node, value=_children(node, key)) if key in SHORT_FORMS and isinstance(node.value, str) else node
        for key, node in _children(document.root, "").items()
    }
    return replace(document, root=replace(document.root, value=parts))


def _with_full_paths(node: Node, path: tuple[str, ...]) -> Node:
    """``path``: the keys to a node, dotted ones of a sweep's axes in parts, without indices."""
    if isinstance(node.value, dict):
        parts = {key: _with_full_paths(child, (*path, *key.split("."))) for key, child in node.value.items()}
        return Node(parts, node.place)
    if isinstance(node.value, list):
        return Node([_with_full_paths(item, path) for item in node.value], node.place)
    if isinstance(node.value, str) and any(path[-len(named) :] == named for named in NAMED_FILES):
        return Node(_full_path(node.place.folder / node.value), node.place)
    return node


def _full_path(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):  # no file has that name, and no point may read it
        return str(path.absolute())


def _children(node: Node, name: str) -> dict[str, Node]:
    if isinstance(node.value, dict):
        return dict(node.value)
    if isinstance(node.value, list):
        return {str(index): item for index, item in enumerate(node.value)}
    if isinstance(node.value, str) and name in SHORT_FORMS:
        return {SHORT_FORMS[name]: replace(node, place=node.place._replace(path=node.place.path or name))}
    raise WrongValue(f"{shown(name)} is {shown(node.value)}: it has no keys of its own")


def _made_for(value: Node | None, levels: int) -> Node:
    """An empty mapping, written where ``value`` was, that many levels above it."""
    place = value.place if value else Place(None, None)
    return Node({}, place._replace(path=place.path.rsplit(".", levels)[0] if place.path else None))
