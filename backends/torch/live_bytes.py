"""Live bytes of real tensors, exactly: every storage that an operation brings to life, until PyTorch lets go of it.

What the kernels allocate for themselves while they run is invisible here, as are segments and fragmentation. On the
meta device, where tensors have no data, the same operations bring the same storages to life, so that a full batch
costs no memory.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ACTIVATIONS = "activations"
"""The category of what has no other: outputs, what autograd saves, gradients of outputs."""


class Change(NamedTuple):
    """A storage came to life (``sign`` 1) or died (−1); ``after`` counts the operations that had ended before."""

    after: int
    sign: int
    storage: int


@dataclass
class History:
    """All that happened: operations by name, bytes and category of each storage, and the changes in order."""

    operations: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    categories: dict[int, str] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def peak(self, without: Iterable[str] = ()) -> Peak:
        """The most bytes that were ever alive, storages of some categories left out."""
        left_out, live, held = set(without), 0, Counter[str]()
        best = Peak(0, "", {})
        for after, sign, storage in self.changes:
            category = self.categories.get(storage, ACTIVATIONS)
            if category in left_out:
                continue
            live += sign * self.sizes[storage]
            held[category] += sign * self.sizes[storage]
            if live > best.bytes:
                name = self.operations[after - 1] if after else "start"
                best = Peak(live, name, {key: size for key, size in held.items() if size})
        return best


class Peak(NamedTuple):
    """Most live bytes, the operation that brought them, and what they were by category."""

    bytes: int
    operation: str
    consists_of: Mapping[str, int]


class LiveBytes(TorchDispatchMode):
    """Keeps the history of every storage that operations under it touch.

    What was alive before counts from the moment it is `name`d or first comes out of an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and take note of what came out."""
        result = func(*args, **(kwargs or {}))
        self.history.operations.append(str(func))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._meet(tensor)
        return result

    def name(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say what tensors are for; also afterwards, as long as they live."""
        for tensor in tensors:
            self.history.categories[self._meet(tensor)] = category

    def _meet(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, new where it was never seen."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            number = len(self.history.sizes)
            self.history.sizes.append(storage.nbytes())
            self._note(1, number)
            self._alive[key] = number, weakref.ref(storage, self._at_death(key, number))
        return self._alive[key][0]

    def _at_death(self, key: int, number: int) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            del self._alive[key]
            self._note(-1, number)

        return note

    def _note(self, sign: int, storage: int) -> None:
        self.history.changes.append(Change(len(self.history.operations), sign, storage))


def step(
    module: torch.nn.Module, batch: Tensor, target: Tensor, optimizer: torch.optim.Optimizer | None = None
) -> History:
    """What lived and died in one training step: forward, cross-entropy, backward and, if given, the update.

    Gradients start as ``None``, as ``zero_grad`` leaves them. Optimizer state that exists counts from the start.
    """
    with LiveBytes() as live:
        live.name([*module.parameters(), *module.buffers()], "weights")
        live.name([batch, target], "input")
        if optimizer is not None:
            states = [value for state in optimizer.state.values() for value in state.values()]
            live.name([value for value in states if isinstance(value, Tensor)], "optimizer")
        torch.nn.functional.cross_entropy(module(batch), target).backward()
        live.name([weight.grad for weight in module.parameters() if weight.grad is not None], "gradients")
        if optimizer is not None:
            optimizer.step()
    return live.history
