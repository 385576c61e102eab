"""Columns of numbers as text in a page: little-endian arrays behind one another, zlib, base64.

``{"at": byte, "count": n, "type": "Int32"}`` stands for a column; the types are those of JavaScript's typed arrays.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES: dict[str, np.dtype[Any]] = {"Int32": np.dtype("<i4"), "Float64": np.dtype("<f8")}
_ALIGNED = 8


class Columns:
    """Collects columns; `text` is what the page embeds."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._at = 0

    def add(self, values: NDArray[Any]) -> dict[str, Any]:
        """Where a flat column of integers (of 32 bits) or floats will be found.

        Raises
        ------
        OverflowError : an integer does not fit.
        """
        name = "Float64" if values.dtype.kind == "f" else "Int32"
        packed = values.astype(TYPES[name])
        if name == "Int32" and bool((packed != values).any()):
            raise OverflowError("an integer of more than 32 bits")
        data = packed.tobytes()
        data += bytes(-len(data) % _ALIGNED)
        place = {"type": name, "at": self._at, "count": len(values)}
        self._chunks.append(data)
        self._at += len(data)
        return place

    @property
    def text(self) -> str:
        """All columns so far."""
        return base64.b64encode(zlib.compress(b"".join(self._chunks), 6)).decode("ascii")


def read(text: str, place: dict[str, Any]) -> NDArray[Any]:
    """One column of `Columns.text`."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), TYPES[place["type"]], place["count"], place["at"])
