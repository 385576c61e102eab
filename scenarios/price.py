"""What training costs, where a scenario says the price of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.schema import Scenario


def costs(scenario: Scenario, result: Mapping[str, Any]) -> dict[str, float]:
    """US dollars for 1,000 samples in the steady state; nothing where no price is given or no throughput is known.

    Paid are the GPUs that run something, for all of the time. An epoch of N samples costs N / 1,000 of it.
    """
    usd_per_hour, samples_per_s = scenario.cluster.price, result["samples_per_s"]
    if usd_per_hour is None or not samples_per_s:
        return {}
    gpus = len(result["devices"]) * (scenario.schedule.tensor_parallel or 1)
    return {"cost_usd_per_1000_samples": usd_per_hour / 3600 * gpus * 1000 / samples_per_s}
