"""What the peak of a plan is: four objectives, from the textbook's to what PyTorch really holds.

Sizes are bytes d_0 … d_n; checkpoints c_0 = 0 < … < c_m = n, both ends counted. Sources: N. Wang, NTU thesis 2023, and
Hong, Tsai, Wang, Liu, Wu, arXiv 2502.12499, for ``basic`` and ``corrected``; live tensors of PyTorch's two checkpoint
modes on vertices of a convolution and an in-place ReLU for ``reentrant`` and ``non_reentrant``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

Objective = Literal["basic", "corrected", "reentrant", "non_reentrant"]
Sizes = Sequence[float]
SegmentPeak = Callable[[Sizes, int, int], float]


def basic(sizes: Sizes, checkpoints: Sequence[int]) -> float:
    """All checkpoints, and the outputs of the largest segment between two of them."""
    kept = sum(sizes[c] for c in checkpoints)
    return kept + max((sum(sizes[h + 1 : i]) for h, i in pairwise(checkpoints)), default=0.0)


def corrected_segment(sizes: Sizes, h: int, i: int) -> float:
    """Running segment (h, i): its outputs, the gradient of the largest one or of y_h, and y_i."""
    return sum(sizes[h + 1 : i]) + max(sizes[h:i]) + sizes[i]


def reentrant_segment(sizes: Sizes, h: int, i: int) -> float:
    """``torch.utils.checkpoint(use_reentrant=True)``: y_i and dy_i stay throughout the backward of the segment."""
    return non_reentrant_segment(sizes, h, i) + 2 * sizes[i]


def non_reentrant_segment(sizes: Sizes, h: int, i: int) -> float:
    """``use_reentrant=False``: at layer k the outputs up to y_k, and the two gradients around its ReLU."""
    live, peak = 0.0, 0.0
    for k in range(h + 1, i):
        live += sizes[k]
        peak = max(peak, live + 2 * sizes[k])
    return peak


SEGMENT_PEAKS: dict[Objective, SegmentPeak] = {
    "corrected": corrected_segment,
    "reentrant": reentrant_segment,
    "non_reentrant": non_reentrant_segment,
}
"""Peaks of objectives that free a checkpoint when its segment is done: the peak of the running segment (h, i) adds to
the checkpoints up to and including h."""


def peak(objective: Objective, sizes: Sizes, checkpoints: Sequence[int]) -> float:
    """Peak bytes of a plan (checkpoints sorted, 0 and n among them)."""
    if objective == "basic":
        return basic(sizes, checkpoints)
    segment = SEGMENT_PEAKS[objective]
    kept, most = 0.0, 0.0
    for h, i in pairwise(checkpoints):
        kept += sizes[h]
        most = max(most, kept + segment(sizes, h, i))
    return max(most, kept + sizes[checkpoints[-1]])


def one_segment(sizes: Sizes) -> list[int]:
    """No checkpoints but the ends: every output is kept and nothing is recomputed."""
    return [0, len(sizes) - 1] if len(sizes) > 1 else [0]
