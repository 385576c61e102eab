"""What a command says of a run on real processes, as keywords of `backends.torch.run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import Fault, ScenarioError

OPTIONS = {"oversubscribe": "allow-oversubscribe", "accelerator": "device"}
"""Options that are called otherwise than their keyword."""


def keywords(
    oversubscribe: bool = False,
    device: str | None = None,
    compute: str | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Only what was said.

    Raises
    ------
    ScenarioError : a value that is none, or that has no influence.
    """
    faults = device_faults(device) if device else []
    if compute not in (None, "real", "sleep"):
        faults.append(Fault(f"expected real or sleep, got '{compute}'", "--compute"))
    if resume and checkpoint is None:
        faults.append(Fault("has no influence without --checkpoint DIR", "--resume"))
    if faults:
        raise ScenarioError.of(faults)
    said: dict[str, Any] = {"oversubscribe": True} if oversubscribe else {}
    said |= {"accelerator": device} if device else {}
    said |= {"compute": compute} if compute else {}
    if checkpoint is not None:
        from backends.torch.servers import Checkpoint

        said["checkpoint"] = Checkpoint(checkpoint, resume=resume)
    return said


def device_faults(device: str) -> list[Fault]:
    """What is wrong with a ``--device``: no such kind, or none here."""
    if device not in ("cpu", "cuda"):
        return [Fault(f"expected cpu or cuda, got {device}", "--device")]
    if device == "cuda":
        from backends.torch.fingerprint import has_cuda

        if not has_cuda():
            return [Fault("there is no CUDA device here", "--device")]
    return []
