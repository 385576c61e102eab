"""Staleness in closed form: updates of a server by others between a worker's read and its own update there.

Of asynchronous steps that download from all servers, compute, and upload to all. A server's copy is read when it is
asked for, or when its transfer ends.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from analysis.queueing.fork_join import Estimate
from analysis.queueing.network import Floats

Snapshot = Literal["on_request", "on_delivery"]


def staleness(fewer: Estimate | None, now: Estimate, snapshot: Snapshot) -> Floats:
    """The mean of every server, shape [servers]; the first section of ``now`` is the download, the last the upload.

    ``fewer`` is the estimate with one worker less, ``None`` where there is one worker.

    In the cycle from one read to the next each of the W − 1 others updates once, W − 1 in all. Of these, some come
    while a worker that is done with this server waits for its slowest upload: at the others' rate where steps pass
    independently, half of them where all pass together. And some, where servers read on delivery, come during the
    download: as many as stand there when one worker is away, Q(W − 1), and none where all download together. So one
    server has W − 1, and W − 1 − Q_dl(W − 1).
    """
    others = now.population - 1
    waited_s = now.gathered_s[-1] - now.residence_s[-1].sum(0)
    apart = now.throughput_per_s * others / now.population * waited_s
    after = apart + now.bunching * (others / 2 - apart)
    missed = np.zeros_like(after)
    if snapshot == "on_delivery" and fewer is not None:
        missed = fewer.queue_lengths[0].sum(0) * (1 - now.bunching)
    stale: Floats = np.maximum(others - after - missed, 0.0)
    return stale
