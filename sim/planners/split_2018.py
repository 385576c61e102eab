"""What DualPipe of 2018 is an answer to: GPUs that only run forwards and GPUs that only run backwards, asynchronous.

A stage's backward GPU owns its weights. To it travels what each forward saved, and from it every new version, so a
GPU's share of the work is that of one pass: the imbalance that the paper argues from (arXiv 1809.02839).
"""

from __future__ import annotations

from sim.planners import dualpipe_2018
from sim.schedule import Schedule


def plan(stages: int, micro_batches: int = 1, mini_batches: int = 0) -> Schedule:
    """Forwards of stage k on GPU k, backwards on GPU N + k, of 2N; as many in flight as on `dualpipe_2018`'s lanes."""
    return dualpipe_2018.side_by_side(stages, micro_batches, mini_batches, range(stages, 2 * stages))
