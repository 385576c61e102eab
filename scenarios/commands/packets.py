"""Commands: captured packets of parameter servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.terminal import File, Json, Sets, command, group, progress_bar, read_document, render
from sim.errors import ScenarioError

packets = group("packets", "Demands of parameter servers from captured packets.")


@command("read", packets)
def packets_read(
    capture: Annotated[str, typer.Argument(metavar="CAPTURE", help="pcap or pcapng; - is standard input")],
    server: Annotated[list[str] | None, typer.Option(metavar="HOST:PORT", help="a server; may be repeated")] = None,
    model_bytes: Annotated[int | None, typer.Option(metavar="N", help="what a step loads, as far as known")] = None,
    compute: Annotated[str | None, typer.Option(metavar="TIME", help="what a step computes, as far as known")] = None,
    each_connection: Annotated[
        bool, typer.Option("--each-connection", help="every connection is a worker, not every address")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="draw the time line there")] = None,
    yaml: Annotated[str | None, typer.Option(metavar="FILE", help="write a scenario with the demands")] = None,
    json: Json = False,
) -> None:
    """Steps of every worker and demands of every server from a capture."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    options = {"model_bytes": model_bytes, "compute": compute, "yaml": yaml}
    with progress_bar() as progress:
        size = Path(capture).stat().st_size if Path(capture).is_file() else None
        task = progress.add_task(Path(capture).name, total=size)
        result = packets_command.read_file(
            capture, server or (), options, each_connection, out, lambda more: progress.advance(task, more)
        )
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(render(packets_command.WORKER_COLUMNS, packets_command.worker_rows(result)), nl=False)
    typer.echo(render(packets_command.SERVER_COLUMNS, packets_command.server_rows(result)), nl=False)
    typer.echo(packets_command.summary(result), nl=False)


@command("capture", packets)
def packets_capture(
    file: File,
    sets: Sets = None,
    port: Annotated[int | None, typer.Option(help="of the servers; 2222 unless said")] = None,
    interface: Annotated[str | None, typer.Option(help="any unless said")] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="one node of the scenario")] = None,
    start: Annotated[bool, typer.Option("--run", help="start it here; needs --node")] = False,
    json: Json = False,
) -> None:
    """Print the command that captures the packets of a scenario, for each node."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    if start and node is None:
        raise ScenarioError("--run: which node is this? expected --node NAME")
    options = {"port": port, "interface": interface, "node": node}
    found = packets_command.commands(read_document(file, sets), options)
    if json:
        typer.echo(to_json(found), nl=False)
    else:
        for name, command in found.items():
            typer.echo(f"{name}: {packets_command.line(command)}")
    if start and node is not None:
        packets_command.capture(found[node])


@command("synthesize", packets)
def packets_synthesize(
    file: File,
    out: Annotated[str, typer.Option("--out", metavar="FILE.pcap", help="where to write")],
    sets: Sets = None,
    segment: Annotated[int | None, typer.Option(metavar="BYTES", help="payload of a packet; 1448 unless said")] = None,
    json: Json = False,
) -> None:
    """Write the capture that a simulated run would have produced."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    result = packets_command.synthesize(read_document(file, sets), {"out": out, "segment": segment})
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(f"{out}: {result['packets']:,} packets; read it with\n{result['read_with']}")
