"""Plans of the shipped fully connected net, small enough for every backend."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from scenarios.architecture import shipped_architecture
from sim.binding import Binding, Figures, bind
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.model import Layer, ModelProfile
from sim.partition import balanced
from sim.passes import buffers, rematerialize, transfers, weight_versions
from sim.plan import Plan
from sim.schedule import Schedule
from sim.training import Training

SAMPLES = 4  # per micro-batch

MlpPlan = Callable[..., tuple[Plan, Binding]]


@pytest.fixture(scope="session")
def mlp_plan() -> MlpPlan:
    """From a planner's schedule to plan and binding; ``in_order`` links hold lanes, ``latency`` links do not."""

    def mlp_plan(
        schedule: Schedule,
        weights: weight_versions.Weights = "latest",
        kind: LinkKind = "in_order",
        training: Training | None = None,
        predict: weight_versions.Predict | None = None,
        checkpoint: bool = False,
    ) -> tuple[Plan, Binding]:
        shape, training = schedule.shape, training or Training()
        devices = 1 + max(schedule.placement.values())
        layers = tuple(Layer(f"layer{i}", 2e-4, 1e-4, 1e-4, 8192.0, 8192.0, 4.0 * 24065) for i in range(9))
        names = tuple(f"gpu{i}" for i in range(devices))
        links = [Link(f"{a}>{b}", a, b, kind, 1e-5, 1e9) for a, b in permutations(names, 2)]
        partition = balanced([1.0] * len(layers), shape.stages)
        keep = tuple((0, *range(2, last - first + 1, 2), last - first + 1) for first, last in partition)
        figures = Figures(
            profile=ModelProfile("mlp", SAMPLES, layers, 1024.0, "assumed", "made for this test"),
            partition=partition,
            training=training,
            cluster=Cluster("bench", tuple(Node(name, "gpu") for name in names), links),
            devices=names,
            samples=SAMPLES * shape.micro_batches * shape.replicas,
            update_s=1e-4,
            buckets=1 + int(schedule.ops["part"].max(initial=-1)) or 1,
            checkpoints=keep if checkpoint else (),
        )
        binding = bind(schedule, figures)
        distances = weight_versions.prediction_distances(schedule, predict) if predict else ()
        schedule = weight_versions.apply(schedule, weights, distances, predict or "spectrain")
        schedule = rematerialize.apply(schedule) if checkpoint else schedule
        schedule = transfers.apply(schedule, binding.holds_lanes)
        events, architecture = buffers.apply(schedule), shipped_architecture("mlp")
        plan = Plan("example", schedule, partition, "mlp", training, events, architecture, figures.checkpoints)
        return plan, binding

    return mlp_plan
