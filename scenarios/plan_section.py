"""The ``plan`` section of a scenario: what ``twinrail plan`` tries, each key a list; what is not given is wide."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenarios.server_sections import Count
from scenarios.strict import Many, Section
from sim.training import Weights

PartitionChoice = Literal["balanced", "pipedream", "fitting", "every"]
CheckpointChoice = Literal["none", "optimal", "sqrt_n"]
Rule = Literal["round_robin", "greedy", "even", "best_fit"]


class PlanSpace(Section):
    """What to try, in lists.

    ``partitions``: ``fitting`` is the one of least slowest stage among those that fit, ``every`` all contiguous ones.
    ``replicas``: of the stages of ``pipedream``, ``[3, 1]``. ``weights``: of methods that may be stale.
    """

    schedules: Annotated[Many[str], Field(min_length=1)] | None = None
    stages: Annotated[Many[Count], Field(min_length=1)] | None = None
    replicas: Annotated[Many[Many[Count]], Field(min_length=1)] | None = None
    micro_batches: Annotated[Many[Count], Field(min_length=1)] | None = None
    weights: Annotated[Many[Weights], Field(min_length=1)] | None = None
    partitions: Annotated[Many[PartitionChoice], Field(min_length=1)] | None = None
    checkpoints: Annotated[Many[CheckpointChoice], Field(min_length=1)] | None = None
    servers: Annotated[Many[Count], Field(min_length=1)] | None = None
    sharding: Annotated[Many[Rule], Field(min_length=1)] | None = None
