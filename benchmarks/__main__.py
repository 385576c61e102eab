"""Run every benchmark of this folder and print one table (``--json``: for machines; names choose some)."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil

import benchmarks
from benchmarks.measure import Row


def main() -> None:
    """Measure and print."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    names = [name for name in names if name not in ("__main__", "measure")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    rows: list[Row] = []
    for name in options.names or names:
        rows += importlib.import_module(f"benchmarks.{name}").measure()
    print(json.dumps([row._asdict() for row in rows], indent=2) if options.json else _text(rows))


def _text(rows: list[Row]) -> str:
    cells = [("benchmark", "ours", "reference", "ratio", "wanted", "reference is")]
    cells += [(row.name, row.ours, row.reference, f"{row.ratio:.2f}", row.wanted, row.reference_is) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


if __name__ == "__main__":
    main()
