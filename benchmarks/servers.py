"""Real parameter servers on the loopback interface: goodput against plain sockets, what durability and each op cost.

Wall time, as a transfer is the work of two processes and the kernel, and the fastest of interleaved repeats, as other
work on the machine only adds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import zmq

from backends.torch import run
from backends.torch.servers import Checkpoint, Job
from backends.torch.servers.crew import crew
from backends.torch.servers.job import elements_of
from backends.torch.servers.wire import Change, Head, What, chunks, connector, elements, messages
from benchmarks.measure import Row
from scenarios.compose import Composed, compose
from scenarios.load import parse_text
from scenarios.schema import parse
from sim.planners import PLANNERS

SIZES = ("10 MB", "100 MB")
REPEATS, DURABLE = 15, 5
STEPS = 400
_SCENARIO = """
name: servers
model: {{uniform: {{forward: 1 us, backward: 1 us, activation: 1 kB, parameters: {size}}}, batch_size: 1}}
cluster: {{workers: 1, servers: 1, device: p40, host: host, nic: 10 Gbit/s, link: {{kind: fair_share, latency: 50 us}}}}
schedule: {{name: parameter_server, mini_batches: {steps}, start: together}}
"""
_PEER = """
import socket, sys
size, peer = int(sys.argv[1]), socket.create_connection(("127.0.0.1", int(sys.argv[2])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
values = bytearray(size)
while word := peer.recv(1):
    if word == b"<":
        peer.sendall(values)
    elif word == b">":
        left = memoryview(values)
        while left:
            left = left[peer.recv_into(left):]
        peer.sendall(b".")
    else:
        peer.sendall(b".")
"""


class Plain:
    """A process that sends and receives so many bytes over a plain socket."""

    def __init__(self, size_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            command = [sys.executable, "-c", _PEER, str(size_bytes), str(listening.getsockname()[1])]
            self._process = subprocess.Popen(command)
            self._peer, _ = listening.accept()
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._values = bytearray(size_bytes)

    def pull(self) -> None:
        """Receive."""
        self._peer.sendall(b"<")
        left = memoryview(self._values)
        while left:
            left = left[self._peer.recv_into(left) :]

    def push(self) -> None:
        """Send, and hear that it is there."""
        self._peer.sendall(b">")
        self._peer.sendall(self._values)
        self._peer.recv(1)

    def ping(self) -> None:
        """A byte there and back."""
        self._peer.sendall(b"?")
        self._peer.recv(1)

    def close(self) -> None:
        """End the process."""
        self._peer.close()
        self._process.wait()


class Ours:
    """A worker's side of a connection to a server that runs."""

    def __init__(self, endpoint: str, count: int) -> None:
        self._values = np.zeros(count, np.float32)
        self._socket = connector(zmq.DEALER)
        self._socket.routing_id = b"0"
        self._socket.connect(endpoint)
        self._number = 0

    def pull(self) -> None:
        """The part, into the memory of the weights."""
        self._socket.send(Head(What.PULL, 0, 0).pack())
        missing = len(self._values)
        while missing:
            self._socket.poll()
            for first, payload in messages(self._socket):
                chunk, offset = elements(payload, np.dtype(np.float32)), Head.unpack(first.buffer).offset
                self._values[offset : offset + len(chunk)] = chunk
                missing -= len(chunk)

    def push(self, change: Change, until: What) -> None:
        """A gradient, until the server says what it should."""
        self._number += 1
        for message in chunks(Head(What.GRADIENT, 0, self._number, change), self._values):
            self._socket.send_multipart(message, copy=False)
        while True:
            self._socket.poll()
            for first, *_ in messages(self._socket):
                if Head.unpack(first.buffer).what == until:
                    return

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def planned(size: str, steps: int = 1) -> Composed:
    """One worker, one server, a model of some size."""
    document = parse_text(_SCENARIO.format(size=size, steps=steps), "servers.yaml")
    return compose(parse(document, PLANNERS), document)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def fastest(repeats: int, *works: Callable[[], object]) -> list[float]:
    """Seconds of each, done in turn."""
    for work in works:
        work()
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [min(each) for each in zip(*rounds, strict=True)]


def goodput(size: str) -> list[Row]:
    """Pull, push without and with its apply, and with a durable one."""
    job = Job(*planned(size), 0, "sleep")
    (count,) = elements_of(job.layout)
    size_bytes, rows = 4 * count, []

    def row(what: str, ours_s: float, reference_s: float, wanted: str, reference: str) -> None:
        rates = [f"{size_bytes / each_s / 1e9:.2f} GB/s" for each_s in (ours_s, reference_s)]
        rows.append(Row(f"{what}, {size}", *rates, reference_s / ours_s, wanted, reference))

    plain = Plain(size_bytes)
    with crew(job, {}) as (_, server):
        ours = Ours(server.line.recv().endpoint, count)
        pull_s, pulled_s, push_s, pushed_s, applied_s = fastest(
            REPEATS,
            ours.pull,
            plain.pull,
            lambda: ours.push(Change.HOLD, What.ARRIVED),
            plain.push,
            lambda: ours.push(Change.APPLY, What.DONE),
        )
        ours.close()
    row("pull", pull_s, pulled_s, "0.5", "plain sockets, the same bytes")
    row("push, not applied", push_s, pushed_s, "0.5", "plain sockets, the same bytes")
    row("push, applied", applied_s, pushed_s, "–", "plain sockets, the same bytes")
    plain.close()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "plain", "wb", buffering=0) as file:
        values = bytes(size_bytes)

        def write() -> None:
            file.write(values)
            os.fdatasync(file.fileno())

        durable = replace(job, checkpoint=Checkpoint(Path(folder), every=10**9))
        with crew(durable, {}) as (_, server):
            ours = Ours(server.line.recv().endpoint, count)
            kept_s, written_s = fastest(DURABLE, lambda: ours.push(Change.APPLY, What.DONE), write)
            ours.close()
    row("push, applied and durable", kept_s, written_s, "–", "a file, write and fdatasync of the same bytes")
    return rows


def per_op() -> Row:
    """A run of steps that take no time: what is left of each op is overhead."""
    plan, binding = planned("4 kB", STEPS)
    idle = replace(binding, seconds=dict.fromkeys(binding.seconds, 0.0))
    trace = run(plan, idle, compute="sleep").trace
    plain = Plain(1)
    (round_trip_s,) = fastest(1000, plain.ping)
    plain.close()
    each_s = trace.makespan_s / len(trace.ops)
    name = f"overhead of an op, {len(trace.ops)} ops"
    ours, reference = f"{1e6 * each_s:.0f} us", f"{1e6 * round_trip_s:.0f} us"
    return Row(name, ours, reference, round_trip_s / each_s, "–", "a byte there and back over a plain socket")


def measure() -> list[Row]:
    """The rows of this benchmark."""
    return [*(row for size in SIZES for row in goodput(size)), per_op()]
