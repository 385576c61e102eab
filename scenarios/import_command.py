"""What other tools wrote, as files that scenarios use: clusters and models."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from scenarios import kineto, kineto_profile, topology
from scenarios.kineto_step import Layer
from scenarios.load import dump
from scenarios.profile_command import seconds
from scenarios.quantities import BANDWIDTH, SIZE, TIME, WrongValue, format_bytes, printable
from scenarios.run_folder import writing
from scenarios.text_file import read_text
from sim.errors import Fault, ScenarioError, nearest
from sim.training import Optimizer

_MOST_BYTES = 16 << 20
_OPTIMIZERS = {"SGD": ("sgd", "momentum"), "Adam": ("adam",), "AdamW": ("adamw",)}
"""What PyTorch's optimizers are here; a trace does not say whether SGD has momentum."""
MODEL_COLUMNS = ("layer", "forward (ms)", "backward (ms)", "output", "saved", "parameters")


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


def model(file: Path, batch: int, optimizer: str | None, opened: Collection[str]) -> dict[str, Any]:
    """A model file (`scenarios.measured.ModelFile`) from a trace of PyTorch's profiler of steps of ``batch`` samples.

    Raises
    ------
    ScenarioError : every fault of the file, everything it lacks, or options that do not fit it.
    """
    recording, name = kineto.read(file), printable(file.name)
    found = kineto_profile.profile(recording, opened)
    took = f"median of {found.steps} steps" if found.steps > 1 else "one step"
    own = _optimizer(found.optimizer, optimizer)
    kept = "bytes allocated in its forward pass that stay" if recording.memory else "its output"
    assumed = [
        "backward: half is the input gradient and half the weight gradient, where a layer has parameters",
        f"saved: {kept}" + ("" if recording.memory else ", for want of profile_memory=True"),
        "parameters: every leaf tensor that got a gradient",
        "output: each layer passes its last result to the next and to no other",
        *([f"optimizer: {found.optimizer} counts as {own}"] if found.optimizer not in _OPTIMIZERS else ()),
        *([f"kernels of NCCL: left out ({found.nccl}), links take their time"] if found.nccl else ()),
    ]
    return {
        "name": re.sub(r"[^\w-]", "_", name.partition(".")[0])[:100] or "model",
        "source": f"trace {name} of torch.profiler, {took}",
        "assumed": assumed,
        "batch": batch,
        "dtype": found.dtype,
        "optimizer": own,
        "update": seconds(found.update_us / 1e6),
        "machine": {"device": recording.device},
        "input": f"{found.input_bytes} B",
        "layers": [_layer(layer) for layer in found.layers],
    }


def _optimizer(found: str, given: str | None) -> str:
    """The optimizer of a trace in our words, of which ``given`` picks where they differ in what a trace hides."""
    choices = _OPTIMIZERS.get(found, get_args(Optimizer))
    if given in choices or (given is None and len(choices) == 1):
        return given or choices[0]
    message = f"the trace has {found}: expected {' or '.join(choices)}"
    raise ScenarioError.of([Fault(message, "--optimizer", suggestion=nearest(given or "", choices))])


def _layer(layer: Layer) -> dict[str, str]:
    """As `scenarios.schema.Layer` describes; a layer without parameters has no weight gradient."""
    weight_us = layer.backward_us / 2 if layer.parameters else 0.0
    saved = {} if layer.saved_bytes is None else {"saved": f"{layer.saved_bytes} B"}
    return {
        "name": layer.name,
        "forward": seconds(layer.forward_us / 1e6),
        "backward_input": seconds((layer.backward_us - weight_us) / 1e6),
        "backward_weight": seconds(weight_us / 1e6),
        "output": f"{layer.output_bytes} B",
        **saved,
        "parameters": f"{layer.parameter_bytes} B",
    }


def model_rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The layers of a model file for people."""

    def row(layer: Mapping[str, str]) -> tuple[str, ...]:
        forward, *backward = (TIME.read(layer[key]) for key in ("forward", "backward_input", "backward_weight"))
        sizes = (
            format_bytes(SIZE.read(layer[key])) if key in layer else "" for key in ("output", "saved", "parameters")
        )
        return layer["name"], f"{forward * 1e3:.4g}", f"{sum(backward) * 1e3:.4g}", *sizes

    return [row(layer) for layer in content["layers"]]


def write(content: Mapping[str, Any], out: Path) -> None:
    """Write what was imported as YAML.

    Raises
    ------
    ScenarioError : it cannot be written.
    """
    with writing(out.parent):
        out.write_text(dump(content), encoding="utf-8")
