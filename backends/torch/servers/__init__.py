"""Real parameter servers: the second rail of `schedule: {name: parameter_server}`.

A process per worker and per server, tensors between them over TCP. It is read in this order: `run` starts the `crew`
and records what it did; `coordinator`, in the parent, hosts the policy and the barriers' actors; `worker` hosts the
actor of a worker and `server` keeps parts of the parameters. `host` plays actors on either side, `wire` is what
travels over TCP, `job` what passes between the parent and its processes.
"""

from __future__ import annotations

from backends.torch.servers.job import Checkpoint, Compute, Job, Place
from backends.torch.servers.run import execute

__all__ = ["Checkpoint", "Compute", "Job", "Place", "execute"]
