"""The page of validated schedules: the scenario it names runs here, and its table says what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path

from analysis import compare
from analysis.compare import Comparison
from backends.torch.job import ONE_STEP
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

    def order(name: str) -> str:
        return " ".join(f"{kind.text}{micro_batch}" for kind, micro_batch, _ in subject(name).parts[0][-1])

    for name, samples, sums in (("VGG16 1F1B", 8, False), ("VGG16 ring", 16, True)):
        found = subject(name)
        assert found == Subject("vgg16-cifar", samples, "momentum", found.parts, sums, overlaps=False)
        ends = [part[:2] for part in found.parts]
        assert ends == ([(0, 32), (0, 32)] if sums else [(0, ends[0][1]), (ends[0][1] + 1, 32)])
        assert found.uncut.parts == ((0, 32, ONE_STEP),) * 2
    assert len(subject("ResNet20 single checkpoints").parts) == 1
    assert [kind.text for kind, _, _ in subject("VGG16 1F1B").parts[1][-1][:5]] == ["F", "B", "F", "B", "F"]
    one_f_one_b = "F0 F1 B0 F2 B1 F3 B2 B3 U0"
    assert order("VGG16 1F1B") == order("VGG16 1F1B checkpoints") == f"{one_f_one_b} F4 F5 B4 F6 B5 F7 B6 B7 U1"
    assert order("VGG16 GPipe").startswith("F0 F1 F2 F3 B0 B1 B2 B3 U0 F4")
    assert order("VGG16 PipeDream").startswith("F0 F1 B0 U0 F2 B1 U1 F3")
    assert order("VGG16 ring").startswith("F0 B0 U0 F1 B1 U1")
    assert order("ResNet20 ZB-H1").startswith("F0 F1 I0 W0 F2 I1 W1 F3")
