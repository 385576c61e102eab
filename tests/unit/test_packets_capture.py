"""Reading of capture files: every format and link layer against what dpkt wrote, and what is left of damaged files."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import dpkt
import numpy as np
import pytest

from analysis.packets.capture import CHUNK, ENDS, FRAMING, GIVEN_UP, MISFIT, NO_TIME, WRONG_TIME, Damage, frames
from analysis.packets.decode import LENGTHS, SHORT, Decoder, Segments
from analysis.packets.endpoints import parse_servers, text, words
from sim.errors import ScenarioError

EPOCH_NS = 1_700_000_000 * 10**9
MAPPED = 0xFFFF << 32
V4 = (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
V6 = (bytes(15) + b"\x01", b"\xfd" + bytes(14) + b"\x02")


def segments(data: bytes) -> tuple[list[Segments], Damage]:
    damage = Damage()
    decoder = Decoder(damage)
    return [decoder.segments(chunk) for chunk in frames(io.BytesIO(data), damage)], damage


def rows(data: bytes) -> tuple[list[tuple[int, ...]], Damage]:
    """Time, ports, sequence number, payload of every segment."""
    found, damage = segments(data)
    columns = ("time_ns", "source_port", "target_port", "sequence", "payload")
    return [
        tuple(int(value) for value in row)
        for each in found
        for row in zip(*(getattr(each, name) for name in columns), strict=True)
    ], damage


def tcp(sequence: int = 7, payload: int = 0, flags: int = dpkt.tcp.TH_ACK, options: bytes = b"") -> bytes:
    segment = dpkt.tcp.TCP(sport=2222, dport=40000, seq=sequence, flags=flags, opts=options, data=bytes(payload))
    segment.off = 5 + len(options) // 4
    return bytes(segment)


def ipv4(payload: bytes, protocol: int = 6, **fields: Any) -> bytes:
    packet = dpkt.ip.IP(src=V4[0], dst=V4[1], p=protocol, data=payload, **fields)
    packet.len = len(bytes(packet))
    return bytes(packet)


def ipv6(payload: bytes, following: int = 6, length: int | None = None) -> bytes:
    head = struct.pack(">IHBB", 6 << 28, len(payload) if length is None else length, following, 64)
    return head + V6[0] + V6[1] + payload


def pcap(
    packets: Sequence[bytes],
    link: int = 1,
    order: str = "<",
    nano: bool = False,
    snaplen: int = 65535,
    times_ns: Sequence[int] | None = None,
) -> bytes:
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    found = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for number, packet in enumerate(packets):
        seconds, rest = divmod(EPOCH_NS + 1000 * number if times_ns is None else times_ns[number], 10**9)
        kept = packet[:snaplen]
        found += [struct.pack(order + "IIII", seconds, rest // unit, len(kept), len(packet)), kept]
    return b"".join(found)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int = 1, resolution: int | None = None, offset_s: int = 0, order: str = "<") -> bytes:
    options = b"" if resolution is None else struct.pack(order + "HHB3x", 9, 1, resolution)
    options += struct.pack(order + "HHq", 14, 8, offset_s) if offset_s else b""
    return block(1, struct.pack(order + "HHI", link, 0, 0) + options + bytes(4), order)


def enhanced(packet: bytes, ticks: int, number: int = 0, order: str = "<", length: int | None = None) -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), length or len(packet))
    return block(6, head + packet, order)


ETHERNET = bytes(12)
LINKS: dict[str, tuple[int, Callable[[bytes, int], bytes]]] = {
    "ethernet": (1, lambda packet, kind: ETHERNET + struct.pack(">H", kind) + packet),
    "vlan": (1, lambda packet, kind: ETHERNET + struct.pack(">HHH", 0x8100, 5, kind) + packet),
    "qinq": (1, lambda packet, kind: ETHERNET + struct.pack(">HHHHH", 0x88A8, 7, 0x8100, 5, kind) + packet),
    "cooked": (113, lambda packet, kind: bytes(14) + struct.pack(">H", kind) + packet),
    "cooked v2": (276, lambda packet, kind: struct.pack(">H", kind) + bytes(18) + packet),
    "raw": (101, lambda packet, kind: packet),
    "raw IPv4 or IPv6": (228, lambda packet, kind: packet),
    "loopback of BSD, little": (0, lambda packet, kind: struct.pack("<I", 2 if kind == 0x800 else 30) + packet),
    "loopback of BSD, big": (0, lambda packet, kind: struct.pack(">I", 2 if kind == 0x800 else 24) + packet),
    "loopback of OpenBSD": (108, lambda packet, kind: struct.pack(">I", 2 if kind == 0x800 else 24) + packet),
}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", LINKS)
def test_every_link_layer_carries_both_versions_of_ip(name: str, version: int) -> None:
    link, wrap = LINKS[name]
    make, kind = (ipv4, 0x0800) if version == 4 else (ipv6, 0x86DD)
    data = pcap([wrap(make(tcp(9, 100)), kind), wrap(make(tcp(109, 50, options=bytes([1] * 12))), kind)], link)
    found, damage = rows(data)
    assert found == [(EPOCH_NS, 2222, 40000, 9, 100), (EPOCH_NS + 1000, 2222, 40000, 109, 50)]
    assert damage.records == 0


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap_of_either_byte_order_and_unit(order: str, nano: bool) -> None:
    times = [EPOCH_NS + 123_456_789, EPOCH_NS + 999_999_999]
    data = pcap([ETHERNET + b"\x08\x00" + ipv4(tcp())] * 2, order=order, nano=nano, times_ns=times)
    unit = 1 if nano else 1000
    assert [row[0] for row in rows(data)[0]] == [time // unit * unit for time in times]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("resolution", "ticks_per_s"),
    [(None, 10**6), (9, 10**9), (3, 10**3), (12, 10**12), (0x80 | 20, 2**20), (0x80 | 40, 2**40)],
)
def test_pcapng_of_either_byte_order_and_every_unit(order: str, resolution: int | None, ticks_per_s: int) -> None:
    packet = ETHERNET + b"\x08\x00" + ipv4(tcp(payload=3))
    ticks = 1_000_000 * ticks_per_s + ticks_per_s // 4
    data = section(order) + interface(1, resolution, 0, order) + enhanced(packet, ticks, order=order)
    found, damage = rows(data)
    assert [row[0] for row in found] == [1_000_000_250_000_000]
    assert damage.records == 0


def test_pcapng_with_interfaces_sections_and_older_blocks() -> None:
    packet = ipv4(tcp(payload=3))
    seconds = 1_700_000_000
    first = section() + interface(1, 9) + interface(101, None, 1000)
    first += enhanced(ETHERNET + b"\x08\x00" + packet, EPOCH_NS)
    first += enhanced(packet, (seconds - 1000) * 10**6 + 5, number=1)
    ticks = (seconds - 1000) * 10**6 + 9
    first += block(2, struct.pack("<HHIIII", 1, 3, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet)) + packet)
    first += block(3, struct.pack("<I", len(packet)) + packet)  # has no time
    first += block(4, bytes(8)) + block(5, bytes(12))  # names, statistics
    second = section(">") + interface(101, 9, 0, ">") + enhanced(packet, EPOCH_NS + 20_000, order=">")
    second += enhanced(packet, EPOCH_NS, number=7, order=">")  # no such interface
    found, damage = rows(first + second)
    assert [row[0] - EPOCH_NS for row in found] == [0, 5_000, 9_000, 20_000]
    assert +damage.reasons == {NO_TIME: 1, MISFIT: 1}


def test_dpkt_agrees_on_a_long_capture() -> None:
    random = np.random.default_rng(0)
    file = io.BytesIO()
    writer = dpkt.pcap.Writer(file, nano=True)
    sizes = random.integers(0, 1400, 3000).tolist()
    for number, size in enumerate(sizes):
        segment = dpkt.tcp.TCP(sport=2222, dport=number % 7 + 1, seq=number, data=bytes(size))
        packet = dpkt.ip.IP(src=V4[0], dst=V4[1], p=6, data=segment, opts=bytes(4 * (number % 3)))
        packet.hl, packet.len = 5 + number % 3, 40 + 4 * (number % 3) + size
        writer.writepkt(dpkt.ethernet.Ethernet(src=b"123456", dst=b"abcdef", type=0x800, data=packet), number * 0.25)
    data = file.getvalue()
    expected = []
    for time, raw in dpkt.pcap.Reader(io.BytesIO(data)):
        inner = dpkt.ethernet.Ethernet(raw).data.data
        expected.append((round(time * 10**9), inner.sport, inner.dport, inner.seq, len(inner.data)))
    assert len(data) > 2 * CHUNK  # records are cut by the ends of what is held
    assert rows(data)[0] == expected


def test_payload_counts_by_the_length_of_ip_not_by_what_was_captured() -> None:
    wrap = LINKS["ethernet"][1]
    padded = wrap(ipv4(tcp(1, 0)), 0x800) + bytes(6)  # the least frame of Ethernet
    whole = wrap(ipv4(tcp(1, 60_000)), 0x800)
    assert [row[4] for row in rows(pcap([padded, whole], snaplen=96))[0]] == [0, 60_000]


@pytest.mark.parametrize("version", [4, 6])
def test_a_length_of_0_left_by_offloading_is_the_length_on_the_wire(version: int) -> None:
    raw = bytearray(ipv4(tcp(1, 100_000 % 65_000))) if version == 4 else bytearray(ipv6(tcp(1, 35_000)))
    at = 2 if version == 4 else 4
    raw[at : at + 2] = bytes(2)
    data = pcap([LINKS["vlan"][1](bytes(raw), 0x800 if version == 4 else 0x86DD)], snaplen=128)
    assert [row[4] for row in rows(data)[0]] == [35_000]


def test_extension_headers_of_ipv6() -> None:
    inner = tcp(5, 77)
    chain = bytes([43, 0]) + bytes(6)  # hop by hop, then routing
    chain += bytes([51, 1]) + bytes(14)  # routing of 16 bytes, then authentication
    chain += bytes([60, 4]) + bytes(22)  # authentication: 4·(4 + 2) bytes, then options
    chain += bytes([6, 0]) + bytes(6)
    found, damage = rows(pcap([ipv6(chain + inner, 0)], 101))
    assert [row[3:] for row in found] == [(5, 77)]
    assert damage.records == 0


@pytest.mark.parametrize("version", [4, 6])
def test_fragments_are_segments_of_their_own(version: int) -> None:
    whole = tcp(2**32 - 10, 1000)
    parts = [(0, whole[:400]), (400, whole[400:800]), (800, whole[800:])]

    def fragment(offset: int, part: bytes) -> bytes:
        more = offset + len(part) < len(whole)
        if version == 4:
            return ipv4(part, id=99, _flags_offset=more << 13 | offset // 8)
        return ipv6(struct.pack(">BBHI", 6, 0, offset | more, 99) + part, 44)

    orphan = ipv4(bytes(80), id=5, _flags_offset=10)
    found, damage = rows(pcap([orphan, *(fragment(*part) for part in parts)], 101))
    assert [row[1:] for row in found] == [
        (2222, 40000, 2**32 - 10, 380),
        (2222, 40000, 370, 400),
        (2222, 40000, 770, 220),
    ]
    assert damage.records == 0


def test_what_is_not_tcp_is_passed_over_and_what_is_broken_is_counted() -> None:
    wrap = LINKS["ethernet"][1]
    arp, udp = ETHERNET + b"\x08\x06" + bytes(28), wrap(ipv4(bytes(40), 17), 0x800)
    cut = wrap(ipv4(tcp()), 0x800)[:40]
    short_header, long_header = bytearray(ipv4(tcp())), bytearray(ipv4(tcp()))
    short_header[0], long_header[32] = 0x43, 0xF0
    data = pcap([arp, udp, cut, *(wrap(bytes(each), 0x800) for each in (short_header, long_header))])
    found, damage = rows(data)
    assert found == []
    assert +damage.reasons == {SHORT: 1, LENGTHS: 2}
    assert rows(pcap([bytes(60)] * 3, link=127))[1].reasons["link layers of type 127 are not read"] == 3


@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_a_damaged_file_gives_all_but_what_was_damaged(form: str) -> None:
    packets = [LINKS["ethernet"][1](ipv4(tcp(number, number % 90)), 0x800) for number in range(400)]
    if form == "pcap":
        sound = pcap(packets)
    else:
        sound = section() + interface(1, 9)
        sound += b"".join(enhanced(packet, EPOCH_NS + 1000 * number) for number, packet in enumerate(packets))
    expected = set(rows(sound)[0])
    assert len(expected) == 400
    random = np.random.default_rng(1)
    for _ in range(60):
        at = int(random.integers(200, len(sound) - 200))
        noise = random.bytes(37)
        for damaged in (sound[:at] + noise + sound[at:], sound[:at] + sound[at + 23 :]):
            found, damage = rows(damaged)
            assert len(expected - set(found)) <= 2
            assert damage.records >= (expected > set(found))
        bomb = rows(sound[:at] + b"\xff\xff\xff\x7f" + sound[at + 4 :])
        assert len(expected - set(bomb[0])) <= 2
    found, damage = rows(sound[:-5])
    assert set(found) == expected - {max(expected)}
    assert damage.reasons[ENDS] == 1


def test_a_time_far_from_those_around_it_is_damage() -> None:
    packets = [LINKS["raw"][1](ipv4(tcp(number)), 0x800) for number in range(20)]
    times = [EPOCH_NS + number * 10**6 for number in range(20)]
    times[7] += 2**14 * 10**9
    found, damage = rows(pcap(packets, 101, times_ns=times))
    assert [row[3] for row in found] == [number for number in range(20) if number != 7]
    assert damage.reasons[WRONG_TIME] == 1
    times[7] += 2**30 * 10**9
    assert [row[3] for row in rows(pcap(packets, 101, times_ns=times))[0]] == [row[3] for row in found]
    later = [time + (number > 9) * 10**16 for number, time in enumerate(times[:7] + times[8:])]  # the clock was set
    assert rows(pcap(packets[:19], 101, times_ns=later))[1].records == 0
    quiet = [EPOCH_NS, *(EPOCH_NS + 3600 * 10**9 + number for number in range(19))]
    assert rows(pcap(packets, 101, times_ns=quiet, nano=True))[1].records == 0


def test_nonsense_ends() -> None:
    """Zeros, ones and noise after a sound header: each comes to an end, and is counted."""
    for rest in (bytes(10**6), b"\xff" * 10**6, np.random.default_rng(2).bytes(3 * 10**6)):
        for head in (pcap([]), section() + interface()):
            found, damage = rows(head + rest)
            assert found == []
            assert damage.records > 0
            assert damage.reasons[FRAMING] < 50


def test_too_much_damage_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.packets.capture.MOST_DAMAGED", 5)
    sound = pcap([ipv4(tcp())] * 8, 101)[24:]
    found, damage = rows(pcap([]) + (sound + b"\xff" * 30) * 20)
    assert len(found) < 8 * 20
    assert damage.reasons[GIVEN_UP] == 1


@pytest.mark.parametrize("data", [b"", b"\n", b"hello world" * 10, b"\x1f\x8b" + bytes(50), pcap([])[:20]])
def test_no_capture(data: bytes) -> None:
    with pytest.raises(ScenarioError, match="no capture"):
        list(frames(io.BytesIO(data), Damage()))


def test_servers_are_written_as_people_write_them() -> None:
    servers = parse_servers(["10.0.0.1:2222", "[fd00::1]:2222", "fd00::2", "10.0.0.1:2223"])
    assert [server.port for server in servers] == [2222, 2222, None, 2223]
    assert [text(server.addresses[0]) for server in servers] == ["10.0.0.1", "fd00::1", "fd00::2", "10.0.0.1"]
    assert (
        servers[0].addresses[0] == words(__import__("ipaddress").ip_address("10.0.0.1")) == (0, MAPPED | 10 << 24 | 1)
    )
    for wrong in ("10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "[fd00::1]2222", ":2222"):
        with pytest.raises(ScenarioError, match="--server"):
            parse_servers([wrong])
    with pytest.raises(ScenarioError, match=r"one server(.|\n)*is no server"):
        parse_servers(["10.0.0.1", "10.0.0.1:5", "10.0.0.2:x"])
    with pytest.raises(ScenarioError, match="which ends"):
        parse_servers([])
