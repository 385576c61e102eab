"""``cluster.price``: what 1,000 samples cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scenarios.command_line import app

SCENARIO = """\
name: paid
model: {uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 1 MB}, batch_size: 8}
cluster: {devices: 4, link: {kind: latency}, price: PRICE}
schedule: {name: gpipe, stages: 2, micro_batches: 4}
"""


def run(folder: Path, price: str, *options: str) -> Result:
    (folder / "paid.yaml").write_text(SCENARIO.replace("price: PRICE", price))
    return CliRunner().invoke(app, ["run", str(folder / "paid.yaml"), "--json", *options])


def test_the_gpus_that_run_something_are_paid_for_all_of_the_time(tmp_path: Path) -> None:
    """GPipe of 2 stages and 4 micro-batches of 3 ms: 15 ms for 8 samples on 2 of the 4 GPUs."""
    found = json.loads(run(tmp_path, "price: 3.60 USD/hour").stdout)
    assert found["cost_usd_per_1000_samples"] == pytest.approx(2 * 0.001 * 0.015 / 8 * 1000, rel=1e-12)
    daily = json.loads(run(tmp_path, "price: 86.4 USD/day").stdout)
    assert daily["cost_usd_per_1000_samples"] == pytest.approx(found["cost_usd_per_1000_samples"], rel=1e-12)


def test_every_point_of_a_sweep_costs_what_it_costs_alone(tmp_path: Path) -> None:
    """Several points of one schedule are played in columns, the first is not."""
    given, prices = "price: 3.60 USD/hour", (1, 2, 3, 4)
    alone = [json.loads(run(tmp_path, given, "--set", f"cluster.price={n} USD/hour").stdout) for n in prices]
    text = SCENARIO.replace("price: PRICE", given)
    text += f"sweep: {{grid: {{cluster.price: [{', '.join(f'{n} USD/hour' for n in prices)}]}}}}\n"
    done = CliRunner().invoke(app, ["sweep", "-", "--json"], input=text)
    costs = [each["cost_usd_per_1000_samples"] for each in json.loads(done.stdout)]
    assert costs == [each["cost_usd_per_1000_samples"] for each in alone]
    assert len({*costs}) == 4


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    assert "cost_usd_per_1000_samples" not in json.loads(run(tmp_path, "cores: 4").stdout)


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("3.20", "a price needs a unit (USD/s, USD/min, USD/hour, USD/day), got 3.2 (write it like 3.20 USD/hour)"),
        ("3.20 USD", "'USD' is no unit of a price: expected USD/s, USD/min, USD/hour, USD/day (write USD/hour)"),
        ("3.20 EUR/hour", "'EUR/hour' is no unit of a price"),
        ("0 USD/hour", "a price must be above 0"),
        ("-1 USD/hour", "a price must be above 0"),
    ],
)
def test_a_wrong_price_is_told(tmp_path: Path, price: str, expected: str) -> None:
    told = run(tmp_path, f"price: {price}")
    assert (told.exit_code, expected in told.stderr) == (2, True), told.stderr
    assert "paid.yaml:3: cluster.price:" in told.stderr
