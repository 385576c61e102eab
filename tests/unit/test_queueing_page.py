"""The section on queueing of ``docs/parameter-servers.md`` says what the code says."""

from __future__ import annotations

import pytest

from docs import tables_parameter_servers, tables_queueing
from docs.tables import fill

PAGE = tables_parameter_servers.PAGE.read_text("utf-8")


@pytest.mark.parametrize("name", tables_queueing.TABLES)
def test_tables_are_up_to_date(name: str) -> None:
    assert f"<!-- {name} -->" in PAGE
    assert fill(PAGE, {name: tables_queueing.TABLES[name]()}) == PAGE, "run python -m docs.tables_parameter_servers"
