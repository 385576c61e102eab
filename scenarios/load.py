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
from typing import Any, Literal, NamedTuple, cast

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from scenarios.quantities import printable, shown
from sim.errors import Fault, ScenarioError, nearest

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 200_000
"""Values in a document after every alias is replaced by what it stands for."""

KeyPath = tuple[str | int, ...]
Scalar = str | int | float | bool | None

_CORE_SCHEMA: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"[-+]?[0-9]{1,300}"), int),
    (re.compile(r"0o[0-7]{1,300}"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]{1,250}"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN"), lambda text: float(text.replace(".", ""))),
)


class Place(NamedTuple):
    """Where a value was written. ``path`` is its own name where that differs from its path: ``--set a.b``."""

    file: str | None
    line: int | None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written. Parts of a document may share nodes (aliases, points of a sweep)."""

    value: dict[str, Node] | list[Node] | Scalar
    place: Place

    @cached_property
    def size(self) -> int: ...
