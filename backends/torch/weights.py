"""The parameters of one copy of a stage: their versions, their optimizer, and where updates will have taken them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from sim.errors import BrokenInvariant
from sim.training import Training

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], Training], torch.optim.Optimizer]] = {
    "sgd": lambda tensors, training: torch.optim.SGD(tensors, lr=training.learning_rate),
    "momentum": lambda tensors, training: torch.optim.SGD(
        tensors, lr=training.learning_rate, momentum=training.momentum
    ),
    "adam": lambda tensors, training: torch.optim.Adam(tensors, lr=training.learning_rate),
    "adamw": lambda tensors, training: torch.optim.AdamW(tensors, lr=training.learning_rate),
}

PIPEMARE_DECAY = 0.135
"""D of PipeMare (arXiv 1910.05124, section 3.2), e to the −2: the average of updates decays by D^(1/Δτ)."""


class VersionedWeights:
    """Live tensors, updated in place, and a copy of each older version for as long as an op is still to read it.

    ``readers`` says how many ops read each version. ``back`` is the number of updates that PipeMare goes back by, 0
    where it does not.
    """

    def __init__(self, tensors: Sequence[Tensor], training: Training, readers: Counter[int], back: int = 0) -> None:
        self.live = [tensor.detach().clone().contiguous() for tensor in tensors]
        self.version, self.most_copies = 0, 1
        self._training, self._readers, self._kept = training, readers, dict[int, list[Tensor]]()
        self._optimizer = OPTIMIZERS[training.optimizer](self.live, training)
        self._decay = PIPEMARE_DECAY ** (1 / back) if back else 0.0
        self._average = [torch.zeros_like(tensor) for tensor in self.live] if back else []

    def at(self, version: int) -> list[Tensor]:
        """The tensors of a version.

        Raises
        ------
        BrokenInvariant : that version is not at hand.
        """
        if version != self.version and version not in self._kept:
            raise BrokenInvariant(f"weights of version {self.version} are at hand, the schedule says {version}")
        return self._kept.get(version, self.live)

    def release(self, version: int) -> None:
        """One reader of a version is done."""
        self._readers[version] -= 1
        if not self._readers[version]:
            self._kept.pop(version, None)

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Step to the next version."""
        before = [tensor.clone() for tensor in self.live] if self._readers[self.version] or self._average else []
        if self._readers[self.version]:
            self._kept[self.version] = before
            self.most_copies = max(self.most_copies, 1 + len(self._kept))
        for tensor, gradient in zip(self.live, gradients, strict=True):
            tensor.grad = gradient
        self._optimizer.step()
        for tensor in self.live:
            tensor.grad = None
        for average, tensor, old in zip(self._average, self.live, before, strict=bool(self._average)):
            average.mul_(self._decay).add_(tensor - old, alpha=1 - self._decay)
        self.version += 1

    def ahead(self, version: int, updates: int) -> list[Tensor]:
        """A version as it will be after so many more updates like the last ones (negative: as it was before them).

        With momentum w − s·η·v (SpecTrain, arXiv 1809.02839, equation 4), with Adam w − s·η·m̂/(√v̂ + ε) (XPipe,
        arXiv 1911.04610, section 3.3), with PipeMare's average δ of past updates w + s·δ.
        """
        weights = self.at(version)
        return [weight + updates * self._drift(index) for index, weight in enumerate(weights)]

    def _drift(self, index: int) -> Tensor:
        """What one more update is expected to add to a parameter."""
        if self._average:
            return self._average[index]
        state: dict[str, Tensor] = self._optimizer.state.get(self.live[index], {})
        rate = self._training.learning_rate
        if "exp_avg" in state:
            steps = int(state["step"])
            settings = self._optimizer.param_groups[0]
            first, second = settings["betas"]
            scale = (state["exp_avg_sq"] / (1 - second**steps)).sqrt_().add_(settings["eps"])
            moved: Tensor = -rate / (1 - first**steps) * state["exp_avg"] / scale
            return moved
        velocity = state.get("momentum_buffer")
        return torch.zeros_like(self.live[index]) if velocity is None else -rate * velocity
