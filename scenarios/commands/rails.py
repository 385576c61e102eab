"""Commands: this machine beside the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.real_run import OPTIONS, keywords
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


@command("profile")
def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a shipped model, or your module:factory")],
    batch: Annotated[int, typer.Option(help="samples measured at once: the micro-batch of what is to be run")] = 32,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw")] = "momentum",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    repeats: Annotated[int, typer.Option(help="steps that count, after three that warm up")] = 20,
    link: Annotated[bool, typer.Option("--link", help="also time messages between two processes")] = False,
    analytic: Annotated[bool, typer.Option("--analytic", help="flops and bytes only, without running")] = False,
    input_: Annotated[str | None, typer.Option("--input", metavar="3,224,224", help="of your own: one sample")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="for 'model.measured' of a scenario")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what the layers of a model take on this machine."""
    from scenarios import profile_command
    from scenarios.run_folder import to_json

    options = {"batch": batch, "optimizer": optimizer, "device": device, "repeats": repeats, "link": link}
    found = profile_command.profile(model, {**options, "analytic": analytic, "input": input_})
    if out is not None:
        profile_command.write(out, found)
    if json or analytic:
        typer.echo(to_json(found), nl=False)
    else:
        typer.echo(render(profile_command.COLUMNS, profile_command.rows(found)), nl=False)


@command("validate")
def validate(
    file: File,
    sets: Sets = None,
    out: Out = None,
    repeats: Annotated[int, typer.Option(min=1, help="runs of each point")] = 5,
    device: Device = None,
    oversubscribe: Oversubscribe = False,
    json: Json = False,
) -> None:
    """Profile, simulate, execute and compare: how far is the prediction from this machine?"""
    from scenarios import run_folder, server_validation, validation

    document = read_document(file, sets)
    points, real = run_folder.read_points(document), keywords(oversubscribe, device)
    folder = out or Path("runs") / f"{run_folder.file_name(document.name)}-validation"
    if server_validation.is_for(points):
        if real:
            given = " and ".join(f"--{OPTIONS[name]}" for name in real)
            raise ScenarioError(f"{given} has no influence on workers of parameter servers: they sleep")
        _validate_servers(document, points, folder, repeats, json)
        return
    with run_folder.writing(folder), progress_bar() as progress:
        task = progress.add_task(document.name, total=validation.steps(points, repeats))
        found = validation.validate(
            points, folder, repeats, real, lambda what: progress.update(task, advance=1, description=what)
        )
    tables = {each.name: render(validation.COLUMNS, validation.rows(each.rows)) for each in found}
    validation.write(folder, document, found, tables)
    if json:
        typer.echo(run_folder.to_json(validation.as_json(found)), nl=False)
        return
    for each in found:
        typer.echo(f"{each.name}: {each.verdict}{tables[each.name]}", nl=False)
    typer.echo(f"{folder}: validation.json, profiles, traces and charts of both rails", err=True)


def _validate_servers(document: Document, points: Sequence[Point], folder: Path, repeats: int, json: bool) -> None:
    from scenarios import run_folder, server_validation

    with run_folder.writing(folder), progress_bar() as progress:
        task = progress.add_task(folder.name, total=server_validation.steps(points, repeats))
        found = server_validation.validate(
            points, folder, repeats, lambda what: progress.update(task, advance=1, description=what)
        )
    figures = server_validation.as_json(found)
    table = render(server_validation.COLUMNS, server_validation.rows(found))
    table += f"{server_validation.verdict(figures)}\n"
    server_validation.write(folder, document, found, table)
    if json:
        typer.echo(run_folder.to_json(figures), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: validation.json, throughput.png, captures of one worker, traces of all runs", err=True)


@command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder: the prediction")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder with the same points")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="table, figures, and charts")] = None,
    json: Json = False,
) -> None:
    """Set two run folders side by side: a simulated one and a real one, or any two of the same points."""
    from scenarios import compare_command
    from scenarios.run_folder import to_json

    found = compare_command.pairs(first, second)
    tables = [f"{pair.title}{render(compare_command.COLUMNS, compare_command.rows(pair))}" for pair in found]
    if out is not None:
        compare_command.write(out, found, "".join(tables))
    typer.echo(to_json(compare_command.as_json(found)) if json else "".join(tables), nl=False)


@command("converge")
def converge(
    file: File,
    sets: Sets = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="trainings at once, one core each")] = 1,
    json: Json = False,
) -> None:
    """Train every point of a scenario in the order of its simulation: what do methods learn in cluster time?

    A run that was stopped goes on where it was, if it is to the same folder.
    """
    from scenarios import converge_command, run_folder

    document = read_document(file, sets)
    points = run_folder.read_points(document)
    wanted, folder = converge_command.check(points), folder_for(document, out, json, "-converge")
    with run_folder.writing(folder) if folder else nullcontext(), progress_bar() as progress:
        task = progress.add_task(document.name, total=len(converge_command.cases(points, wanted)))
        found = converge_command.converge(points, wanted, jobs, lambda: progress.advance(task), folder)
    table = render(converge_command.COLUMNS, converge_command.rows(found.compared))
    table += converge_command.gap_text(found.compared)
    if found.prediction:
        rows = converge_command.prediction_rows(found.prediction)
        table += render(converge_command.PREDICTION_COLUMNS, rows)
    if folder is not None:
        converge_command.write(folder, document, found, table)
    if json:
        typer.echo(run_folder.to_json(converge_command.as_json(found)), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: converge.json, converge.png, every loss", err=True)
