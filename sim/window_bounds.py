"""Step times that no run of a schedule is below, whatever it is: for many bindings of one schedule at once.

The step time of a run is (t₁ − t₀) / n, for two mini-batches f and f + n that are complete at t₀ and t₁: when the last
of their updates V₀ and V₁ has ended (`analysis.steady`). Two facts carry the proof. An op starts no sooner than what it
waits for has ended, its lane's op before it included, and lasts no less than where nothing contends: so along a path
of the schedule's graph the ends of ops are at least the sum of the seconds between apart. And an op that contends with
nothing starts *when* the last of what it waits for has ended, and lasts its seconds.

Let r be an update in V₀, say of stage 0, ↓x the longest path from the end of r to the start of x, x↓ that from the end
of x to the end of an op of V₁, both −∞ where there is none.

1. t₁ ≥ end(r) + r↓.
2. A shared link, or a device whose lanes share it, works off all ops X of it with a path from r and one to V₁ between
   end(r) + min ↓x and t₁ − min x↓; it takes no less than their bytes over its bandwidth, their seconds over its gain.
3. t₀ ≤ end(r) + late, where late is the most of late(v) over v in V₀: late(r) = 0; late(x) = −(the path from the end of
   x to that of r) where there is one; and late(x) = seconds(x) + max late(p) over all p that x waits for, where it
   contends with nothing. Where lanes share a device by a gain, or flows a link, an op starts as it would alone, and
   lasts at most as many times as long as there are lanes for the gain, or flows on the link for its own: a max-min fair
   rate is no less than the bandwidth over the flows of some link of the route.

So t₁ − t₀ ≥ the largest of 1 and 2 less late. Which f and n a run counts hangs on how many micro-batches it keeps in
flight at stage 0; the order of the lanes bounds these, and the least of all f that they allow is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.binding import Binding, Cost
from sim.bounds import ROUNDING
from sim.cluster import CONTENDED
from sim.costs import per_op
from sim.longest_path import Steps, steps
from sim.memory.allocators import COUNTING
from sim.ops import FORWARD_KINDS, OpId, OpKind
from sim.passes.weight_versions import staleness
from sim.recording import MOVING_KINDS
from sim.rows import IntColumn
from sim.schedule import Schedule

Seconds = NDArray[np.float64]

_PASSES = (OpKind.FORWARD, OpKind.BACKWARD)


def least_step_s(schedule: Schedule, bindings: Sequence[Binding]) -> Seconds:
    """A step time for each binding that no run is below; 0 where nothing is proved.

    The bindings differ in figures only: their clusters, devices and capacities are the same. Nothing is proved of
    allocators that take time, and of split or fused passes where mini-batches overlap.
    """
    least_s = np.zeros(len(bindings))
    if any(binding.allocator != COUNTING for binding in bindings):
        return least_s
    bound = _Bound(schedule, bindings)
    found = [bound.step_s(*window) for window in _windows(schedule)]
    return np.maximum(np.min(found, axis=0), 0.0) * (1 - ROUNDING) if found else least_s


def _windows(schedule: Schedule) -> set[tuple[int, int]]:
    """The mini-batches f and f + n that a run may count; (−1, M − 1): from its start to its end."""
    shape = schedule.shape
    fillings = range(1)
    if staleness(schedule)[np.isin(schedule.ops["kind"], FORWARD_KINDS)].max(initial=0) > 0:
        most = most_in_flight(schedule)
        if most is None:
            return set()
        fillings = range(1, -(-most // shape.micro_batches) + 1)
    period, count = math.lcm(*shape.rounds), shape.mini_batches
    ends = ((-(-(f + 1) // period) * period - 1, (count - f) // period * period - 1) for f in fillings)
    return {(first, last) if last > first else (-1, count - 1) for first, last in ends}


def most_in_flight(schedule: Schedule) -> int | None:
    """Micro-batches that all copies of stage 0 keep in flight at most, by the order of lanes; ``None``: not known.

    When a forward starts, those of its copy that stand before it on its lane may be in flight, less the backwards that
    end before: on its lane, or on another one up to what it or a forward before it waits for.
    """
    ops, order = schedule.ops, schedule.order
    lane, place = np.full(len(ops), -1), np.full(len(ops), -1)
    lane[order.values] = order.owners
    place[order.values] = np.arange(len(order.values))
    total = 0
    passes = [np.flatnonzero((ops["kind"] == kind) & (ops["stage"] == 0)) for kind in _PASSES]
    for copy in np.unique(ops["replica"][passes[0]]):
        forward, backward = (rows[ops["replica"][rows] == copy] for rows in passes)
        if len(forward) != len(backward) or any(len(np.unique(lane[rows])) != 1 for rows in (forward, backward)):
            return None
        forward, backward = (rows[np.argsort(place[rows])] for rows in (forward, backward))
        ended = np.array([_ended_before(schedule, int(op), lane[backward[0]], lane, place) for op in forward])
        done = np.searchsorted(place[backward], np.maximum.accumulate(ended), "right")
        total += int((np.arange(len(forward)) + 1 - done).max())
    return total


def _ended_before(schedule: Schedule, op: int, wanted: int, lane: IntColumn, place: IntColumn) -> int:
    """The last place on a lane that what an op waits for has, or −1."""
    waits = schedule.waits_for[op]
    return int(place[waits[lane[waits] == wanted]].max(initial=-1))


class _Bound:
    """Paths through a schedule; a column for each binding."""

    def __init__(self, schedule: Schedule, bindings: Sequence[Binding]) -> None:
        self.schedule, self.bindings = schedule, bindings
        self.binding = bindings[0]
        self.seconds = np.array(per_op(schedule, lambda *op: [each.op_seconds(*op) for each in bindings]))
        self.steps: Steps = steps(schedule)
        self.loads = [*self._device_loads(), *self._link_loads()]

    def step_s(self, first: int, last: int) -> Seconds:
        """The least step time where mini-batches ``first`` and ``last`` are counted."""
        if first < 0:
            every = np.arange(len(self.schedule))
            return self._between(-1, self._to(every)) / (last + 1)
        begin, end = self._updates(first), self._updates(last)
        after = self._to(end)
        update = int(begin[np.argmin(self.schedule.ops["stage"][begin])])
        return (self._between(update, after) - self._late(update, begin)) / (last - first)

    def _updates(self, mini_batch: int) -> IntColumn:
        """The updates that complete a mini-batch."""
        ops, shape = self.schedule.ops, self.schedule.shape
        number = shape.update_of(ops["stage"], np.full(len(ops), mini_batch * shape.micro_batches))
        return np.flatnonzero((ops["kind"] == OpKind.UPDATE) & (ops["micro_batch"] == number))

    def _between(self, begin: int, after: Seconds) -> Seconds:
        """From the end of an op (−1: from the start of the run) to the last of what ``after`` are paths to."""
        if begin < 0 and not self.loads:
            return np.asarray((after + self.seconds).max(axis=0))
        least = (after + self.seconds).max(axis=0) if begin < 0 else after[begin]
        if not self.loads:
            return np.asarray(least)
        before = self._from(begin)
        within = (before[:, 0] > -math.inf) & (after[:, 0] > -math.inf)
        for load_s in self.loads:
            ops = np.flatnonzero(within & (load_s[:, 0] > 0))
            if len(ops):
                busy_s = before[ops].min(axis=0) + load_s[ops].sum(axis=0) + after[ops].min(axis=0)
                least = np.maximum(least, busy_s)
        return np.asarray(least)

    def _to(self, targets: IntColumn) -> Seconds:
        """x↓: the longest path from the end of each op to the end of one of the targets."""
        after = np.full(self.seconds.shape, -math.inf)
        after[targets] = 0.0
        reaches = np.zeros(len(after) + 1, bool)
        reaches[targets] = True
        todo = self.steps
        for op, *earlier, more in zip(*(c[::-1] for c in (todo.op, todo.first, todo.second, todo.more)), strict=True):
            if reaches[op] and earlier[0] >= 0:
                through = after[op] + self.seconds[op]
                for other in (*earlier, *more):
                    if other >= 0:
                        np.maximum(after[other], through, out=after[other])
                        reaches[other] = True
        return after

    def _from(self, begin: int) -> Seconds:
        """↓x: the longest path from the end of ``begin`` to the start of each op; −1: from the start of the run."""
        before = np.full(self.seconds.shape, 0.0 if begin < 0 else -math.inf)
        todo, follows = self.steps, np.full(len(before), begin < 0)
        for op, *earlier, more in zip(todo.op, todo.first, todo.second, todo.more, strict=True):
            for other in (*earlier, *more):
                if other >= 0 and (follows[other] or other == begin):
                    ends = before[other] + self.seconds[other] if other != begin else 0.0
                    np.maximum(before[op], ends, out=before[op])
                    follows[op] = True
        return before

    def _late(self, update: int, begin: IntColumn) -> Seconds:
        """How long after an update the others of its mini-batch may end; infinite where that is not known."""
        ahead = self._to(np.array([update]))
        late, open_ops, todo = dict[int, Seconds](), set[int](), begin.tolist()
        while todo:
            op = todo.pop()
            if op not in open_ops and ahead[op, 0] == -math.inf:
                open_ops.add(op)
                todo += self.schedule.waits_for[op].tolist()
        for op in self.steps.op:
            if op in open_ops:
                waits, slower = self.schedule.waits_for[op].tolist(), self._slower[op]
                if not waits or slower == math.inf:
                    late[op] = np.full(len(self.bindings), math.inf)
                    continue
                latest = [late[other] if other in late else -ahead[other] for other in waits]
                late[op] = np.max(latest, axis=0) + self.seconds[op] * slower
        return np.asarray(np.max([late[op] if op in late else -ahead[op] for op in begin.tolist()], axis=0))

    @cached_property
    def _lanes(self) -> Counter[int]:
        """Compute lanes of each device."""
        return Counter(lane.device for lane in self.schedule.lanes if lane.computes)

    @cached_property
    def _cores(self) -> int | None:
        """Of the host that all devices share, where they are more."""
        cores = self.binding.cluster.cores
        return cores if cores is not None and cores < self._lanes.total() else None

    @cached_property
    def _slower(self) -> list[float]:
        """How many times as long as alone each op lasts at most once it has all it waits for; infinite: not known."""
        return per_op(self.schedule, self._slowdown)

    def _slowdown(self, op: OpId, source: int, target: int, members: Sequence[int]) -> float:
        binding = self.binding
        if op.kind in MOVING_KINDS:
            crossed, links = self._shared_links(op, source, target, members), binding.cluster.links
            if any(links[link].kind == "fifo" for link in crossed):
                return math.inf
            return max((self._most_flows[link] / hops for link, hops in crossed.items()), default=1.0)
        if self._cores is not None:
            return math.inf
        node, lanes = binding.cluster.node(binding.devices[source]), self._lanes[source]
        return 1.0 if lanes < 2 or node.kind == "host" else max(1.0, lanes / node.gain) if node.gain else math.inf

    @cached_property
    def _most_flows(self) -> Counter[int]:
        """How many flows share each link at most: of ops that hold the same lanes one is under way at a time."""
        flows: dict[tuple[int, ...], Counter[int]] = {}
        for op, crossed in enumerate(per_op(self.schedule, self._shared_links)):
            if crossed:
                lanes = tuple(self.schedule.lanes_of[op].tolist())
                flows[lanes] = flows.get(lanes, Counter()) | crossed
        return sum(flows.values(), Counter())

    def _device_loads(self) -> Iterator[Seconds]:
        """What ops take of each device that lanes share, or of the cores that devices share: [ops, bindings]."""
        ops, cluster, cores = self.schedule.ops, self.binding.cluster, self._cores
        computes = ~np.isin(ops["kind"], [*MOVING_KINDS])
        if cores is not None:
            yield np.where(computes[:, None], self.seconds, 0.0) / cores
            return
        for device, lanes in self._lanes.items():
            node = cluster.node(self.binding.devices[device])
            if lanes > 1 and node.kind != "host":
                here = computes & (ops["source"] == device)
                yield np.where(here[:, None], self.seconds, 0.0) / (node.gain or 1.0)

    def _link_loads(self) -> Iterator[Seconds]:
        """What ops take of each link that transfers share: bytes over bandwidth; a ``fifo`` link is held throughout."""
        crossed, links = per_op(self.schedule, self._shared_links), self.binding.cluster.links
        if not any(crossed):
            return
        size_bytes = np.array(per_op(self.schedule, self._sizes))
        for link in sorted(set().union(*crossed)):
            hops = np.array([each[link] for each in crossed])[:, None]
            if links[link].kind == "fifo":
                yield np.where(hops > 0, self.seconds, 0.0)
            else:
                yield hops * size_bytes / links[link].bytes_per_s

    def _shared_links(self, op: OpId, source: int, target: int, members: Sequence[int]) -> Counter[int]:
        """How many flows of an op cross each link that transfers share."""
        if op.kind not in MOVING_KINDS:
            return Counter()
        routes = [self.binding.route(source, target)] if op.kind is not OpKind.ALL_REDUCE else []
        routes = routes or [*self.binding.ring_hops(members)]
        links = self.binding.cluster.links
        return Counter(link for route in routes for link in route if links[link].kind in CONTENDED)

    def _sizes(self, op: OpId, source: int, target: int, members: Sequence[int]) -> list[float]:
        """Bytes of each flow of an op."""
        if op.kind not in MOVING_KINDS:
            return [0.0] * len(self.bindings)
        sizes = [each.payload_bytes[Cost(op.kind, op.stage, op.part)] for each in self.bindings]
        if op.kind is OpKind.ALL_REDUCE:
            return [each.ring_bytes(size, members) for each, size in zip(self.bindings, sizes, strict=True)]
        return sizes
