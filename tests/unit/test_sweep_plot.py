"""Pictures of sweeps: what stands in cells, on lines and on axes."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.sweep_plot import Column, Picture, draw, scaled

BANDWIDTH = Column("cluster.link.bandwidth_bytes_per_s", [1e9, 1e9, 2e9, 2e9, 1e9, 2e9])
STAGES = Column("schedule.stages", [2, 4, 2, 4, 2, 2])
RATE = Column("samples_per_s", [10.0, 20.0, 30.0, 4000.0, 12.0, 25.0])


def test_a_heat_map_shows_the_best_of_each_cell() -> None:
    for more_is_better, expected in ((True, [[12, 30], [20, 4000]]), (False, [[10, 25], [20, 4000]])):
        figure = draw(Picture("title", [BANDWIDTH, STAGES], RATE, more_is_better, ["seed"], heat_map=True))
        panel, colours = figure.axes
        assert panel.images[0].get_array().tolist() == expected
        assert [text.get_text() for text in panel.texts][-1] == "4,000"
        assert (panel.get_xlabel(), panel.get_ylabel()) == ("link bandwidth (GB/s)", "schedule stages")
        assert colours.get_ylabel() == "throughput (samples/s)"
        assert panel.get_title() == "title\nthe best over seed"
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "2"]


def test_lines_are_told_apart_by_the_second_axis() -> None:
    (panel,) = draw(Picture("title", [BANDWIDTH, STAGES], RATE, True)).axes
    lines = {str(line.get_label()): np.column_stack(line.get_data()).tolist() for line in panel.lines}
    assert lines == {"2": [[1, 12], [2, 30]], "4": [[1, 20], [2, 4000]]}
    assert panel.get_ylim()[0] == 0


def test_samples_are_dots() -> None:
    axis = Column("cluster.link.latency_s", [1e-6, 2e-6, 400e-6])
    (panel,) = draw(Picture("t", [axis], Column("mfu", [0.1, 0.2, 0.3]), True, ["seed"])).axes
    assert panel.lines[0].get_linestyle() == "None"
    assert panel.get_xscale() == "log"
    assert "one dot a point" in panel.get_title()


@pytest.mark.parametrize(
    ("name", "values", "label", "shown"),
    [
        ("makespan_s", [0.002, 0.5, 0.004], "makespan (ms)", [2, 500, 4]),
        ("max_device_peak_memory_bytes", [2**31], "max device peak memory (GiB)", [2]),
        ("a.b.forward_s", [0.0, 0.0], "b forward (s)", [0, 0]),
        ("mfu", [0.5], "mfu", [0.5]),
        ("schedule.name", ["b", "a", "b"], "schedule name", [0, 1, 0]),
        ("schedule.csv", ["x", 3], "schedule csv", [0, 1]),
    ],
)
def test_units_suit_the_values(name: str, values: list[float | str], label: str, shown: list[float]) -> None:
    found = scaled(Column(name, values))
    assert found.label == label
    assert found.values.tolist() == pytest.approx(shown)
