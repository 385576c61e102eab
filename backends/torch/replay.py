"""Real arithmetic in the order of a trace, all devices in one process: what training comes to on a cluster's clock.

Weights are read when a pass starts, an update is visible when it ends; so the staleness is that of the trace exactly.
"""

from __future__ import annotations

import numpy as np

from backends.torch.backend import job_of
from backends.torch.job import Arithmetic, Done, Watch
from backends.torch.kernels import Kernels
from backends.torch.refusals import accept
from backends.torch.threads import one_thread
from sim.binding import Binding
from sim.ops import TRANSFER_KINDS, OpKind
from sim.plan import Plan
from sim.trace import Trace


def replay(
    plan: Plan,
    binding: Binding,
    trace: Trace,
    seed: int = 0,
    *,
    arithmetic: Arithmetic = "float32",
    keep_gradients: bool = False,
    watch: Watch | None = None,
) -> Done:
    """Do the arithmetic of a plan in the order of a trace of it, whatever backend that is from.

    Raises
    ------
    UnsupportedPlan : there are no kernels for it.
    """
    schedule = accept(plan, binding, oversubscribe=True)
    job = job_of(plan, binding, seed, arithmetic, keep_gradients=keep_gradients)
    with one_thread():
        kernels = Kernels(job, job.devices)
        for op in _order(trace):
            kind = OpKind(int(schedule.ops["kind"][op]))
            if kind is OpKind.ALL_REDUCE:
                _sum(kernels, op)
            elif kind not in TRANSFER_KINDS:  # within one process tensors need no transfer
                kernels.compute(op)
            if watch is not None and kind is OpKind.UPDATE:
                watch(float(trace.end_s[op]), kernels.results)
        return kernels.results()


def _order(trace: Trace) -> list[int]:
    """Ops by the time at which they read, or, of those that change weights or gradients, write."""
    place = np.empty(len(trace.ops), np.int64)
    place[trace.as_schedule().topological] = np.arange(len(trace.ops))
    writes = np.isin(trace.ops["kind"], (OpKind.UPDATE, OpKind.ALL_REDUCE))
    order: list[int] = np.lexsort([place, np.where(writes, trace.end_s, trace.start_s)]).tolist()
    return order


def _sum(kernels: Kernels, op: int) -> None:
    first, *others = kernels.addends(op)
    for addends in zip(first, *others, strict=True):
        total, *rest = addends
        for tensor in rest:
            total += tensor
        for tensor in rest:
            tensor.copy_(total)
