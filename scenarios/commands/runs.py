"""Commands: run a scenario or every point of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.terminal import File, Json, Out, Sets, command, progress_bar, read_document, render
from sim.errors import ScenarioError

if TYPE_CHECKING:
    from scenarios.document import Document
    from scenarios.points import Point
    from scenarios.run_folder import Outcome

BackendName = Annotated[str | None, typer.Option("--backend", help="simulated, longest_path or torch")]
ComputeName = Annotated[
    str | None,
    typer.Option("--compute", help="of real workers with parameter servers: real, or sleep as long as planned"),
]


def _served(compute: str | None, checkpoint: Path | None = None, resume: bool = False) -> dict[str, Any]:
    """What is said of real parameter servers: keywords of `backends.torch.run`."""
    if compute not in (None, "real", "sleep"):
        raise ScenarioError(f"--compute: expected real or sleep, got '{compute}'")
    if resume and checkpoint is None:
        raise ScenarioError("--resume has no influence without --checkpoint DIR")
    said: dict[str, Any] = {} if compute is None else {"compute": compute}
    if checkpoint is not None:
        from backends.torch.servers import Checkpoint

        said["checkpoint"] = Checkpoint(checkpoint, resume=resume)
    return said


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
) -> None:
    """Run one scenario."""
    from scenarios.run_folder import read_points

    document = read_document(file, sets, backend)
    points = read_points(document)
    if len(points) > 1:
        raise ScenarioError(f"{file} holds a sweep of {len(points)} points: use 'twinrail sweep'")
    _execute(document, points, out, json, _served(compute, checkpoint, resume), single=True)


@command("sweep")
def sweep(
    file: File,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
    backend: BackendName = None,
    compute: ComputeName = None,
) -> None:
    """Run every point of a scenario's sweep and compare them."""
    from scenarios.run_folder import read_points

    document = read_document(file, sets, backend)
    if "sweep" not in document.data:
        raise ScenarioError(f"{file} has no sweep: use 'twinrail run'")
    _execute(document, read_points(document), out, json, _served(compute), single=False)


def _execute(
    document: Document, points: Sequence[Point], out: Path | None, json: bool, served: Mapping[str, Any], single: bool
) -> None:
    """Run the points, print them, and write the run folder where one is wanted."""
    from scenarios import run_folder

    if "converge" in document.data:
        raise ScenarioError("this scenario is an experiment: use 'twinrail converge', or write --set converge=null")
    name = str(document.data.get("name", "run"))
    outcomes = _with_progress(points, name, served)
    folder = out or (None if json else Path("runs") / run_folder.file_name(name))
    table = _table(outcomes)
    if folder is not None:
        run_folder.write(folder, document, outcomes, table)
    if json:
        results = [outcome.result for outcome in outcomes]
        typer.echo(run_folder.to_json(results[0] if single else results), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: gantt.png, result.json, traces (Chrome JSON for ui.perfetto.dev)", err=True)


def _with_progress(points: Sequence[Point], scenario: str, served: Mapping[str, Any]) -> list[Outcome]:
    """Run the points under a progress bar."""
    from scenarios.run_folder import run_all

    with progress_bar() as progress:
        task = progress.add_task(scenario, total=len(points))
        return run_all(points, scenario, lambda _: progress.advance(task), served)


def _table(outcomes: Sequence[Outcome]) -> str:
    """Runs with parameter servers have a table of their own; one by itself also says who does what."""
    from analysis import server_table, table

    results = [outcome.result for outcome in outcomes]
    served = [result for result in results if "parameter_servers" in result]
    tables = [] if len(served) == len(results) else [table.rows(results)]
    tables += [server_table.rows(served)] if served else []
    tables += [server_table.details(served[0])] if len(results) == len(served) == 1 else []
    return "\n".join(render(*each) for each in tables)
