"""Real runs of a scenario with parameter servers: its processes in network namespaces, captured where asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from analysis import parameter_server
from analysis.packets.merge import merge
from backends import torch
from backends.torch import testbed
from backends.torch.servers import Place
from backends.torch.testbed import host
from scenarios.compose import Composed
from sim.errors import RunFailed
from sim.program import Layout, Program
from sim.trace import Trace

PORT = 2222
"""Where a server listens, alone in its namespace."""


class Run(NamedTuple):
    """A real run: its trace, steps/s of all workers in steady state, and how busy this machine was meanwhile."""

    trace: Trace
    steps_per_s: float
    busy: float


class Captured(NamedTuple):
    """A real run, the packets of all servers as one capture, and where each of these listened."""

    run: Run
    packets: bytes
    servers: tuple[str, ...]


def layout_of(composed: Composed) -> Layout:
    """What is where."""
    assert isinstance(composed.plan.work, Program)
    assert composed.plan.work.layout is not None
    return composed.plan.work.layout


def run(composed: Composed, seed: int) -> Run:
    """Run for real; workers hold the seconds of their passes while bytes travel.

    Raises
    ------
    UnsupportedPlan : namespaces cannot show such links, or the backend not such a plan.
    RunFailed : no rights to make namespaces, a process died, or too few steps for a steady state.
    """
    return _run(composed, seed, None).run


def capture(composed: Composed, seed: int, folder: Path) -> Captured:
    """`run`, with the TCP packets of every server, whose captures stay in ``folder``."""
    return _run(composed, seed, folder)


def _run(composed: Composed, seed: int, folder: Path | None) -> Captured:
    (plan, binding), servers = composed, layout_of(composed).servers
    names, clocks = [binding.devices[device] for device in servers], list[Callable[[], float]]()
    with testbed.build(testbed.ports(binding.cluster, binding.devices)) as bed:
        places = {
            device: Place(bed.address(name), PORT if device in servers else 0, bed.command_prefix(name))
            for device, name in enumerate(binding.devices)
        }
        files = {} if folder is None else {name: folder / f"{name}.pcap" for name in names}
        with ExitStack() as stack:
            for name, file in files.items():
                stack.enter_context(bed.capture(name, file))
            found = torch.run(
                plan, binding, seed, compute="sleep", places=places, on_start=lambda _: clocks.append(host.watch())
            )
            busy = clocks[0]()
    rate = parameter_server.compute(found.trace)["steps_per_s"]
    if rate is None:
        raise RunFailed("too few steps for a steady state: ask for more schedule.mini_batches")
    packets = merge([file.read_bytes() for file in files.values()]) if files else b""
    listening = tuple(f"{places[device].host}:{PORT}" for device in servers)
    return Captured(Run(found.trace, rate, busy), packets, listening)
