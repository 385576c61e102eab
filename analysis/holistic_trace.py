"""A run as HolisticTraceAnalysis reads it: one PyTorch (Kineto) trace of GPU kernels for each accelerator.

An op that computes is a kernel named by its kind and stage, a transfer or a collective an NCCL kernel on every rank it
is source, target or member of, so that HTA tells the two apart. A simulation launches nothing from a host: there are no
``cuda_runtime`` events, and HTA's analyses of launches (idle time by cause, queue lengths) have nothing to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis import usage
from analysis.usage import Usage
from sim.ops import OpKind
from sim.recording import MOVING_KINDS
from sim.trace import Trace

DEFAULT_STREAM = 7
"""What PyTorch calls the first stream of a GPU; the lanes of a device are numbered from there."""

_ALL_REDUCE, _SEND_RECEIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_SendRecv"


def export(trace: Trace) -> list[str]:
    """JSON text of each rank, in the order of the accelerators that run something; times in microseconds to 1 ns.

    HTA finds the rank by a search for ``"rank": N`` with a blank, so the text is what counts, not only the object.
    """
    used = usage.compute(trace)
    ranks = []
    for rank, device in enumerate(used.accelerators):
        world = {"backend": "nccl", "rank": rank, "world_size": len(used.accelerators)}
        content = {"schemaVersion": 1, "distributedInfo": world, "traceEvents": [*_kernels(used, rank, device)]}
        ranks.append(json.dumps(content, allow_nan=False))
    return ranks


def _kernels(used: Usage, rank: int, device: int) -> Iterator[dict[str, Any]]:
    trace = used.trace
    start_s, end_s = trace.working_s
    streams = _streams(trace, device)
    yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": {"name": used.name(device)}}
    moving = np.unique(used.moving[device])
    for op in np.concatenate([np.sort(used.compute[device]), moving]).tolist():
        name = trace.id(op)
        outward = int(trace.ops["source"][op]) == device
        for stream in streams.get(op, [DEFAULT_STREAM + len(trace.lanes) + (not outward)]):
            start_us, end_us = round(start_s[op] * 1e6, 3), round(end_s[op] * 1e6, 3)
            yield {
                "name": _kernel_name(name.kind, name.stage),
                "cat": "kernel",
                "ph": "X",
                "ts": start_us,
                "dur": round(end_us - start_us, 3),
                "pid": rank,
                "tid": stream,
                "args": {"device": rank, "stream": stream, "correlation": op + 1, "op": str(name)},
            }


def _streams(trace: Trace, device: int) -> dict[int, list[int]]:
    """The streams of a device on which each op stands: the lanes it holds there."""
    streams: dict[int, list[int]] = {}
    for number, lane in enumerate(lane for lane in range(len(trace.lanes)) if trace.lanes[lane].device == device):
        for op in trace.order[lane].tolist():
            streams.setdefault(op, []).append(DEFAULT_STREAM + number)
    return streams


def _kernel_name(kind: OpKind, stage: int) -> str:
    if kind is OpKind.ALL_REDUCE:
        return _ALL_REDUCE
    return _SEND_RECEIVE if kind in MOVING_KINDS else f"{kind.name.lower()} of stage {stage}"
