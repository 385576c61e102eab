"""The points of a sweep: samples, Latin hypercubes and conditions, against brute force."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios.sweep_row
from scenarios.document import NAMED_FILES, dotted
from scenarios.load import load_document, parse_text
from scenarios.points import parse_points, points
from scenarios.schema import parse
from scenarios.sweep_row import key_of
from scenarios.sweep_values import in_si, read_axis
from sim.errors import ScenarioError

BASE = """\
name: swept
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 8 MB}, batch_size: 64}
cluster: {devices: 4, link: {kind: in_order, bandwidth: 10 GB/s, latency: 5 us}}
schedule: {name: gpipe, stages: 4, micro_batches: 8}
sweep:
"""


def swept(text: str) -> list[dict[str, Any]]:
    return [overrides for overrides, _ in points(parse_text(BASE + text, "x.yaml"))]


def faults(work: Callable[[], object]) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        work()
    return [str(fault) for fault in caught.value.faults]


@given(samples=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_a_latin_hypercube_has_one_sample_in_each_stratum(samples: int, seed: int) -> None:
    axes = "{cluster.link.bandwidth: {log_uniform: [1 GB/s, 64 GB/s]}, model.uniform.forward: {uniform: [2 ms, 4 ms]}}"
    found = swept(f"  latin_hypercube: {{samples: {samples}, seed: {seed}, axes: {axes}}}\n")
    shares = {
        "cluster.link.bandwidth": lambda si: math.log(si / 1e9) / math.log(64),
        "model.uniform.forward": lambda si: (si - 2e-3) / 2e-3,
    }
    for path, share in shares.items():
        values = [in_si(point[path]) for point in found]
        strata = [math.ceil(share(value[0]) * samples - 1e-6) for value in values if value is not None]
        assert sorted(max(stratum, 1) for stratum in strata) == list(range(1, samples + 1))


def test_random_samples_are_the_same_for_the_same_seed_and_lie_between_the_ends() -> None:
    text = "  random: {samples: 300, seed: %d, axes: {seed: {uniform: [3, 5]}, schedule.micro_batches: [2, 4, 8]}}\n"
    first, again, other = (swept(text % seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {point["seed"] for point in first} == {3, 4, 5}
    assert {point["schedule.micro_batches"] for point in first} == {2, 4, 8}
    assert len(first) == 300


def test_whole_numbers_between_two_ends_are_as_likely() -> None:
    axis = read_axis({"uniform": [1, 4]})
    assert [axis.at(share / 8) for share in range(9)] == [1, 1, 2, 2, 3, 3, 4, 4, 4]  # type: ignore[union-attr]


GRID = "  grid: {schedule.stages: [1, 2, 4], schedule.micro_batches: [1, 2, 4, 8], model.batch_size: [8, 16]}\n"
WHOLE = [
    dict(zip(("schedule.stages", "schedule.micro_batches", "model.batch_size"), values, strict=True))
    for values in itertools.product([1, 2, 4], [1, 2, 4, 8], [8, 16])
]


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ("  skip: [{schedule.stages: 4}]\n", lambda s, m, b: s != 4),
        ("  skip: [{schedule.stages: [1, 4], model.batch_size: 8}]\n", lambda s, m, b: not (s in (1, 4) and b == 8)),
        ("  only_if: [{schedule.micro_batches: {at_least: schedule.stages}}]\n", lambda s, m, b: m >= s),
        ("  skip: [{schedule.micro_batches: {below: schedule.stages}}]\n", lambda s, m, b: m >= s),
        ("  only_if: [{schedule.stages: 1}, {schedule.micro_batches: {above: 2, at_most: 4}}]\n",
         lambda s, m, b: s == 1 or m == 4),
        ("  only_if: [{model.batch_size: 16}]\n  skip: [{schedule.stages: 2}, {schedule.micro_batches: 1}]\n",
         lambda s, m, b: b == 16 and s != 2 and m != 1),
        ("  skip: [{cluster.link.bandwidth: 80 Gbit/s, schedule.stages: 1}]\n", lambda s, m, b: s != 1),
        ("  only_if: [{cluster.link.latency: {below: 6 us}, schedule.stages: 1}]\n", lambda s, m, b: s == 1),
    ],
)  # fmt: skip
def test_conditions_leave_out_what_a_filter_by_hand_does(conditions: str, kept: Callable[..., bool]) -> None:
    assert swept(GRID + conditions) == [point for point in WHOLE if kept(*point.values())]


def test_every_file_that_a_scenario_may_name_is_part_of_its_key(tmp_path: Path) -> None:
    folder = Path(scenarios.sweep_row.__file__).parent
    named = {path for file in folder.glob("*.py") for path in re.findall(r'directory\("([\w.]+)"\)', file.read_text())}
    assert named <= {dotted(path) for path in NAMED_FILES}
    assert len(named) > 2
    (tmp_path / "times.txt").write_text("1\n2\n")
    (tmp_path / "x.yaml").write_text(
        BASE.replace("sweep:\n", "backend: longest_path\nsamples: 10\njitter: {compute: {empirical: times.txt}}\n")
    )
    document = load_document(tmp_path / "x.yaml")
    keys = [key_of(parse(document), document, "x", {})]
    (tmp_path / "times.txt").write_text("1\n2\n3\n")
    keys += [key_of(parse(document), document, "x", {}), key_of(parse(document), document, "x", {"compute": "sleep"})]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("  random: {samples: 0, axes: {seed: [1]}}\n", "sweep.random.samples: must be at least 1"),
        ("  random: {samples: 3, axes: {}}\n", "sweep.random.axes: is empty"),
        ("  random: {samples: 3}\n", "sweep.random.axes: missing"),
        ("  random: {samples: 3, axes: {seed: 3}}\n", "axes.seed: expected a list of values, {uniform: [LOW, HIGH]}"),
        ("  random: {samples: 3, axes: {seed: {uniform: [3]}}}\n", "uniform: expected [LOW, HIGH]"),
        ("  random: {samples: 3, axes: {seed: {uniform: [3, 3]}}}\n", "the first must be below the second"),
        ("  random: {samples: 3, axes: {a.b: {log_uniform: [0, 3]}}}\n", "log_uniform must be above 0"),
        ("  random: {samples: 3, axes: {a.b: {uniform: [1 ms, 3 GB]}}}\n", "two quantities of one kind"),
        ("  random: {samples: 3, axes: {a.b: {uniform: [a, b]}}}\n", "two numbers, or two quantities"),
        ("  random: {samples: 3, axes: {sweep.x: [1]}}\n", "a point holds no sweep"),
        ("  random: {samples: 3, axes: {a: [1], a.b: [1]}}\n", "is part of 'a', which is in random too"),
        (GRID + "  skip: [{schedule.stagse: 2}]\n", "sweep.skip.0: has no influence: it holds for no point"),
        (GRID + "  only_if: [{schedule.stages: 3}]\n", "sweep.only_if.0: has no influence"),
        (GRID + "  skip: [{schedule.stages: {at_least: 1}}]\n", "sweep: no point is left"),
        (GRID + "  skip: [{schedule.stages: {atleast: 1}}]\n", "did you mean 'at_least'?"),
        (GRID + "  skip: [3]\n", "sweep.skip.0: expected paths and values"),
        (GRID + "  skip: []\n", "sweep.skip: is empty"),
    ],
)
def test_sweeps_that_are_none(sweep: str, expected: str) -> None:
    found = faults(lambda: parse_points(parse_text(BASE + sweep, "x.yaml")))
    assert any(expected in fault for fault in found), found
    assert all(fault.startswith("x.yaml:") for fault in found)
