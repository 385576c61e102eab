"""What ``twinrail plan`` may choose from: every plan as overrides of the scenario, with what its bounds need."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from scenarios.compose import checkpoints_of, grouped
from scenarios.document import Document
from scenarios.hardware import build_cluster
from scenarios.plan_section import CheckpointChoice, PartitionChoice, PlanSpace, Rule
from scenarios.profiles import build_profile
from scenarios.schema import Checkpoint, Scenario
from scenarios.server_consistency import METHOD as SERVERS
from sim import pipedream_partitioner
from sim.antichains import chain_states
from sim.binding import Binding, Figures, bind
from sim.bounds import FLUSHED, FOLDED, OTHER_FLUSHED, ROLLING, Candidate, held_by, in_flight, older_versions
from sim.cluster import Cluster
from sim.errors import Fault, ScenarioError, nearest
from sim.memory.allocators import COUNTING, Allocation
from sim.model import ModelProfile
from sim.partition import Partition, at_cuts, balanced
from sim.planners import PLANNERS, gpipe
from sim.planners.data_parallel import plan as data_parallel
from sim.training import Training, Weights

FLUSHING = (*FLUSHED, *OTHER_FLUSHED, "chimera", "dualpipe_2025", "data_parallel")
SEARCHING = ("zb_1p", "zb_2p")
"""Their order depends on the seconds of the stages."""
UNPROVED = ("split_2018",)
"""Twice as many devices as `sim.bounds` counts."""
LEFT_OUT = ("model_parallel", *UNPROVED, *SEARCHING, SERVERS)
"""Not tried unless named: gpipe with one micro-batch; twice the GPUs; a search of its own in every candidate."""
FLUSHES = 3
"""Mini-batches of a run that flushes: each but the first takes a step."""
MOST_PARTITIONS = 10_000
FEW_PARTITIONS = 128
"""Up to so many, every contiguous partition is tried unless the scenario says otherwise."""
MOST_MICRO_BATCHES = 32
MOST_REPLICATIONS = 64


class Choice(NamedTuple):
    """A plan to try. ``plan`` and ``binding`` are for `sim.bounds`, ``None`` where nothing is proved.

    Choices of equal ``order`` have one schedule and differ in figures only; empty: its schedule depends on figures.
    """

    overrides: dict[str, Any]
    plan: Candidate | None = None
    binding: Binding | None = None
    order: str = ""


class _Order(NamedTuple):
    """A schedule before the model is cut: its section, what the bounds know of it, its stages and a micro-batch."""

    section: dict[str, Any]
    plan: Candidate
    stages: int
    samples: float


@dataclass(frozen=True)
class Space:
    """The candidates of a scenario, made one after another."""

    scenario: Scenario
    document: Document

    @cached_property
    def wanted(self) -> PlanSpace:
        """What the scenario narrows it to."""
        return self.scenario.plan or PlanSpace()

    @cached_property
    def cluster(self) -> Cluster:
        """Where it is trained."""
        return grouped(build_cluster(self.scenario.cluster, self.document.directory("cluster.file")), self.scenario)

    @cached_property
    def _profiles(self) -> dict[float, ModelProfile]:
        return {}

    @cached_property
    def _layers(self) -> int:
        return len(self._profile(float(self.scenario.model.batch_size)).layers)

    def choices(self) -> Iterator[Choice]:
        """Every candidate, each once.

        Raises
        ------
        ScenarioError : the space is empty, names what there is not, or has too many partitions.
        """
        self._check()
        for method in self._methods():
            if method == SERVERS:
                yield from self._served()
            elif method == "data_parallel":
                yield from self._replicated()
            else:
                for order in self._orders(method):
                    yield from self._cut(order)

    def _check(self) -> None:
        faults = [
            Fault(f"unknown schedule '{name}': known are {', '.join(PLANNERS)}", "plan.schedules", suggestion=hint)
            for name in self.wanted.schedules or ()
            if name not in PLANNERS
            for hint in [nearest(name, PLANNERS)]
        ]
        if self.scenario.model.uniform is not None:
            message = "says what a stage does for a micro-batch, so neither stages nor micro-batches can vary"
            faults.append(Fault(message, "model.uniform", suggestion="write the model's layers"))
        if faults:
            raise ScenarioError.of([self.document.placed(fault) for fault in faults])

    def _methods(self) -> Sequence[str]:
        if self.wanted.schedules is not None:
            return self.wanted.schedules
        if self.scenario.schedule.name == SERVERS:
            return (SERVERS,)
        methods = [name for name in PLANNERS if name not in LEFT_OUT]
        return [*methods, SERVERS] if self.scenario.cluster.workers is not None else methods

    def _served(self) -> Iterator[Choice]:
        """Servers and rules of sharding, for each consistency unless the scenario has its own."""
        own = self.document.data["schedule"] if self.scenario.schedule.name == SERVERS else None
        sections = [own] if own else [{"name": SERVERS, "consistency": kind} for kind in ("asp", "bsp")]
        counts = self.wanted.servers or range(1, len(self.cluster.hosts) + 1)
        rules: Sequence[Rule] = self.wanted.sharding or ("round_robin", "greedy", "even", "best_fit")
        for section, count, rule in product(sections, counts, rules):
            servers = {"parameter_servers.count": count, "parameter_servers.sharding": rule}
            yield Choice(self._complete({"schedule": section, **servers}))

    def _replicated(self) -> Iterator[Choice]:
        """Data parallelism by ring, the gradients whole and in buckets."""
        gpus = len(self.cluster.gpus)
        profile = self._profile(self.scenario.model.batch_size / gpus)
        for buckets in dict.fromkeys((1, min(8, self._layers))):
            section = {"name": "data_parallel", "sync": "ring", "mini_batches": FLUSHES, "buckets": buckets}
            devices = tuple(node.name for node in self.cluster.gpus)
            figures = self._figures(profile, ((0, self._layers - 1),), devices, "none")._replace(buckets=buckets)
            plan = Candidate("data_parallel", gpus, 1, FLUSHES)
            yield Choice(self._complete({"schedule": section}), plan, bind(data_parallel(gpus), figures), repr(section))

    def _orders(self, method: str) -> Iterator[_Order]:
        """Every schedule of a method."""
        parameters = inspect.signature(PLANNERS[method]).parameters
        gpus, own = len(self.cluster.gpus), PLANNERS.defaults(method).get("weights", "latest")
        policies: Sequence[Any] = self.wanted.weights or (own,) if method not in FLUSHING else ("latest",)
        numbers = self._micro_batches() if "micro_batches" in parameters else (1,)
        for stages in self._stages(method, gpus) if "stages" in parameters else (1,):
            for replicas in self._replicas(stages, gpus) if "replicas" in parameters else [()]:
                for count, weights in product((1,) if replicas else numbers, policies):
                    yield self._order(method, stages, replicas, count, weights, own)

    def _order(
        self, method: str, gpus: int, replicas: tuple[int, ...], micro_batches: int, weights: Weights, own: str
    ) -> _Order:
        parameters = inspect.signature(PLANNERS[method]).parameters
        stages = gpus * (2 if method in FOLDED or "chunks" in parameters else 1)
        section: dict[str, Any] = {"name": method}
        section |= {"stages": gpus} if "stages" in parameters else {}
        section |= {"micro_batches": micro_batches} if "micro_batches" in parameters and not replicas else {}
        section |= {"replicas": [*replicas]} if replicas else {}
        if method in FLUSHING:
            section["mini_batches"] = mini_batches = FLUSHES
        else:
            ahead = stages if method in ROLLING else 2 * stages
            filling = -(-ahead // micro_batches)
            mini_batches = 8 * ahead if micro_batches == 1 else max(8 * ahead // micro_batches, 2 * filling + 4)
            section |= {} if replicas else {"mini_batches": mini_batches}
        section |= {"weights": weights} if weights != own else {}
        plan = Candidate(method, sum(replicas) or gpus, micro_batches, mini_batches, weights, replicas)
        return _Order(section, plan, stages, self.scenario.model.batch_size / micro_batches)

    def _stages(self, method: str, gpus: int) -> Iterator[int]:
        least = 1 if method in FLUSHED else 2
        for stages in self.wanted.stages or range(least, gpus + 1):
            if stages <= gpus and (method not in ("chimera", "dualpipe_2025") or stages % 2 == 0):
                yield stages

    def _micro_batches(self) -> Sequence[int]:
        """Powers of two that divide the batch."""
        batch = self.scenario.model.batch_size
        powers = [2**power for power in range(MOST_MICRO_BATCHES.bit_length())]
        return self.wanted.micro_batches or [count for count in powers if batch % count == 0]

    def _replicas(self, stages: int, gpus: int) -> list[tuple[int, ...]]:
        """None; as many as there are GPUs; where these are too many to try, as PipeDream would."""
        if self.wanted.replicas is not None:
            return [replicas for replicas in self.wanted.replicas if len(replicas) == stages]
        if math.comb(gpus - 1, stages - 1) <= MOST_REPLICATIONS:
            ends = ([0, *inner, gpus] for inner in combinations(range(1, gpus), stages - 1))
            found = [tuple(b - a for a, b in pairwise(each)) for each in ends]
            return [(), *(replicas for replicas in found if max(replicas) > 1)]
        profile = self._profile(float(self.scenario.model.batch_size))
        planned = pipedream_partitioner.partition(chain_states(profile), gpus, self._slowest(gpus)).stages
        return [(), tuple(stage.replicas for stage in planned)] if len(planned) == stages else [()]

    def _cut(self, order: _Order) -> Iterator[Choice]:
        """The partitions and checkpoints of a schedule."""
        if order.stages > self._layers:
            return
        profile, homes = self._profile(order.samples), self._homes(order)
        checkpoints: Sequence[CheckpointChoice] = self.wanted.checkpoints or ("none", "optimal")
        for checkpoint in checkpoints:
            for partition in self._partitions(order, profile, homes, checkpoint != "none"):
                cuts = [first for first, _ in partition[1:]]
                overrides: dict[str, Any] = {"schedule": order.section}
                overrides |= {"partition": {"cuts": cuts}} if cuts else {}
                if checkpoint != "none":
                    overrides["memory.checkpoint"] = {"objective": "corrected", "method": checkpoint}
                known: tuple[Any, ...] = ()
                if order.plan.method not in UNPROVED:
                    shared = "" if order.plan.method in SEARCHING else repr((order.section, checkpoint != "none"))
                    known = order.plan, self._binding(profile, partition, homes, checkpoint), shared
                yield Choice(self._complete(overrides), *known)

    def _homes(self, order: _Order) -> tuple[str, ...]:
        """The node of each stage; the first that a device holds is at home there."""
        held = [*zip(self.cluster.gpus, held_by(order.plan, order.stages), strict=False)]
        homes = {stage: gpu.name for gpu, stages in reversed(held) for stage in stages}
        homes |= {stages[0]: gpu.name for gpu, stages in reversed(held)}
        return tuple(homes[stage] for stage in range(order.stages))

    def _partitions(
        self, order: _Order, profile: ModelProfile, homes: Sequence[str], recomputes: bool
    ) -> Iterator[Partition]:
        count = math.comb(self._layers - 1, order.stages - 1)
        few: Sequence[PartitionChoice] = ("every",) if count <= FEW_PARTITIONS else ("balanced", "pipedream", "fitting")
        kinds = self.wanted.partitions or few
        if "every" in kinds:
            if count > MOST_PARTITIONS:
                message = f"{count} partitions of {self._layers} layers into {order.stages} stages"
                hint = f"at most {MOST_PARTITIONS}: use balanced, pipedream or fitting, or fewer stages"
                raise ScenarioError.of([self.document.fault("plan.partitions", message, hint)])
            for cuts in combinations(range(1, self._layers), order.stages - 1):
                yield at_cuts(self._layers, cuts)
            return
        found = (self._partition(kind, order, profile, homes, recomputes) for kind in kinds)
        yield from dict.fromkeys(partition for partition in found if partition is not None)

    def _partition(
        self, kind: PartitionChoice, order: _Order, profile: ModelProfile, homes: Sequence[str], recomputes: bool
    ) -> Partition | None:
        if kind == "balanced":
            return balanced([layer.forward_s + layer.backward_s for layer in profile.layers], order.stages)
        if kind == "fitting":
            return self._fitting(order, profile, homes, recomputes)
        copies = order.plan.replicas or (1,) * order.stages
        slowest = self._slowest(len(homes))
        try:
            found = pipedream_partitioner.partition(chain_states(profile), sum(copies), slowest, replicas=copies)
        except ScenarioError:
            return None
        return tuple((stage.first, stage.last) for stage in found.stages)

    def _slowest(self, gpus: int) -> float:
        """The bandwidth between neighbours, as ``partition: pipedream`` counts it."""
        names = [node.name for node in self.cluster.gpus[:gpus]]
        rates = (self.cluster.bytes_per_s(self.cluster.route(a, b)) for a, b in pairwise(names))
        return min(rates, default=math.inf)

    def _fitting(
        self, order: _Order, profile: ModelProfile, homes: Sequence[str], recomputes: bool
    ) -> Partition | None:
        """The least slowest stage where each is to fit its device: a candidate, not a proof of anything.

        The memory of a stage is that of its micro-batches in flight and its versions; recomputed, that of their inputs.
        """
        layers, training = profile.layers, Training(**self.scenario.training.model_dump())
        state = training.weight_bytes * 2 + training.optimizer_bytes
        columns = [
            [layer.forward_s + layer.backward_s for layer in layers],
            [layer.parameter_bytes / profile.parameter_bytes_each for layer in layers],
            [0.0 if recomputes else layer.saved_bytes for layer in layers],
        ]
        time_s, parameters, saved = (np.append(0.0, np.cumsum(column)) for column in columns)
        arriving = np.array([profile.input_bytes, *(layer.output_bytes for layer in layers[:-1])])
        ends = len(layers) + 1
        least, choices = np.full(ends, np.inf), list[Any]()
        least[0] = 0.0
        for stage in range(order.stages):
            held = in_flight(order.plan, order.stages, stage) if not order.plan.replicas else 1
            versions = older_versions(order.plan, order.stages, stage) if order.plan.weights == "stash" else 0
            each = parameters - parameters[:, None]
            memory = each * (state + versions * training.weight_bytes) + held * (saved - saved[:, None])
            memory[:-1] += held * arriving[:, None] if stage else 0.0
            fits = (memory <= self._capacity(homes[stage])) & (np.arange(ends) > np.arange(ends)[:, None])
            slowest = np.where(fits, np.maximum(least[:, None], time_s - time_s[:, None]), np.inf)
            choices.append(slowest.argmin(axis=0))
            least = slowest.min(axis=0)
        if not np.isfinite(least[-1]):
            return None
        cuts = [len(layers)]
        for chosen in reversed(choices[1:]):
            cuts.append(int(chosen[cuts[-1]]))
        return at_cuts(len(layers), cuts[:0:-1])

    def _capacity(self, name: str) -> float:
        spec, own = self.cluster.node(name).spec, self.scenario.memory.capacity
        return own or (spec.memory_bytes if spec else math.inf)

    @cached_property
    def _bindings(self) -> dict[Any, Binding]:
        return {}

    def _binding(
        self, profile: ModelProfile, partition: Partition, homes: tuple[str, ...], checkpoint: CheckpointChoice
    ) -> Binding:
        """The figures of the stages, each on a device of its own; schedules that cut the model alike share them."""
        key = profile.batch, partition, homes, checkpoint
        if key not in self._bindings:
            figures = self._figures(profile, partition, homes, checkpoint)
            self._bindings[key] = bind(gpipe.plan(len(partition), 1), figures)
        return self._bindings[key]

    def _figures(
        self, profile: ModelProfile, partition: Partition, homes: tuple[str, ...], checkpoint: CheckpointChoice
    ) -> Figures:
        wanted = None if checkpoint == "none" else Checkpoint(method=checkpoint)
        capacity, allocator = self.scenario.memory.capacity, self.scenario.memory.allocator
        return Figures(
            profile=profile,
            partition=partition,
            training=Training(**self.scenario.training.model_dump()),
            cluster=self.cluster,
            devices=homes,
            samples=float(self.scenario.model.batch_size),
            capacity_bytes=None if capacity is None else round(capacity),
            checkpoints=checkpoints_of(wanted, profile, partition),
            allocator=COUNTING if allocator == "counting" else Allocation(allocator),
        )

    def _profile(self, samples: float) -> ModelProfile:
        if samples not in self._profiles:
            self._profiles[samples] = build_profile(self.scenario, self.document, self.cluster, 1, samples)
        return self._profiles[samples]

    def _complete(self, overrides: dict[str, Any]) -> dict[str, Any]:
        """With ``None`` for what stands in the scenario and not in the candidate; its groups of GPUs are the same."""
        if (group := self.scenario.schedule.tensor_parallel) is not None:
            overrides = {**overrides, "schedule": {**overrides["schedule"], "tensor_parallel": group}}
        data, named = self.document.data, {path.split(".")[0] for path in overrides}
        removed: list[str] = [
            key for key in ("plan", "partition", "parameter_servers") if key in data and key not in named
        ]
        if "checkpoint" in (data.get("memory") or {}) and "memory.checkpoint" not in overrides:
            removed.append("memory.checkpoint")
        return {**overrides, **dict.fromkeys(removed)}
