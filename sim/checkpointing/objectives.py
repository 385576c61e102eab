"""What the peak of a plan is: four objectives, from the textbook's to what PyTorch really holds.

Sizes are bytes d_0 … d_n; checkpoints c_0 = 0 < … < c_m = n, both ends counted unless `without_ends`. Sources: N. Wang,
NTU thesis 2023, and Hong, Tsai, Wang, Liu, Wu, arXiv 2502.12499, for ``basic`` and ``corrected``; PyTorch's two
checkpoint modes as `sim.checkpointing.pytorch` has them, here with a convolution and a ReLU in place for each vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from sim.checkpointing import pytorch
from sim.checkpointing.plan import of_checkpoints
from sim.checkpointing.program import Array, Program
from sim.liveness import Mode

Objective = Literal["basic", "corrected"] | Mode
OBJECTIVES: tuple[Objective, ...] = ("basic", "corrected", "reentrant", "non_reentrant")
MODES: tuple[Mode, ...] = get_args(Mode)
Sizes = Sequence[float]


def basic(sizes: Sizes, checkpoints: Sequence[int]) -> float:
    """All checkpoints, and the outputs of the largest segment between two of them."""
    kept = sum(sizes[c] for c in checkpoints)
    return kept + max((sum(sizes[h + 1 : i]) for h, i in pairwise(checkpoints)), default=0.0)


def corrected(sizes: Sizes, checkpoints: Sequence[int]) -> float:
    """The checkpoints up to the running segment, its outputs, and the gradient of the largest of these or of its input.

    Checkpoints to the right of the running segment have been freed.
    """
    kept = most = 0.0
    for h, i in pairwise(checkpoints):
        kept += sizes[h]
        most = max(most, kept + sum(sizes[h + 1 : i]) + max(sizes[h:i]) + sizes[i])
    return max(most, kept + sizes[checkpoints[-1]])


def peak(objective: Objective, sizes: Sizes, checkpoints: Sequence[int]) -> float:
    """Peak bytes of a plan (checkpoints sorted, 0 and n among them)."""
    if objective == "basic":
        return basic(sizes, checkpoints)
    if objective == "corrected":
        return corrected(sizes, checkpoints)
    return pytorch.peak(objective, pytorch.convolutions(sizes), of_checkpoints(checkpoints))


def program(objective: Objective, sizes: Sizes) -> Program:
    """Sizes for the dynamic programs.

    Raises
    ------
    ValueError : ``basic``, whose peak is not that of one segment at a time.
    """
    if objective == "basic":
        raise ValueError("basic has a program of its own: solvers.cubic")
    if objective in MODES:
        return pytorch.program(objective, pytorch.convolutions(sizes))
    d = np.asarray(sizes, np.float64)
    nothing, always = np.zeros(len(d)), np.ones((2, len(d)), np.bool_)
    single = np.append(0.0, d[:-1] + d[1:])
    end = float(d[-1])
    return Program(d, lambda i: _corrected_runs(d, i), nothing, np.stack([single] * 2), always, (end, end), again=False)


def _corrected_runs(d: Array, i: int) -> Array:
    outputs = np.append(0.0, np.cumsum(d[i + 1 : -1]))
    peaks: Array = outputs + np.maximum.accumulate(d[i:-1]) + d[i + 1 :]
    return peaks


def without_ends(sizes: Sizes) -> list[float]:
    """The input and the last output cost nothing: somebody else holds them."""
    return [0, *sizes[1:-1], 0] if len(sizes) > 1 else [0]


def one_segment(sizes: Sizes) -> list[int]:
    """No checkpoints but the ends: every output is kept and nothing is recomputed."""
    return [0, len(sizes) - 1] if len(sizes) > 1 else [0]
