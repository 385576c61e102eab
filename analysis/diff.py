"""Two results compared, number by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Scalar = str | float | bool | None


class Difference(NamedTuple):
    """A value that differs. ``path`` is dotted; ``ratio`` is b over a, ``None`` where that has no meaning."""

    path: str
    a: Scalar
    b: Scalar
    ratio: float | None


def compute(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    """Every scalar that differs between two results, in their order. What one of them lacks is ``None`` there.

    Elements of a list go by their ``name`` where they have one, by their position otherwise.
    """
    left, right = dict(_scalars("", a)), dict(_scalars("", b))
    paths = [*left, *(path for path in right if path not in left)]
    pairs = [(path, left.get(path), right.get(path)) for path in paths]
    return [Difference(path, x, y, _ratio(x, y)) for path, x, y in pairs if x != y]


def _scalars(path: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        named = [
            item["name"] if isinstance(item, dict) and "name" in item else index for index, item in enumerate(value)
        ]
        children = list(zip(named, value, strict=True))
    else:
        yield path, value
        return
    for key, child in children:
        yield from _scalars(f"{path}.{key}" if path else str(key), child)


def _ratio(a: Scalar, b: Scalar) -> float | None:
    numbers = isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool)
    return b / a if numbers and not isinstance(b, bool) and a else None  # type: ignore[operator]
