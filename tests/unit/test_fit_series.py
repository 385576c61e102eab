"""Reading SERIES.csv and STEPS.csv: what they mean, and every fault of one that is wrong, with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.queueing.fit import Series
from scenarios.series import MOST_WORKERS, Group, read_series, read_steps
from sim.errors import ScenarioError

GOOD = """\
# measured on a Tuesday
model, workers, cv, steps_per_s, model_mb

a, 2, .1, 3.5, 2.5
a, 1, .1, 2, 2.5
b, 1, .1, 1e1, 80
a, 3, .1, 4, 2.5
b, 2, .1, 15.5, 80
b, 4, .1, 16, 80
"""


def write(folder: Path, text: str, name: str = "series.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def faults(folder: Path, text: str, upto: int | None = None) -> list[str]:
    """Messages without the folder."""
    with pytest.raises(ScenarioError) as caught:
        read_series(write(folder, text), upto)
    return [str(fault).removeprefix(f"{folder}/") for fault in caught.value.faults]


def test_rows_that_agree_in_all_other_columns_are_a_series(tmp_path: Path) -> None:
    first, second = read_series(write(tmp_path, GOOD), None)
    assert first == Group((("model", "a"), ("model_mb", "2.5")), Series((1, 2, 3), (2, 3.5, 4)), 4)
    assert second.series == Series((1, 2, 4), (10, 15.5, 16))
    assert second.attributes == {"model_bytes": 80e6}
    assert second.line == 6


def test_a_file_may_be_one_series(tmp_path: Path) -> None:
    text = "\ufeffworkers,steps_per_s\r\n1,1\r\n2,2\r\n3,2.5\r\n"
    (group,) = read_series(write(tmp_path, text), None)
    assert (group.keys, group.series.workers) == ((), (1, 2, 3))


def test_every_fault_of_the_rows(tmp_path: Path) -> None:
    rows = ["a,1,2.0,1", "a,1,2.1,1", "a,2.5,2,1", "a,0,2,1", f"a,{MOST_WORKERS + 1},2,1", "a,3,-1,1", "a,4,nan,1"]
    rows += ["a,5,0,1", "a,6,fast,1", "a,7,1e300,1", "a,8,2,big", "a,9,2", "a,10,2,0", "a,11,2,1", "a,12,2,1"]
    found = faults(tmp_path, "\n".join(["gpu,workers,steps_per_s,batch", *rows]))
    assert found == [
        "series.csv:3: workers: 1 again, as on line 2 (gpu a, batch 1)",
        "series.csv:4: workers: expected a whole number from 1 to 512, got '2.5'",
        "series.csv:5: workers: expected a whole number from 1 to 512, got '0'",
        "series.csv:6: workers: expected a whole number from 1 to 512, got '513'",
        "series.csv:7: steps_per_s: expected a number above 0 and at most 1e+12, got '-1'",
        "series.csv:8: steps_per_s: expected a number above 0 and at most 1e+12, got 'nan'",
        "series.csv:9: steps_per_s: expected a number above 0 and at most 1e+12, got '0'",
        "series.csv:10: steps_per_s: expected a number above 0 and at most 1e+12, got 'fast'",
        "series.csv:11: steps_per_s: expected a number above 0 and at most 1e+12, got '1e300'",
        "series.csv:12: batch: expected a number above 0 and at most 1e+12, got 'big'",
        "series.csv:13: 3 cells under 4 names",
        "series.csv:14: batch: expected a number above 0 and at most 1e+12, got '0'",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["series.csv: no column 'workers': expected a series in CSV"] * 1),
        (
            "Workers,step_per_s\n1,2\n",
            [
                "series.csv:1: no column 'workers': expected a series in CSV (did you mean 'Workers' by it?)",
                "series.csv:1: no column 'steps_per_s': expected a series in CSV (did you mean 'step_per_s' by it?)",
            ],
        ),
        ("workers,steps_per_s,gpu,gpu\n1,2,a,a\n", ["series.csv:1: column 'gpu' twice"]),
        ("workers,steps_per_s,\n1,2,a\n", ["series.csv:1: a column without a name"]),
        (
            "workers,steps_per_s,model_mb,model_bytes\n1,2,3,4\n",
            ["series.csv:1: model_mb and model_bytes: expected one of them"],
        ),
        ("workers,steps_per_s\n", ["series.csv: no readings: expected a series in CSV"]),
        ('workers,steps_per_s\n1,"2\n', ["series.csv:2: no CSV: unexpected end of data"]),
    ],
)
def test_every_fault_of_the_header(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert faults(tmp_path, text)[: len(expected)] == expected


def test_too_few_readings_name_their_series(tmp_path: Path) -> None:
    hint = "(all columns but workers, steps_per_s and cv tell series apart)"
    assert faults(tmp_path, GOOD, upto=2) == [
        f"series.csv:4: 2 readings up to 2 workers of model a, model_mb 2.5: expected at least 3 {hint}",
        f"series.csv:6: 2 readings up to 2 workers of model b, model_mb 80: expected at least 3 {hint}",
    ]
    assert faults(tmp_path, "workers,steps_per_s\n1,2\n") == [
        "series.csv:2: 1 reading of the only group: expected at least 3"
    ]


def test_upto_beyond_the_data(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD, upto=5) == ["series.csv: --upto 5 is beyond the data: it ends at 4 workers"]


def test_faults_without_end_are_cut(tmp_path: Path) -> None:
    found = faults(tmp_path, "workers,steps_per_s\n" + "0,0\n" * 500)
    assert len(found) == 21
    assert found[-1] == "series.csv: and more faults"


@pytest.mark.parametrize("content", [b"\x00\x01", b"workers\xff", b"PK\x03\x04"])
def test_binary_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"series\.csv"):
        read_series(path, None)


def test_no_such_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(ScenarioError, match="no such file"):
        read_series(tmp_path / "serie.csv", None)


def test_steps_of_one_worker_find_their_series(tmp_path: Path) -> None:
    groups = read_series(write(tmp_path, GOOD), None)
    text = "model,download_s,compute_s,upload_s\nb,.1,.2,.3\na,1,2,3\nb,.2,.2,.2\n"
    found = read_steps(write(tmp_path, text, "steps.csv"), groups)
    assert (found[groups[0].keys] == np.array([[1, 2, 3, 0]])).all()
    assert (found[groups[1].keys] == np.array([[0.1, 0.2, 0.3, 0], [0.2, 0.2, 0.2, 0]])).all()


def test_every_fault_of_the_steps(tmp_path: Path) -> None:
    groups = read_series(write(tmp_path, GOOD), None)
    text = "mode,model,download_s,compute_s,upload_s,apply_s\nx,a,0,0,0,0\nx,a,-1,0,1,1\n"
    with pytest.raises(ScenarioError) as caught:
        read_steps(write(tmp_path, text, "steps.csv"), groups)
    assert [str(fault).removeprefix(f"{tmp_path}/") for fault in caught.value.faults] == [
        "steps.csv:1: 'mode' is no column of the series (did you mean 'model'?)",
        "steps.csv:2: a step that takes no time",
        "steps.csv:3: download_s: expected a number from 0 to 1e+12, got '-1'",
        "steps.csv: no step of model a, model_mb 2.5",
        "steps.csv: no step of model b, model_mb 80",
    ]
