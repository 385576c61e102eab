"""Commands: parameter servers as queueing networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import File, Json, Out, Sets, command, folder_for, group, progress_bar, read_document, render

queue = group("queue", "Parameter servers as queueing networks.")


@command("solve", queue)
def queue_solve(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="population and stations; - is standard input")],
    json: Json = False,
) -> None:
    """Solve a closed queueing network: throughput, response, queues and bounds."""
    from scenarios import queue_command
    from scenarios.run_folder import to_json

    result = queue_command.solve_file(network)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(render(queue_command.COLUMNS, queue_command.rows(result)), nl=False)
    typer.echo(queue_command.summary(result), nl=False)


@command("predict", queue)
def queue_predict(
    file: File,
    workers: Annotated[str | None, typer.Option(metavar="1..8", help="or 1,2,4; up to the scenario's")] = None,
    servers: Annotated[str | None, typer.Option(metavar="1,2,4", help="the scenario's unless said")] = None,
    target: Annotated[float | None, typer.Option(metavar="0.9", help="of linear speed: how many servers?")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="simulated of each worker")] = None,
    point: Annotated[str | None, typer.Option(help="which point of a sweep")] = None,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Predict throughput and staleness over workers and servers: simulation, queueing theory and bounds."""
    from analysis.queueing import predict_table
    from scenarios import queue_predict
    from scenarios.run_folder import to_json

    options = {"workers": workers, "servers": servers, "target": target, "steps": steps, "point": point}
    asked = queue_predict.prepare(read_document(file, sets), options)
    with progress_bar() as progress:
        task = progress.add_task(asked.name, total=queue_predict.runs(asked))
        result = queue_predict.predict(asked, lambda: progress.advance(task))
    table = render(predict_table.COLUMNS, predict_table.rows(result)) + predict_table.summary(result)
    folder = folder_for(asked.document, out, json, "-queue")
    if folder is not None:
        queue_predict.write(folder, result, table)
    typer.echo(to_json(result) if json else table, nl=False)
    if not json:
        typer.echo(f"{folder}: result.json, table.txt, throughput.png", err=True)


@command("fit", queue)
def queue_fit(
    series: Annotated[Path, typer.Argument(metavar="SERIES.csv", help="columns workers, steps_per_s and group keys")],
    upto: Annotated[int | None, typer.Option(min=1, metavar="W", help="fit no more workers; all unless said")] = None,
    predict: Annotated[int | None, typer.Option(metavar="W", help="predict up to; twice as many unless said")] = None,
    steps: Annotated[
        Path | None, typer.Option(metavar="STEPS.csv", help="phases of one worker's steps, to simulate more of it")
    ] = None,
    json: Json = False,
) -> None:
    """Find a server's demands in measured throughput, and predict it with more workers."""
    from scenarios import queue_fit_command
    from scenarios.run_folder import to_json

    result = queue_fit_command.fit_series(series, upto, predict, steps)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(render(*queue_fit_command.rows(result)), nl=False)
    typer.echo(queue_fit_command.summary(result), nl=False)
