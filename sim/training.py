"""How it is trained: optimizer and number format, and what they cost in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Dtype = Literal["fp32", "bf16"]

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Moving averages an optimizer keeps for every parameter, always in fp32."""


@dataclass(frozen=True, slots=True)
class Training:
    """Optimizer, number format and hyper-parameters. bf16 means bf16 weights and gradients with fp32 master weights."""

    optimizer: Optimizer = "momentum"
    dtype: Dtype = "fp32"
    learning_rate: float = 0.01
    momentum: float = 0.9

    @property
    def weight_bytes(self) -> int:
        """Bytes of one parameter, and of its gradient."""
        return 4 if self.dtype == "fp32" else 2

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state for one parameter: moments, and the master copy under bf16."""
        return 4 * MOMENTS[self.optimizer] + (4 if self.dtype == "bf16" else 0)

    @property
    def update_bytes(self) -> int:
        """Memory traffic of updating one parameter: read the gradient, write the weight, read and write the state.

        fp32 also reads the weight; bf16 reads the master copy instead, which counts as state.
        """
        reads_weight = self.weight_bytes if self.dtype == "fp32" else 0
        return 2 * self.weight_bytes + reads_weight + 2 * self.optimizer_bytes

    @property
    def accumulate_bytes(self) -> int:
        """Memory traffic of adding one gradient to a sum: read both, write one."""
        return 3 * self.weight_bytes
