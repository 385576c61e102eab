"""A worker's process: it plays its actor, whose transfers are one thread's work and whose passes another's.

Pulls that are asked for together leave together, by rank; the server sends what it is asked for in that order. A push
holds its connection until it has arrived; of those that wait the one of least rank is next.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from multiprocessing.connection import Connection

import numpy as np
import zmq

from backends.torch.servers.computing import computing
from backends.torch.servers.host import Host, Task
from backends.torch.servers.job import Finished, Go, Job, Place, Ready, elements_of
from backends.torch.servers.records import Record
from backends.torch.servers.wire import Change, Head, What, chunks, connector, elements, messages
from sim.engine.draws import Draws
from sim.ops import OpId, OpKind
from sim.program import Ask, Op, Released

_ON_ARRIVAL = {"asp": Change.APPLY, "ssp": Change.APPLY, "bsp": Change.ADD, "backup": Change.HOLD}
"""What a server does with a gradient."""


class Worker:
    """One worker."""

    def __init__(self, job: Job, device: int, line: Connection, record: Record, place: Place) -> None:
        self._job, self._device, self._line, self._record, self._place = job, device, line, record, place
        self._dtype, self._elements = np.dtype(job.arithmetic), elements_of(job.layout)
        self._actor = next(name for name, home in job.program.homes.items() if home == device)
        self._host = Host(self._do, self._ask)
        self._first_step = 0
        self._asked: dict[Ask, Task] = {}
        self._under_way: dict[tuple[What, int], tuple[Task, Op, float]] = {}  # by the answer that ends it, and part
        self._pulls: list[tuple[Task, Op]] = []
        self._pushes: dict[int, list[tuple[int, int, Task, Op]]] = {server: [] for server in job.layout.servers}
        self._sending: set[int] = set()  # servers to which a push is on its way
        self._turns = count()
        self._thread = ThreadPoolExecutor(1)
        self._passed: list[tuple[Task, Op, Future[tuple[float, float]]]] = []
        self._bell, self._rope = os.pipe()  # the other thread rings it
        self._poller = zmq.Poller()
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._sources: dict[object, Callable[[], None]] = {}

    def live(self) -> None:
        """Set up, wait for the common start, play the actor, report."""
        self._computing, versions = self._thread.submit(computing, self._job, self._device).result()
        self._line.send(Ready(os.getpid(), {**versions, "zmq": zmq.zmq_version()}))
        go: Go = self._line.recv()
        self._connect(go)
        conditions = self._job.binding.conditions
        latest_s = conditions.latest_start_s.get(self._actor, 0.0)
        self._line.poll(Draws(conditions, self._job.seed).start_s(latest_s, self._device))  # cut short by its end only
        self._host.start(self._job.program.actors[self._actor]())
        while self._host.actors:
            self._send_pulls()
            for source, _ in self._poller.poll():
                self._sources[source]()
        self._line.send(Finished(self._computing.losses))
        self._line.poll(None)  # until the parent ends the run

    def _connect(self, go: Go) -> None:
        self._first_step = go.first_step
        self._listen_to(self._line.fileno(), self._released)
        self._listen_to(self._bell, self._computed)
        for server, endpoint in go.endpoints.items():
            socket = self._sockets[server] = connector(zmq.DEALER)
            socket.routing_id = str(self._device).encode()
            own = f"{self._place.host}:0;" if self._place.host else ""
            socket.connect(endpoint.replace("tcp://", f"tcp://{own}"))
            self._listen_to(socket, partial(self._heard, socket))

    def _listen_to(self, source: object, act: Callable[[], None]) -> None:
        self._poller.register(source, zmq.POLLIN)
        self._sources[source] = act

    def _ask(self, task: Task, request: Ask) -> None:
        """Ask the parent, who has the policy."""
        if request.event == "begin":  # a training that goes on begins where its servers have come to
            request = request._replace(clock=max(request.clock, self._first_step))
        self._asked[request] = task
        self._line.send(request)

    def _released(self) -> None:
        released: Released = self._line.recv()
        self._host.advance(self._asked.pop(released.request), released.answer)

    def _do(self, task: Task, op: Op) -> bool:
        kind, part = op.id.kind, op.id.part
        if kind is OpKind.PULL:
            self._pulls.append((task, op))
            self._under_way[What.VALUES, part] = task, op, time.monotonic()
        elif kind is OpKind.PUSH:
            heapq.heappush(self._pushes[op.target], (op.rank, next(self._turns), task, op))
            self._push(op.target)
        elif kind in (OpKind.UPDATE, OpKind.ACCUMULATE):
            self._under_way[What.DONE, part] = task, op, time.monotonic()
            if self._on_arrival is Change.HOLD:
                self._sockets[op.source].send(Head(What.ADD, part, op.id.micro_batch).pack())
        else:
            passing = self._thread.submit(self._pass, op.id)
            passing.add_done_callback(lambda done: self._ring(task, op, done))
        return False

    @property
    def _on_arrival(self) -> Change:
        return _ON_ARRIVAL[self._job.layout.consistency]

    def _send_pulls(self) -> None:
        for _, op in sorted(self._pulls, key=lambda pull: pull[1].rank):
            self._sockets[op.source].send(Head(What.PULL, op.id.part, op.id.micro_batch).pack())
        self._pulls = []

    def _push(self, server: int) -> None:
        """Send what is next to a server, unless something is on its way there."""
        if server in self._sending or not self._pushes[server]:
            return
        self._sending.add(server)
        _, _, task, op = heapq.heappop(self._pushes[server])
        part, now_s = op.id.part, time.monotonic()
        self._under_way[What.ARRIVED, part] = task, op, now_s
        head = Head(What.GRADIENT, part, op.id.micro_batch, self._on_arrival, sent_s=now_s)
        for message in chunks(head, self._computing.gradient(part)):
            self._sockets[server].send_multipart(message, copy=False)

    def _heard(self, socket: zmq.Socket[bytes]) -> None:
        """What a server answers."""
        for first, *payload in messages(socket):
            head = Head.unpack(first.buffer)
            if payload:
                values = elements(payload[0], self._dtype)
                self._computing.take(head.part, head.offset, values)
                if head.offset + len(values) < self._elements[head.part]:
                    continue
            task, op, asked_s = self._under_way.pop((What(head.what), head.part))
            if head.what == What.VALUES:
                self._record.write(op.id, asked_s, time.monotonic(), reads=head.version)
            elif head.what == What.ARRIVED:
                self._sending.discard(op.target)
                self._push(op.target)
            self._host.advance(task)

    def _pass(self, op: OpId) -> tuple[float, float]:
        """A pass, on the other thread; when it started and ended."""
        self._computing.fetch(op.micro_batch)
        start_s = time.monotonic()
        self._computing.compute(op)
        return start_s, time.monotonic()

    def _ring(self, task: Task, op: Op, done: Future[tuple[float, float]]) -> None:
        self._passed.append((task, op, done))
        os.write(self._rope, b"!")

    def _computed(self) -> None:
        os.read(self._bell, 1)
        task, op, done = self._passed.pop(0)
        self._record.write(op.id, *done.result())
        self._host.advance(task)
