"""The grids of small plans, as the papers draw them; each file was compared with the figure by eye."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.longest_path import grid
from sim.planners import data_parallel, dualpipe_2018, gpipe, model_parallel, one_f_one_b, pipedream, single
from sim.program import Program
from sim.schedule import Schedule

PLANS: dict[str, Schedule | Program] = {
    "single": single.plan(3),
    "model_parallel-4": model_parallel.plan(4, 2),
    "gpipe-4x4": gpipe.plan(4, 4),
    "gpipe-4x2": gpipe.plan(4, 2, 2),
    "one_f_one_b-4x8": one_f_one_b.plan(4, 8),
    "one_f_one_b-4x2": one_f_one_b.plan(4, 2),
    "pipedream-4": pipedream.plan(4, 1, 8),
    "pipedream-2x2": pipedream.plan(2, 2, 3),
    "dualpipe_2018-3": dualpipe_2018.plan(3, 1, 8),
    "data_parallel-3": data_parallel.plan(3, 2),
    "data_parallel-2-buckets": data_parallel.plan(2, 2, buckets=3),
}


@pytest.mark.parametrize("name", PLANS)
def test_grid(name: str) -> None:
    schedule = PLANS[name]
    assert isinstance(schedule, Schedule)
    assert grid(schedule) == Path(__file__).with_name(f"{name}.txt").read_text("utf-8").rstrip("\n")


def test_every_file_is_compared() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.txt")} == PLANS.keys()


def test_a_long_grid_is_cut() -> None:
    lines = grid(gpipe.plan(2, 100), most=4).splitlines()
    assert lines == ["d0.compute │ 0F0 0F1 0F2 0F3 …", "d1.compute │     1F0 1F1 1F2 …"]
