"""What happens when a device dies and comes back, or a link degrades, at its time.

A worker that dies loses its step: what it was doing and what was on its way to or from it. A gradient that had arrived
is still applied. When it is back it begins that step anew; a gradient that was applied before is then applied again
(under a barrier it takes the place of the first).

A server that dies keeps its parameters, as one that restarts from a checkpoint of its last update does. What it was
applying and what was on its way to or from it is lost, and is asked for again when it is back.

What is lost stops at once: a transfer leaves its links to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.conditions import Conditions, Degradation, Outage
from sim.engine.actors import Actors, devices_of
from sim.engine.core import Core
from sim.engine.fair_share import FairShare
from sim.engine.link import Fifo
from sim.engine.parameter_server import InTurn, ProcessorSharing
from sim.errors import UnsupportedPlan
from sim.program import Program

if TYPE_CHECKING:
    from sim.engine.run import Scene


def play(core: Core, actors: Actors, scene: Scene, program: Program, conditions: Conditions) -> None:
    """Set the clock for every fault of a run."""
    outages = Outages(core, actors, program)
    for outage in conditions.outages:
        outages.plan(outage)
    for degradation in conditions.degradations:
        _degrade(core, scene, degradation)


def check_time(conditions: Conditions, end_s: float) -> None:
    """Refuse faults that came when all was over: they would have no influence."""
    times_s = [outage.at_s for outage in conditions.outages] + [each.at_s for each in conditions.degradations]
    for at_s in times_s:
        if at_s >= end_s:
            raise UnsupportedPlan(f"faults: one at {at_s:g} s has no influence: the run ends at {end_s:.4g} s")


class Outages:
    """Devices that die and come back."""

    def __init__(self, core: Core, actors: Actors, program: Program) -> None:
        self._core, self._actors = core, actors
        self._homes = {device: name for name, device in program.homes.items()}

    def plan(self, outage: Outage) -> None:
        """Let it happen at its time."""
        self._at(outage.at_s, self._die, outage)

    def _at(self, after_s: float, call: Callable[[Outage], None], outage: Outage) -> None:
        self._core.wake(lambda _: self._core.defer(lambda: call(outage)), after_s)

    def _die(self, outage: Outage) -> None:
        actors, device = self._actors, outage.device
        actors.down.add(device)
        actors.held_back = [each for each in actors.held_back if device not in devices_of(each[1])]
        for number in [number for number in actors.open if device in devices_of(actors.ops[number])]:
            station = self._core.stations[number]
            if isinstance(station, InTurn | ProcessorSharing | FairShare | Fifo):
                station.withdraw(number)
            lost = actors.lose(number)
            if device not in self._homes:
                actors.held_back.append(lost)
        if (task := actors.roots.get(self._homes.get(device, ""))) is not None:
            actors.forget(task)
        self._at(outage.down_s, self._return, outage)

    def _return(self, outage: Outage) -> None:
        actors, device = self._actors, outage.device
        actors.down.discard(device)
        held_back, actors.held_back = actors.held_back, []
        for held, op in held_back:
            actors.do(held, op)
        if (task := actors.roots.get(self._homes.get(device, ""))) is not None:
            actors.come_back(task)


def _degrade(core: Core, scene: Scene, degradation: Degradation) -> None:
    """Lower the bandwidth of links, and give it back."""

    def change(bytes_per_s: float | None) -> None:
        for link in degradation.links:
            scene.set_bandwidth(link, bytes_per_s)

    core.wake(lambda _: change(degradation.bytes_per_s), degradation.at_s)
    core.wake(lambda _: change(None), degradation.at_s + degradation.for_s)
