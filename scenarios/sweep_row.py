"""One point of a sweep as a row of scalars: what was swept, and every figure of its result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any

import sim
from scenarios.document import NAMED_FILES, Document, KeyPath, dotted
from scenarios.schema import Scenario
from scenarios.sweep_values import in_si

Scalar = int | float | str | None

NOT_SCALAR = ("overrides", "provenance", "histogram")
"""Parts of a result whose keys differ from point to point, or that say how it came about."""
_LARGEST = 2**63


def key_of(scenario: Scenario, document: Document, name: str, served: Mapping[str, Any]) -> str:
    """The content hash of a resolved point: all of its values, the files it names, its name, and Twinrail's version."""
    digest = blake2b(sim.VERSION.encode(), digest_size=16)
    for text in (name, repr(sorted(served.items())), scenario.model_dump_json(exclude={"sweep"})):
        digest.update(b"\0" + text.encode())
    for path in NAMED_FILES:  # what stands in them belongs to the point
        if isinstance(file := _at(scenario, path), str):
            digest.update(b"\0" + _digest_of(document.directory(path) / file))
    return digest.hexdigest()


def _at(section: Any, path: KeyPath) -> Any:
    return reduce(lambda value, key: getattr(value, str(key), None), path, section)


def _digest_of(file: Path) -> bytes:
    """Of the contents of a file, which is read again only where it was written since; nothing where it cannot be."""
    try:
        state = file.stat()
        return _read(file, state.st_mtime_ns, state.st_size)
    except OSError:
        return b""


@lru_cache(maxsize=64)
def _read(file: Path, changed_ns: int, size: int) -> bytes:
    return blake2b(file.read_bytes(), digest_size=16).digest()


def parameters(overrides: Mapping[str, Any]) -> dict[str, Scalar]:
    """What was swept, a column each: as it is written, and a quantity in SI too, its unit in the name.

    ``cluster.link.bandwidth: 8 Gbit/s`` gives ``cluster.link.bandwidth`` and ``cluster.link.bandwidth_bytes_per_s``.
    """
    found: dict[str, Scalar] = {}
    for path, value in _leaves((), overrides):
        found[path] = value
        if (quantity := in_si(value)) is not None:
            found[f"{path}_{quantity[1]}"] = quantity[0]
    return found


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves((*path, key), child)
    else:
        plain = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
        yield dotted(path), _storable(plain)


def scalars(result: Mapping[str, Any]) -> dict[str, Scalar]:
    """Every scalar of a result; of its devices, hosts and links the most of each figure: ``max_device_idle_s``."""
    return dict(_scalars("", result))


def _scalars(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Scalar]]:
    for key, child in value.items():
        if key in NOT_SCALAR:
            continue
        if isinstance(child, Mapping):
            yield from _scalars(f"{prefix}{key}_", child)
        elif not isinstance(child, list):
            yield f"{prefix}{key}", _storable(child)
        elif child and all(isinstance(item, Mapping) for item in child):
            yield from _greatest(f"max_{prefix}{key.removesuffix('s')}", child)


def _greatest(name: str, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Scalar]]:
    for key in items[0]:
        values = [value for item in items if isinstance(value := item.get(key), int | float)]
        if values:
            yield f"{name}_{key}", _storable(max(values))


def _storable(value: Any) -> Scalar:
    """What SQLite can hold without loss: truth values as 0 and 1."""
    if isinstance(value, int):
        return int(value) if abs(value) < _LARGEST else float(value)
    return value if isinstance(value, float | str) or value is None else str(value)
