"""What machine and software a measurement is from."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from backends.torch.job import Accelerator, TransportName


def fingerprint(device: str = "cpu") -> dict[str, str]:
    """Processor, cores or GPU, and the versions that decide how fast PyTorch is."""
    found = {
        "cpu": cpu(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": _torch_version(),
    }
    if device == "cuda" and has_cuda():
        import torch

        found |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found


def _torch_version() -> str:
    """As its package says: importing it takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def has_cuda() -> bool:
    """Whether there is PyTorch, and a GPU that it can use."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def device_of(accelerator: Accelerator, rank: int) -> torch.device:
    """Where a rank computes: of several GPUs on one of its own, as long as there are enough."""
    import torch

    if accelerator != "cuda":
        return torch.device(accelerator)
    return torch.device("cuda", rank % torch.cuda.device_count())


def transport_of(accelerator: Accelerator, ranks: int) -> TransportName:
    """How tensors travel: over nccl where each rank has a GPU of its own, for it refuses two on one; else over gloo.

    Of several machines torchrun says how many ranks are here.
    """
    if accelerator != "cuda":
        return "gloo"
    import torch

    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return "nccl" if torch.cuda.device_count() >= here and torch.distributed.is_nccl_available() else "gloo"


def gpus(ranks: int) -> str:
    """The GPUs that so many ranks share in turn; several on one are time-sliced, which no cluster is."""
    import torch

    count = torch.cuda.device_count()
    shared = f", {ranks} ranks time-sliced" if ranks > count else ""
    return f"{min(ranks, count)} × {torch.cuda.get_device_name()}{shared}"


def cpu() -> str:
    """The name of the processor model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
