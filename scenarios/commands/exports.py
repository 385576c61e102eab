"""Commands: a recorded run in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import Json, command


@command("export")
def export(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="a trace of a run folder: traces/….npz")],
    out: Annotated[Path, typer.Option("--out", metavar="PATH", help="the file to write; for hta a folder")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="perfetto, chrome or hta")] = "perfetto",
    json: Json = False,
) -> None:
    """Write a recorded run for Perfetto, Chrome's tracing or HolisticTraceAnalysis."""
    from scenarios import export_command
    from scenarios.run_folder import to_json

    found = export_command.export(trace, to, out)
    typer.echo(to_json(found) if json else "\n".join(f"{path} written" for path in found["files"]), nl=not json)
