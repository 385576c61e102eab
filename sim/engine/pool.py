"""Flows that one link holds back: all have the same rate, so one clock serves them all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from sim.errors import BrokenInvariant


@dataclass(slots=True, eq=False)
class Flow:
    """Of its op's bytes ``left_bytes`` were left when ``pool`` took it, and it ends at ``end_bytes`` of its time.

    ``bundle`` numbers the flows that always have its rate. ``number`` orders flows that are alike.
    """

    number: int
    op: int
    route: tuple[int, ...]
    left_bytes: float
    bundle: int = -1
    pool: Pool | None = None
    end_bytes: float = 0.0


class Pool:
    """Flows of one rate in virtual time: the bytes that each of them would have received since the pool was made.

    A flow ends when virtual time has advanced by its bytes. So a new rate touches no flow, an arrival or departure
    costs O(log n), and the end of a flow moves only if its rate does. ``due_s`` is for its keeper.
    """

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate, self._virtual_bytes, self._since_s = rate, 0.0, now_s
        self._ends: list[tuple[float, int, Flow]] = []
        self.due_s = math.inf

    def _reached(self, now_s: float) -> float:
        return self._virtual_bytes + self._rate * (now_s - self._since_s)

    def set_rate(self, rate: float, now_s: float) -> None:
        """The rate of each flow from now on."""
        if rate != self._rate:
            self._virtual_bytes, self._since_s, self._rate = self._reached(now_s), now_s, rate

    def put(self, flow: Flow, now_s: float) -> None:
        """Take a flow in."""
        flow.pool, flow.end_bytes = self, self._reached(now_s) + flow.left_bytes
        heappush(self._ends, (flow.end_bytes, flow.number, flow))

    def let_go(self, flow: Flow, now_s: float) -> None:
        """Leave a flow to another pool, with the bytes that are left of it."""
        flow.pool, flow.left_bytes = None, max(flow.end_bytes - self._reached(now_s), 0.0)

    def next_end_s(self) -> float:
        """When the first flow ends; never, if there is none or it is stalled."""
        ends = self._ends
        while ends and (ends[0][2].pool is not self or ends[0][2].end_bytes != ends[0][0]):
            heappop(ends)  # a flow that was let go
        if not ends:
            return math.inf
        left = ends[0][0] - self._virtual_bytes
        if left <= 0:
            return self._since_s
        return self._since_s + left / self._rate if self._rate else math.inf

    def finish(self, due_s: float, now_s: float) -> Iterator[Flow]:
        """Take out the flows that end by ``due_s``, which is now but for the rounding of the clock.

        Raises
        ------
        BrokenInvariant : bytes are left, or too many went.
        """
        reached = self._reached(now_s)
        slack = 8 * (math.ulp(now_s) * self._rate + math.ulp(reached))  # clocks are only good to their last bits
        while self.next_end_s() <= due_s:
            flow = heappop(self._ends)[2]
            flow.pool = None
            left = flow.end_bytes - reached
            if abs(left) > slack + 1e-6 * max(flow.left_bytes, 1.0):
                raise BrokenInvariant(f"a flow of {flow.left_bytes:.6g} B ended with {left:.6g} B left")
            yield flow
