"""A real capture: sockets on the loopback interface, written by a raw socket, against what the sockets counted."""

from __future__ import annotations

import io
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import read

SIZE, STEPS, WORKERS = 400_000, 6, 2
COMPUTE_S, APPLY_S = 0.12, 0.04
SO_RCVBUFFORCE, SO_TIMESTAMPNS, SOL_PACKET, PACKET_STATISTICS = 33, 35, 263, 6
SNAPLEN, ETH_P_ALL, PACKET_OUTGOING, IDLE_S = 128, 3, 4, 0.25


@contextmanager
def captured(file: io.BytesIO) -> Iterator[None]:
    """Write what passes the loopback interface to a pcap; it sees each packet twice, going out and coming in."""
    try:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        raw.bind(("lo", 0))
    except (AttributeError, OSError) as error:
        pytest.skip(f"no raw socket on the loopback interface: {error}")
    raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
    raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    raw.settimeout(IDLE_S)
    file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, SNAPLEN, 1))
    done_ns: list[int] = []

    def write() -> None:
        """What others send over the interface does not keep this from ending."""
        while True:
            try:
                packet, [(_, _, stamp)], _, address = raw.recvmsg(1 << 18, 64)
            except TimeoutError:
                if done_ns:
                    return
                continue
            seconds, rest = struct.unpack("qq", stamp)
            if done_ns and seconds * 10**9 + rest > done_ns[0]:
                return
            if address[2] != PACKET_OUTGOING:
                file.write(struct.pack("<IIII", seconds, rest, min(len(packet), SNAPLEN), len(packet)))
                file.write(packet[:SNAPLEN])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done_ns.append(time.time_ns())
        thread.join()
        dropped = struct.unpack("II", raw.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        raw.close()
    if dropped:
        pytest.skip(f"this machine is too busy to capture: {dropped} packets were dropped")


def receive(connection: socket.socket, size: int) -> None:
    while size:
        got = len(connection.recv(min(size, 1 << 16)))
        assert got, "the other end is gone"
        size -= got


def serve(listening: socket.socket) -> None:
    """A request is a byte, so is a response; every worker has a connection of its own."""

    def answer(connection: socket.socket) -> None:
        with connection:
            for _ in range(STEPS):
                receive(connection, 1)
                connection.sendall(bytes(SIZE))
                receive(connection, SIZE)
                time.sleep(APPLY_S)
                connection.sendall(b"!")

    threads = [threading.Thread(target=answer, args=(listening.accept()[0],)) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(address: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), source_address=(address, 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(STEPS):
            connection.sendall(b"?")
            receive(connection, SIZE)
            time.sleep(COMPUTE_S)
            connection.sendall(bytes(SIZE))
            receive(connection, 1)


@pytest.mark.slow
def test_sockets_on_the_loopback_interface() -> None:
    file = io.BytesIO()
    with socket.create_server(("127.0.0.1", 0)) as listening, captured(file):
        port = listening.getsockname()[1]
        threads = [threading.Thread(target=serve, args=(listening,))]
        threads += [threading.Thread(target=work, args=(f"127.0.0.{2 + each}", port)) for each in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    file.seek(0)
    result = read(file, parse_servers([f"127.0.0.1:{port}"]), model_bytes=SIZE).result
    assert [worker["address"] for worker in result["workers"]] == ["127.0.0.2", "127.0.0.3"]
    for worker in result["workers"]:
        assert (worker["bytes_down"], worker["bytes_up"]) == (STEPS * (SIZE + 1), STEPS * (SIZE + 1))
        assert worker["steps"] == STEPS
        first_s = worker["upload_s"] / 6  # a segment of 64 kB was on its way before it was seen
        assert worker["compute_s"] + first_s >= COMPUTE_S  # a sleep is no shorter, and longer on a busy machine
        assert worker["apply_s"] >= APPLY_S
    assert (result["unreadable_records"], result["missing_bytes"]) == (0, 0)
    assert result["step_bytes"] == pytest.approx({"down": SIZE, "up": SIZE}, abs=2)
