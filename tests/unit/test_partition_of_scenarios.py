"""``partition: pipedream`` in a scenario: the partitioner's cut, for the schedule's stages and replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.compose import compose
from scenarios.load import parse_text
from scenarios.pipedream import read_graph
from scenarios.schema import parse
from sim import pipedream_partitioner
from sim.antichains import chain_states
from sim.errors import ScenarioError
from sim.graph import chain

PROFILE = Path(__file__).parents[2].parent / "shared" / "data" / "pipedream" / "vgg16.txt"
SCENARIO = """\
name: hybrid
model: {{{model}, batch_size: 128}}
cluster: {{devices: 4, link: {{kind: in_order, bandwidth: {bandwidth}}}}}
schedule: {{name: pipedream, stages: {stages}{replicas}}}
partition: pipedream
"""


def partition(model: str, bandwidth: str, stages: int, replicas: str = "") -> tuple[tuple[int, int], ...]:
    text = SCENARIO.format(model=model, bandwidth=bandwidth, stages=stages, replicas=replicas)
    document = parse_text(text, "hybrid.yaml")
    return compose(parse(document), document).plan.partition


def test_the_published_hybrid_of_vgg16() -> None:
    """Facts: vgg16 on 4 machines at 1 GB/s is 3-1, and the cut that the partitioner reports is the one composed."""
    if not PROFILE.exists():
        pytest.skip(f"no {PROFILE}: the shared data are not here")
    found = partition_profile(PROFILE, machines=4, bytes_per_s=1e9)
    assert partition(f"profile: {PROFILE}", "1 GB/s", 2, ", replicas: [3, 1]") == found


def partition_profile(path: Path, machines: int, bytes_per_s: float) -> tuple[tuple[int, int], ...]:
    profile = chain(read_graph(path), "vgg16", 128)
    stages = pipedream_partitioner.partition(chain_states(profile), machines, bytes_per_s).stages
    assert [stage.replicas for stage in stages] == [3, 1]
    return tuple((stage.first, stage.last) for stage in stages)


def test_free_links_give_the_balanced_cut() -> None:
    layer = "{{name: l{0}, forward: {1} ms, backward: {1} ms, output: 1 B, parameters: 1 B}}"
    layers = ", ".join(layer.format(index, cost) for index, cost in enumerate((4, 1, 1, 2, 4)))
    assert partition(f"layers: [{layers}]", "1 TB/s", 3) == ((0, 0), (1, 3), (4, 4))


def test_more_buckets_than_layers_are_refused() -> None:
    text = SCENARIO.format(
        model="uniform: {forward: 1 s, backward: 1 s, activation: 1 B, parameters: 1 B}",
        bandwidth="1 GB/s",
        stages=2,
        replicas="",
    )
    text = text.replace("name: pipedream, stages: 2", "name: data_parallel, buckets: 3").replace(
        "partition: pipedream\n", ""
    )
    document = parse_text(text, "buckets.yaml")
    with pytest.raises(ScenarioError, match=r"buckets.yaml:4: schedule.buckets: 3 buckets of 1 layers"):
        compose(parse(document), document)
