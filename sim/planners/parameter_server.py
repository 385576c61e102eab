"""Asynchronous or synchronous training with parameter servers, each of which keeps a shard of the parameters.

A step of a worker: pull all parts, forward, backward, push all gradients; a server applies each to its part. Under
``asp`` and ``ssp`` it updates at once; under ``bsp`` and ``backup`` it adds, and updates when the gradients of a step
are there. With ``granularity: layer`` a part is a variable or a bucket of small ones: the forward of a layer starts
when its parts have arrived, and a gradient leaves while the backward goes on.

A worker whose device died begins its step anew when it is back; its attempts are numbered on, so the number of a step
in names of ops is at least that of the step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Literal, NamedTuple

from sim.errors import InvalidSchedule, UnsupportedPlan
from sim.op_table import UNSET
from sim.ops import Lane, OpId, OpKind
from sim.policies import Asynchronous, BulkSynchronous, StaleSynchronous
from sim.program import Actor, Ask, Begin, Do, Layout, Lost, Op, Policy, Program, Wait
from sim.schedule import Shape
from sim.sharding import Shards, Variable, by_layer, whole

Consistency = tuple[Literal["asp", "bsp", "ssp", "backup"], int]
Order = tuple[Literal["fifo", "reverse", "priority", "window"], float]

MAX_TRANSFERS = 2 * 10**6
"""Pulls and pushes of one run: some minutes, and some gigabytes."""


class Told(NamedTuple):
    """What the planner is told of the cluster and of the model: no keys of a schedule."""

    workers: int
    background: int
    layers: int
    variables: tuple[Variable, ...]
    shards: Shards


def plan(
    told: Told,
    mini_batches: int = 100,
    consistency: Consistency = ("asp", 0),
    granularity: Literal["step", "layer"] = "step",
    order: Order = ("fifo", 0.0),
    bucket: float = 0.0,
    snapshot: Literal["on_request", "on_delivery"] = "on_request",
    start: Literal["random", "together"] | None = None,
) -> Program:
    """``mini_batches``: steps of each worker, or of all where these are synchronous.

    Parameters
    ----------
    consistency : ``asp``; ``bsp``; ``ssp`` and its bound; ``backup`` and how many of the workers are to spare.
    order : what a connection sends next: ``fifo``, what was asked for first (of parameters: the first layer);
        ``reverse``, parameters of the last layer first; ``priority``, what the next forward needs first (TicTac,
        Hashemi et al., MLSys 2019); ``window``, all at once, each so many bytes a round trip (HTTP/2).
    bucket : variables on one server travel together up to so many elements.
    start : workers start at random phases of a step, the default where nothing synchronizes them, or together.
    """
    layout = _layout(told, consistency, granularity, order, bucket, snapshot)
    _check(layout, granularity, bucket, start)
    workers = {f"worker{worker}": partial(_worker, layout, mini_batches, worker) for worker in range(layout.workers)}
    others = {f"background{number}": partial(_background, layout, number) for number in range(layout.background)}
    servers = {
        f"server{number}": partial(_server, layout, mini_batches, number)
        for number in range(len(layout.parts) if layout.sums else 0)
    }
    replicas = layout.workers + layout.background
    return Program(
        Shape(2 if others else 1, 1, mini_batches, replicas),
        placement={(int(replica >= layout.workers), replica): replica for replica in range(replicas)},
        actors={**workers, **others, **servers},
        policy=_policy(layout),
        layout=layout,
        homes={name: device for device, name in enumerate((*workers, *others))},
        endless=frozenset(others),
    )


def _layout(
    told: Told,
    consistency: Consistency,
    granularity: str,
    order: Order,
    bucket: float,
    snapshot: Literal["on_request", "on_delivery"],
) -> Layout:
    by_layers = granularity == "layer"
    parts = by_layer(told.shards, told.variables, bucket) if by_layers else whole(told.shards, told.variables)
    starts = sorted({0, *(variable.layer for variable in told.variables)}) if by_layers else [0]
    first = told.workers + told.background
    return Layout(
        workers=told.workers,
        background=told.background,
        servers=tuple(range(first, first + len(told.shards))),
        parts=parts,
        blocks=tuple(zip(starts, [*(start - 1 for start in starts[1:]), told.layers - 1], strict=True)),
        consistency=consistency[0],
        bound=consistency[1],
        snapshot=snapshot,
        order=order[0],
        window_bytes=order[1],
    )


def _check(layout: Layout, granularity: str, bucket: float, start: str | None) -> None:
    """Refuse keys without influence."""
    if not layout.parts:
        raise UnsupportedPlan("a model without parameters has nothing to serve")
    if granularity == "step":
        for key, given in (("order", layout.order != "fifo"), ("bucket", bucket > 0)):
            if given:
                raise UnsupportedPlan(f"schedule.{key} has no influence without granularity: layer")
    if layout.consistency == "backup" and not 0 < layout.bound < layout.workers:
        raise InvalidSchedule(f"{layout.bound} of {layout.workers} workers to spare: at least one must be left")
    if layout.sums and start == "random":
        raise UnsupportedPlan(f"schedule.start: random has no influence under {layout.consistency}: all wait for all")
    if layout.sums and layout.snapshot == "on_delivery":
        raise UnsupportedPlan(f"schedule.snapshot has no influence under {layout.consistency}: no update comes between")


def transfers(layout: Layout, mini_batches: int) -> int:
    """Pulls and pushes of a run, those of a second job left out."""
    return 2 * layout.workers * mini_batches * len(layout.parts)


def _policy(layout: Layout) -> Callable[[], Policy]:
    if layout.consistency == "asp":
        return Asynchronous
    if layout.consistency == "ssp":
        return partial(StaleSynchronous, layout.workers, layout.bound)
    return partial(BulkSynchronous, layout.workers, layout.bound)


class _Way(NamedTuple):
    """How one part goes from a server to a worker and back, and what its ops are called."""

    stage: int
    worker: int
    server: int
    part: int
    down: tuple[Lane, ...]
    up: tuple[Lane, ...]
    core: tuple[Lane, ...]
    rank: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, layout: Layout, worker: int, part: int) -> _Way:
        """Of a part of the model."""
        layer = layout.parts[part].layers[0]
        rank = {"reverse": (-layer, 0), "priority": (layer, layer)}.get(layout.order, (0, 0))
        return cls._between(layout, 0, worker, layout.parts[part].server, part)._replace(rank=rank)

    @classmethod
    def of_other(cls, layout: Layout, worker: int, server: int) -> _Way:
        """Of the share that a server keeps of the second job, stage 1."""
        return cls._between(layout, 1, worker, server, server)

    @classmethod
    def _between(cls, layout: Layout, stage: int, worker: int, server: int, part: int) -> _Way:
        device = layout.servers[server]
        core = (Lane(device, "core"),)
        if layout.order == "window":  # streams of one connection, all under way at once
            return cls(stage, worker, device, part, (), (), core)
        down = (Lane(device, f"send>{worker}"), Lane(worker, f"recv<{device}"))
        up = (Lane(worker, f"send>{device}"), Lane(device, f"recv<{worker}"))
        return cls(stage, worker, device, part, down, up, core)

    def pull(self, number: int) -> Do:
        """Parameters from the server."""
        name = OpId(OpKind.PULL, self.stage, number, self.worker, self.part)
        return Do(Op(name, self.down, self.server, self.worker, reads=UNSET, rank=self.rank[0]))

    def push(self, number: int) -> Do:
        """A gradient to the server."""
        name = OpId(OpKind.PUSH, self.stage, number, self.worker, self.part)
        return Do(Op(name, self.up, self.worker, self.server, rank=self.rank[1]))

    def apply(self, kind: OpKind, number: int) -> Do:
        """A gradient added, or an update made of it."""
        name = OpId(kind, self.stage, number, self.worker, self.part)
        return Do(Op(name, self.core, self.server, writes=UNSET))


def _worker(layout: Layout, steps: int, worker: int) -> Actor:
    name, step, number = f"worker{worker}", 0, -1
    ways = [_Way.of(layout, worker, part) for part in range(len(layout.parts))]
    blocks = [_Block.of(layout, block) for block in range(len(layout.blocks))]
    while True:
        try:
            step = yield Ask("begin", name, step)
            number = max(number + 1, step)
            if step >= steps:
                return
            yield from _step(layout, ways, blocks, step, number)
            step += 1
        except Lost:
            continue


class _Block(NamedTuple):
    """Layers that are computed as one: what they need before their forward, what leaves after their backward."""

    part: int
    needs: tuple[int, ...]
    leaving: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout, block: int) -> _Block:
        """By its number."""
        inside = range(layout.blocks[block][0], layout.blocks[block][1] + 1)
        needs = tuple(number for number, part in enumerate(layout.parts) if not set(inside).isdisjoint(part.layers))
        leaving = tuple(number for number in needs if layout.parts[number].layers[0] in inside)
        return cls(block if len(layout.blocks) > 1 else -1, needs, leaving)

    def compute(self, kind: OpKind, stage: int, worker: int, number: int) -> Do:
        """One of its passes."""
        return Do(Op(OpId(kind, stage, number, worker, self.part), (Lane(worker, "compute"),), worker))


def _step(layout: Layout, ways: Sequence[_Way], blocks: Sequence[_Block], step: int, number: int) -> Actor:
    worker = ways[0].worker
    for way in ways:
        yield Begin(way.part, _once(way.pull(number)))
    for block in blocks:
        yield Wait(block.needs)
        yield block.compute(OpKind.FORWARD, 0, worker, number)
    for block in reversed(blocks):
        yield block.compute(OpKind.BACKWARD, 0, worker, number)
        for part in block.leaving:
            yield Begin(part, _sum(layout, ways[part], step, number) if layout.sums else _send(ways[part], number))
    yield Wait(tuple(range(len(ways))))


def _once(do: Do) -> Actor:
    yield do


def _send(way: _Way, number: int) -> Actor:
    """Push a gradient; the server updates at once."""
    yield way.push(number)
    yield way.apply(OpKind.UPDATE, number)


def _sum(layout: Layout, way: _Way, step: int, number: int) -> Actor:
    """Push a gradient; the server adds it, and updates when the others are there.

    Of a step that is done anew it may have a gradient, or not need one any more.
    """
    name, anew = f"worker{way.worker}", number > step
    yield way.push(number)
    if (anew or layout.consistency == "backup") and not (yield Ask("pushed", name, step, way.part)):
        return
    yield way.apply(OpKind.ACCUMULATE, number)
    yield Ask("applied", name, step, way.part)


def _server(layout: Layout, steps: int, part: int) -> Actor:
    """The updates of one part under a barrier."""
    name, server = f"server{part}", layout.servers[layout.parts[part].server]
    for step in range(steps):
        yield Ask("gathered", name, step, part)
        yield Do(Op(OpId(OpKind.UPDATE, 0, step, 0, part), (Lane(server, "core"),), server, writes=UNSET))
        yield Ask("updated", name, step, part)


def _background(layout: Layout, number: int) -> Actor:
    """A worker of the second job: it never ends."""
    worker, whole_model = layout.workers + number, _Block(-1, (), ())
    ways = [_Way.of_other(layout, worker, server) for server in range(len(layout.servers))]
    all_parts = tuple(way.part for way in ways)
    for step in count():
        try:
            for way in ways:
                yield Begin(way.part, _once(way.pull(step)))
            yield Wait(all_parts)
            yield whole_model.compute(OpKind.FORWARD, 1, worker, step)
            for way in ways:
                yield Begin(way.part, _send(way, step))
            yield Wait(all_parts)
        except Lost:
            continue
