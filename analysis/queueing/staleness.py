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
    independently, all within an upload where they pass together. And some, where servers read on delivery, come during
    the download: as many as stand there when one worker is away, Q(W − 1). So one server has W − 1 and
    W − 1 − Q_dl(W − 1).
    """
    workers, others = now.population, now.population - 1
    upload_s = now.gathered_s[-1]
    waited_s = upload_s - now.residence_s[-1].sum(0)
    apart_per_s = now.throughput_per_s * others / workers
    together_per_s = others / upload_s if upload_s else 0.0
    after = waited_s * (apart_per_s + now.bunching * (together_per_s - apart_per_s))
    missed = np.zeros_like(after) if snapshot == "on_request" or fewer is None else fewer.queue_lengths[0].sum(0)
    stale: Floats = np.maximum(others - after - missed, 0.0)
    return stale
