"""What the real rail adds to the arithmetic: a stage run op by op against a hand-written loop of the same work."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Row

_RUN = """
import statistics, time
import torch
from backends.torch import run
from backends.torch.data import initial, inputs, targets
from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.schema import parse

TEXT = '''
name: overhead
model: {name: %s, batch_size: %d}
cluster: {devices: 1, device: host-socket}
schedule: {name: single, mini_batches: %d}
'''

def loop(architecture, batch, steps):
    torch.set_num_threads(1)
    model = initial(architecture, 0, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    times = []
    for step in range(steps):
        x, y = inputs(architecture, 0, step, batch, torch.float32), targets(architecture, 0, step, batch)
        begin = time.perf_counter()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])

def ours(plan, binding):
    trace = run(plan, binding).trace
    seconds, steps = trace.end_s - trace.start_s, plan.work.shape.mini_batches
    return statistics.median(seconds.reshape(steps, -1).sum(axis=1)[2:].tolist())

if __name__ == "__main__":
    for model, batch, steps in (("vgg16-cifar", 8, 12), ("mlp", 16, 200)):
        document = parse_text(TEXT % (model, batch, steps), "overhead.yaml")
        plan, binding = compose(parse(document), document)
        pairs = [(ours(plan, binding), loop(plan.architecture, batch, steps)) for _ in range(3)]
        mine, theirs = (statistics.median(side) for side in zip(*pairs))
        print(mine, theirs)
"""


def measure() -> list[Row]:
    """The rows of this benchmark."""
    text = subprocess.check_output([sys.executable, "-c", _RUN], text=True)
    (ours, loop), (small, small_loop) = (map(float, line.split()) for line in text.splitlines())
    return [
        Row(
            "torch backend, VGG16 on CIFAR, batch 8",
            f"{ours * 1e3:.1f} ms a step",
            f"{loop * 1e3:.1f} ms",
            ours / loop,
            "1.05",
            "a hand-written PyTorch loop, one thread",
        ),
        Row(
            "torch backend, added to an op",
            f"{(small - small_loop) / 3 * 1e6:.0f} µs",
            "–",
            small / small_loop,
            "–",
            "a step of a small net by hand",
        ),
    ]
