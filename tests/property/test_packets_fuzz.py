"""Mutated captures: flipped bits, cuts, insertions, repeats and absurd lengths never raise, hang or eat memory."""

from __future__ import annotations

import io
import json
import random
import signal
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import dpkt
import pytest

from analysis.packets import synthesis
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import read
from analysis.packets.synthesis import Transfer, synthesize
from sim.errors import ScenarioError

HANGS_S = 60
MOST_MEMORY = 64 << 20
BOMBS = (b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", b"\x00\x00\x04\x00", b"\x00\x04\x00\x00", b"\x0a\x0d\x0d\x0a")
SERVERS = parse_servers(["10.2.0.1:2222", "10.2.0.2:2222"])


def pcap() -> bytes:
    """Two workers, two servers, three steps, in either direction a few segments a transfer."""
    transfers = []
    for worker in range(2):
        for step in range(3):
            begin = 0.3 * step + 0.1 * worker
            for server in range(2):
                transfers.append(Transfer(worker, server, False, [begin, begin + 0.05], [0, 9_000], asked_s=begin))
                ends = [begin + 0.15, begin + 0.2]
                transfers.append(Transfer(worker, server, True, ends, [0, 9_000], answered_s=begin + 0.22))
    return synthesis.FILE_HEADER.tobytes() + synthesize(transfers).tobytes()


def pcapng(sound: bytes) -> bytes:
    """The same by dpkt's writer, then a section of the other byte order without any packet."""
    file = io.BytesIO()
    writer = dpkt.pcapng.Writer(file)
    for time, packet in dpkt.pcap.Reader(io.BytesIO(sound)):
        writer.writepkt(packet, float(time))
    section = struct.pack(">IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    return file.getvalue() + section


def mutated(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at, length = dice.randrange(len(found) + 1), dice.randrange(1, 200)
        kind = dice.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = dice.randbytes(length)
        elif kind == 3:
            del found[at : at + length]
        elif kind == 4:
            found[at : at + 4] = dice.choice(BOMBS)
        elif kind == 5:
            found[at:at] = found[at // 2 : at // 2 + 8 * length]
        else:
            found[at : at + length] = bytes(length)
    return bytes(found)


@contextmanager
def no_hang(seed: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"seed {seed} takes more than {HANGS_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def play(seeds: range, measured: int) -> int:
    """Read one mutant for each seed, every ``measured``-th under `tracemalloc`; how many could be read."""
    sound = pcap()
    originals = (sound, pcapng(sound))
    could = 0
    for seed in seeds:
        dice = random.Random(seed)
        data = mutated(dice.choice(originals), dice)
        if seed % measured == 0:
            tracemalloc.start()
        try:
            with no_hang(seed):
                result = read(io.BytesIO(data), SERVERS).result
            json.dumps(result, allow_nan=False)
            could += 1
        except ScenarioError:
            pass
        if tracemalloc.is_tracing():
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < MOST_MEMORY, f"seed {seed} needs {peak} bytes"
    return could


def test_the_originals_are_read_whole() -> None:
    for data in (pcap(), pcapng(pcap())):
        result = read(io.BytesIO(data), SERVERS).result
        assert [worker["steps"] for worker in result["workers"]] == [3, 3]
        assert result["unreadable_records"] == 0


def test_500_mutants() -> None:
    assert play(range(500), 25) > 300


@pytest.mark.slow
def test_10_000_mutants() -> None:
    assert play(range(1_000, 11_000), 100) > 6_000


def test_a_block_of_absurd_length_is_not_waited_for() -> None:
    """A length within the limits of the format makes the reader hold that much, never the file."""
    head = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    file = io.BytesIO(head + struct.pack("<II", 6, 1 << 24) + bytes(60 << 20))
    tracemalloc.start()
    with pytest.raises(ScenarioError, match="nothing could be read"):
        read(file, SERVERS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_MEMORY
