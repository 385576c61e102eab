"""Sweeps as a user starts them, in processes of their own, against what was asked and against Calculon."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row

CALCULON = 239.0
"""Points/s/core of Calculon (Isaev et al., SC '23) on closed formulas, measured before on a machine of this class."""
JOBS = 2

PIPELINE = """
name: pipelines
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 8 MB}, batch_size: 64}
cluster: {devices: 4, device: a100, link: {kind: in_order, bandwidth: 10 GB/s, latency: 5 us}}
schedule: {name: one_f_one_b, stages: 4, micro_batches: 8}
"""
FREE = """
sweep:
  latin_hypercube:
    samples: %d
    axes:
      cluster.link.bandwidth: {log_uniform: [1 GB/s, 100 GB/s]}
      cluster.link.latency: {uniform: [1 us, 100 us]}
      model.uniform.forward: {uniform: [0.5 ms, 5 ms]}
      model.batch_size: [64, 128, 256]
"""
SHARED = """
sweep:
  latin_hypercube:
    samples: 1000
    axes:
      cluster.link.kind: [fair_share, fifo]
      cluster.link.bandwidth: {log_uniform: [1 GB/s, 100 GB/s]}
      schedule.name: [gpipe, one_f_one_b]
      schedule.micro_batches: [4, 8]
"""


def _sweep(text: str) -> tuple[float, int, float]:
    """Seconds of the whole command, rows without an error, and MiB of its largest process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(PIPELINE + text)
        code = "from scenarios.command_line import main; main()"
        command = [sys.executable, "-c", code, "sweep", str(file), "--out", folder, "--jobs", str(JOBS)]
        start = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.monotonic() - start
        database = sqlite3.connect(Path(folder) / "results.sqlite")
        (rows,) = database.execute("SELECT count(*) FROM points WHERE error IS NULL").fetchone()
        database.close()
    return seconds, int(rows), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def measure() -> list[Row]:
    """The rows of this benchmark; the last is the memory of a sweep of ten times as many points."""
    (few_s, few, few_mib), (many_s, many, many_mib) = _sweep(FREE % 1000), _sweep(FREE % 10_000)
    shared_s, shared, _ = _sweep(SHARED)
    assert (few, many, shared) == (1000, 10_000, 1000)
    each = many / many_s / JOBS
    return [
        Row(
            "10,000 pipelines without contention, all told",
            f"{many_s:.1f} s",
            "60 s",
            60 / many_s,
            "1",
            f"what was asked; {few_s:.1f} s for 1,000",
        ),
        Row(
            "the same, points/s/core",
            f"{each:.0f}",
            f"{CALCULON:.0f}",
            each / CALCULON,
            "–",
            "Calculon on closed formulas, measured before",
        ),
        Row("1,000 simulated points", f"{shared_s:.1f} s", "20 s", 20 / shared_s, "1", "what was asked"),
        Row("memory of 10,000 points", f"{many_mib:.0f} MiB", f"{few_mib:.0f} MiB", few_mib / many_mib, "0.9", "1,000"),
    ]
