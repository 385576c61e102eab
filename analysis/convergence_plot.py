"""Loss and test accuracy against samples and against cluster time: a line for each method, its seeds as a band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.convergence import Column, Method, smoothed
from analysis.palette import OKABE_ITO
from analysis.text import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (*OKABE_ITO, "#785EF0", "#000000")
"""Okabe and Ito's, and one more: colour-blind readers tell them apart."""
DASHES = ("-", "--", "-.", ":")


def plot(methods: Sequence[Method], file: Path, title: str) -> None:
    """Write the chart; the format is that of the file's ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained")
    (loss_by_samples, loss_by_time), (score_by_samples, score_by_time) = figure.subplots(2, 2, sharey="row")
    longest_s = max(float(run.seconds[-1]) for method in methods for run in method.runs)
    per_s, unit = unit_of(longest_s)
    for number, method in enumerate(methods):
        style = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        losses = np.stack([smoothed(run.losses) for run in method.runs])
        seconds = np.median([run.seconds for run in method.runs], axis=0)
        _draw(loss_by_samples, _percent(losses), losses, f"{method.name} (rate {method.learning_rate:g})", style)
        _draw(loss_by_time, seconds * per_s, losses, "", style)
        scores = 100 * np.stack([run.test_accuracies for run in method.runs])
        seconds = np.median([run.test_seconds for run in method.runs], axis=0)
        _draw(score_by_samples, _percent(scores), scores, "", style)
        _draw(score_by_time, seconds * per_s, scores, "", style)
    loss_by_samples.set_ylabel("training loss, mean of 20 updates")
    loss_by_samples.set_yscale("log")
    score_by_samples.set_ylabel("test accuracy (%)")
    score_by_samples.set_xlabel("samples seen (%)")
    score_by_time.set_xlabel(f"time on the simulated cluster ({unit})")
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.set_xlim(left=0)
    figure.suptitle(f"{title}: median over {len(methods[0].runs)} seeds, the band from the least to the most")
    figure.legend(loc="outside lower center", ncols=min(len(methods), 4), frameon=False, fontsize="small")
    figure.savefig(file, dpi=140)


def _percent(values: Column) -> Column:
    """Where equally spaced columns of values stand, of all."""
    return np.linspace(0, 100, values.shape[1] + 1)[1:]


def _draw(axes: Axes, x: Column, values: Column, label: str, style: tuple[str, str]) -> None:
    colour, dash = style
    axes.plot(x, np.median(values, axis=0), color=colour, linestyle=dash, label=label or None, linewidth=1.6)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
