"""A data-parallel step of ResNet-50 on 256 GPUs, gradients all-reduced layer by layer on shared links."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Row

_STEP = """
import resource, time
from backends.base import load
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.schema import parse
document = parse_text('''
name: ring
model: {name: resnet50, batch_size: 8192}
cluster: {devices: 256, device: v100, link: {kind: fair_share, bandwidth: 12 GB/s, latency: 5 us}}
schedule: {name: data_parallel, sync: ring, buckets: 38}
''', "ring.yaml")
start = time.process_time()
plan, binding = compose(parse(document), document)
load("simulated").execute(plan, binding)
print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def measure() -> list[Row]:
    """The rows of this benchmark; the references are the facts' figures for ASTRA-sim's analytical mode."""
    words = subprocess.check_output([sys.executable, "-c", _STEP], text=True).split()
    seconds, peak = float(words[0]), float(words[1])
    name = "ring, ResNet-50 on 256 GPUs, 38 layers"
    return [
        Row(
            name,
            f"{seconds:.2f} s",
            "65 s",
            65 / seconds,
            "32.5",
            "ASTRA-sim analytical, as reported for such a machine",
        ),
        Row(name, f"{peak / 2**20:.0f} MiB", "200 MB", 200e6 / peak, "1", "the limit set"),
    ]
