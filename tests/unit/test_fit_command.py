"""``twinrail queue fit``: the contract, what it may look at, and the terms of demands; then the measured series."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from analysis.queueing import exact
from analysis.queueing.network import Network, Station
from scenarios.command_line import app
from scenarios.series import read_series

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "cm-dare" / "steps_per_second.csv"


def queue_fit(path: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["queue", "fit", str(path), *options])


def answer(path: Path, *options: str) -> Any:
    result = queue_fit(path, *options, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def mva(think_s: float, demand_s: float, workers: int = 8) -> list[float]:
    found = exact.throughputs_per_s(Network((Station("server", demand_s),), think_s), workers)
    return [float(each) for each in found]


def table(*series: tuple[str, list[float]], names: str = "model") -> str:
    """A line for every reading of series with these keys."""
    rows = [f"{keys},{count},{speed!r}" for keys, speeds in series for count, speed in enumerate(speeds, start=1)]
    return "\n".join([f"{names},workers,steps_per_s", *rows, ""])


@pytest.fixture
def series(tmp_path: Path) -> Callable[[str], Path]:
    """A file with this text."""

    def write(text: str) -> Path:
        path = tmp_path / "series.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_contract(series: Callable[[str], Path]) -> None:
    result = answer(series(table(("a", mva(0.6, 0.4)), ("b", mva(0.9, 0.1)))), "--upto", "4", "--predict", "8")
    assert (result["upto"], result["predict"]) == (4, 8)
    first, second = result["groups"]
    assert (first["group"], second["group"]) == ({"model": "a"}, {"model": "b"})
    assert first["discipline"] == "mva"
    assert first["parameters"] == pytest.approx({"think_time_s": 0.6, "demand_s": 0.4, "cv": 1}, rel=0.01)
    expected = {str(count): speed for count, speed in enumerate(mva(0.6, 0.4), start=1)}
    assert first["predicted"] == pytest.approx(expected, rel=0.005)
    assert all(low <= first["predicted"][count] <= high for count, (low, high) in first["interval"].items())
    assert first["interval"].keys() == expected.keys()
    for name, (low, high) in first["parameter_interval"].items():
        assert low <= first["parameters"][name] <= high
    assert first["baselines"].keys() == {"mva", "bound", "optimus"}
    assert first["baselines"]["mva"] == pytest.approx(expected, rel=1e-6)
    assert first["holdout_error"] < 0.02
    assert first["measured"]["steps_per_s"].keys() == {"5", "6", "7", "8"}
    assert first["measured"]["mean_error"]["mva"] == pytest.approx(0, abs=1e-6)
    assert first["measured"]["within_interval"] == 1


def test_all_readings_are_fitted_and_twice_as_many_workers_predicted(series: Callable[[str], Path]) -> None:
    result = answer(series(table(("a", mva(0.6, 0.4, 5)))))
    assert (result["upto"], result["predict"]) == (5, 10)
    assert result["groups"][0]["measured"] is None


def test_nothing_looks_beyond_upto(series: Callable[[str], Path]) -> None:
    """Whatever later readings say, all but their score stays the same to the last bit."""
    speeds = mva(0.6, 0.4)
    answers = [
        answer(series(table(("a", [*speeds[:4], *later]))), "--upto", "4", "--predict", "8")["groups"][0]
        for later in (speeds[4:], [9.0, 1.0, 9.0, 1.0])
    ]
    scores = [each.pop("measured")["mean_error"]["fit"] for each in answers]
    assert answers[0] == answers[1]
    assert scores[0] < 0.01 < 0.5 < scores[1]


def test_the_same_file_gives_the_same_bytes(series: Callable[[str], Path]) -> None:
    path = series(table(("a", mva(0.6, 0.4)), ("b", [speed * 1.03 for speed in mva(0.9, 0.1)])))
    assert queue_fit(path, "--json").stdout == queue_fit(path, "--json").stdout


def test_terms_of_bytes_tensors_and_batch(series: Callable[[str], Path]) -> None:
    models = {"a": (10, 20), "b": (100, 300), "c": (250, 90)}
    text = table(
        *(
            (f"v100,{model},{mb},{tensors},{batch}", mva(0.1 + 0.01 * batch, 0.2 + 0.002 * mb + 0.0005 * tensors))
            for model, (mb, tensors) in models.items()
            for batch in (16, 32, 64)
        ),
        names="gpu,model,model_mb,tensors,batch",
    )
    result = answer(series(text), "--upto", "6")
    (demand,) = result["demand_terms"]
    assert (demand["group"], demand["series"]) == ({"gpu": "v100"}, 9)
    assert demand["parameters"]["per_step_s"] == pytest.approx(0.2, rel=0.01)
    assert demand["parameters"]["per_byte_s"] == pytest.approx(2e-9, rel=0.01)
    assert demand["parameters"]["per_tensor_s"] == pytest.approx(5e-4, rel=0.01)
    assert demand["left_out_error"] < 0.01
    assert [each["group"]["model"] for each in result["think_time_terms"]] == [*models]
    for think in result["think_time_terms"]:
        assert think["parameters"]["per_sample_s"] == pytest.approx(0.01, rel=0.02)
        assert think["parameters"]["per_step_s"] == pytest.approx(0.1, rel=0.03)


def test_one_model_and_batch_has_no_terms(series: Callable[[str], Path]) -> None:
    result = answer(series(table(("a", mva(0.6, 0.4)))))
    assert result["demand_terms"] == result["think_time_terms"] == []


def test_steps_of_one_worker_add_a_simulation(series: Callable[[str], Path], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    steps = tmp_path / "steps.csv"
    rows = random.gamma(10, 0.1, (500, 3)) * [0.3, 0.6, 0.1]
    lines = [",".join(f"{seconds:.6f}" for seconds in row) for row in rows]
    steps.write_text("\n".join(["download_s,compute_s,upload_s", *lines]))
    result = answer(series(table(("a", mva(0.6, 0.4)))), "--upto", "4", "--steps", str(steps))
    network = Network((Station("download", rows[:, 0].mean()), Station("upload", rows[:, 2].mean())), rows[:, 1].mean())
    expected = {str(count): speed for count, speed in enumerate(exact.throughputs_per_s(network, 8), start=1)}
    assert result["groups"][0]["baselines"]["trace"] == pytest.approx(expected, rel=0.02)
    assert "trace" in result["groups"][0]["measured"]["mean_error"]


def test_the_table_for_people(series: Callable[[str], Path]) -> None:
    text = table(("a,10", mva(0.6, 0.4)), ("b,20", mva(0.6, 0.8)), names="model,model_mb")
    result = queue_fit(series(text), "--upto", "4")
    header, _, first, second = (line for line in result.stdout.splitlines()[:5] if line)
    assert header.split()[0] == "series"
    assert "steps/s at 8" in header
    assert first.startswith(" a 10 ")
    assert "600 ms" in first
    assert first.endswith("mva")
    assert second.startswith(" b 20 ")
    assert "demand: " in result.stdout
    assert "40.0 ms a MB" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--upto", "9"), "--upto 9 is beyond the data: it ends at 8 workers"),
        (("--upto", "4", "--predict", "4"), "--predict: expected more than the 4 workers that are fitted"),
        (("--predict", "1025"), "at most 1024, got 1025"),
        (("--upto", "2"), "2 readings up to 2 workers"),
        (("--steps", "nowhere.csv"), "nowhere.csv: no such file"),
    ],
)
def test_options_that_cannot_be(series: Callable[[str], Path], options: tuple[str, ...], message: str) -> None:
    result = queue_fit(series(table(("a", mva(0.6, 0.4)))), *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture(scope="module")
def measured() -> list[Any]:
    """CM-DARE, eight series: from at most 4 workers to 8."""
    if not MEASURED.exists():
        pytest.skip(f"no {MEASURED}: the shared data are not here")
    groups: list[Any] = answer(MEASURED, "--upto", "4", "--predict", "8")["groups"]
    return groups


def errors(groups: list[Any], gpu: str, rule: str) -> list[float]:
    """Mean absolute errors in percent."""
    chosen = [group for group in groups if group["group"]["gpu"] == gpu]
    return [100 * group["measured"]["mean_error"][rule] for group in chosen]


def test_measured_series_are_predicted_from_half_of_their_workers(measured: list[Any]) -> None:
    better_baseline = min(np.mean(errors(measured, "p100", rule)) for rule in ("mva", "bound", "optimus"))
    assert np.mean(errors(measured, "p100", "fit")) < 9.5 < better_baseline
    assert np.mean(errors(measured, "k80", "fit")) < 3.5
    assert np.mean([group["measured"]["within_interval"] for group in measured]) >= 0.8


def test_baselines_are_off_by_what_the_facts_say(measured: list[Any]) -> None:
    """Their fits are the least squares (`test_fit_baselines`); those of the facts differ by .6 points at most."""
    assert errors(measured, "p100", "mva") == pytest.approx([13.6, 29.2, 12.3, 28.7], abs=0.65)
    assert errors(measured, "p100", "bound") == pytest.approx([18.0, 9.2, 12.2, 9.5], abs=0.65)
    assert errors(measured, "k80", "mva") == pytest.approx([8.3, 0.6, 1.5, 0.3], abs=0.65)


def test_a_reading_that_no_rule_of_the_family_can_meet(measured: list[Any]) -> None:
    """More workers never slow the family down: 7 P100s of shakebig were measured slower than 6."""
    groups = read_series(MEASURED, 4)
    (shakebig,) = (group for group in groups if {("gpu", "p100"), ("model", "shakebig")} < {*group.keys})
    assert shakebig.series.steps_per_s[6] < 0.85 * shakebig.series.steps_per_s[5]
    assert all(np.diff([*group["predicted"].values()]).min() >= -1e-9 for group in measured)
