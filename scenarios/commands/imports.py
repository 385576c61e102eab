"""Commands: what other tools wrote, as files that scenarios use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.terminal import Json, command, group, render

imports = group("import", "Clusters and models from the files of other tools.")

Source = Annotated[Path, typer.Argument(metavar="FILE", help="what the other tool wrote")]
Yaml = Annotated[Path, typer.Option("--out", metavar="FILE.yaml", help="what to write")]
Device = Annotated[str, typer.Option(metavar="NAME", help="the GPU, such as h100: twinrail list devices")]
Nvlink = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="of one NVLink; what NCCL counts unless said")]
Pcie = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="of each PCI Express link")]
System = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="between sockets")]


def _cluster(kind: str, what: str) -> None:
    """Register ``twinrail import KIND``."""

    def read(
        file: Source,
        device: Device,
        out: Yaml,
        nvlink: Nvlink = None,
        pcie: Pcie = None,
        system: System = None,
        json: Json = False,
    ) -> None:
        from scenarios import import_command

        found = import_command.cluster(kind, file, device, {"nvlink": nvlink, "pcie": pcie, "system": system})
        import_command.write(found, out)
        kinds = [node["kind"] for node in found["nodes"]]
        counted = {f"{kind}s": kinds.count(kind) for kind in ("gpu", "host", "switch")}
        _tell({"file": str(out), **counted, "links": len(found["links"]), "source": found["source"]}, json)

    read.__doc__ = what
    command(kind, imports)(read)


_cluster("topo", "A cluster from the output of nvidia-smi topo -m.")
_cluster("nccl", "A cluster from the XML that NCCL writes to NCCL_TOPO_DUMP_FILE.")


@command("kineto", imports)
def kineto(
    file: Source,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="samples of a step, which a trace does not say")],
    out: Yaml,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="sgd or momentum, where it is PyTorch's SGD")
    ] = None,
    opened: Annotated[
        list[str] | None,
        typer.Option(
            "--open", metavar="CLASS", help="modules whose children are layers, as nn.Sequential's; may be repeated"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """A model from a trace of PyTorch's profiler: layers, seconds, bytes, for 'model.file' of a scenario."""
    from scenarios import import_command

    found = import_command.model(file, batch, optimizer, opened or ())
    import_command.write(found, out)
    if json:
        _tell({"file": str(out), **found}, json)
        return
    typer.echo(render(import_command.MODEL_COLUMNS, import_command.model_rows(found)), nl=False)
    counted = {"layers": len(found["layers"]), "update": found["update"], "source": found["source"]}
    _tell({"file": str(out), **counted}, json)
    typer.echo("".join(f"assumed: {each}\n" for each in found["assumed"]), err=True, nl=False)


def _tell(found: dict[str, Any], json: bool) -> None:
    from scenarios.run_folder import to_json

    told = f"{found['file']} written: {', '.join(f'{value} {key}' for key, value in found.items() if key != 'file')}"
    typer.echo(to_json(found) if json else told, nl=not json)
