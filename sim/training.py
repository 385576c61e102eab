"""How it is trained: optimizer and number format, what they cost in bytes, and which weights a pass computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Dtype = Literal["fp32", "bf16"]

Weights = Literal["latest", "stash", "vertical_sync", "double_buffer", "predict"]
"""``latest``: what is there when an op starts. ``stash``: a backward computes with the version of its forward, kept
until then (PipeDream). ``vertical_sync``: every pass of a micro-batch, on every stage, with the version that the
forward of stage 0 read (PipeDream). ``double_buffer``: every pass of a mini-batch with the version before the newest it
could have (PipeDream-2BW). ``predict``: with weights moved ahead, or back, by a number of updates."""

Predict = Literal["spectrain", "pipeoptim", "xpipe", "pipemare"]
"""``spectrain`` (arXiv 1809.02839): every op predicts for itself. ``pipeoptim`` (arXiv 2312.00839): a forward predicts,
and its backward computes with the same copy. ``xpipe`` (arXiv 1911.04610): the first micro-batch of a mini-batch
predicts for all of it, in either pass. ``pipemare`` (arXiv 1910.05124): a backward estimates what its forward read from
an average of past updates, and nothing looks ahead."""

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Moving averages an optimizer keeps for every parameter, always in fp32."""


@dataclass(frozen=True, slots=True)
class Training:
    """Optimizer, number format and hyper-parameters. bf16 means bf16 weights and gradients with fp32 master weights.

    ``task`` names the data of a real run; empty: noise. ``zero``: the stage of ZeRO (`sim.zero`), 0: without.
    """

    optimizer: Optimizer = "momentum"
    dtype: Dtype = "fp32"
    learning_rate: float = 0.01
    momentum: float = 0.9
    task: str = ""
    zero: int = 0

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
