"""Plans of the shipped fully connected net, small enough for every backend."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from sim.binding import Binding, Figures, bind
from sim.cluster import Cluster, Link, LinkKind, Node
from sim.model import Layer, ModelProfile
from sim.partition import balanced
from sim.passes import buffers, transfers, weight_versions
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
    ) -> tuple[Plan, Binding]:
        shape, training = schedule.shape, training or Training()
        layers = tuple(Layer(f"layer{i}", 2e-4, 1e-4, 1e-4, 8192.0, 8192.0, 4.0 * 24065) for i in range(9))
        names = tuple(f"gpu{i}" for i in range(shape.stages))
        links = [Link(f"{a}>{b}", a, b, kind, 1e-5, 1e9) for a, b in permutations(names, 2)]
        figures = Figures(
            profile=ModelProfile("mlp", SAMPLES, layers, 1024.0, "assumed", "made for this test"),
            partition=balanced([1.0] * len(layers), shape.stages),
            training=training,
            cluster=Cluster("bench", tuple(Node(name, "gpu") for name in names), links),
            devices=names,
            samples=SAMPLES * shape.micro_batches,
            update_s=1e-4,
        )
        binding = bind(schedule, figures)
        schedule = weight_versions.apply(schedule, weights)
        schedule = transfers.apply(schedule, binding.holds_lanes)
        plan = Plan("example", schedule, figures.partition, "mlp", training, buffers.apply(schedule))
        return plan, binding

    return mlp_plan
