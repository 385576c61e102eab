"""The section on fitting of ``docs/parameter-servers.md`` says what the code says: its tables are computed anew."""

from __future__ import annotations

import pytest

from docs import tables_parameter_servers as tables
from docs.tables import fill


@pytest.mark.parametrize("name", [pytest.param("fit-rules", marks=pytest.mark.slow), "fit-errors", "fit-undecided"])
def test_tables_of_measured_series_are_up_to_date(name: str) -> None:
    if not tables.MEASURED.exists():
        pytest.skip(f"no {tables.MEASURED}: the shared data are not here")
    page = tables.PAGE.read_text("utf-8")
    assert f"<!-- {name} -->" in page
    assert fill(page, {name: tables.FIT[name]()}) == page, "run python -m docs.tables_parameter_servers"
