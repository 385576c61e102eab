"""The peak of a training step under a checkpoint plan, as PyTorch has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from backends.torch.checkpointed import Checkpointed
from backends.torch.live_bytes import step
from backends.torch.modules import build
from backends.torch.workspaces import Workspace
from sim.architecture import Entry, Operation
from sim.checkpointing.plan import Plan
from sim.liveness import Mode
from sim.memory.history import LASTING, History
from sim.training import Optimizer

OPTIMIZERS: dict[Optimizer, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


class Measured(NamedTuple):
    """Most live bytes of a step, those without weights, their gradients and the optimizer's state, and how found.

    ``reserved_bytes`` is what the allocator of a GPU had taken.
    """

    bytes: int
    activation_bytes: int
    reserved_bytes: int | None
    how: str


def measure(
    vertices: Sequence[Sequence[Entry]],
    batch: int,
    plan: Plan,
    mode: Mode = "non_reentrant",
    optimizer: Optimizer = "sgd",
) -> Measured:
    """On a GPU where there is one; else by counting storages on the meta device, where a full batch takes no memory."""
    if torch.cuda.is_available():
        return _on_gpu(vertices, batch, plan, mode, optimizer)
    history = count(vertices, batch, plan, mode, optimizer)
    how = f"live storages of PyTorch {torch.__version__} on the meta device"
    return Measured(history.peak().bytes, history.peak(LASTING).bytes, None, how)


def count(
    vertices: Sequence[Sequence[Entry]],
    batch: int,
    plan: Plan,
    mode: Mode = "non_reentrant",
    optimizer: Optimizer = "sgd",
    device: str = "meta",
    workspace: Workspace | None = None,
) -> History:
    """The history of a step on the CPU or on the meta device; the optimizer has its state already."""
    with torch.device(device):
        module, inputs, targets, update = _prepared(vertices, batch, plan, mode, optimizer)
        return step(module, inputs, targets, update, workspace)


def count_flops(vertices: Sequence[Sequence[Entry]], batch: int, plan: Plan, mode: Mode = "non_reentrant") -> int:
    """Floating-point operations of forward and backward, what is recomputed among them, as PyTorch counts them."""
    with torch.device("meta"):
        module, inputs, targets, _ = _prepared(vertices, batch, plan, mode, "sgd")
        with FlopCounterMode(display=False) as counter:
            cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def _prepared(
    vertices: Sequence[Sequence[Entry]], batch: int, plan: Plan, mode: Mode, optimizer: Optimizer
) -> tuple[nn.Module, Tensor, Tensor, torch.optim.Optimizer]:
    """Modules, a batch of zeros, and an optimizer that has made a step."""
    module = Checkpointed(nn.Sequential(*(build(vertex) for vertex in vertices)), plan, mode)
    first = vertices[0][0]
    words = isinstance(first, Operation) and first.kind == "embedding"
    inputs = torch.zeros(batch, *first.arriving, dtype=torch.long if words else torch.float)
    update = OPTIMIZERS[optimizer](module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update.step()
    update.zero_grad()
    return module, inputs, torch.zeros(batch, dtype=torch.long), update


def _on_gpu(vertices: Sequence[Sequence[Entry]], batch: int, plan: Plan, mode: Mode, optimizer: Optimizer) -> Measured:
    with torch.device("cuda"):
        module, inputs, targets, update = _prepared(vertices, batch, plan, mode, optimizer)
        for _ in range(2):  # the first step makes handles and workspaces that stay
            update.zero_grad()
            torch.cuda.reset_peak_memory_stats()
            cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
            update.step()
    peak = torch.cuda.max_memory_allocated()
    lasting = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    lasting += sum(weight.grad.nbytes for weight in module.parameters() if weight.grad is not None)
    lasting += sum(value.nbytes for state in update.state.values() for value in state.values() if value.is_cuda)
    how = f"torch.cuda.max_memory_allocated of PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"
    return Measured(peak, peak - lasting, torch.cuda.memory_reserved(), how)
