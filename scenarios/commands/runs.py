"""Commands: run a scenario or every point of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.real_run import keywords
from scenarios.terminal import (
    Device,
    File,
    Json,
    Out,
    Oversubscribe,
    Sets,
    command,
    folder_for,
    progress_bar,
    read_document,
    render,
)
from sim.errors import ScenarioError

if TYPE_CHECKING:
    from scenarios.document import Document
    from scenarios.points import Point
    from scenarios.results_table import ResultsTable
    from scenarios.sweep_command import Survey, Swept

BackendName = Annotated[str | None, typer.Option("--backend", help="simulated, longest_path or torch")]
ComputeName = Annotated[
    str | None,
    typer.Option("--compute", help="of real workers with parameter servers: real, or sleep as long as planned"),
]


@command("run")
def run(
    file: File,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
    backend: BackendName = None,
    compute: ComputeName = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="where real parameter servers keep their state")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on from what stands in --checkpoint")] = False,
    device: Device = None,
    oversubscribe: Oversubscribe = False,
) -> None:
    """Run one scenario."""
    from scenarios import measured, run_folder

    document = read_document(file, sets, backend)
    points = run_folder.read_points(document)
    if len(points) > 1:
        raise ScenarioError(f"{file} holds a sweep of {len(points)} points: use 'twinrail sweep'")
    how = keywords(oversubscribe, device, compute, checkpoint, resume)
    run_folder.refuse_idle(how, points[0].scenario.backend)
    if warning := measured.warning(points[0].scenario.model.measured, points[0].document):
        typer.echo(f"warning: {warning}", err=True)
    _execute(document, points[0], out, json, how)


@command("sweep")
def sweep(
    file: File,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
    backend: BackendName = None,
    compute: ComputeName = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="points at a time; 1 unless said")] = None,
    engine: Annotated[str, typer.Option("--engine", help="local, dask or ray")] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="of a Dask or Ray cluster; a local one if not said"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="run only points that have no row in DIR yet")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="stop at the first point that fails")] = False,
) -> None:
    """Run every point of a scenario's sweep and compare them: a row each in DIR/results.sqlite."""
    from scenarios import sweep_command
    from scenarios.sweep_engines import engine_of

    document = read_document(file, sets, backend)
    if "sweep" not in document.data:
        raise ScenarioError(f"{file} has no sweep: use 'twinrail run'")
    _refuse_experiment(document)
    if resume and json and out is None:
        raise ScenarioError("--resume has no influence with --json and without --out DIR")
    options = sweep_command.options(engine_of(engine), jobs, address, resume, fail_fast, keywords(compute=compute))
    folder = folder_for(document, out, json)
    with progress_bar() as progress:
        task = progress.add_task("checking the points", total=None)
        surveyed = sweep_command.survey(document, options.served, lambda count: progress.update(task, completed=count))
        sweep_command.refuse_measuring_side_by_side(surveyed, options)
    with sweep_command.table_of(document, folder, resume) as table:
        with progress_bar() as progress:
            task = progress.add_task(document.name, total=len(surveyed.numbers))
            tell = partial(progress.update, task)
            swept = sweep_command.run(document, surveyed, table, folder, options, lambda count: tell(completed=count))
        _report(surveyed, swept, table, folder, json)
    if swept.failed:
        from sim.errors import RunFailed

        raise RunFailed("\n".join([f"{swept.failed} of {len(surveyed.numbers)} points failed:", *swept.errors]))


def _report(surveyed: Survey, swept: Swept, table: ResultsTable, folder: Path | None, json: bool) -> None:
    """Print what came of a sweep, and write what tells of all its points where these are few."""
    from scenarios import sweep_command
    from scenarios.results_command import as_json, overview

    results = [result for result in table.results() if "error" not in result] if surveyed.keep else []
    text = _table(results) if results else "" if surveyed.keep else overview(table.reader)
    if folder is not None and surveyed.keep:
        sweep_command.write_summary(folder, table, text)
    for part in as_json(table.results() if surveyed.keep else table.reader.dicts()) if json else [text]:
        typer.echo(part, nl=False)
    if swept.removed:
        typer.echo(
            f"{swept.removed} rows of points that are not in this sweep, or of another version: removed", err=True
        )
    if folder is not None:
        more = ", gantt.png, result.json, traces (Chrome JSON for ui.perfetto.dev)" if surveyed.keep else ""
        typer.echo(f"{folder}: results.sqlite ({swept.points} points, {swept.ran} run now){more}", err=True)


def _execute(document: Document, point: Point, out: Path | None, json: bool, served: Mapping[str, Any]) -> None:
    """Run a point, print it, and write the run folder where one is wanted."""
    from scenarios import run_folder

    _refuse_experiment(document)
    folder = folder_for(document, out, json)
    if folder is not None:
        run_folder.refuse_over_sweep(folder)
    outcome = run_folder.run_point(point, document.name, served)
    table = _table([outcome.result])
    if folder is not None:
        run_folder.write(folder, document, [outcome], table)
    if json:
        typer.echo(run_folder.to_json(outcome.result), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: gantt.png, result.json, traces (Chrome JSON for ui.perfetto.dev)", err=True)


def _refuse_experiment(document: Document) -> None:
    if "converge" in document.data:
        raise ScenarioError("this scenario is an experiment: use 'twinrail converge', or write --set converge=null")


def _table(results: Sequence[dict[str, Any]]) -> str:
    """Runs with parameter servers have a table of their own; one by itself also says who does what."""
    from analysis import server_table, table

    served = [result for result in results if "parameter_servers" in result]
    tables = [] if len(served) == len(results) else [table.rows(results)]
    tables += [server_table.rows(served)] if served else []
    tables += [server_table.details(served[0])] if len(results) == len(served) == 1 else []
    return "\n".join(render(*each) for each in tables)
