"""A checkpoint plan applied to real modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from sim.checkpointing.plan import Plan, Run
from sim.liveness import Mode


class Checkpointed(nn.Module):
    """Vertices one after the other under a plan; what is checkpointed is run again in backward."""

    def __init__(self, chain: nn.Sequential, plan: Plan, mode: Mode = "non_reentrant") -> None:
        super().__init__()
        self.chain, self._plan, self._mode = chain, plan, mode

    def forward(self, x: Tensor) -> Tensor:
        """What the chain makes of ``x``."""
        return self._pass(self._plan, x)

    def _pass(self, items: Sequence[int | Run], x: Tensor) -> Tensor:
        for item in items:
            x = self._run(item, x) if isinstance(item, Run) else self.chain[item - 1](x)
        return x

    def _run(self, run: Run, x: Tensor) -> Tensor:
        if run.offload:
            with save_on_cpu():
                return self._checkpoint(run, x)
        return self._checkpoint(run, x)

    def _checkpoint(self, run: Run, x: Tensor) -> Tensor:
        if self._mode == "non_reentrant":
            again: Tensor = checkpoint(self._pass, run.items, x, use_reentrant=False)
            return again
        # An input that wants no gradient would cut the run off from backward: something that wants one goes with it.
        wanting = torch.empty(0, device=x.device, requires_grad=True)
        y: Tensor = checkpoint(lambda x, _: self._pass(run.items, x), x, wanting, use_reentrant=True)
        return y
