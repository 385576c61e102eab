"""Which ops use which device: the question that most analyses begin with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.intervals import Spans, union
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

    def computing(self, device: int) -> Spans:
        """When some compute lane of the device is busy."""
        return self.spans(self.compute[device])

    def active(self, device: int) -> Spans:
        """When the device computes or one of its transfers is under way."""
        return self.spans(np.concatenate([self.compute[device], self.moving[device]]))

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
    ops, moves = trace.ops, np.isin(trace.ops["kind"], MOVING_KINDS)
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
