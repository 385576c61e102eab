"""Commands: find the best plan, and explain a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import File, Json, Sets, command, progress_bar, read_document, render


@command("plan")
def plan(
    file: File,
    sets: Sets = None,
    objective: Annotated[str, typer.Option(help="the best by what: throughput, memory or staleness")] = "throughput",
    max_staleness: Annotated[int | None, typer.Option(metavar="N", help="updates that a pass may miss")] = None,
    top: Annotated[int, typer.Option(metavar="K", help="how many plans to rank")] = 5,
    jobs: Annotated[int, typer.Option(metavar="N", help="processes to simulate on")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="write the best plan as a scenario")] = None,
    json: Json = False,
) -> None:
    """Find the best plan for a scenario's model on its cluster: schedule, stages, replicas, partition, checkpoints."""
    from scenarios import plan_command
    from scenarios.plan_search import Options
    from scenarios.run_folder import to_json

    document = read_document(file, sets)
    options = Options(objective, max_staleness, top, jobs)  # type: ignore[arg-type]  # checked there
    with progress_bar() as bar:
        task = bar.add_task("making candidates", total=None)

        def show(settled: int, of: int, fastest: float) -> None:
            best = f"candidates settled, best so far {fastest:.4g} samples/s"
            bar.update(task, completed=settled, total=of, description=best)

        found = plan_command.plan(document, options, show)
    table = render(plan_command.COLUMNS, plan_command.rows(found)) + plan_command.summary(found)
    if out is not None:
        plan_command.write(out, document, found, table)
    typer.echo(to_json(found) if json else table, nl=False)
    if out is not None and not json:
        typer.echo(f"{out}: scenario.yaml (the best plan: twinrail run), plan.json", err=True)


@command("explain")
def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    point: Annotated[str | None, typer.Option(metavar="NAME", help="one point of a sweep; all unless said")] = None,
    json: Json = False,
) -> None:
    """Explain a run: its critical path, the share of each cause, and what faster hardware would give."""
    from scenarios import explain_command
    from scenarios.run_folder import to_json

    found = explain_command.explain(folder, point)
    if json:
        typer.echo(to_json(found), nl=False)
        return
    for each in found["points"]:
        typer.echo(explain_command.summary(each), nl=False)
        typer.echo(render(explain_command.COLUMNS, explain_command.rows(each)), nl=False)
        if each["sensitivities"]:
            shown = explain_command.sensitivity_rows(each)
            typer.echo(render(explain_command.sensitivity_columns(each), shown), nl=False)
    for name, error in found["failed"].items():
        typer.echo(f"{name} failed: {error}")
