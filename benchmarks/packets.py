"""Captures: packets read per second against dpkt's reader and decoder, and memory between a capture and one ten times it."""

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

WANTED_PER_S, WORKERS, STEPS, SIZE = 100_000, 8, 5, 1_500_000
STEP_S = 0.2


def measure() -> list[Row]:
    """Time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.pcap", Path(folder) / "large.pcap"
        packets = _write(small, STEPS)
        ours_s, dpkt_s = side_by_side(lambda: _read(small), lambda: _with_dpkt(small))
        rate = packets / ours_s
        found = f"{rate:,.0f} packets/s"
        wanted = Row(
            "packets read", found, f"{WANTED_PER_S:,} packets/s", rate / WANTED_PER_S, "1", "the rate asked for"
        )
        beside = Row(
            "packets read", found, f"{packets / dpkt_s:,.0f} packets/s", dpkt_s / ours_s, "1", "dpkt decoding only"
        )
        _write(large, 10 * STEPS)
        peaks = [_peak(small), _peak(large)]
    ours, ten = (f"{peak / 2**20:.1f} MiB" for peak in peaks)
    return [wanted, beside, Row("memory of a capture", ten, ours, peaks[0] / peaks[1], "0.5", "of one a tenth as long")]


def _write(file: Path, steps: int) -> int:
    """Workers that take turns on a server's links; how many packets that makes."""
    transfers = []
    for worker in range(WORKERS):
        for step in range(steps):
            begin = (step + worker / WORKERS) * STEP_S
            ends = ([begin, begin + 0.02], [begin + 0.1, begin + 0.12])
            transfers.append(Transfer(worker, 0, False, ends[0], [0, SIZE], asked_s=begin))
            transfers.append(Transfer(worker, 0, True, ends[1], [0, SIZE], answered_s=begin + 0.125))
    records = synthesize(transfers)
    synthesis.write(records, file)
    return len(records)


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
