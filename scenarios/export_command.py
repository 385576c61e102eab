"""A recorded run in the formats of other tools: Perfetto, the Chrome trace format, HolisticTraceAnalysis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis import chrome_trace, holistic_trace, perfetto
from scenarios.run_folder import writing
from sim.errors import Fault, ScenarioError, nearest
from sim.trace import Trace

FORMATS = ("perfetto", "chrome", "hta")


def export(file: Path, to: str, out: Path) -> dict[str, Any]:
    """Write a trace as ``to``: a file, or for ``hta`` a folder with a file of each rank.

    Raises
    ------
    BadTraceFile : the file is no trace.
    ScenarioError : no such format, or nothing can be written there.
    """
    if to not in FORMATS:
        message = f"unknown format '{to}', known are {', '.join(FORMATS)}"
        raise ScenarioError.of([Fault(message, "--to", suggestion=nearest(to, FORMATS))])
    trace = Trace.load(file)
    if to == "hta":
        ranks = holistic_trace.export(trace)
        contents = {out / f"rank{rank}.json": text.encode() for rank, text in enumerate(ranks)}
    elif to == "perfetto":
        contents = {out: perfetto.export(trace)}
    else:
        contents = {out: json.dumps(chrome_trace.export(trace), separators=(",", ":")).encode()}
    for path, content in contents.items():
        with writing(path.parent):
            path.write_bytes(content)
    return {"format": to, "files": [str(path) for path in contents], "ops": len(trace.ops)}
