"""The page of validated schedules: the scenario it names runs here, and its table says what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path

from analysis import compare
from analysis.compare import Comparison
from docs import tables_validation
from scenarios.bench import Subject, subject_of
from scenarios.compose import compose
from scenarios.load import load_document, shipped
from scenarios.run_folder import point_name, read_points


def row(metric: str, unit: str, predicted: float, measured: float) -> Comparison:
    return Comparison(metric, unit, predicted, measured, 0.9 * measured, 1.2 * measured, predicted / measured - 1)


def test_a_table_of_two_points(tmp_path: Path) -> None:
    cells = [
        ("near", [row("step time", "s", 0.52, 0.5), row("peak memory gpu0", "B", 5.0e6, 5e6)]),
        ("far", [row("step time", "s", 0.4, 0.5), row("peak memory gpu0", "B", 2e6, 2e6), row("mean F", "s", 1, 1)]),
    ]
    cells[1][1].append(row("peak memory gpu1", "B", 3.96e6, 4e6))
    content = [{"name": name, "verdict": "", "metrics": compare.as_json(rows)} for name, rows in cells]
    (tmp_path / "validation.json").write_text(json.dumps(content), encoding="utf-8")
    found = tables_validation.pipelines([tmp_path]).splitlines()
    assert found[2] == "| near | 520 ms | 500 ms (450 ms – 600 ms) | +4.0 % | 5.0 | +0.0 % |"
    assert found[3] == "| far | 400 ms | 500 ms (450 ms – 600 ms) | -20.0 % | 2.0, 4.0 | -1.0 % |"
    assert found[-1] == (
        "Step time: median error 12.0 %, 1 of 2 within 8 %. Peak memory: median error 0.00 %, worst 1.0 %."
    )


def test_what_is_measured_for_each_shipped_point() -> None:
    """At least ten points of five methods; micro-batches, and links of rings, by hand."""
    points = read_points(load_document(str(shipped("library")["cpu-validation"])))
    names = {point_name(point): point for point in points}
    assert len(names) >= 10
    assert len({point.scenario.schedule.method for point in points}) >= 5

    def subject(name: str) -> Subject:
        point = names[name]
        return subject_of(compose(point.scenario, point.document), str(point.scenario.model.name))

    common = ("momentum", 2)
    assert subject("VGG16 1F1B") == Subject("vgg16-cifar", 8, *common, sums=False, overlaps=False, splits=False)
    assert subject("VGG16 ring") == Subject("vgg16-cifar", 16, *common, sums=True, overlaps=False, splits=False)
    assert subject("ResNet20 ZB-H1") == Subject("resnet20-cifar", 32, *common, sums=False, overlaps=False, splits=True)
    assert subject("ResNet20 single checkpoints").processes == 1
