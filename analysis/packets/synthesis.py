"""The capture that a simulated run would have produced, as seen at the servers' side of the network.

A connection for each worker and server; a request before each download, a response after each upload has been applied,
an acknowledgement for every other segment. Only headers are captured, as with a small snaplen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.packets.capture import Ints
from sim.cluster import Cluster
from sim.engine.max_min import max_min
from sim.errors import UnsupportedPlan
from sim.ops import OpKind
from sim.rows import Rows
from sim.trace import Trace

SEGMENT = 1448
"""Payload of a full segment on Ethernet, with time stamps."""
MOST_SEGMENT = 65_495
"""The most that offloading puts under one IP header."""
MOST_PACKETS = 4_000_000
PORT, FIRST_WORKER, FIRST_SERVER = 2222, IPv4Address("10.1.0.1"), IPv4Address("10.2.0.1")

_EPOCH_NS = 1_704_067_200 * 10**9
_MESSAGE, _SOON_NS = 64, 1_000
_INITIAL = 2**32 - 500_000  # so that sequence numbers wrap around early
_ACK, _PUSH_ACK, _SYN, _SYN_ACK = 0x10, 0x18, 0x02, 0x12

RECORD = np.dtype(
    [
        ("seconds", "<u4"),
        ("nanoseconds", "<u4"),
        ("captured", "<u4"),
        ("length", "<u4"),
        ("target_mac", ">u2", 3),
        ("source_mac", ">u2", 3),
        ("ether_type", ">u2"),
        ("version", ">u2"),
        ("ip_length", ">u2"),
        ("identification", ">u2"),
        ("fragment", ">u2"),
        ("ttl_protocol", ">u2"),
        ("ip_checksum", ">u2"),
        ("source", ">u4"),
        ("target", ">u4"),
        ("source_port", ">u2"),
        ("target_port", ">u2"),
        ("sequence", ">u4"),
        ("acknowledged", ">u4"),
        ("flags", ">u2"),
        ("window", ">u2"),
        ("tcp_checksum", ">u2"),
        ("urgent", ">u2"),
    ]
)
"""A record of pcap with the headers of Ethernet, IPv4 and TCP."""

_HEADERS = RECORD.itemsize - 16
FILE_HEADER = np.array([0xA1B23C4D, 0x00040002, 0, 0, 128, 1], "<u4")


class Transfer(NamedTuple):
    """A download or an upload between a worker and a server, by number.

    ``asked_s``: when the worker asks for a download, ``answered_s``: when the server answers an upload, if they do.
    ``time_s`` and ``sent``: points of the cumulated bytes over time, from 0 at the start to the end.
    """

    worker: int
    server: int
    is_upload: bool
    time_s: Sequence[float]
    sent: Sequence[float]
    asked_s: float | None = None
    answered_s: float | None = None


class _Packets(NamedTuple):
    time_ns: Ints
    connection: Ints
    is_upload: NDArray[np.bool_]
    payload: Ints
    flags: Ints

    def some(self, kept: Ints) -> _Packets:
        return _Packets(
            self.time_ns[kept], self.connection[kept], self.is_upload[kept], self.payload[kept], self.flags[kept]
        )


def synthesize(transfers: Iterable[Transfer], segment_bytes: int = SEGMENT) -> NDArray[np.void]:
    """The records (dtype `RECORD`) of some transfers, each cut into segments of ``segment_bytes``.

    Raises
    ------
    UnsupportedPlan : there are none, or more packets than a capture of ours holds.
    """
    transfers = list(transfers)
    if not transfers:
        raise UnsupportedPlan("nothing to capture: no worker of this run loads from a parameter server or sends to one")
    _check_count(transfers, segment_bytes)
    servers = 1 + max(transfer.server for transfer in transfers)
    parts = [_packets(transfer, servers, segment_bytes) for transfer in transfers]
    first_ns: dict[int, int] = {}
    for part in parts:
        connection, earliest_ns = int(part.connection[0]), int(part.time_ns.min())
        first_ns[connection] = min(first_ns.get(connection, earliest_ns), earliest_ns)
    parts += [_handshake(connection, time_ns) for connection, time_ns in first_ns.items()]
    packets = _joined(parts)
    return _records(packets.some(np.lexsort([packets.connection, packets.time_ns])), servers)


def _check_count(transfers: Sequence[Transfer], segment_bytes: int) -> None:
    """Refuse what would be too large, with the segment that fits."""
    size, others = sum(transfer.sent[-1] for transfer in transfers), 6 * len(transfers)
    count = others + 1.5 * size / segment_bytes  # with acknowledgements, messages and handshakes
    if count > MOST_PACKETS:
        fits = int(1.5 * size / max(MOST_PACKETS - others, 1)) + 1
        hint = f"use --segment {fits}" if fits <= MOST_SEGMENT else "simulate fewer steps"
        raise UnsupportedPlan(f"some {count:,.0f} packets, more than {MOST_PACKETS:,}: {hint}")


def _packets(transfer: Transfer, servers: int, segment_bytes: int) -> _Packets:
    """The packets of one transfer. A segment is seen when its last byte has come."""
    size = max(round(transfer.sent[-1]), 1)
    reach = np.append(np.arange(segment_bytes, size, segment_bytes), size)
    kept = np.append(True, np.diff(transfer.sent) > 0)
    time_s = np.interp(
        reach * (transfer.sent[-1] / size), np.array(transfer.sent)[kept], np.array(transfer.time_s)[kept]
    )
    data_ns = np.rint(time_s * 1e9).astype(np.int64)
    connection, is_upload = transfer.worker * servers + transfer.server, transfer.is_upload
    parts = [
        _alike(data_ns, connection, is_upload, np.diff(reach, prepend=0), _ACK),
        _alike(data_ns[1::2] + _SOON_NS, connection, not is_upload, 0, _ACK),
    ]
    message_s = transfer.answered_s if is_upload else transfer.asked_s
    if message_s is not None:
        parts.append(_alike(np.array([round(message_s * 1e9)]), connection, not is_upload, _MESSAGE, _PUSH_ACK))
    return _joined(parts)


def _alike(time_ns: Ints, connection: int, is_upload: bool, payload: Ints | int, flags: int) -> _Packets:
    count = len(time_ns)
    return _Packets(
        time_ns + _EPOCH_NS,
        np.full(count, connection),
        np.full(count, is_upload),
        np.full(count, payload, np.int64),
        np.full(count, flags),
    )


def _handshake(connection: int, first_ns: int) -> _Packets:
    """What opens a connection, just before its first packet."""
    return _joined(
        [
            _alike(np.array([first_ns - _EPOCH_NS - ago * _SOON_NS]), connection, is_upload, 0, flags)
            for ago, is_upload, flags in ((3, True, _SYN), (2, False, _SYN_ACK), (1, True, _ACK))
        ]
    )


def _joined(parts: Sequence[_Packets]) -> _Packets:
    return _Packets(
        np.concatenate([part.time_ns for part in parts]),
        np.concatenate([part.connection for part in parts]),
        np.concatenate([part.is_upload for part in parts]),
        np.concatenate([part.payload for part in parts]),
        np.concatenate([part.flags for part in parts]),
    )


def _records(packets: _Packets, servers: int) -> NDArray[np.void]:
    """Put headers around packets in order of time."""
    records = np.zeros(len(packets.time_ns), RECORD)
    worker, server = np.divmod(packets.connection, servers)
    up = packets.is_upload
    addresses = int(FIRST_WORKER) + worker, int(FIRST_SERVER) + server
    ports = 40_000 + server, np.full(len(up), PORT)
    records["seconds"], records["nanoseconds"] = np.divmod(packets.time_ns, 10**9)
    records["captured"], records["length"] = _HEADERS, _HEADERS + packets.payload
    for (name, port), ours, theirs in zip(
        (("source", "source_port"), ("target", "target_port")), (up, ~up), (~up, up), strict=True
    ):
        records[name] = np.where(ours, addresses[0], addresses[1])
        records[port] = np.where(ours, ports[0], ports[1])
        records[f"{name}_mac"][:, 0] = 0x0200
        records[f"{name}_mac"][:, 1:] = np.where(theirs, 0x0100, 0)[:, None] + np.where(ours, worker, server)[:, None]
    records["ether_type"], records["version"], records["fragment"] = 0x0800, 0x4500, 0x4000
    records["ip_length"] = _HEADERS - 14 + packets.payload
    records["ttl_protocol"], records["window"] = 64 << 8 | 6, 0xFFFF
    records["flags"] = 5 << 12 | packets.flags
    for rows in Rows.from_pairs(packets.connection, np.arange(len(up)), int(packets.connection.max()) + 1):
        grown = packets.payload[rows] + (packets.flags[rows] & _SYN != 0)
        reach = [np.cumsum(np.where(up[rows] == way, grown, 0)) for way in (False, True)]
        mine = np.where(up[rows], reach[1], reach[0]) - grown
        others = np.where(up[rows], reach[0], reach[1])
        records["sequence"][rows] = (_INITIAL + mine) % 2**32
        records["acknowledged"][rows] = np.where(packets.flags[rows] == _SYN, 0, (_INITIAL + others) % 2**32)
    words = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)[:, 30:50].copy().view(">u2")
    total = words.astype(np.int64).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    records["ip_checksum"] = ~(total + (total >> 16)) & 0xFFFF
    return records


def write(records: NDArray[np.void], path: Path) -> None:
    """Write records as a capture file (pcap with nanoseconds)."""
    with path.open("wb") as file:
        file.write(FILE_HEADER.tobytes())
        records.tofile(file)


def addresses(count: int) -> list[str]:
    """The servers of synthesized captures, as ``--server`` takes them."""
    return [f"{FIRST_SERVER + number}:{PORT}" for number in range(count)]


def of_trace(trace: Trace, cluster: Cluster) -> list[Transfer]:
    """The pulls and pushes of a run on ``cluster``.

    A trace tells when each began and ended; the rates between are the max-min fair shares of what was under way,
    stretched to its bytes.
    """
    moving = np.flatnonzero(np.isin(trace.ops["kind"], (OpKind.PULL, OpKind.PUSH)))
    if not len(moving):
        return []
    ours = trace.ops["stage"][moving] == 0  # a second job only takes its share of the links
    flows = trace.flows[np.isin(trace.flows["op"], moving)]
    size = dict(zip(flows["op"].tolist(), flows["bytes"].tolist(), strict=True))
    moving = moving[ours & np.isin(moving, flows["op"])]
    routes = {op: _route(trace, cluster, op) for op in size}
    start_s = {op: min(float(trace.start_s[op]) + cluster.latency_s(routes[op]), float(trace.end_s[op])) for op in size}
    shares = _shares(trace, cluster, routes, start_s)
    ends = trace.ops["source"][moving], trace.ops["target"][moving]
    is_upload = trace.ops["kind"][moving] == OpKind.PUSH
    workers, servers = np.where(is_upload, ends[0], ends[1]), np.where(is_upload, ends[1], ends[0])
    numbers = {device: number for number, device in enumerate(np.unique(servers).tolist())}
    asked_s, answered_s = _asked(trace, moving), _answered(trace, moving)
    found = []
    for row, op in enumerate(moving.tolist()):
        time_s, work = shares[op]
        scale = size[op] / work[-1]
        found.append(
            Transfer(
                int(workers[row]),
                numbers[int(servers[row])],
                bool(is_upload[row]),
                time_s,
                [each * scale for each in work],
                asked_s.get(op),
                answered_s.get(op),
            )
        )
    return found


def _route(trace: Trace, cluster: Cluster, op: int) -> tuple[int, ...]:
    names = trace.header["devices"]
    return cluster.route(*(names[int(trace.ops[end][op])] for end in ("source", "target")))


def _shares(
    trace: Trace, cluster: Cluster, routes: dict[int, tuple[int, ...]], start_s: dict[int, float]
) -> dict[int, tuple[list[float], list[float]]]:
    """Of every transfer, points in time and the work done until then."""

    @cache
    def rates(active: tuple[tuple[int, ...], ...]) -> list[float]:
        capacity = {link: cluster.links[link].bytes_per_s for route in active for link in route}
        shared = [tuple(link for link in route if cluster.links[link].kind == "fair_share") for route in active]
        found = max_min(shared, capacity)
        caps = [min((capacity[link] for link in route), default=np.inf) for route in active]
        return [min(rate, cap) if min(rate, cap) < np.inf else 1.0 for rate, cap in zip(found, caps, strict=True)]

    lasting = [op for op in routes if trace.end_s[op] > start_s[op]]
    changes = sorted(
        [(start_s[op], True, op) for op in lasting] + [(float(trace.end_s[op]), False, op) for op in lasting]
    )
    found = {op: ([start_s[op]], [0.0]) for op in routes}
    under_way: dict[int, None] = {}
    now = 0.0
    for time_s, opens, op in changes:
        if time_s > now and under_way:
            for each, rate in zip(under_way, rates(tuple(routes[each] for each in under_way)), strict=True):
                found[each][0].append(time_s)
                found[each][1].append(found[each][1][-1] + rate * (time_s - now))
        now = time_s
        if opens:
            under_way[op] = None
        else:
            under_way.pop(op, None)
    for op in routes.keys() - set(lasting):
        found[op] = ([start_s[op]] * 2, [0.0, 1.0])
    return found


def _asked(trace: Trace, moving: Ints) -> dict[int, float]:
    """When each pull was asked for: when its worker had done what came before, or as it began."""
    last: dict[int, list[float]] = {}
    done = np.append(_applied(trace), np.flatnonzero(trace.ops["kind"] == OpKind.BACKWARD))
    for op in done[np.argsort(trace.end_s[done], kind="stable")].tolist():
        last.setdefault(int(trace.ops["replica"][op]), []).append(float(trace.end_s[op]))
    found = {}
    for op in moving[trace.ops["kind"][moving] == OpKind.PULL].tolist():
        ends, start_s = last.get(int(trace.ops["replica"][op]), []), float(trace.start_s[op])
        before = int(np.searchsorted(ends, start_s, "right"))
        found[op] = ends[before - 1] + 1e-9 * _SOON_NS if before else start_s
    return found


def _answered(trace: Trace, moving: Ints) -> dict[int, float]:
    """When each push had been applied."""
    ends = {_number(trace, op): float(trace.end_s[op]) for op in _applied(trace).tolist()}
    pushes = moving[trace.ops["kind"][moving] == OpKind.PUSH]
    return {op: ends[_number(trace, op)] for op in pushes.tolist() if _number(trace, op) in ends}


def _applied(trace: Trace) -> Ints:
    """What servers do with the gradient of one worker: add it, or update with it where they never add."""
    adding = np.flatnonzero(trace.ops["kind"] == OpKind.ACCUMULATE)
    return adding if len(adding) else np.flatnonzero(trace.ops["kind"] == OpKind.UPDATE)


def _number(trace: Trace, op: int) -> tuple[int, ...]:
    return tuple(int(trace.ops[name][op]) for name in ("micro_batch", "replica", "part"))
