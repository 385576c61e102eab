"""Reading and writing YAML: the only module that knows the format.

A document becomes a tree of `Node`s that remember where they were written, so that every fault found later, by whatever
check, can name its file and line. Values are those of the YAML 1.2 core schema; files from strangers get no tags, no
duplicate keys, and limits on size, depth and the growth by aliases.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)

from scenarios.quantities import WrongValue, printable, shown
from sim.errors import Fault, ScenarioError, nearest

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 200_000
"""Values in a document after every alias is replaced by what it stands for."""

KeyPath = tuple[str | int, ...]
Kind = Literal["devices", "clusters", "models", "library"]

ALTERNATIVES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "model": (("name",), ("profile",), ("layers",), ("uniform",)),
    "uniform": (("backward",), ("backward_input", "backward_weight")),
    "cluster": (("preset",), ("devices",), ("nodes", "links")),
    "partition": (("method",), ("cuts",)),
    "sweep": (("points",), ("grid",)),
}
"""Keys of which exactly one group may stand in the mapping of that name: setting one removes the other groups."""
SHORT_FORMS: Mapping[str, str] = {"cluster": "preset", "partition": "method"}
"""Mappings that may be written as one word, which stands for the value of this key of theirs."""

_CORE_SCHEMA: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"[-+]?[0-9]{1,300}"), int),
    (re.compile(r"0o[0-7]{1,300}"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]{1,250}"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN"), lambda text: float(text.replace(".", ""))),
)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Place(NamedTuple):
    """Where a value was written. ``path`` replaces its path in the document where that differs: ``--set a.b``."""

    file: str | None
    line: int | None
    path: str | None = None


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
        return Fault(message, place.path or "", place.file, place.line, suggestion)

    def placed(self, fault: Fault) -> Fault:
        """A fault that knows only its path, with file and line; any other as it is."""
        return (
            fault
            if fault.file or fault.path.startswith("--set")
            else self.fault(fault.path, fault.message, fault.suggestion)
        )

    def directory(self, path: KeyPath | str) -> Path:
        """What a file name written at ``path`` is relative to: the file's folder, or the current one for ``--set``."""
        file = self.place(split(path) if isinstance(path, str) else path).file
        return Path(file).parent if file and file != "<stdin>" else Path()


def dotted(path: Sequence[str | int]) -> str:
    """A path as messages show it: ``sweep.points.0.name``."""
    return ".".join(printable(str(key)) for key in path)


def split(path: str) -> KeyPath:
    """The parts of a dotted path, indices as numbers."""
    return tuple(int(key) if re.fullmatch("[0-9]{1,9}", key) else key for key in path.split(".")) if path else ()


def load_document(path: str | Path) -> Document:
    """Read a YAML file; ``-`` is standard input.

    Raises
    ------
    ScenarioError : the file cannot be read, or is no single YAML mapping within the limits.
    """
    file = "<stdin>" if str(path) == "-" else str(path)
    try:
        content = _read(path)
    except WrongValue as error:
        raise ScenarioError.of([Fault(str(error), file=file, suggestion=error.suggestion)]) from None
    try:
        return parse_text(content.decode("utf-8-sig"), file)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScenarioError.of([Fault("not UTF-8: expected YAML text", file=file, line=line)]) from None


def _read(path: str | Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise WrongValue("this is a directory: expected a YAML file") from None
    except FileNotFoundError:
        folder = Path(path).parent
        siblings = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        raise WrongValue("no such file", nearest(Path(path).name, siblings)) from None
    except (OSError, ValueError) as error:
        raise WrongValue(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_BYTES:
        raise WrongValue(f"more than {MAX_BYTES >> 20} MiB: expected a YAML file of at most that size")
    return content


def parse_text(text: str, file: str) -> Document:
    """Read YAML from a string, as if it stood in ``file``.

    Raises
    ------
    ScenarioError : it is no single YAML mapping within the limits.
    """
    builder = _Builder(text, file)
    root = builder.document()
    if not isinstance(root.value, dict):
        got = "the document is empty" if root.value is None else f"got {shown(root.plain())}"
        builder.refuse(f"{got}: expected keys and values, such as 'name: example'", 1)
    return Document(replace(root, place=Place(file, 1)), file, tuple(builder.faults))


class _Builder:
    """Builds nodes from parser events. What need not stop the reading is collected in ``faults``."""

    def __init__(self, text: str, file: str | None, path: KeyPath = ()) -> None:
        self.text, self.file, self.path = text, file, path
        self.faults: list[Fault] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.values = 0
        self.events = self.parse()

    def fault(self, message: str, line: int | None, path: KeyPath = (), suggestion: str | None = None) -> None:
        line = line if self.file else None
        self.faults.append(Fault(message, dotted(self.path + path), self.file, line, suggestion))

    def refuse(self, message: str, line: int | None, path: KeyPath = ()) -> NoReturn:
        self.fault(message, line, path)
        raise ScenarioError.of(self.faults)

    def parse(self) -> Iterator[Event]:
        if stray := _UNPRINTABLE.search(self.text):
            line = self.text.count("\n", 0, stray.start()) + 1
            self.refuse(f"a binary file, or a stray U+{ord(stray[0]):04X}: expected YAML text", line)
        try:
            yield from YAML(typ="safe", pure=True).parse(io.StringIO(self.text))
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.refuse(f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else None)
        except Exception as error:  # ruamel lets an OverflowError and the like through for some broken escapes
            self.refuse(f"not YAML: {type(error).__name__} while reading", None)

    def document(self) -> Node:
        next(self.events)
        start = next(self.events)
        if not isinstance(start, DocumentStartEvent):
            return Node(None, Place(self.file, 1))
        if start.version not in (None, (1, 2)):
            self.fault("YAML 1.1 is asked for, only 1.2 is read", 1)
        root = self.node(next(self.events), ())
        next(self.events)
        if isinstance(following := next(self.events), DocumentStartEvent):
            self.fault("a second document starts here: expected one", _line(following))
        return root

    def node(self, event: Event, path: KeyPath, key_line: int | None = None) -> Node:
        """The value that starts with ``event``."""
        before, line = self.values, _line(event)
        self.count(1, line, path)
        if isinstance(event, AliasEvent):
            return self.alias(event, path, key_line)
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        if event.tag is not None:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self.fault(f"tags such as {shown(tag)} are not read", line, path, "leave it out")
        value: dict[str, Node] | list[Node] | str | int | float | bool | None
        if isinstance(event, ScalarEvent):
            value = _resolve(event.value) if event.implicit[0] else str(event.value)
            line = line if event.value else key_line or line  # nothing seems to stand in the line of the next key
        else:
            line = key_line or line
            value = self.mapping(path) if isinstance(event, MappingStartEvent) else self.sequence(path)
        node = Node(value, Place(self.file, line if self.file else None))
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, self.values - before)
        return node

    def count(self, values: int, line: int, path: KeyPath) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            self.refuse(f"more than {MAX_VALUES} values, aliases counted as often as they are used", line)
        if len(path) > MAX_DEPTH:
            self.refuse(f"nested deeper than {MAX_DEPTH} levels", line)

    def alias(self, event: AliasEvent, path: KeyPath, key_line: int | None) -> Node:
        line = key_line or _line(event)
        if event.anchor not in self.anchors:
            self.refuse(f"alias '*{event.anchor}' stands for nothing before it", line, path)
        node, values = self.anchors[event.anchor]
        self.count(values - 1, line, path)
        return replace(node, place=Place(self.file, line if self.file else None))

    def sequence(self, path: KeyPath) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Node]:
        children: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            line = _line(event)
            self.node(event, (*path, "key"))
            key = str(event.value) if isinstance(event, ScalarEvent) else "?"
            value = self.node(next(self.events), (*path, key), line)
            if not isinstance(event, ScalarEvent):
                self.fault("a key must be plain text", line, path)
            elif key == "<<" and event.implicit[0]:
                self.fault("merge keys '<<' are not part of YAML 1.2", line, path, "write the keys out")
            elif key in children:
                self.fault(f"key {shown(key)} is there twice, first in line {lines[key]}", line, (*path, key))
            else:
                children[key], lines[key] = value, line
        return children


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


def _resolve(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    for pattern, read in _CORE_SCHEMA:
        if pattern.fullmatch(text):
            value: int | float | bool | None = read(text)
            return value
    return text


def apply_sets(document: Document, sets: Sequence[str]) -> Document:
    """The document with each ``path.to.key=VALUE`` applied, in order; VALUE is YAML, and ``null`` removes the key.

    A path that the schema does not know is set all the same: the schema reports it, under ``--set path.to.key``.

    Raises
    ------
    ScenarioError : an assignment without '=', a value that is no YAML, a path through a value that has no keys.
    """
    root, paths, faults = document.root, list(document.sets), list[Fault]()
    for text in sets:
        name, equals, value = text.partition("=")
        name = name.strip()
        try:
            if not equals or not all(name.split(".")):
                raise WrongValue("expected PATH=VALUE, such as --set schedule.stages=4")
            path = _grid_path(split(name))
            root = assign(root, path, _set_value(value, f"--set {name}"))
            paths.append(path)
        except WrongValue as error:
            faults.append(Fault(str(error), f"--set {name}", suggestion=error.suggestion))
        except ScenarioError as error:
            faults += error.faults
    if faults:
        raise ScenarioError.of([*document.faults, *faults])
    return replace(document, root=root, sets=tuple(paths))


def _grid_path(path: KeyPath) -> KeyPath:
    """Under ``sweep.grid`` the rest of a path is one key."""
    return (*path[:2], dotted(path[2:])) if path[:2] == ("sweep", "grid") and path[2:] else path


def _set_value(text: str, name: str) -> Node | None:
    if not text.strip():
        raise WrongValue("no value", "write null to remove the key")
    builder = _Builder(text, None, (name,))
    node = builder.document()
    if builder.faults:
        raise ScenarioError.of(builder.faults)
    return None if node.value is None else replace(node, place=Place(None, None, name))


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
        rivals = {
            rival for group in groups for rival in group if any(key in other for other in groups) and key not in group
        }
        children = {known: child for known, child in children.items() if known not in rivals}
    return replace(node, value=list(children.values()) if listed else children)


def written_out(document: Document) -> Document:
    """The document with `SHORT_FORMS` replaced by mappings."""
    parts = {
        key: replace(node, value=_children(node, key)) if key in SHORT_FORMS and isinstance(node.value, str) else node
        for key, node in _children(document.root, "").items()
    }
    return replace(document, root=replace(document.root, value=parts))


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


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, keys in order."""
    yaml = YAML(pure=True)  # its round-trip writer keeps the order of keys
    yaml.width = 120
    text = io.StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def shipped(kind: Kind) -> dict[str, Path]:
    """The YAML files that come with Twinrail, by name."""
    folder = Path(__file__).parent / kind
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}
