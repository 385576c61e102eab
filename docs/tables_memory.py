"""The tables of ``memory.md``, computed and filled in between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

``python -m docs.tables_memory`` does those that need no PyTorch, ``python -m docs.tables_memory counted`` those counted
in PyTorch's own storages (two minutes); ``--check`` writes nothing and fails where the page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from analysis import result
from backends.base import load
from docs.tables import fill, markdown
from scenarios.checkpoint_subject import Subject, of_model
from scenarios.compose import compose
from scenarios.load import load_document, shipped
from scenarios.run_folder import point_name, read_points
from sim.checkpointing import pytorch, rotor, solvers
from sim.checkpointing.objectives import one_segment, peak
from sim.checkpointing.plan import Plan, of_checkpoints
from sim.checkpointing.program import front
from sim.liveness import Mode
from sim.memory.history import LASTING

PAGE = Path(__file__).parent / "memory.md"
MIB, GIB = 2**20, 2**30

PUBLISHED = {"alexnet-avg-pool": 1024, "vgg11": 64, "vgg13": 64, "vgg16": 64, "vgg19": 64}
"""Models and batches whose peaks under the corrected objective are published."""

CHECKPOINTS = {"alexnet-avg-pool": [0, 2, 4, 12], "vgg11": [0, 2, 4, 16], "vgg13": [0, 3, 12, 18]}
"""Checkpoints of Feng and Huang whose live bytes are published."""

COUNTED = {
    "alexnet-avg-pool": 256,
    "vgg11": 64,
    "vgg13": 64,
    "vgg16": 64,
    "vgg19": 64,
    "resnet18": 64,
    "resnet34": 64,
    "resnet50": 64,
    "resnet101": 64,
    "resnet152": 64,
    "inception-v4": 32,
    "transformer-imdb": 64,
}
BATCHES, SIDES = (16, 32, 64, 128, 256), (128, 192, 256, 320, 384, 448, 512)


def published() -> str:
    """The corrected objective on sizes alone."""
    rows = []
    for model, batch in PUBLISHED.items():
        sizes = of_model(model, batch).sizes
        plans = (one_segment(sizes), solvers.sqrt_segments(sizes), solvers.cubic(sizes), solvers.linear(sizes))
        peaks = (f"{peak('corrected', sizes, plan) / MIB:.1f}" for plan in plans)
        rows.append([model, str(batch), str(len(sizes) - 1), *peaks, " ".join(map(str, plans[-1]))])
    return markdown(["model", "batch", "n", "none", "√n", "OGC", "least", "checkpoints of the least"], rows)


def held() -> str:
    """What PyTorch holds beside weights and their gradients, for published checkpoints."""
    from backends.torch.peak import count

    rows = []
    for model, kept in CHECKPOINTS.items():
        subject = of_model(model, PUBLISHED[model])
        assert subject.vertices is not None
        every: Plan = tuple(range(1, kept[-1] + 1))
        cases: list[tuple[Plan, Mode]] = [(of_checkpoints(kept), "reentrant"), (of_checkpoints(kept), "non_reentrant")]
        peaks = [
            count(subject.vertices, subject.batch, plan, mode).peak(LASTING).bytes
            for plan, mode in (*cases, (every, "non_reentrant"))
        ]
        rows.append([model, str(subject.batch), " ".join(map(str, kept)), *(f"{size / MIB:.2f}" for size in peaks)])
    return markdown(["model", "batch", "checkpoints", "reentrant", "non-reentrant", "no checkpoints"], rows)


def counted(mode: Mode) -> str:
    """The peak of a whole step as share of that without a plan, and the operations that it adds."""
    nested = ["nested"] if mode == "non_reentrant" else []
    columns = ["model", "batch", "none, MiB", "√n", "OGC", "least", *nested]
    return markdown(columns, [_counted(model, batch, mode) for model, batch in COUNTED.items()])


def _counted(model: str, batch: int, mode: Mode) -> list[str]:
    """One row, counted in PyTorch's storages and by its counter of operations.

    Raises
    ------
    RuntimeError : a plan does not need what was predicted, or ours is not the least.
    """
    from backends.torch.peak import count, count_flops

    subject, cells, peaks = of_model(model, batch), list[str](), list[int]()
    assert subject.vertices is not None
    without = 0
    for plan in _plans(subject, mode):
        size = count(subject.vertices, batch, plan, mode).peak().bytes
        flops = count_flops(subject.vertices, batch, plan, mode)
        if abs(pytorch.peak(mode, subject.chain, plan) - size) > 8:
            raise RuntimeError(f"{model}: {pytorch.peak(mode, subject.chain, plan)} predicted, {size} counted")
        without = without or flops
        share, more = size / (peaks or [size])[0], flops / without - 1
        cells.append(f"{100 * share:.1f} % (+{100 * more:.1f} %)" if peaks else f"{size / MIB:.0f}")
        peaks.append(size)
    if min(peaks[3:]) > min(peaks[:3]):
        raise RuntimeError(f"{model}: ours is not the least of {peaks}")
    return [model, str(batch), *cells]


def _plans(subject: Subject, mode: Mode) -> list[Plan]:
    """None, √n, Feng and Huang's, the least, and with runs in runs where these are planned."""
    assert subject.seconds is not None
    least = front(pytorch.program(mode, subject.chain), subject.seconds)[0].plan
    others = [of_checkpoints(kept) for kept in (solvers.sqrt_segments(subject.sizes), solvers.cubic(subject.sizes))]
    nested = [rotor.front(subject.chain, subject.seconds)[0].plan] if mode == "non_reentrant" else []
    return [tuple(range(1, len(subject.names) + 1)), *others, least, *nested]


def sweep(model: str, batches: Sequence[int] = BATCHES, sides: Sequence[int] = SIDES) -> str:
    """The peak of a step, without a plan and least, by batch and by the side of the images."""
    rows = []
    for batch in batches:
        cells = []
        for side in sides:
            subject = of_model(model, batch, shape=(3, side, side))
            assert subject.seconds is not None
            none = pytorch.peak("non_reentrant", subject.chain, tuple(range(1, len(subject.names) + 1)))
            least = front(pytorch.program("non_reentrant", subject.chain), subject.seconds)[0].peak_bytes
            cells.append(f"{none / GIB:.2f} → {least / GIB:.2f}")
        rows.append([str(batch), *cells])
    return markdown(["batch", *(f"{side}²" for side in sides)], rows)


def fragmentation() -> str:
    """The allocators of `fragmentation.yaml` on its fullest GPU, in its memory and in as much as they like."""
    rows = []
    for point in read_points(load_document(shipped("library")["fragmentation"])):
        plan, binding = compose(point.scenario, point.document)
        free = replace(binding, capacity_bytes=(None,) * len(binding.devices))
        here, roomy = (result.compute(load("simulated").execute(plan, each), "", "") for each in (binding, free))
        first, most = here["devices"][0], roomy["devices"][0]["peak_reserved_bytes"]
        cells = [point_name(point), f"{here['samples_per_s']:.1f}", f"{first['peak_memory_bytes'] / GIB:.2f}"]
        if most is None:
            rows.append([*cells, *("–" for _ in range(6))])
            continue
        cells += [f"{first['peak_reserved_bytes'] / GIB:.2f}", f"{most / GIB:.2f}"]
        cells += [str(first[key]) for key in ("num_device_alloc", "num_alloc_retries")]
        rows.append([*cells, *(f"{1e3 * first[key]:.0f}" for key in ("driver_s", "synchronize_s"))])
    columns = ["allocator", "samples/s", "allocated", "reserved", "reserved, no limit", "mallocs", "retries"]
    return markdown([*columns, "driver, ms", "waiting, ms"], rows)


QUICK: dict[str, Callable[[], str]] = {
    "memory-published": published,
    "memory-fragmentation": fragmentation,
    "memory-sweep-resnet50": partial(sweep, "resnet50"),
    "memory-sweep-vgg16": partial(sweep, "vgg16"),
}
COUNTING: dict[str, Callable[[], str]] = {
    "counted-published": held,
    "counted-non-reentrant": partial(counted, "non_reentrant"),
    "counted-reentrant": partial(counted, "reentrant"),
}
TABLES = {**QUICK, **COUNTING}


def main(arguments: Sequence[str]) -> int:
    """Fill the page; under ``--check`` say whether it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.tables_memory", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"begin of some of {', '.join(TABLES)}")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    given = parser.parse_args(arguments)
    names = [name for name in TABLES if any(name.startswith(wanted) for wanted in given.names or QUICK)]
    if not names:
        parser.error(f"no table {', '.join(given.names)}: there are {', '.join(TABLES)}")
    page = PAGE.read_text("utf-8")
    filled = fill(page, {name: TABLES[name]() for name in names})
    if given.check:
        print("" if filled == page else f"{PAGE.name} is out of date\n", end="")
        return int(filled != page)
    PAGE.write_text(filled, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
