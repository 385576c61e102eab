"""The planner's branch and bound against simulating every candidate of the same space."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import Row, cpu_seconds
from scenarios import plan_command
from scenarios.load import parse_text
from scenarios.plan_search import Options

SCENARIO = """\
name: planner
model: {name: vgg16, batch_size: 32}
cluster: {preset: pcie3-switch-4gpu, concurrency: {shared: 1.0}}
schedule: {name: one_f_one_b, stages: 4, micro_batches: 8, mini_batches: 3}
plan: {schedules: [one_f_one_b, pipedream, zb_h1, chimera, dualpipe_2018], micro_batches: [2, 8], stages: [2, 4]}
"""
WANTED = 1.5


def measure() -> list[Row]:
    """One row; both find the same best plan and the same front."""
    document, found = parse_text(SCENARIO, "planner.yaml"), dict[bool, dict[str, object]]()

    def search(prune: bool) -> None:
        found[prune] = plan_command.plan(document, Options(top=1, prune=prune))

    spent = {prune: cpu_seconds(partial(search, prune)) for prune in (True, False)}
    assert found[True]["best"] == found[False]["best"]
    name = f"planner, {found[True]['simulated']} of {found[True]['searched']} simulated"
    ours, reference = f"{spent[True]:.1f} s", f"{spent[False]:.1f} s"
    return [Row(name, ours, reference, spent[False] / spent[True], str(WANTED), "simulating all of them")]
