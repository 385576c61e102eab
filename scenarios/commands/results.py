"""Commands: read what a sweep left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import Json, command
from sim.errors import ScenarioError


@command("results")
def results(
    where: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="a run folder of 'twinrail sweep', or its results.sqlite")
    ],
    sql: Annotated[
        str | None, typer.Option("--sql", help="a query on the table points, such as 'SELECT * FROM points'")
    ] = None,
    best: Annotated[
        str | None, typer.Option("--best", metavar="METRIC", help="the best points by a metric first")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
    json: Json = False,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="write a Parquet file")] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="X,Y[,METRIC]", help="a heat map over two axes, or lines of a metric over one"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="IMAGE", help="where to draw: .png, .svg or .pdf")
    ] = None,
) -> None:
    """Read the results of a sweep: a table, JSON, CSV, Parquet, a query, or a picture."""
    from scenarios import results_command
    from scenarios.results_read import Results

    if sum((csv, json, parquet is not None, plot is not None)) > 1:
        raise ScenarioError("give one of --csv, --json, --parquet and --plot")
    if sum((sql is not None, best is not None, plot is not None)) > 1:
        raise ScenarioError("give one of --sql, --best and --plot")
    if (plot is None) != (out is None):
        raise ScenarioError("--plot X,Y goes with --out IMAGE")
    with Results.opened(where) as found:
        if plot is not None and out is not None:
            results_command.plot(found, plot, out)
            typer.echo(f"{out} written", err=True)
            return
        metric = None if best is None else found.metric(best)
        if not (csv or json or parquet) and sql is None:
            typer.echo(
                results_command.first(found) if metric is None else results_command.best(found, metric), nl=False
            )
            return
        selected = found.select(sql) if sql is not None else found.rows() if metric is None else found.best(metric)
        if parquet is not None:
            results_command.write_parquet(selected, parquet)
            typer.echo(f"{parquet} written", err=True)
            return
        for part in results_command.printed(selected, csv, json):
            typer.echo(part, nl=False)
