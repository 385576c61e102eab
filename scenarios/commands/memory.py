"""Commands: PyTorch's memory snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import Json, command, group, render

memory = group("memory", "PyTorch's memory snapshots: replay and draw them.")


@command("replay", memory)
def memory_replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a snapshot of PyTorch's CUDA memory")],
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="key=value", help="what if; repeatable")] = None,
    capacity: Annotated[str | None, typer.Option(metavar="SIZE", help="what if on a GPU of, say, '16 GiB'")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="what other allocators would have needed")] = False,
    device: Annotated[int | None, typer.Option(min=0, help="which, where there are several")] = None,
    recorded_on: Annotated[str | None, typer.Option(metavar="SIZE", help="memory of the GPU recorded on")] = None,
    json: Json = False,
) -> None:
    """Play a recorded trace through the model of PyTorch's allocator and compare every address, segment and block."""
    from scenarios import memory_command
    from scenarios.run_folder import to_json

    given = {"capacity": capacity, "recorded_on": recorded_on}
    result = memory_command.replay_file(file, given, sets or (), device, compare)
    if json:
        typer.echo(to_json(result), nl=False)
    else:
        typer.echo(render(["replayed", "checked", "matched"], memory_command.rows(result)), nl=False)
        typer.echo(memory_command.summary(result), nl=False)
    if not memory_command.agrees(result):
        raise typer.Exit(1)


@command("plot", memory)
def memory_plot(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a memory snapshot, or a trace of a run (.npz)")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="the image: .png, .svg or .pdf")] = "memory.png",
    device: Annotated[int | None, typer.Option(min=0, help="which, where there are several")] = None,
) -> None:
    """Draw memory over time by category, allocated and reserved, and the map of segments at the peak."""
    from scenarios import memory_command

    memory_command.plot_file(file, Path(out), device)
    typer.echo(f"{out} written", err=True)


@command("snapshot", memory)
def memory_snapshot(
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="the trace of a run with allocator: caching (.npz)")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="the snapshot")] = "snapshot.pickle",
) -> None:
    """Write a simulated run as a snapshot that PyTorch's memory viewer (pytorch.org/memory_viz) opens."""
    from scenarios import memory_command

    memory_command.write_snapshot(file, Path(out))
    typer.echo(f"{out} written", err=True)
