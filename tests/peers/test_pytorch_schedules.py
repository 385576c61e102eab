"""PyTorch's own loader, validator and lowering accept our schedules; PyTorch's own schedules run here."""

from __future__ import annotations

import csv
import inspect
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.schedule_csv import read, write
from sim.errors import InvalidSchedule, ScenarioError, UnsupportedPlan
from sim.longest_path import times
from sim.ops import COMPUTE_KINDS, OpKind
from sim.planners import PLANNERS
from sim.schedule import Schedule

pytest.importorskip("torch", reason="the peer is not there: pip install torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")

STEPS_OF_PYTORCH = {
    "gpipe",
    "one_f_one_b",
    "interleaved_1f1b",
    "zb_h1",
    "zb_h2",
    "zb_1p",
    "zb_2p",
    "zb_v",
    "dualpipe_v",
    "single",
    "model_parallel",
}
"""Our schedules that its format can hold; the others must be refused, or pass its validator too."""
SHAPES = [(1, 1), (2, 4), (4, 3), (4, 8), (8, 16)]
THEIRS = {
    "GPipe": 1,
    "Interleaved1F1B": 2,
    "InterleavedZeroBubble": 2,
    "LoopedBFS": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}
"""Stages on a rank. Its published 1F1B is wrong on the last rank in 2.13."""


def runtime(ranks: int, stages: int, micro_batches: int) -> Any:
    """PyTorch's runtime with what its loader, validator and lowering need, and no process group."""
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = ranks, stages, micro_batches
    runtime._stages, runtime.pipeline_order, runtime._defer_pp_recv = [], {}, False
    return runtime


def planned(name: str) -> Iterator[Schedule]:
    """The schedules of a planner in the shapes that it takes, but programs."""
    keys = inspect.signature(PLANNERS[name]).parameters
    if "told" in keys:
        return  # it makes programs only
    for stages, micro_batches in SHAPES:
        for mini_batches in (1, 2):
            known = {"stages": stages, "micro_batches": micro_batches, "mini_batches": mini_batches, "gpus": 2}
            try:
                work = PLANNERS[name](**{key: value for key, value in known.items() if key in keys})
            except (InvalidSchedule, UnsupportedPlan, ScenarioError):
                continue
            if isinstance(work, Schedule):
                yield work


def compute_rows(schedule: Schedule) -> list[list[str]]:
    """The names on each compute lane, device by device, updates left out."""
    lanes = sorted((lane, number) for number, lane in enumerate(schedule.lanes) if lane.computes)
    names = [[str(schedule.id(op)) for op in schedule.order[number].tolist()] for _, number in lanes]
    return [[name for name in row if "U" not in name] for row in names]


@pytest.mark.parametrize("name", PLANNERS)
def test_pytorch_loads_validates_and_lowers_our_schedules(name: str, tmp_path: Path) -> None:
    """Loading validates; what it adds communication to is ours still."""
    written = 0
    for work in planned(name):
        try:
            text = write(work)
        except UnsupportedPlan:
            continue
        written += 1
        (tmp_path / "ours.csv").write_text(text)
        ranks, (stages, micro_batches, *_) = len(text.splitlines()), work.shape
        theirs = lowered(tmp_path / "ours.csv", ranks, stages, micro_batches, defer=False)
        recorded = read(theirs, mini_batches=work.shape.mini_batches)
        assert compute_rows(recorded.schedule) == compute_rows(work)
        assert write(*recorded).splitlines() == theirs.read_text().splitlines()
    assert bool(written) >= (name in STEPS_OF_PYTORCH)


def dump(name: str, ranks: int, micro_batches: int, communicates: bool, folder: Path) -> Path:
    """A file of one of PyTorch's schedules."""
    rows = visualizer.get_schedule_ops(name, ranks, micro_batches, THEIRS[name], with_comms=communicates)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / f"{name}.csv"


CASES = [
    (name, communicates) for name in THEIRS for communicates in (False, True) if (name, communicates) != ("GPipe", True)
]
"""PyTorch's own visualizer fails for GPipe with communication."""


@pytest.mark.parametrize(("name", "communicates"), CASES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (4, 12)])
def test_pytorchs_schedules_come_back(
    name: str, communicates: bool, ranks: int, micro_batches: int, tmp_path: Path
) -> None:
    path = dump(name, ranks, micro_batches, communicates, tmp_path)
    recorded = read(path)
    assert write(*recorded).splitlines() == path.read_text().splitlines()
    assert recorded.schedule.shape[:2] == (ranks * THEIRS[name], micro_batches)


def lowered(path: Path, ranks: int, stages: int, micro_batches: int, defer: bool) -> Path:
    """The file with communication as PyTorch puts it in."""
    theirs = runtime(ranks, stages, micro_batches)
    theirs._defer_pp_recv = defer
    theirs._load_csv(str(path))
    theirs._dump_csv(str(path.with_name("lowered.csv")))
    return path.with_name("lowered.csv")


def makespan(path: Path) -> float:
    """With F, I and W of one second and free transfers."""
    schedule = read(path).schedule
    seconds = {OpKind.BACKWARD: 2.0, OpKind.FORWARD_BACKWARD: 3.0, OpKind.UPDATE: 0.0}
    kinds = [OpKind(kind) for kind in schedule.ops["kind"].tolist()]
    _, end = times(schedule, [seconds.get(kind, float(kind in COMPUTE_KINDS)) for kind in kinds])
    return max(end)


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "GPipe"])
def test_communication_costs_nothing_where_transfers_are_free(name: str, tmp_path: Path) -> None:
    """PyTorch receives as early as it can."""
    for ranks, micro_batches in ((2, 4), (4, 8)):
        path = dump(name, ranks, micro_batches, False, tmp_path)
        alone = makespan(path)
        assert makespan(lowered(path, ranks, ranks * THEIRS[name], micro_batches, defer=False)) == alone


@pytest.mark.skipif(not hasattr(schedules, "_defer_recv_ops"), reason="this PyTorch does not defer receives")
def test_receives_that_cross_on_a_channel_are_found(tmp_path: Path) -> None:
    """Deferred to their use, two receives of the same rank may stand in another order than the sends they meet."""
    for name, micro_batches, safe in (("Interleaved1F1B", 8, True), ("ZBVZeroBubble", 8, False)):
        path = dump(name, 4, micro_batches, False, tmp_path)
        deferred = lowered(path, 4, 8, micro_batches, defer=True)
        if safe:
            assert makespan(deferred) == makespan(path)
        else:
            with pytest.raises(ScenarioError, match="these ops wait for each other"):
                read(deferred)


def test_the_published_1f1b_is_refused_as_pytorchs_validator_refuses_it(tmp_path: Path) -> None:
    order = visualizer.get_schedule_ops("1F1B", 4, 8, 1)
    with pytest.raises(AssertionError):
        schedules._validate_schedule(dict(enumerate(order)), 4, 4, 8)
    (tmp_path / "1f1b.csv").write_text("\n".join(",".join(map(str, row)) for row in order).replace("None", ""))
    with pytest.raises(ScenarioError, match="3F0 is missing"):
        read(tmp_path / "1f1b.csv")


def verdict_of_pytorch(rows: list[list[str]], shape: tuple[int, int, int]) -> str:
    actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    try:
        schedules._validate_schedule(actions, *shape)
    except (AssertionError, KeyError) as error:
        return str(error) or "refused"
    return ""


def test_check_accepts_what_pytorchs_validator_accepts(tmp_path: Path) -> None:
    """Seeded damage to good files. We are stricter in two things: actions done twice, and orders that deadlock."""
    chance = random.Random(0)
    counts = {"accepted": 0, "refused": 0, "stricter": 0}
    for name in THEIRS:
        good = [row.split(",") for row in dump(name, 4, 8, False, tmp_path).read_text().splitlines()]
        for _ in range(40):
            rows = [row.copy() for row in good]
            _damage(rows, chance)
            (tmp_path / "damaged.csv").write_text("\n".join(",".join(row) for row in rows))
            theirs = verdict_of_pytorch(rows, (4, 4 * THEIRS[name], 8))
            try:
                read(tmp_path / "damaged.csv")
                ours = ""
            except ScenarioError as error:
                ours = str(error)
            if not ours:
                assert not theirs, theirs
            elif not theirs:
                assert re.search("is there twice|wait for each other", ours), ours
            counts["stricter" if ours and not theirs else "refused" if ours else "accepted"] += 1
    assert min(counts.values()) > 10, counts


def _damage(rows: list[list[str]], chance: random.Random) -> None:
    """Swap, double, drop, move or rename one action."""
    row = chance.choice(rows)
    place, other = chance.randrange(len(row)), chance.randrange(len(row))
    match chance.randrange(5):
        case 0:
            row[place], row[other] = row[other], row[place]
        case 1:
            row.insert(other, row[place])
        case 2:
            del row[place]
        case 3:
            chance.choice(rows).insert(0, row.pop(place))
        case 4:
            row[place] = re.sub(r"(?<=\d)[FBIW](?=\d)", lambda found: "BIWF"["FBIW".index(found[0])], row[place])
