"""Live bytes of real tensors, exactly: every storage that an operation brings to life, until PyTorch lets go of it.

What kernels allocate for themselves while they run is invisible here unless it is told (`backends.torch.workspaces`),
as are segments and fragmentation. On the meta device, where tensors have no data, the same operations bring the same
storages to life, so that a full batch costs no memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backends.torch.workspaces import Workspace
from sim.memory.history import ACTIVATIONS, GRADIENTS, INPUT, OPTIMIZER, WEIGHTS, WORKSPACE, History
from sim.memory.rules import Tag


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the history of every storage that operations under it touch.

    What was alive before counts from the moment it is `name`d or first comes out of an operation. ``workspace`` says
    what kernels take while they run.
    """

    def __init__(self, workspace: Workspace | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.history, self._workspace = History(), workspace
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and take note of what came out."""
        self.history.operations.append(str(func))
        result = args[0].add_(args[1]) if _adds_in_place(func, args) else func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default and result[3].is_meta:
            result = *result[:3], _of_recurrence(args)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._meet(tensor, ACTIVATIONS)
        if self._workspace is not None and (taken := self._workspace(func, args, result)):
            self.history.dies(self.history.born(taken, WORKSPACE))
        return result

    def name(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say what tensors are for; also afterwards, as long as they live."""
        for tensor in tensors:
            self.history.tags[self._meet(tensor, category)] = Tag(category)

    def _meet(self, tensor: Tensor, category: str) -> int:
        """The number of a tensor's storage, new where it was never seen."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            number = self.history.born(storage.nbytes(), category)
            self._alive[key] = number, weakref.ref(storage, self._at_death(key, number))
        return self._alive[key][0]

    def _at_death(self, key: int, number: int) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            del self._alive[key]
            self.history.dies(number)

        return note


def _adds_in_place(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether backward would add this gradient to one that is there in place, were no one looking.

    Under any dispatch mode autograd adds out of place (``isTensorSubclassLike``), which would count a tensor too many.
    Else it adds in place if nothing else refers to the first gradient: no more, that is, than to the one just made.
    """
    if func is not torch.ops.aten.add.Tensor or torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0:
        return False
    first, second = args[:2]
    return bool(first.dtype == second.dtype and _references(first) <= _references(second))


def _of_recurrence(args: tuple[Any, ...]) -> Tensor:
    """What oneDNN keeps of a recurrent layer for its backward: PyTorch's meta kernel leaves it empty."""
    shapes = tuple(tuple(each.shape) if isinstance(each, Tensor) else each for each in args[:7])
    return torch.empty(_recurrent_bytes(shapes, *args[7:8], *args[9:]), dtype=torch.uint8, device="meta")


@cache
def _recurrent_bytes(shapes: tuple[tuple[int, ...], ...], reverse: bool, *how: Any) -> int:
    """Only oneDNN knows: it is asked, once for each shape."""
    tensors = [torch.zeros(shape, device="cpu") for shape in shapes]
    found = torch.ops.aten.mkldnn_rnn_layer(*tensors, reverse, [], *how)
    return int(found[3].untyped_storage().nbytes())


def _references(tensor: Tensor) -> int:
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return int(tensor._use_count() + storage - tensor._is_view())  # type: ignore[attr-defined]


def step(
    module: nn.Module,
    batch: Tensor,
    target: Tensor,
    optimizer: torch.optim.Optimizer | None = None,
    workspace: Workspace | None = None,
) -> History:
    """What lived and died in one training step: forward, cross-entropy, backward and, if given, the update.

    Gradients start as ``None``, as ``zero_grad`` leaves them. Optimizer state that exists counts from the start.
    """
    with LiveBytes(workspace) as live:
        live.name([*module.parameters(), *module.buffers()], WEIGHTS)
        live.name([batch, target], INPUT)
        if optimizer is not None:
            states = [value for state in optimizer.state.values() for value in state.values()]
            live.name([value for value in states if isinstance(value, Tensor)], OPTIMIZER)
        cross_entropy(module(batch), target).backward()  # type: ignore[no-untyped-call]
        live.name([weight.grad for weight in module.parameters() if weight.grad is not None], GRADIENTS)
        if optimizer is not None:
            optimizer.step()
    history: History = live.history
    return history
