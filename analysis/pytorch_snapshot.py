"""A simulated run as PyTorch would have recorded it: the snapshot that its memory viewer opens."""

from __future__ import annotations

from sys import intern
from typing import Any

from sim.errors import BadTraceFile, BrokenInvariant, ScenarioError, UnsupportedPlan
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.rules import Tag
from sim.memory.settings import parse_settings
from sim.memory.snapshot import as_pytorch
from sim.trace import FINISH, FREE, MALLOC, Trace


def export(trace: Trace) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` would return at the end of the run; see `devices`.

    Category and layer of a block stand in its one stack frame.
    """
    return as_pytorch(devices(trace))


def devices(trace: Trace) -> list[Caching]:
    """The allocator of each GPU as the run left it, with all that happened to it.

    Raises
    ------
    UnsupportedPlan : the run had another allocator than PyTorch's.
    BadTraceFile : its blocks are not where PyTorch's rules put them: it is damaged.
    """
    header = trace.header
    if header["allocator"]["name"] != "caching":
        raise UnsupportedPlan("only a run with memory.allocator: caching has blocks as PyTorch does")
    try:
        # Equal words are one object: so the pickle of a run is the same before and after it was saved.
        tags = [Tag(intern(str(category)), intern(str(layer))) for category, layer in header["tags"]]
        settings = parse_settings(header["allocator"]["settings"])
        capacity = [None if size is None else int(size) for size in header["capacity_bytes"]]
        numbers = sorted(set(trace.requests["device"].tolist()))
        replayed = [Caching(settings, SimulatedDriver(capacity[k]), record=True, device=k) for k in numbers]
        for caching in replayed:
            _replay(caching, trace, tags)
    except (LookupError, TypeError, ValueError, ScenarioError, BrokenInvariant) as error:
        raise BadTraceFile(f"the trace is damaged: its allocations cannot be repeated ({error})") from None
    return replayed


def _replay(caching: Caching, trace: Trace, tags: list[Tag]) -> None:
    """Tell an allocator again what it was told in the run."""
    requests = trace.requests[trace.requests["device"] == caching.device]
    for time_s, _, verb, stream, address, size_bytes, tag in requests.tolist():
        caching.now_us = round(1e6 * time_s)
        if verb == MALLOC:
            grant = caching.malloc(size_bytes, stream, tags[tag])
            if grant is None or grant.address != address:
                raise BadTraceFile(f"the block at {address:#x} is not where PyTorch's rules put it")
        elif verb == FREE:
            caching.free(address)
        elif verb == FINISH:
            caching.finish(stream)
        else:
            caching.record_stream(address, stream)
    caching.poll()
