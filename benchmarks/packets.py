"""Captures: packets read per second against dpkt, and the memory that one takes against one ten times as long."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import dpkt

from analysis.packets import synthesis
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import read
from analysis.packets.synthesis import Transfer, synthesize
from benchmarks.measure import Row, side_by_side

WANTED_PER_S, WORKERS, STEPS, SIZE = 100_000, 8, 12, 2_000_000
STEP_S = 0.2


def measure() -> list[Row]:
    """Time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.pcap", Path(folder) / "large.pcap"
        packets = _write(small, 1)
        ours_s, dpkt_s = side_by_side(lambda: _read(small), lambda: _with_dpkt(small), repeats=3)
        _write(large, 10)
        small_peak, large_peak = _peak(small), _peak(large)
    rate = packets / ours_s
    ours, wanted = f"{rate:,.0f} packets/s", f"{WANTED_PER_S:,} packets/s"
    dpkt_rate, ten = f"{packets / dpkt_s:,.0f} packets/s", f"{large_peak / 2**20:.1f} MiB"
    return [
        Row("packets read", ours, wanted, rate / WANTED_PER_S, "1", "the rate that was asked for"),
        Row("packets read", ours, dpkt_rate, dpkt_s / ours_s, "1", "dpkt's reader and decoder alone"),
        Row("memory to read", ten, f"{small_peak / 2**20:.1f} MiB", small_peak / large_peak, "0.8", "a tenth of it"),
    ]


def _write(file: Path, times: int) -> int:
    """Workers that take turns on a server's links, again and again on new connections; how many packets that makes."""
    transfers = []
    for worker in range(WORKERS):
        for step in range(STEPS):
            begin = (step + worker / WORKERS) * STEP_S
            ends = ([begin, begin + 0.02], [begin + 0.1, begin + 0.12])
            transfers.append(Transfer(worker, 0, False, ends[0], [0, SIZE], asked_s=begin))
            transfers.append(Transfer(worker, 0, True, ends[1], [0, SIZE], answered_s=begin + 0.125))
    records = synthesize(transfers)
    synthesis.write(records, file)
    with file.open("ab") as more:
        for _ in range(1, times):
            records["seconds"] += round((STEPS + 3) * STEP_S)
            for end in ("source_port", "target_port"):
                records[end][records[end] != synthesis.PORT] += 1
            records.tofile(more)
    return times * len(records)


def _read(file: Path) -> None:
    """Everything: framing, decoding, streams, steps, demands."""
    with file.open("rb") as opened:
        result = read(opened, parse_servers(synthesis.addresses(1))).result
    assert len(result["workers"]) == WORKERS


def _with_dpkt(file: Path) -> int:
    """Bytes of TCP payload, by dpkt."""
    total = 0
    with file.open("rb") as opened:
        for _, frame in dpkt.pcap.Reader(opened):
            packet = dpkt.ethernet.Ethernet(frame).data
            total += packet.len - 4 * packet.hl - 4 * packet.data.off
    return total


def _peak(file: Path) -> int:
    tracemalloc.start()
    _read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
