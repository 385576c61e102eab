"""``twinrail profile``: what the layers of a model take on this machine, as a file that scenarios name."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from scenarios import measured
from scenarios.architecture import shipped_architecture
from scenarios.load import shipped
from scenarios.profiles import shipped_table
from scenarios.quantities import shown
from scenarios.real_run import device_faults
from sim.errors import Fault, ScenarioError, nearest
from sim.model import DTYPE_BYTES, LayerTable
from sim.training import Optimizer, Training

if TYPE_CHECKING:
    from backends.torch.job import Accelerator
    from backends.torch.profiler import Profile

COLUMNS = ("layer", "forward (ms)", "input gradient (ms)", "weight gradient (ms)")


def profile(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure ``model``, a shipped one or ``module:factory``, and what a link between two processes does.

    Raises
    ------
    ScenarioError : no such model, options that do not fit, no PyTorch.
    """
    _check(model, options)
    if options["analytic"]:
        return analytic(model, options["batch"])
    from backends.torch import ping_pong

    training = Training(options["optimizer"])
    found = (_own if ":" in model else _shipped)(model, options, training)
    if options["link"]:
        link = ping_pong.measure()
        found["link"] = {"latency": seconds(link.latency_s), "bandwidth": f"{link.bytes_per_s:.6g} B/s"}
    return found


def _check(model: str, options: Mapping[str, Any]) -> None:
    faults: list[Fault] = []
    if ":" not in model and model not in (names := [*shipped("models")]):
        faults.append(Fault(f"no model '{model}'", "MODEL", suggestion=nearest(model, names) or "module:factory"))
    if ":" in model and options["analytic"]:
        faults.append(Fault("only of shipped models", "--analytic"))
    if (":" in model) != (options["input"] is not None):
        faults.append(Fault("goes with module:factory, as 3,224,224", "--input"))
    if options["optimizer"] not in (known := get_args(Optimizer)):
        faults.append(
            Fault(f"expected {', '.join(known)}", "--optimizer", suggestion=nearest(options["optimizer"], known))
        )
    counts = {name: options[name] for name in ("batch", "repeats")}
    faults += [
        Fault(f"expected a count from 1, got {count}", f"--{name}") for name, count in counts.items() if count < 1
    ]
    if importlib.util.find_spec("torch") is None and not options["analytic"]:
        faults.append(Fault("measuring needs PyTorch", "profile", suggestion="pip install twinrail[torch]"))
    if options["input"] is not None and not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5}){0,3}", options["input"]):
        faults.append(Fault(f"expected sizes such as 3,224,224, got {shown(options['input'])}", "--input"))
    faults += device_faults(options["device"])
    if faults:
        raise ScenarioError.of(faults)


def seconds(value_s: float) -> str:
    """Seconds as a profile file has them."""
    return f"{value_s * 1e3:.6g} ms"


def analytic(model: str, batch: int) -> dict[str, Any]:
    """Flops and bytes of every layer of a shipped model, without running it."""
    size, table = DTYPE_BYTES["fp32"], shipped_table(model)
    layers = [
        {
            "name": work.name,
            "flops": work.forward_flops * batch,
            "output_bytes": work.output_elements * batch * size,
            "saved_bytes": work.saved * batch * size,
            "parameter_bytes": work.parameter_elements * size,
        }
        for work in table.layers
    ]
    return {"model": model, "batch": batch, "dtype": "fp32", "layers": layers}


def _shipped(model: str, options: Mapping[str, Any], training: Training) -> dict[str, Any]:
    from backends.torch.profiler import profile_shipped

    device = cast("Accelerator", options["device"])
    found = profile_shipped(shipped_architecture(model), options["batch"], training, options["repeats"], device)
    return content(model, options["batch"], training, found, shipped_table(model))


def content(model: str, batch: int, training: Training, found: Profile, table: LayerTable) -> dict[str, Any]:
    """What `scenarios.measured.MeasuredFile` describes."""
    layers = [{"name": work.name, **_passes(layer)} for work, layer in zip(table.layers, found.layers, strict=True)]
    return {"model": model, "batch": batch, "dtype": "fp32", **_common(found, training), "layers": layers}


def _common(found: Profile, training: Training) -> dict[str, Any]:
    return {
        "optimizer": training.optimizer,
        "update": seconds(found.update.median_s),
        "overlap_gain": round(found.overlap_gain, 3),
        "machine": found.fingerprint,
    }


def _passes(layer: Any) -> dict[str, Any]:
    return {
        **{name: seconds(getattr(layer, name).median_s) for name in layer._fields},
        "quartiles": [[seconds(each.low_s), seconds(each.high_s)] for each in layer],
    }


def _own(model: str, options: Mapping[str, Any], training: Training) -> dict[str, Any]:
    """A module of the user's as `scenarios.measured.ModelFile` describes, every child of its a layer."""
    from backends.torch.own_model import profile_own

    sample, device = tuple(int(part) for part in options["input"].split(",")), cast("Accelerator", options["device"])
    found = profile_own(model, sample, options["batch"], training, options["repeats"], device)
    layers = [
        {
            "name": name,
            **{key: value for key, value in _passes(layer).items() if key != "quartiles"},
            "output": f"{leaving} B",
            "saved": f"{saved} B",
            "parameters": f"{parameters} B",
        }
        for (name, leaving, saved, parameters), layer in zip(found.layers, found.profile.layers, strict=True)
    ]
    return {
        "name": model,
        "source": f"twinrail profile {model}",
        "batch": options["batch"],
        "dtype": "fp32",
        **_common(found.profile, training),
        "input": f"{found.input_bytes} B",
        "layers": layers,
    }


def rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The layers of a profile for people."""
    passes = ("forward", "backward_input", "backward_weight")
    return [(layer["name"], *(layer[name].removesuffix(" ms") for name in passes)) for layer in content["layers"]]


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the profile file."""
    measured.write(path, dict(content))
