"""Commands: a page about a run, a sweep or a validation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import Json, command
from sim.errors import ScenarioError


@command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="what 'run', 'sweep' or 'validate' wrote")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="the page; FOLDER/report.html unless said")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="write every plot there too, as files for papers")
    ] = None,
    format: Annotated[str | None, typer.Option("--format", help="of --figures: svg unless said, pdf or png")] = None,
    json: Json = False,
) -> None:
    """Write one page that needs nothing beside itself: summary, time line, memory, links, tables, provenance."""
    from scenarios import report_command
    from scenarios.run_folder import to_json

    if format is not None and figures is None:
        raise ScenarioError("--format has no influence without --figures DIR")
    found = report_command.write(folder, out, figures, format or "svg")
    if json:
        typer.echo(to_json(found), nl=False)
        return
    typer.echo(f"{found['page']}: {found['what']}, {found['time_lines']} time lines of {found['ops']:,} ops")
    if figures is not None:
        typer.echo(f"{figures}: {', '.join(found['figures'])}")
