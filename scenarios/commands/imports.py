"""Commands: what other tools wrote, as files that scenarios use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.terminal import Json, command, group

imports = group("import", "Clusters and models from the files of other tools.")

Source = Annotated[Path, typer.Argument(metavar="FILE", help="what the other tool wrote")]
Yaml = Annotated[Path, typer.Option("--out", metavar="FILE.yaml", help="what to write")]
Device = Annotated[str, typer.Option(metavar="NAME", help="the GPU, such as h100: twinrail list devices")]
Nvlink = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="of one NVLink; what NCCL counts unless said")]
Pcie = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="of each PCI Express link")]
System = Annotated[str | None, typer.Option(metavar="BANDWIDTH", help="between sockets")]


@command("topo", imports)
def topo(
    file: Source,
    device: Device,
    out: Yaml,
    nvlink: Nvlink = None,
    pcie: Pcie = None,
    system: System = None,
    json: Json = False,
) -> None:
    """A cluster from the output of nvidia-smi topo -m."""
    _cluster("topo", file, device, out, {"nvlink": nvlink, "pcie": pcie, "system": system}, json)


@command("nccl", imports)
def nccl(
    file: Source,
    device: Device,
    out: Yaml,
    nvlink: Nvlink = None,
    pcie: Pcie = None,
    system: System = None,
    json: Json = False,
) -> None:
    """A cluster from the XML that NCCL writes to NCCL_TOPO_DUMP_FILE."""
    _cluster("nccl", file, device, out, {"nvlink": nvlink, "pcie": pcie, "system": system}, json)


def _cluster(kind: str, file: Path, device: str, out: Path, given: dict[str, str | None], json: bool) -> None:
    from scenarios import import_command

    found = import_command.cluster(kind, file, device, given)
    import_command.write(found, out)
    kinds = [node["kind"] for node in found["nodes"]]
    counted = {f"{kind}s": kinds.count(kind) for kind in ("gpu", "host", "switch")}
    _tell({"file": str(out), **counted, "links": len(found["links"]), "source": found["source"]}, json)


def _tell(found: dict[str, Any], json: bool) -> None:
    from scenarios.run_folder import to_json

    told = f"{found['file']} written: {', '.join(f'{value} {key}' for key, value in found.items() if key != 'file')}"
    typer.echo(to_json(found) if json else told, nl=not json)
