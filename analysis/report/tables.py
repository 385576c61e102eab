"""Tables of a page: columns with units, cells that know the value they sort by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from analysis.text import significant

Row = Mapping[str, Any]
NONE = "–"


class Unit(NamedTuple):
    """What a figure is shown in: the ending of its key, the unit, and how many make one of the key's."""

    ending: str
    name: str
    per: float


UNITS = (
    Unit("_samples_per_s", "samples/s", 1),
    Unit("_steps_per_s", "steps/s", 1),
    Unit("_bytes_per_s", "GB/s", 1e-9),
    Unit("_flops_per_s", "TFLOP/s", 1e-12),
    Unit("_per_s", "per s", 1),
    Unit("_bytes", "GiB", 2**-30),
    Unit("_s", "ms", 1e3),
    Unit("_share", "%", 100),
)


class Column(NamedTuple):
    """A column of a table: the key of its values, its title, its unit, and how many of that make one of the value's.

    A ``signed`` column holds errors: shares whose sign and size are shown.
    """

    key: str
    title: str
    unit: str = ""
    per: float = 1.0
    signed: bool = False


def column(key: str, title: str = "") -> Column:
    """The column of a key that ends in its unit, as those of `analysis.result` do."""
    for unit in UNITS:
        if f"_{key}".endswith(unit.ending):
            words = f"_{key}"[: -len(unit.ending)].strip("_")
            return Column(key, title or words.replace("_", " ") or unit.name, unit.name, unit.per)
    return Column(key, title or key.replace("_", " "))


def table(columns: Sequence[Column], rows: Iterable[Row], caption: str) -> str:
    """A table whose columns sort; a column of which no row has a value is left out."""
    rows = list(rows)
    columns = [each for each in columns if any(row.get(each.key) is not None for row in rows)]
    if not columns:
        return ""
    head = "".join(_head(each, rows) for each in columns)
    body = "\n".join(f"<tr>{''.join(_cell(each, row.get(each.key)) for each in columns)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sorts"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _head(column: Column, rows: Sequence[Row]) -> str:
    unit = f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    kind = ' class="figure"' if any(_is_number(row.get(column.key)) for row in rows) else ""
    return f'<th scope="col"{kind}><button type="button">{escape(column.title)}{unit}</button></th>'


def _cell(column: Column, value: Any) -> str:
    """A number is shown with three digits and sorts by all of them; anything else sorts as text."""
    if not _is_number(value):
        return f"<td>{escape(NONE if value is None else str(value))}</td>"
    if column.signed:
        size = "close" if abs(value) <= CLOSE else "off" if abs(value) <= OFF else "far"
        text, kind = f"{100 * value:+.1f}", f"figure {size}"
    else:
        text, kind = number(float(value) * column.per), "figure"
    return f'<td class="{kind}" data-value="{float(value)!r}">{text}</td>'


CLOSE, OFF = 0.08, 0.15
"""Errors up to the first are what `twinrail validate` aims at; beyond the second a prediction misleads."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """Three digits; a whole number as it is."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else significant(value)
