"""Which allocator the GPUs of a run have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.memory.arena import Arena, Packing
from sim.memory.best_fit import BestFit
from sim.memory.caching import Caching
from sim.memory.driver import DriverCosts, SimulatedDriver
from sim.memory.rules import Rules
from sim.memory.settings import Settings

AllocatorName = Literal["counting", "caching", "best_fit", "arena"]


@dataclass(frozen=True)
class Allocation:
    """An allocator by name; ``settings`` and ``costs`` are those of ``caching``.

    ``best_fit`` and ``arena`` have all of the device to themselves from the start, and so never call the driver.
    """

    name: AllocatorName = "counting"
    settings: Settings = Settings.DEFAULT
    costs: DriverCosts = DriverCosts.ASSUMED

    def rules(self, device: int, capacity_bytes: int | None, packing: Packing | None = None) -> Rules:
        """The state machine of one device; ``packing`` is what an arena was planned for."""
        if self.name == "caching":
            return Caching(self.settings, SimulatedDriver(capacity_bytes), device=device)
        if self.name == "best_fit":
            return BestFit(capacity_bytes)
        assert packing is not None, f"{self.name} is planned ahead"
        return Arena(packing, capacity_bytes)


COUNTING = Allocation()
"""Live bytes, counted."""
