"""Commands: cut a measured profile into stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import Json, command, render


@command("partition")
def partition(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="a graph.txt of PipeDream's profiler")],
    machines: Annotated[int, typer.Option(metavar="N", help="machines, all of which are used")],
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="between machines, such as '12 GB/s'")],
    transfers: Annotated[str, typer.Option(help="include or ignore activations and their gradients")] = "include",
    sync: Annotated[str, typer.Option(help="compute and gradients of replicas: sum (as released) or max")] = "sum",
    straight: Annotated[bool, typer.Option("--straight", help="one machine a stage")] = False,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="of a machine, such as '16 GB'")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="draw the graph, stages in colour: .png")] = None,
    json: Json = False,
) -> None:
    """Cut a measured profile into stages and replicate them, as PipeDream does."""
    from scenarios import partition_command
    from scenarios.run_folder import to_json

    options = {"machines": machines, "bandwidth": bandwidth, "transfers": transfers, "sync": sync}
    options |= {"straight": straight, "memory": memory, "plot": plot}
    result = partition_command.partition_profile(profile, options)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(render(partition_command.COLUMNS, partition_command.rows(result)), nl=False)
    typer.echo(partition_command.summary(result), nl=False)
