"""The discrete-event simulation: honours everything a plan can say."""

from __future__ import annotations

from typing import ClassVar

from sim.binding import Binding
from sim.engine.run import run
from sim.plan import Plan
from sim.trace import Trace


class Simulated:
    """Simulated clocks, by SimPy."""

    name: ClassVar[str] = "simulated"

    def execute(self, plan: Plan, binding: Binding, seed: int = 0) -> Trace:
        """See `backends.base.Backend.execute`."""
        return run(plan, binding, seed)


BACKEND = Simulated()
