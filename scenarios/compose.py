"""From a scenario to what a backend executes: a plan and its binding. Nothing below this module sees YAML."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from scenarios.document import Document
from scenarios.hardware import build_cluster
from scenarios.profiles import build_profile
from scenarios.schema import Scenario
from sim.binding import Binding, Figures, bind
from sim.cluster import Cluster
from sim.errors import Fault, ScenarioError, UnsupportedPlan
from sim.model import ModelProfile
from sim.partition import Partition, at_cuts, balanced
from sim.passes import buffers, transfers, weight_versions
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.program import Program
from sim.schedule import Schedule, Shape
from sim.training import Training

OF_EVERY_SCHEDULE = ("weights", "predict")
"""Keys of ``schedule:`` that choose passes; the others are the planner's."""


class Composed(NamedTuple):
    """What a backend executes."""

    plan: Plan
    binding: Binding


def compose(scenario: Scenario, document: Document) -> Composed:
    """Plan a scenario and put figures on it.

    Raises
    ------
    ScenarioError : parts that are right by themselves but do not fit together, each fault with file and line.
    UnsupportedPlan : a combination that the schedule cannot honour.
    """
    try:
        return _compose(scenario, document)
    except ScenarioError as error:
        raise ScenarioError.of([document.placed(fault) for fault in error.faults]) from None


def _compose(scenario: Scenario, document: Document) -> Composed:
    cluster = build_cluster(scenario.cluster)
    keys = planner_keys(scenario, cluster)
    work = PLANNERS[scenario.schedule.name](**keys)
    shape, serves = work.shape, isinstance(work, Program)
    devices = _devices(cluster, work)
    samples, per_micro_batch = _samples(scenario, shape, keys)
    profile = build_profile(scenario, document, cluster, shape.stages, per_micro_batch)
    partition = _partition(scenario, profile, shape.stages)
    training = Training(**scenario.training.model_dump())
    uniform, capacity = scenario.model.uniform, scenario.memory.capacity
    binding = bind(
        work,
        Figures(
            profile=profile,
            partition=partition,
            training=training,
            cluster=cluster,
            devices=devices,
            samples=samples,
            capacity_bytes=None if capacity is None else round(capacity),
            update_s=(uniform.update or 0.0) if uniform else None,
            buckets=int(keys.get("buckets", 1)),
            server=len(devices) - 1 if serves else None,
            provenance=_provenance(profile, cluster, training),
        ),
    )
    events = None
    if isinstance(work, Schedule):
        work = transfers.apply(_weigh(scenario, work, keys), binding.holds_lanes)
        events = buffers.apply(work)
    else:
        _refuse_weights(scenario)
    return Composed(Plan(scenario.schedule.name, work, partition, profile.name, training, events), binding)


def planner_keys(scenario: Scenario, cluster: Cluster) -> dict[str, Any]:
    """The arguments of the scenario's planner; ``replicas`` are the cluster's GPUs."""
    keys = {key: value for key, value in scenario.schedule.given.items() if key not in OF_EVERY_SCHEDULE}
    if "replicas" in inspect.signature(PLANNERS[scenario.schedule.name]).parameters:
        keys["replicas"] = len(cluster.gpus)
    return keys


def _devices(cluster: Cluster, work: Schedule | Program) -> tuple[str, ...]:
    """The node of each device of the plan: its devices are the first GPUs; the host of a server comes last."""
    wanted = 1 + max(work.placement.values())
    if wanted > len(cluster.gpus):
        message = f"the schedule needs {wanted} devices, the cluster has {len(cluster.gpus)}"
        raise ScenarioError.of([Fault(message, "schedule.stages")])
    devices = tuple(node.name for node in cluster.gpus[:wanted])
    if not isinstance(work, Program):
        return devices
    if not cluster.hosts:
        hint = "add a node of kind host, or write sync: ring"
        raise ScenarioError.of(
            [Fault("a parameter server needs a host in the cluster", "schedule.sync", suggestion=hint)]
        )
    return (*devices, cluster.hosts[0].name)


def _samples(scenario: Scenario, shape: Shape, keys: Mapping[str, Any]) -> tuple[float, float]:
    """Samples of a mini-batch over all replicas, and of one micro-batch on one of them."""
    batch = float(scenario.model.batch_size)
    if keys.get("scaling") == "weak":
        return batch * shape.replicas, batch / shape.micro_batches
    return batch, batch / (shape.micro_batches * shape.replicas)


def _partition(scenario: Scenario, profile: ModelProfile, stages: int) -> Partition:
    """The layers of each stage: as cut by the scenario, or balanced over seconds of forward and backward."""
    cuts = scenario.partition.cuts
    if cuts is None:
        return balanced([layer.forward_s + layer.backward_s for layer in profile.layers], stages)
    if len(cuts) + 1 != stages:
        message = f"{len(cuts)} cuts make {len(cuts) + 1} stages, the schedule has {stages}"
        raise ScenarioError.of([Fault(message, "partition.cuts")])
    return at_cuts(len(profile.layers), cuts)


def _weigh(scenario: Scenario, schedule: Schedule, keys: Mapping[str, Any]) -> Schedule:
    """The schedule under the scenario's weight policy, or its method's own."""
    name = scenario.schedule.name
    weights = cast(
        weight_versions.Weights, scenario.schedule.weights or PLANNERS.defaults(name).get("weights", "latest")
    )
    if weights != "latest" and not weight_versions.staleness(schedule).max(initial=0) > 0:
        if scenario.schedule.weights:
            _refuse_weights(scenario)
        return schedule
    distances: tuple[tuple[int, int], ...] = ()
    if weights == "predict":
        long = PLANNERS[name](**{**keys, "mini_batches": 8 * schedule.shape.stages})
        assert isinstance(long, Schedule)
        distances = weight_versions.prediction_distances(long)
    return weight_versions.apply(schedule, weights, distances)


def _refuse_weights(scenario: Scenario) -> None:
    """A weight policy where no weights are ever stale would be a knob without influence."""
    schedule = scenario.schedule
    if schedule.weights not in (None, "latest"):
        reason = f"no weights of this '{schedule.name}' are ever stale"
        raise UnsupportedPlan(f"schedule.weights: '{schedule.weights}' has no influence: {reason}")


def _provenance(profile: ModelProfile, cluster: Cluster, training: Training) -> dict[str, Any]:
    """Which inputs were measured, published or assumed."""
    return {
        "model": {"origin": profile.origin, "source": profile.source, "notes": list(profile.notes)},
        "cluster": {"origin": "published" if cluster.source else "assumed", "source": cluster.source or "the scenario"},
        "training": {"origin": "assumed", "source": f"{training.optimizer}, {training.dtype}"},
    }
