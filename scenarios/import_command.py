"""What other tools wrote, as files that scenarios use: clusters and models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios import topology
from scenarios.load import dump
from scenarios.quantities import BANDWIDTH, WrongValue
from scenarios.run_folder import writing
from scenarios.text_file import read_text
from sim.errors import Fault, ScenarioError, nearest

_MOST_BYTES = 16 << 20


def cluster(kind: str, file: Path, device: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    """A cluster file from ``nvidia-smi topo -m`` (``topo``) or NCCL's dump (``nccl``).

    Raises
    ------
    ScenarioError : every fault of the file, each with its line, or of the options.
    """
    faults, speeds = list[Fault](), dict[str, float]()
    if device not in topology.GENERATIONS:
        hint = nearest(device, topology.GENERATIONS) or f"known: {', '.join(topology.GENERATIONS)}"
        faults.append(Fault(f"unknown GPU '{device}'", "--device", suggestion=hint))
    for what, value in given.items():
        try:
            speeds |= {what: BANDWIDTH.read(value)} if value is not None else {}
        except WrongValue as error:
            faults.append(Fault(str(error), f"--{what}", suggestion=error.suggestion))
    if faults:
        raise ScenarioError.of(faults)
    what = "the output of nvidia-smi topo -m" if kind == "topo" else "an NCCL topology in XML"
    text, known = read_text(file, what, _MOST_BYTES), topology.Speeds(**speeds)
    if kind == "topo":
        return topology.from_matrix(topology.read_matrix(text, str(file)), file.stem, device, known)
    return topology.from_xml(topology.read_xml(text, str(file)), str(file), file.stem, device, known)


def write(content: Mapping[str, Any], out: Path) -> None:
    """Write what was imported as YAML.

    Raises
    ------
    ScenarioError : it cannot be written.
    """
    with writing(out.parent):
        out.write_text(dump(content), encoding="utf-8")
