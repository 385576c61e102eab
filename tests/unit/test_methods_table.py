"""The table of methods against the closed forms of the papers, at N = 2, 3, 4 and 8, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from analysis import methods_table, staleness_plot
from analysis.methods_table import Costs
from scenarios import methods
from scenarios.methods import METHODS, Times

SIZES = [(2, 2), (2, 6), (3, 6), (4, 4), (4, 8), (8, 16)]


class Row(NamedTuple):
    """What the papers say of one method: bubble, copies (+ predicted) and micro-batches in flight (+ waiting) of each
    GPU, staleness of each stage."""

    bubble: float
    copies: Sequence[int]
    in_flight: Sequence[float] | None
    forward: Sequence[int]
    backward: Sequence[int]
    predicted: Sequence[int] | None = None
    waiting: Sequence[float] | None = None


def published(n: int, t: int, times: Times) -> dict[str, Row]:
    """The rows for N stages and T micro-batches; n - k and the like are lists over stages."""
    zero, one, left = [0] * n, [1] * n, [n - k for k in range(n)]
    stale = [each - 1 for each in left]
    flush = (n - 1) / (t + n - 1)
    f, i, w = times
    work = t * (f + i + w)

    def of_total(wait_s: float) -> float:
        return wait_s / (work + wait_s)

    chimera_t = n
    chimera = (n - 2) / (2 * chimera_t + n - 2) if f == i + w else (n - 2) / (1.5 * n + n - 2)
    ahead = [2 * (n - k) - 1 for k in range(n)]
    spectrain = [(k // 2 + n - k - 1, k // 2) for k in range(n)]
    predicts = [int(any(pair)) for pair in spectrain]
    rows = {
        "GPipe": Row(flush, one, [t] * n, zero, zero),
        "1F1B with flush": Row(flush, one, [min(t, each) for each in left], zero, zero),
        "interleaved 1F1B, 2 chunks": Row(
            (n - 1) / (2 * t + n - 1), one * 2, [(1 + (n - 1) / (2 * n)) * n - d for d in range(n)], zero * 2, zero * 2
        ),
        "ZB-H1": Row(of_total((n - 1) * (f + i - w)), one, left, zero, zero, waiting=list(range(n))),
        "vanilla asynchronous 1F1B": Row(0, one, left, stale, zero),
        "PipeDream, weight stashing": Row(0, left, left, stale, stale),
        "PipeDream, vertical sync": Row(0, [n] * n, left, [n - 1] * n, [n - 1] * n),
        "PipeDream-2BW": Row(0, [2] * n, left, one, one),
        "SpecTrain, alternating": Row(0, one, left, stale, zero, predicts),
        "DualPipe 2018 with SpecTrain, concurrent": Row(0, one, [2 * each for each in left], ahead, zero, one),
        "PipeOptim": Row(0, one, left, stale, stale, [each * (each > 1) for each in left]),
        "XPipe": Row(0, one, left, stale, zero, predicts),
        "PipeMare": Row(0, one, left, stale, zero, [2 * (each > 1) for each in left]),
    }
    if t >= 2 * n - 1:
        rows["ZB-H2"] = Row(
            of_total((n - 1) * (f + i - 2 * w)), one, ahead, zero, zero, waiting=[2 * k for k in range(n)]
        )
    if f == i == w and t >= 2 * n:
        rows["ZB-V"] = Row(0, one * 2, [n] * n, zero * 2, zero * 2)
    if n % 2 == 0:
        full = [min(n // 2, n - k) + min(n // 2, k + 1) for k in range(n)]
        rows["Chimera"] = Row(chimera, [2] * n, full, zero, zero)
        if f == i == w and t >= 2 * n:
            wait_s = (n // 2 - 1) * ((f + i + w) + (i + w) - 3 * w)
            rows["DualPipe 2025"] = Row(of_total(wait_s), [2] * n, None, zero, zero)
    return rows


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
@pytest.mark.parametrize("times", [Times(1.0, 0.5, 0.5), Times(1.0, 1.0, 1.0)], ids=["F=B", "F=I=W"])
def test_the_table_is_that_of_the_papers(stages: int, micro_batches: int, times: Times) -> None:
    found = methods.compare(stages, micro_batches, times)
    for title, row in published(stages, micro_batches, times).items():
        costs = found[title]
        assert costs.bubble == pytest.approx(row.bubble, abs=1e-9), title
        assert list(costs.weight_copies) == list(row.copies), title
        assert list(costs.forward) == list(row.forward), title
        assert list(costs.backward) == list(row.backward), title
        assert list(costs.predicted_copies) == list(row.predicted or [0] * stages), title
        if row.in_flight is not None and (micro_batches >= 2 * stages or "interleaved" not in title):
            assert list(costs.in_flight) == pytest.approx(list(row.in_flight)), title
        if row.waiting is not None and micro_batches >= 2 * stages:
            assert list(costs.waiting) == list(row.waiting), title


def test_sizes_that_a_method_refuses_have_no_row() -> None:
    assert {method.title for method in METHODS} - methods.compare(3, 4).keys() == {"Chimera", "DualPipe 2025"}
    assert "PipeDream, vertical sync" not in methods.compare(1, 4)


def test_the_table_as_text() -> None:
    costs = methods.compare(4, 8)
    lines = methods_table.text(costs).splitlines()
    assert lines[0] == "| method | bubble of total | weight copies | in flight | staleness F | staleness B |"
    for line in (
        "| 1F1B with flush | 0.273 | 1 | 4 3 2 1 | 0 | 0 |",
        "| ZB-H1 | 0.158 | 1 | 4 3 2 1 (+ 0 1 2 3) | 0 | 0 |",
        "| PipeDream, weight stashing | 0 | 4 3 2 1 | 4 3 2 1 | 3 2 1 0 | 3 2 1 0 |",
        "| DualPipe 2018 with SpecTrain, concurrent | 0 | 1 (+ 1) | 8 6 4 2 | 7 5 3 1 | 0 |",
    ):
        assert line in lines
    assert len(lines) == 2 + len(costs)


def test_a_run_without_updates_has_a_dash() -> None:
    costs = Costs(0.5, (1,), (0,), (1.0,), (0.0,), (None,), (None,))
    assert methods_table.text({"forwards": costs}).splitlines()[-1] == "| forwards | 0.5 | 1 | 1 | – | – |"


def test_the_picture_of_staleness(tmp_path: Path) -> None:
    """Two panels, a line a method in each; equal ones lie a little apart."""
    chosen = [method for method in METHODS if method.schedule["name"] in ("one_f_one_b", "pipedream", "dualpipe_2018")]
    traces = {method.title: methods.run(method, 4, 4) for method in chosen}
    figure = staleness_plot.draw(traces)
    for axes, side in zip(figure.axes, ("forward", "backward"), strict=True):
        assert axes.get_title() == side
        assert [str(line.get_label()) for line in axes.lines] == list(traces)
    vanilla = figure.axes[0].lines[list(traces).index("vanilla asynchronous 1F1B")]
    assert [round(float(height)) for height in vanilla.get_ydata()] == [3, 2, 1, 0]  # type: ignore[union-attr]
    staleness_plot.plot(traces, tmp_path / "staleness.svg")
    assert (tmp_path / "staleness.svg").stat().st_size > 0
