"""Commands: look at scenarios, schedules and run folders, and at what is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import File, Json, Sets, command, render
from sim.errors import ScenarioError


@command("check")
def check(file: File, sets: Sets = None, json: Json = False) -> None:
    """Validate a scenario, a schedule or a trace, told apart by content, and run nothing."""
    from scenarios.check import check_file
    from scenarios.run_folder import to_json

    found = check_file(file, sets or ())
    typer.echo(to_json(found) if json else f"{file}: {found['what']}", nl=not json)


@command("show")
def show_schedule(
    file: File,
    sets: Sets = None,
    point: Annotated[str | None, typer.Option(help="which point of a sweep")] = None,
    columns: Annotated[int | None, typer.Option(min=1, help="slots to show; 32 unless said")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="print one schedule as the CSV that PyTorch reads")] = False,
    json: Json = False,
) -> None:
    """Draw the schedule: a row a compute lane, a column a slot in which a forward or a backward takes one."""
    from scenarios.run_folder import to_json
    from scenarios.show import csv_text, drawings

    if csv and columns is not None:
        raise ScenarioError("--columns has no influence on --csv")
    drawn = csv_text(file, sets or (), point) if csv else drawings(file, sets or (), point, columns or 32)
    if json:
        typer.echo(to_json(drawn), nl=False)
        return
    for name, text in drawn.items():
        typer.echo(text if csv else f"{name}\n{text}\n", nl=not csv)


@command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="another")],
    json: Json = False,
) -> None:
    """Compare two run folders: every figure that differs, point by point."""
    from scenarios import run_folder
    from scenarios.show import differences

    rows = differences(run_folder.read(first), run_folder.read(second))
    if json:
        typer.echo(run_folder.to_json(rows), nl=False)
    elif rows:
        typer.echo(render([*rows[0]], [[_cell(value) for value in row.values()] for row in rows]), nl=False)
    else:
        typer.echo("no difference")


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


@command("init")
def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="where to write; - is standard output")] = "-",
) -> None:
    """Write a commented scenario to start from."""
    from scenarios.show import starter

    text = starter()
    if file == "-":
        typer.echo(text, nl=False)
        return
    try:
        with Path(file).open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise ScenarioError(f"{file}: cannot write there: {error.strerror}") from None
    typer.echo(f"{file} written: try 'twinrail run {file}'", err=True)


@command("list")
def catalogue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="schedules, models, clusters, devices or scenarios")],
    json: Json = False,
) -> None:
    """List what is shipped: schedules, models, clusters, devices or scenarios."""
    from scenarios.run_folder import to_json
    from scenarios.show import catalogue as shipped

    found = shipped(kind)
    if json:
        typer.echo(to_json(found), nl=False)
        return
    typer.echo(render([kind, "what it is"], [[name, text] for name, text in found.items()]), nl=False)


@command("schema")
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from scenarios.run_folder import to_json
    from scenarios.schema import json_schema

    typer.echo(to_json(json_schema()), nl=False)
