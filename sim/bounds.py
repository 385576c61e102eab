"""What a plan can reach at best, proved without its schedule: the least step time, least peak and least staleness.

A planner may leave a candidate out only where these say that it cannot win. Each bound is on a figure that `analysis`
reports of a simulated run, whatever the kind of links. Two facts are used throughout: an op starts no sooner than what
it waits for has ended, which on a lane is the op before it, and it lasts no less than where nothing contends. So ops
that wait for each other, or hold one lane, take at least the sum of their seconds.

The step time of a run is (t₁ − t₀) / n, for two mini-batches f and f + n that are complete at t₀ and t₁: when the last
of their updates has ended (`analysis.steady`). What was done for later mini-batches before t₀ does not count, so each
proof says what must stand *between* t₀ and t₁.

Notation: stage k of S; F, R, B, U its seconds of forward, recomputation, backward and update; →k and ←k those of a
transfer from k to k + 1 and back; T micro-batches a mini-batch, M mini-batches; head(k) = Σ_{i<k} (Fᵢ + →i),
tail(k) = Σ_{i<k} (←i + Bᵢ), trip = head(S) + tail(S), where nothing is sent from stage S − 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from sim.binding import Binding, Cost
from sim.memory.allocators import COUNTING
from sim.memory.buffers import BufferKind
from sim.ops import OpId, OpKind
from sim.training import Weights

FLUSHED = ("single", "model_parallel", "gpipe", "one_f_one_b")
"""Straight pipelines with whole backwards and a flush: `_flushed_s`."""
ROLLING = ("pipedream", "pipedream_2bw")
"""Straight pipelines in the order of asynchronous 1F1B: `_rolling_s`."""
OTHER_FLUSHED = ("zb_h1", "zb_h2", "interleaved_1f1b", "zb_v", "dualpipe_v")
"""Others that flush and have one copy of each stage: `_other_flushed_s`."""
FOLDED = ("zb_v", "dualpipe_v")
TWO_WAYS = ("chimera", "dualpipe_2025")

ROUNDING = 1e-9
"""Sums of floats in another order than the simulator's differ by less."""


class Candidate(NamedTuple):
    """What the bounds know of a plan beside its `Binding`, in which stage k of S lies on device k of S.

    ``gpus``: devices of the plan. ``replicas``: of each stage of ``pipedream``, empty where there are none.
    """

    method: str
    gpus: int
    micro_batches: int
    mini_batches: int
    weights: Weights = "latest"
    replicas: tuple[int, ...] = ()


class _Stages:
    """Seconds of a micro-batch on every stage, of updates, and of transfers to the next stage and back."""

    def __init__(self, binding: Binding) -> None:
        def seconds(kind: OpKind) -> list[float]:
            return [binding.seconds.get(Cost(kind, stage), 0.0) for stage in range(self.count)]

        def sending(kind: OpKind, first: int, step: int) -> list[float]:
            ops = [(OpId(kind, stage + first, 0), stage + first) for stage in range(self.count - 1)]
            return [binding.op_seconds(op, stage, stage + step, ()) for op, stage in ops]

        self.binding = binding
        self.count = _stages_of(binding)
        self.forward_s, self.backward_s = seconds(OpKind.FORWARD), seconds(OpKind.BACKWARD)
        self.again_s, self.update_s = seconds(OpKind.RECOMPUTE), seconds(OpKind.UPDATE)
        self.passes_s = [sum(each) for each in zip(self.forward_s, self.again_s, self.backward_s, strict=True)]
        self.onward_s = sending(OpKind.SEND_ACTIVATION, 0, +1)
        self.back_s = sending(OpKind.SEND_GRADIENT, 1, -1)
        down = zip(self.forward_s, [*self.onward_s, 0.0], strict=True)
        up = zip(self.backward_s, [*self.back_s, 0.0], strict=True)
        self.head_s = [*accumulate(map(sum, down), initial=0.0)]
        self.tail_s = [*accumulate(map(sum, up), initial=0.0)]
        self.trip_s = self.head_s[-1] + self.tail_s[-1]

    @property
    def late_s(self) -> float:
        """How long after the update of stage 0 another stage may still update: max (U_k − U_0 − tail(k)), at least 0.

        Proof, for an update that stands right behind the last backward of its mini-batch, micro-batch i, on each lane:
        it starts when that ends, so stage k is updated at end(B_k(i)) + U_k; and the gradient of i has tail(k) to go
        before stage 0 can be updated.
        """
        pairs = zip(self.update_s, self.tail_s, strict=False)
        return max(update_s - self.update_s[0] - tail_s for update_s, tail_s in pairs)

    def channel_s(self, count: Callable[[int], int]) -> list[tuple[int, float]]:
        """For the channels from k to k + 1 and back, one transfer at a time: k, and ``count(k)`` transfers more."""
        each = [*zip(self.onward_s, self.back_s, strict=True)]
        serial = (k for k in range(self.count - 1) if self.binding.holds_lanes(k, k + 1))
        return [(k, count(k) * max(each[k])) for k in serial]

    def busiest_link_s(self, count: Callable[[int], int]) -> float:
        """Seconds of the busiest link that transfers share, with ``count(k)`` transfers from k to k + 1 and back each.

        Its bytes over its bandwidth; a transfer holds a ``fifo`` link for all its seconds.
        """
        busy = defaultdict[int, float](float)
        for k in range(self.count - 1):
            ways = ((OpKind.SEND_ACTIVATION, k, k + 1), (OpKind.SEND_GRADIENT, k + 1, k))
            for (kind, source, target), whole_s in zip(ways, (self.onward_s[k], self.back_s[k]), strict=True):
                for link in self.binding.route(source, target):
                    known = self.binding.cluster.links[link]
                    bytes_s = self.binding.payload_bytes[Cost(kind, source)] / known.bytes_per_s
                    busy[link] += count(k) * {"fifo": whole_s, "fair_share": bytes_s}.get(known.kind, 0.0)
        return max(busy.values(), default=0.0)


def least_step_s(plan: Candidate, binding: Binding) -> float:
    """A step time that no run of the plan is below; 0 where nothing is proved.

    Nothing is proved of allocators that take time, of replicated stages, of models that travel both ways, of two lanes
    on a device, and of orders that depend on time.
    """
    if binding.allocator != COUNTING or any(count > 1 for count in plan.replicas):
        return 0.0
    stages = _Stages(binding)
    if plan.method in FLUSHED:
        least_s = _flushed_s(plan, stages)
    elif plan.method in ROLLING and plan.weights != "predict":
        least_s = _rolling_s(plan, stages)
    elif plan.method in OTHER_FLUSHED:
        least_s = _other_flushed_s(plan, stages)
    elif plan.method == "data_parallel":
        least_s = _data_parallel_s(plan, stages)
    else:
        return 0.0
    return least_s * (1 - ROUNDING)


def _whole_run_s(plan: Candidate, stages: _Stages) -> float:
    """A makespan that no straight pipeline is below.

    The first forward of stage k starts after head(k); its lane then holds MT (F + R + B) and M − 1 updates before its
    last backward ends, and the gradient of that has tail(k) to go before stage 0 is updated.
    """
    total = plan.micro_batches * plan.mini_batches
    return stages.update_s[0] + max(
        stages.head_s[k] + total * stages.passes_s[k] + (plan.mini_batches - 1) * stages.update_s[k] + stages.tail_s[k]
        for k in range(stages.count)
    )


def _flushed_s(plan: Candidate, stages: _Stages) -> float:
    """Every mini-batch counts: n = M − 1, f = 0. Without two of them the step time is the makespan.

    Let u(m) be the end of the update of stage 0 by mini-batch m. All forwards of m + 1 follow from one of stage 0, and
    its lane holds that behind the update, so they start at u(m) or later. The lane of stage k starts the first forward
    of m + 1 after head(k), holds T (F + R + B), and the last gradient has tail(k) to go: u(m + 1) − u(m) ≥ U_0 +
    head(k) + T (F + R + B)_k + tail(k). A channel that carries one transfer at a time starts its first one after what
    leads there, carries T, and the last one has the rest of the trip before it: U_0 + trip + (T − 1) →k, so with ←k.
    A shared link carries all bytes of m + 1 between u(m) and u(m + 1). Over n steps these add up; t₁ ≥ u(f + n), and t₀
    is no more than ``late_s`` after u(f).
    """
    if plan.mini_batches < 2:
        return _whole_run_s(plan, stages)
    count, update_s = plan.micro_batches, stages.update_s[0]
    lanes = [stages.head_s[k] + count * stages.passes_s[k] + stages.tail_s[k] for k in range(stages.count)]
    channels = [stages.trip_s + more_s for _, more_s in stages.channel_s(lambda k: count - 1)]
    step_s = max(update_s + max(lanes + channels), stages.busiest_link_s(lambda k: count))
    return step_s - stages.late_s / (plan.mini_batches - 1)


def _rolling_s(plan: Candidate, stages: _Stages) -> float:
    """Warm-up and cool-down are left out: f = ⌈S / T⌉ and n = M − 2f − 1; f = 0 for one stage, which is never stale.

    Let i be the last micro-batch of f, so i + nT is that of f + n, and u(f) the end of the update of stage 0 by f. On
    the lane of stage k forward j + S − 1 − k stands before backward j. So forward i + S of stage 0 starts after u(f),
    that of stage k head(k) later, before its backward i + k + 1; up to backward i + nT the lane then holds nT − k
    forwards, recomputations and backwards, and n − ⌈(k + 1) / T⌉ updates; the gradient has tail(k) to go, and then
    stage 0 is updated: u(f + n).

    Of a channel: →k carries micro-batches i + S to i + nT + S − k − 2, since forward i + nT + S − k − 2 of stage k + 1
    stands before its backward i + nT; ←k carries i + k + 2 to i + nT. Both are nT − k − 1, the first one after
    head(k + 1) or later, the last one before B_k and tail(k); a shared link carries as many of each channel.
    A micro-batch is S − 1 behind the last one that stage 0 began, so forward j + S waits for backward j: ⌊nT / S⌋ trips
    follow one another. The updates that t₀ waits for are at most ``late_s`` after u(f).
    """
    count, depth, update_s = plan.micro_batches, stages.count, stages.update_s[0]
    filling = -(-min(depth, count * plan.mini_batches) // count) if depth > 1 and plan.mini_batches > 1 else 0
    steps = plan.mini_batches - 2 * filling - 1
    if steps < 1:
        return _whole_run_s(plan, stages) / plan.mini_batches
    passes = steps * count
    lanes = [
        stages.head_s[k]
        + max(passes - k, 0) * stages.passes_s[k]
        + max(steps - -(-(k + 1) // count), 0) * stages.update_s[k]
        + stages.tail_s[k]
        for k in range(depth)
    ]
    channels = [
        stages.head_s[k] + stages.forward_s[k] + more_s + stages.backward_s[k] + stages.tail_s[k]
        for k, more_s in stages.channel_s(lambda k: max(passes - k - 1, 0))
    ]
    trips = passes // depth * stages.trip_s
    links_s = stages.busiest_link_s(lambda k: max(passes - k - 1, 0))
    return (max(update_s + max(*lanes, *channels, trips), links_s) - stages.late_s) / steps


def _other_flushed_s(plan: Candidate, stages: _Stages) -> float:
    """Every mini-batch counts: n = M − 1, f = 0.

    A backward of mini-batch m + 1 follows from the forward of its micro-batch on every stage, and each of these stands
    behind the update of its stage by m: it starts when m is complete. So do all forwards of m + 2, which stand behind
    updates by m + 1. What a device computes in n steps is therefore between t₀ and t₁, but for forwards and
    recomputations of mini-batch f + 1: n times its work less T (F + R).
    """
    work_s, early_s = [0.0] * plan.gpus, [0.0] * plan.gpus
    for device, held in enumerate(held_by(plan, stages.count)):
        work_s[device] = sum(plan.micro_batches * stages.passes_s[k] + stages.update_s[k] for k in held)
        early_s[device] = sum(plan.micro_batches * (stages.forward_s[k] + stages.again_s[k]) for k in held)
    if plan.mini_batches < 2:
        return max(work_s)
    return max(work - early / (plan.mini_batches - 1) for work, early in zip(work_s, early_s, strict=True))


def _data_parallel_s(plan: Candidate, stages: _Stages) -> float:
    """Let r be the replica whose update completes f. Behind that its lane holds forward, backward and update of each
    further mini-batch, and the ring begins to sum when a forward has ended, and ends before an update: a step is at
    least F + U and the longer of B and the ring, and with one bucket their sum. All replicas are alike.
    """
    size_bytes = stages.binding.payload_bytes[Cost(OpKind.ALL_REDUCE, 0)]
    ring_s = stages.binding.ring_seconds(size_bytes, range(plan.gpus)) if plan.gpus > 1 else 0.0
    whole = Cost(OpKind.BACKWARD, 0, 0) not in stages.binding.seconds
    backward_s = stages.backward_s[0]
    return stages.forward_s[0] + stages.update_s[0] + (backward_s + ring_s if whole else max(backward_s, ring_s))


def held_by(plan: Candidate, stages: int) -> list[tuple[int, ...]]:
    """The stages that each device of the plan holds."""
    if plan.method == "data_parallel":
        return [(0,)] * plan.gpus
    if plan.replicas:
        return [(stage,) for stage, count in enumerate(plan.replicas) for _ in range(count)]
    last = 2 * plan.gpus - 1 if plan.method in FOLDED else plan.gpus - 1
    if plan.method in (*FOLDED, *TWO_WAYS):
        return [(device, last - device) for device in range(plan.gpus)]
    return [tuple(range(device, stages, plan.gpus)) for device in range(plan.gpus)]


def least_peak_bytes(plan: Candidate, binding: Binding) -> tuple[int, ...]:
    """Live bytes that every device of the plan reaches at some time.

    Weights, gradients and optimizer state are resident. When a backward starts, what its micro-batch saved is live. On
    a straight pipeline the order of the lane says more: `in_flight` micro-batches have run their forward and not ended
    their backward, each with what it saved and what it received; output and input gradient of the backward are live
    with them; and so is, where weights are stashed, each older version that these forwards read.
    """
    stages = _stages_of(binding)
    straight = plan.method in (*FLUSHED, *ROLLING) and not plan.replicas
    live = (max(_stash_bytes(plan, binding, k, stages, straight) for k in held) for held in held_by(plan, stages))
    return tuple(sum(both) for both in zip(resident_bytes(plan, binding), live, strict=True))


def resident_bytes(plan: Candidate, binding: Binding) -> tuple[int, ...]:
    """Weights, gradients and optimizer state on every device of the plan."""
    sizes: Counter[int] = Counter()
    for each in binding.resident:
        sizes[each.stage] += each.size_bytes if plan.method != "data_parallel" or each.device == 0 else 0
    return tuple(sum(sizes[k] for k in held) for held in held_by(plan, _stages_of(binding)))


def _stages_of(binding: Binding) -> int:
    return sum(cost.kind is OpKind.UPDATE for cost in binding.seconds)


def _stash_bytes(plan: Candidate, binding: Binding, stage: int, stages: int, straight: bool) -> int:
    """Live bytes of a stage when a backward starts, beside what is resident."""

    def size(kind: BufferKind) -> int:
        return binding.buffer_bytes[kind, stage]

    again = Cost(OpKind.RECOMPUTE, stage) in binding.seconds
    saved = size(BufferKind.CHECKPOINT) if again else size(BufferKind.ACTIVATION)
    working = size(BufferKind.ACTIVATION) if again else 0
    if not straight:
        return saved + working
    saved += size(BufferKind.RECEIVED_ACTIVATION) if stage else 0
    working += size(BufferKind.INPUT_GRADIENT) if stage else 0
    working += size(BufferKind.OUTPUT_GRADIENT) if stage < stages - 1 else 0
    stashed = older_versions(plan, stages, stage) if plan.weights == "stash" else 0
    return in_flight(plan, stages, stage) * saved + working + stashed * size(BufferKind.STASHED_WEIGHTS)


def in_flight(plan: Candidate, stages: int, stage: int) -> int:
    """Micro-batches that a stage of a straight pipeline holds when a backward starts, by the order of its lane."""
    if plan.method in ROLLING:
        return min(plan.micro_batches * plan.mini_batches, stages - stage)
    return min(plan.micro_batches, stages - stage if plan.method == "one_f_one_b" else plan.micro_batches)


def older_versions(plan: Candidate, stages: int, stage: int) -> int:
    """Versions before the current one that micro-batches in flight have read, at most; `ROLLING` only.

    Forward j reads ⌊(j − w) / T⌋ updates, w = S − 1 − stage: backward j − w follows it. When backward j starts, the
    forwards up to j + w have run and ⌊j / T⌋ updates are there: the difference is ⌈w / T⌉ where T divides j ≥ w.
    """
    ahead = stages - 1 - stage
    versions = -(-ahead // plan.micro_batches)
    enough = versions * plan.micro_batches + ahead < plan.micro_batches * plan.mini_batches
    return versions if plan.method in ROLLING and enough else 0


def least_staleness(plan: Candidate, stages: int) -> int:
    """Updates that some forward misses at least: of stage 0 as many as there are `older_versions`."""
    if plan.replicas or plan.method not in ROLLING or plan.weights not in ("latest", "stash", "vertical_sync"):
        return 0
    return older_versions(plan, stages, 0)
