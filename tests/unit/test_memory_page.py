"""``docs/memory.md`` says what the code says: its tables are computed anew."""

from __future__ import annotations

import re

import pytest

from docs import tables_memory
from docs.tables import fill

PAGE = tables_memory.PAGE.read_text("utf-8")


@pytest.mark.parametrize("name", tables_memory.QUICK)
def test_quick_tables_are_up_to_date(name: str) -> None:
    assert fill(PAGE, {name: tables_memory.QUICK[name]()}) == PAGE, "run python -m docs.tables_memory"


@pytest.mark.slow
@pytest.mark.parametrize("name", tables_memory.COUNTING)
def test_counted_tables_are_up_to_date(name: str) -> None:
    pytest.importorskip("torch")
    assert fill(PAGE, {name: tables_memory.COUNTING[name]()}) == PAGE, "run python -m docs.tables_memory counted"


def test_every_table_has_its_place() -> None:
    begins, ends = (re.findall(rf"^<!-- {slash}([\w-]+) -->$", PAGE, re.MULTILINE) for slash in ("", "/"))
    assert begins == ends
    assert sorted(begins) == sorted(tables_memory.TABLES)
