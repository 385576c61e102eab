"""The same schedule on real tensors: one process per device, gloo between them, float64 on the CPU.

Read in this order: `backend` turns a plan into a trace, `refusals` says what it cannot honour, `crew` starts the worker
processes and watches over them, `worker` walks one device's lanes, `kernels` says what an op means on tensors.
`servers` is the same for programs of parameter servers.
PyTorch is imported in the workers only.
"""

from __future__ import annotations

from backends.torch.backend import BACKEND, Outcome, run

__all__ = ["BACKEND", "Outcome", "run"]
