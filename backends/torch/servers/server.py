"""A server's process: it keeps parts, sends them to who asks, and applies what arrives in the order of arriving.

One thread serves, so an op of it is over before the next begins. A snapshot is taken when the request is served.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import zmq

from backends.torch.data import initial
from backends.torch.server_state import flat, places
from backends.torch.servers.job import Adopt, Array, Collect, Job, Place, Ready, Update, Values, elements_of
from backends.torch.servers.kept import Kept
from backends.torch.servers.records import Record
from backends.torch.servers.store import Store
from backends.torch.servers.wire import Change, Head, What, chunks, connector, elements, messages
from sim.errors import BackendFailure
from sim.ops import OpId, OpKind


class Server:
    """The parts of one server."""

    def __init__(self, job: Job, device: int, line: Connection, record: Record, place: Place) -> None:
        torch.set_num_threads(1)
        self._line, self._record, self._dtype = line, record, np.dtype(job.arithmetic)
        self._parts = {
            number: Kept(values, job.plan.training)
            for number, values in enumerate(_initial(job))
            if job.layout.servers[job.layout.parts[number].server] == device
        }
        self._arriving: dict[tuple[int, int], Array] = {}  # by worker and part
        self._held: dict[tuple[int, int], int] = {}  # the step whose gradient stands there, to be added or dropped
        self._router, self._collected = _listen(place), False
        number = job.layout.servers.index(device)
        self._store = Store(job.checkpoint, number, _identity(job), self._parts) if job.checkpoint else None

    def live(self) -> None:
        """Serve until the parent collects what is kept, or ends the run."""
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        versions = {"torch": str(torch.__version__), "zmq": zmq.zmq_version()}
        kept = {number: (part.version, part.newest) for number, part in self._parts.items()}
        self._line.send(Ready(os.getpid(), versions, endpoint, kept))
        poller = zmq.Poller()
        for source in (self._router, self._line):
            poller.register(source, zmq.POLLIN)
        while not self._collected:  # what a dead worker had sent and nobody has read comes too late then
            ready = dict(poller.poll())
            if self._line.fileno() in ready:
                self._told(self._line.recv())
            elif self._router in ready:
                for frames in messages(self._router):
                    self._heard(*frames)

    def _heard(self, peer: zmq.Frame, first: zmq.Frame, payload: zmq.Frame | None = None) -> None:
        head = Head.unpack(first.buffer)
        worker = int(peer.bytes)
        if head.what == What.PULL:
            self._send(peer, head)
        elif head.what == What.ADD:
            self._change(Change.ADD, worker, head.number, head.part)
            self._answer(peer, What.DONE, head)
        else:
            assert payload is not None
            self._receive(peer, worker, head, elements(payload, self._dtype))

    def _send(self, peer: zmq.Frame, head: Head) -> None:
        part = self._parts[head.part]
        first = Head(What.VALUES, head.part, head.number, version=part.version)
        for message in chunks(first, part.values.numpy()):
            sent = self._router.send_multipart([peer.bytes, *message], copy=False, track=True)
            assert sent is not None
            part.on_the_way.append(sent)  # each: a short last chunk is copied at once, while longer ones still wait

    def _receive(self, peer: zmq.Frame, worker: int, head: Head, chunk: Array) -> None:
        """A chunk of a gradient; the last one of it changes the part."""
        size = self._parts[head.part].values.numel()
        if (worker, head.part) not in self._arriving:
            self._arriving[worker, head.part] = np.empty(size, self._dtype)
        end = head.offset + len(chunk)
        self._arriving[worker, head.part][head.offset : end] = chunk
        if end < size:
            return
        if not self._parts[head.part].holds(worker, head.number):
            push = OpId(OpKind.PUSH, 0, head.number, worker, head.part)
            self._record.write(push, head.sent_s, time.monotonic())
        self._answer(peer, What.ARRIVED, head)
        self._held[worker, head.part] = head.number
        if head.change:
            self._change(Change(head.change), worker, head.number, head.part)
            self._answer(peer, What.DONE, head)

    def _answer(self, peer: zmq.Frame, what: What, head: Head) -> None:
        self._router.send_multipart([peer, Head(what, head.part, head.number).pack()])

    def _change(self, what: Change, worker: int, number: int, part: int) -> None:
        """Do what was asked for, unless a worker that begins again asks for what was done before."""
        kept, start_s = self._parts[part], time.monotonic()
        if what is not Change.MEAN and (kept.holds(worker, number) or self._held.get((worker, part)) != number):
            return
        gradient = None if what is Change.MEAN else self._arriving[worker, part]
        kept.change(what, worker, number, gradient)
        if self._store:
            self._store.keep(what, part, worker, number, gradient)
        kind = OpKind.ACCUMULATE if what is Change.ADD else OpKind.UPDATE
        writes = kept.version + (what is Change.ADD)
        self._record.write(OpId(kind, 0, number, worker, part), start_s, time.monotonic(), writes=writes)

    def _told(self, message: Any) -> None:
        """Something from the parent."""
        match message:
            case Update(part, number):
                self._change(Change.MEAN, 0, number, part)
            case Adopt(worker, number, part):
                self._change(Change.ADD, worker, number, part)
            case Collect():
                if self._store:
                    self._store.save()
                message = Values({number: part.values.numpy() for number, part in self._parts.items()})
                self._collected = True
        self._line.send(message)


def _initial(job: Job) -> list[torch.Tensor]:
    """What each part starts from; asleep, nothing is trained and zeros stay zeros."""
    architecture, parts = job.plan.architecture, job.layout.parts
    dtype = torch.float32 if job.arithmetic == "float32" else torch.float64
    if job.compute == "sleep" or architecture is None:
        return [torch.zeros(count, dtype=dtype) for count in elements_of(job.layout)]
    model = initial(architecture, job.seed, dtype)
    values = flat(list(model.parameters()))
    return [values[place] for place in places(model, parts)]


def _listen(place: Place) -> zmq.Socket[bytes]:
    router = connector(zmq.ROUTER)
    endpoint = f"tcp://{place.host or '127.0.0.1'}:{place.port or '*'}"
    try:
        router.bind(endpoint)
    except zmq.ZMQError as error:
        raise BackendFailure(f"cannot listen on {endpoint}: {os.strerror(error.errno or 0)}") from None
    return router


def _identity(job: Job) -> dict[str, Any]:
    """What must be the same where a training goes on."""
    training = job.plan.training
    return {
        "model": job.plan.model,
        "parts": [[part.server, count] for part, count in zip(job.layout.parts, elements_of(job.layout), strict=True)],
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
        "momentum": training.momentum,
        "task": training.task,
        "workers": job.layout.workers,
        "samples": job.binding.samples,
        "consistency": job.layout.consistency,
        "compute": job.compute,
        "arithmetic": job.arithmetic,
        "seed": job.seed,
    }
