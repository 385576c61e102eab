"""Tables of a page: columns with units, cells that know the value they sort by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeGuard

from analysis.text import significant
from analysis.units import parted

Row = Mapping[str, Any]
NONE = "–"


SHOWN_IN = ("GB/s", "ms")
"""Units of tables; a figure that can be shown in neither has the largest of its units."""


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
    name, units = parted(key)
    words = name.replace("_", " ").strip()
    if not units:
        return Column(key, title or words)
    unit = next((unit for unit in SHOWN_IN if unit in units), next(iter(units)))
    return Column(key, title or words or unit, unit, 1 / units[unit])


def table(columns: Sequence[Column], rows: Iterable[Row], caption: str) -> str:
    """A table whose columns sort; a column of which no row has a value is left out."""
    rows = list(rows)
    columns = [each for each in columns if any(row.get(each.key) is not None for row in rows)]
    if not columns:
        return ""
    figures = [any(is_number(row.get(each.key)) for row in rows) for each in columns]
    head = "".join(map(_head, columns, figures))
    body = "\n".join(f"<tr>{''.join(_cells(columns, figures, row))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sorts"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _head(column: Column, figure: bool) -> str:
    unit = f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    kind = ' class="figure"' if figure else ""
    return f'<th scope="col"{kind}><button type="button">{escape(column.title)}{unit}</button></th>'


def _cells(columns: Sequence[Column], figures: Sequence[bool], row: Row) -> Iterator[str]:
    """A number is shown with three digits and sorts by all of them; anything else sorts as text."""
    for each, figure in zip(columns, figures, strict=True):
        value, kind = row.get(each.key), "figure" if figure else ""
        if not is_number(value):
            yield f'<td class="{kind}">{escape(NONE if value is None else str(value))}</td>'
            continue
        text = number(float(value) * each.per)
        if each.signed:
            kind += " close" if abs(value) <= CLOSE else " off" if abs(value) <= OFF else " far"
            text = f"{100 * value:+.1f}" if abs(value) >= LEAST else "0.0"
        yield f'<td class="{kind}" data-value="{_sorted_by(value)}">{text}</td>'


def _sorted_by(value: float) -> str:
    """The figure as a script reads it."""
    return "Infinity" if math.isinf(value) else repr(float(value))


LEAST, CLOSE, OFF = 0.0005, 0.08, 0.15
"""Errors below the first are shown as 0, up to the second are what validation aims at, beyond the third mislead."""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a cell is a figure."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """Three digits; a whole number as it is."""
    if math.isinf(value):
        return "∞"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else significant(value)
