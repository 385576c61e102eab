"""Which ops use which device: the question that most analyses begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.intervals import Spans, union
from sim.op_table import of_kinds
from sim.recording import MOVING_KINDS
from sim.rows import IntColumn, Rows
from sim.trace import Trace


@dataclass(frozen=True, eq=False)
class Usage:
    """The ops of each device of the plan.

    Parameters
    ----------
    accelerators, hosts : the devices on which something runs, hosts apart.
    compute : per device, the ops that hold one of its compute lanes.
    moving : per device, the transfers and collectives it is source, target or member of (doubles possible).
    """

    trace: Trace
    accelerators: tuple[int, ...]
    hosts: tuple[int, ...]
    compute: Rows
    moving: Rows

    def name(self, device: int) -> str:
        """The cluster's name of a device."""
        return str(self.trace.header["devices"][device])

    @cached_property
    def computing(self) -> tuple[Spans, ...]:
        """When some compute lane of each device is busy."""
        return tuple(map(self.spans, self.compute))

    @cached_property
    def active(self) -> tuple[Spans, ...]:
        """When each device computes or one of its transfers is under way."""
        pairs = zip(self.compute, self.moving, strict=True)
        return tuple(self.spans(np.concatenate(pair)) for pair in pairs)

    @cached_property
    def carrying(self) -> dict[int, tuple[NDArray[np.void], Spans]]:
        """The flows of each link that carried something, and when some flow is under way."""
        every = self.trace.flows
        each = ((link, every[every["link"] == link]) for link in np.unique(every["link"]).tolist())
        return {link: (flows, union(flows["start_s"], flows["end_s"])) for link, flows in each}

    def spans(self, ops: IntColumn) -> Spans:
        """When at least one of some ops works: it waits for its memory before and after."""
        start_s, end_s = self.trace.working_s
        return union(start_s[ops], end_s[ops])


def compute(trace: Trace) -> Usage:
    """Sort the ops of a run by device."""
    names = trace.header["devices"]
    lane, op = trace.lanes_of.values, trace.lanes_of.owners
    device_of = np.array([lane.device for lane in trace.lanes], np.int64)
    computes = np.array([lane.computes for lane in trace.lanes], bool)[lane]
    ops, moves = trace.ops, of_kinds(trace.ops, MOVING_KINDS)
    held = moves[op]
    leaving, arriving = np.flatnonzero(moves), np.flatnonzero(moves & (ops["target"] >= 0))
    computing = Rows.from_pairs(device_of[lane[computes]], op[computes], len(names))
    moving = Rows.from_pairs(
        np.concatenate([device_of[lane[held]], ops["source"][leaving], ops["target"][arriving]]).astype(np.int64),
        np.concatenate([op[held], leaving, arriving]),
        len(names),
    )
    used = [device for device in range(len(names)) if len(computing[device]) or len(moving[device])]
    hosts = set(trace.header["hosts"])
    return Usage(
        trace=trace,
        accelerators=tuple(device for device in used if names[device] not in hosts),
        hosts=tuple(device for device in used if names[device] in hosts),
        compute=computing,
        moving=moving,
    )
