"""Commands: choose what to keep and what to recompute."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.terminal import Json, command, render


@command("checkpoint")
def checkpoint(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="a shipped model, a model file, or graph.txt")
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="d0,d1,…", help="bytes of y_0…y_n, instead of a model")] = None,
    objective: Annotated[str | None, typer.Option(help="basic, corrected, reentrant or non_reentrant")] = None,
    budget: Annotated[str | None, typer.Option(metavar="SIZE", help="least time within '8GiB', not least peak")] = None,
    batch: Annotated[int | None, typer.Option(help="samples; 32 unless said")] = None,
    shape: Annotated[str | None, typer.Option(metavar="3,224,224", help="of a sample, if not the model's")] = None,
    ends: Annotated[str | None, typer.Option(help="whether y_0 and y_n count: counted or not")] = None,
    granularity: Annotated[str | None, typer.Option(help="plain, standalone_pool or operation")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw")] = None,
    platform: Annotated[str | None, typer.Option(help="whose PyTorch: cpu or cuda")] = None,
    device: Annotated[str | None, typer.Option(help="whose seconds: a shipped device; p40 unless said")] = None,
    nested: Annotated[bool, typer.Option("--nested", help="let what is run again be checkpointed in turn")] = False,
    offload: Annotated[str | None, typer.Option(metavar="RATE", help="nested, and inputs may wait in the host")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="print other plans beside it")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="set what PyTorch holds beside it")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="write the plan: .yaml or .json")] = None,
    json: Json = False,
) -> None:
    """Find which activations to keep and which to recompute: the least peak, or the least time within a budget."""
    from scenarios import checkpoint_command
    from scenarios.run_folder import to_json

    options = {"model": model, "sizes": sizes, "objective": objective, "budget": budget, "batch": batch, "ends": ends}
    options["shape"] = shape
    options |= {"granularity": granularity, "optimizer": optimizer, "platform": platform, "device": device}
    options |= {"nested": nested, "offload": offload, "measure": measure, "out": out}
    result = checkpoint_command.solve(options)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    if compare:
        typer.echo(render(checkpoint_command.COLUMNS, checkpoint_command.rows(result)), nl=False)
    typer.echo(checkpoint_command.summary(result), nl=False)
