"""Reading and writing YAML: the only module that knows the format.

Values are those of the YAML 1.2 core schema; files from strangers get no tags, no duplicate keys, and limits on size,
depth and the growth by aliases.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn

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

from scenarios.document import MAX_DEPTH, Document, KeyPath, Node, Place, assign, dotted, split
from scenarios.quantities import WrongValue, printable, shown
from sim.errors import Fault, ScenarioError, nearest

MAX_BYTES = 1 << 20
MAX_VALUES = 200_000
"""Values in a document after every alias is replaced by what it stands for."""

Kind = Literal["devices", "clusters", "models", "library"]

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
        raise ScenarioError.of([Fault(str(error), file=printable(file), suggestion=error.suggestion)]) from None
    try:
        return parse_text(content.decode("utf-8-sig"), file)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScenarioError.of([Fault("not UTF-8: expected YAML text", file=printable(file), line=line)]) from None


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
        raise WrongValue("no such file", nearest_file(Path(path))) from None
    except (OSError, ValueError) as error:
        raise WrongValue(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_BYTES:
        raise WrongValue(f"more than {MAX_BYTES >> 20} MiB: expected a YAML file of at most that size")
    return content


def nearest_file(path: Path) -> str | None:
    """What may have been meant by the name of a file that is not there."""
    try:
        return nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return None


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
        file = printable(self.file) if self.file else None
        self.faults.append(Fault(message, dotted(self.path + path), file, line, suggestion))

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

    def count(self, values: int, line: int, path: KeyPath, height: int = 0) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            self.refuse(f"more than {MAX_VALUES} values, aliases counted as often as they are used", line)
        if len(path) + height > MAX_DEPTH:
            self.refuse(f"nested deeper than {MAX_DEPTH} levels", line)

    def alias(self, event: AliasEvent, path: KeyPath, key_line: int | None) -> Node:
        line = key_line or _line(event)
        if event.anchor not in self.anchors:
            self.refuse(f"alias '*{event.anchor}' stands for nothing before it", line, path)
        node, values = self.anchors[event.anchor]
        self.count(values - 1, line, path)
        self.count(0, line, path, node.height)
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


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, keys in order."""
    yaml = YAML(pure=True)  # its round-trip writer keeps the order of keys
    yaml.width = 120
    text = io.StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


@lru_cache
def shipped(kind: Kind) -> dict[str, Path]:
    """The YAML files that come with Twinrail, by name."""
    folder = Path(__file__).parent / kind
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}
