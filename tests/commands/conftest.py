"""What tests of commands share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any


def rows(folder: Path) -> list[dict[str, Any]]:
    """Every row of a sweep, read without Twinrail."""
    database = sqlite3.connect(folder / "results.sqlite")
    database.row_factory = sqlite3.Row
    found = [dict(row) for row in database.execute("SELECT * FROM points ORDER BY point")]
    database.close()
    return found
