"""What is alive when: small steps by hand, facts of vertices against played steps, the step through allocators."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from scenarios.architecture import architecture
from scenarios.checkpoint_subject import of_model
from sim.architecture import operations
from sim.checkpointing import pytorch
from sim.checkpointing.objectives import MODES
from sim.checkpointing.plan import Plan, Run, of_checkpoints
from sim.checkpointing.program import front
from sim.checkpointing.pytorch import chain_of
from sim.checkpointing.vertices import cut
from sim.errors import UnsupportedPlan
from sim.liveness import Mode, facts, training_step, update_bytes
from sim.memory.caching import Caching
from sim.memory.counting import Counting
from sim.memory.driver import SimulatedDriver
from sim.memory.history import GRADIENTS, INPUT, LASTING, WEIGHTS, History
from sim.tape import Tape, record
from sim.training import MOMENTS, Optimizer

SCALARS = 3 * 4
"""The loss, the total weight that its backward saves, and the one that backward starts from."""


def tape_of(layers: list[Any], shape: list[int], batch: int = 1, granularity: Any = "standalone_pool") -> Tape:
    document = {"name": "test", "source": "made for this test", "input": shape, "layers": layers}
    return record(cut(architecture(document), granularity), batch)


CONV = {"conv": {"out": 1, "kernel": 1, "bias": False}}
SMALL = [CONV, {"relu": "in_place"}, CONV, {"relu": "in_place"}, {"flatten": None}, {"linear": {"out": 2}}]
PLACE = 4 * 8 * 8
"""Bytes of the image of `SMALL`, and of each of its two outputs."""


def test_two_convolutions_by_hand() -> None:
    tape = tape_of(SMALL, [1, 8, 8])
    peak = training_step(tape).peak(LASTING)
    assert peak.operation == "backward vertex 2: relu"
    assert (
        peak.bytes == PLACE + 2 * PLACE + 2 * PLACE + 8 + 2 * 4
    )  # input, outputs, gradients; target; loss and its one
    assert peak.consists_of[INPUT] == PLACE + 8


def test_a_run_that_is_checkpointed_by_hand() -> None:
    """Of vertices 1 and 2 nothing is kept but the input; backward of 2 finds the same as without a plan."""
    tape = tape_of(SMALL, [1, 8, 8])
    plan: Plan = (Run((1, 2)), 3)
    history = training_step(tape, plan)
    assert history.peak(LASTING).bytes == training_step(tape).peak(LASTING).bytes
    assert history.operations.count("forward vertex 1: conv") == 2
    held = training_step(tape, plan, "reentrant").peak(LASTING)
    assert held.operation == "backward vertex 2: conv"  # y_2 and its gradient live on, and there are two more gradients
    assert held.bytes == PLACE + 2 * PLACE + 3 * PLACE + 8 + 2 * 4


def test_nothing_is_run_behind_what_is_saved_last() -> None:
    """Backward of a convolution needs its input only, so its output is not made again."""
    layers = [CONV, CONV, {"flatten": None}, {"linear": {"out": 2}}]
    history = training_step(tape_of(layers, [1, 8, 8]), (Run((1, 2)), 3))
    assert [history.operations.count(f"forward vertex {k}: conv") for k in (1, 2)] == [2, 1]
    history = training_step(tape_of(layers, [1, 8, 8]), (Run((1, 2)), 3), "reentrant")
    assert [history.operations.count(f"forward vertex {k}: conv") for k in (1, 2)] == [2, 2]


@pytest.mark.parametrize("optimizer", MOMENTS)
def test_optimizers(optimizer: Optimizer) -> None:
    tape = of_model("resnet18", 1, optimizer=optimizer).tape
    parameters = sum(tape.parameters)
    history = training_step(tape, optimizer=optimizer)
    peak = history.peak()
    adam = optimizer in ("adam", "adamw")
    counters = 4 * len(tape.parameters) * adam
    assert peak.consists_of.get("optimizer", 0) == MOMENTS[optimizer] * parameters + counters
    assert peak.consists_of[WEIGHTS] == parameters + tape.buffer_bytes
    assert history.live_bytes == sum(
        size for key, size in peak.consists_of.items() if key in (WEIGHTS, "optimizer")
    ) + (parameters + tape.sizes[0] + tape.target_bytes)
    denominators = max(before + 2 * size for before, size in pairwise([0, *tape.parameters]))
    assert update_bytes(tape, optimizer) == parameters + denominators * adam


def test_adam_on_a_gpu_makes_all_denominators_at_once() -> None:
    tape = of_model("alexnet", 1, optimizer="adam", platform="cuda").tape
    assert update_bytes(tape, "adam") == 2 * sum(tape.parameters)
    peak = training_step(tape, optimizer="adam").peak()
    assert peak.operation == "update"
    assert peak.consists_of["workspace"] == peak.consists_of[GRADIENTS] == sum(tape.parameters)


def test_dropout_masks_take_a_byte_on_a_gpu() -> None:
    kept = [sum(fact.kept for fact in facts(of_model("vgg11", 4, platform=name).tape)) for name in ("cpu", "cuda")]
    assert kept[0] - kept[1] == 4 * 2 * 4096 * 3  # samples, two layers, three bytes less


def random_model(rng: random.Random) -> tuple[list[Any], list[int]]:
    """Layers of every kind in an order that fits, and their input."""
    if rng.random() < 0.25:
        layers: list[Any] = [{"embedding": {"words": 7, "out": 4}}]
        for _ in range(rng.randint(1, 4)):
            attention = [{"self_attention": {"heads": 2}}, *([{"dropout": 0.5}] if rng.random() < 0.5 else [])]
            block = {"join": rng.choice(["add", "add_in_place"]), "branches": [attention, []]}
            choices = [{"block": block}, {"layer_norm": None}, {"linear": {"out": 4}}, {"selu": None}]
            layers.append(rng.choice([*choices, {"relu": "in_place"}, {"position_embedding": None}]))
        return [*layers, {"global_avg_pool": None}, {"linear": {"out": 3}}], [5]
    layers = [{"conv": {"out": 4, "kernel": 1}}]
    for _ in range(rng.randint(2, 7)):
        layers.append(_random_layer(rng))
    end: list[Any] = [{"dropout": 0.5}] if rng.random() < 0.5 else []
    return [*layers, {"flatten": None}, *end, {"linear": {"out": 3}}], [2, 8, 8]


def _random_layer(rng: random.Random) -> dict[str, Any]:
    same = {"out": 4, "kernel": 3, "padding": 1}
    branches = [
        [{"conv_bn_relu": same}, {"conv": same}, {"batch_norm": None}],
        rng.choice([[], [{"conv_bn_relu": same}], [{"avg_pool": {"kernel": 3, "stride": 1, "padding": 1}}]]),
    ]
    concat = {
        "join": "concat",
        "branches": [[{"conv": {"out": 2, "kernel": 1}}], [{"conv": {"out": 2, "kernel": 1}}]],
    }
    return rng.choice(
        [
            {"conv": same},
            {"conv": {**same, "bias": False}},
            {"conv_bn_relu": same},
            {"batch_norm": None},
            {"relu": "in_place"},
            {"relu": None},
            {"selu": None},
            {"selu": "in_place"},
            {"dropout": 0.1},
            {"max_pool": {"kernel": 3, "stride": 1, "padding": 1}},
            {"adaptive_avg_pool": {"out": 8}},
            {"block": {"join": rng.choice(["add", "add_in_place"]), "branches": branches}},
            {"block": concat},
        ]
    )


def random_plan(rng: random.Random, first: int, last: int, depth: int) -> Plan:
    """Runs in runs ``depth`` deep."""
    items: list[int | Run] = []
    while first <= last:
        end = min(last, first + rng.choice((0, 0, 1, 2, 4)))
        plain = end == first and rng.random() < 0.6
        inside = random_plan(rng, first, end, depth - 1) if depth else tuple(range(first, end + 1))
        items.append(first if plain else Run(inside, offload=rng.random() < 0.1 and first > 1 and depth == 2))
        first = end + 1
    return tuple(items)


@pytest.mark.parametrize("mode", MODES)
def test_facts_of_vertices_add_up_to_played_steps(mode: Mode) -> None:
    """The peak from facts is that of the whole step for random models, runs in runs and offloaded inputs too.

    But where ``reentrant`` holds a gradient twice because a vertex passes on the one it received, runs in runs are
    taken to need a little more than they do.
    """
    rng = random.Random(11)
    for _ in range(150):
        tape = tape_of(*random_model(rng), batch=2, granularity=rng.choice(["plain", "standalone_pool", "operation"]))
        chain, n = chain_of(tape), len(tape.vertices) - 1
        for plan in (tuple(range(1, n + 1)), random_plan(rng, 1, n, 0), nested := random_plan(rng, 1, n, 2)):
            over = pytorch.peak(mode, chain, plan) - training_step(tape, plan, mode).peak().bytes
            assert over >= 0
            assert over <= 8 or (mode == "reentrant" and plan is nested)


def test_everything_dies() -> None:
    rng = random.Random(12)
    for _ in range(40):
        tape = tape_of(*random_model(rng), batch=2)
        history = training_step(tape, random_plan(rng, 1, len(tape.vertices) - 1, 2))
        left = 2 * sum(tape.parameters) + tape.buffer_bytes + tape.target_bytes + tape.sizes[0]
        assert history.live_bytes == left


def test_a_budget_is_met_in_an_allocator() -> None:
    """The step of the plan for a budget fits where it says; through PyTorch's allocator it needs whole segments."""
    subject = of_model("resnet18", 4)
    assert subject.seconds is not None
    choices = front(pytorch.program("non_reentrant", subject.chain), subject.seconds)
    for choice in (choices[0], choices[-1]):
        history = training_step(subject.tape, choice.plan)
        assert fits(history, int(choice.peak_bytes))
        assert not fits(history, int(choice.peak_bytes) - 1)
        allocator = Caching()
        assert history.replay(allocator) is None
        assert choice.peak_bytes <= allocator.stats()["allocated_bytes.all.peak"] <= 1.05 * choice.peak_bytes
        tight = Caching(driver=SimulatedDriver(total_bytes=int(choice.peak_bytes) // 2))
        refused = training_step(subject.tape, choice.plan).replay(tight)
        assert refused is not None


def fits(history: History, capacity_bytes: int) -> bool:
    """Whether an allocator that only counts has room for every storage."""
    allocator = Counting(capacity_bytes)
    for change in history.changes:
        size = history.sizes[change.storage]
        if change.sign > 0 and not allocator.malloc(size):
            return False
        if change.sign < 0:
            allocator.free(size)
    return True


def test_a_layer_without_a_rule_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="layer 'lstm'"):
        tape_of([{"lstm": {"hidden": 2}}], [3, 2])


def test_every_operation_of_a_block_is_listed() -> None:
    model = architecture(
        {
            "name": "x",
            "source": "y",
            "input": [2, 8, 8],
            "layers": [{"block": {"join": "add", "branches": [[CONV], [CONV]]}}],
        }
    )
    assert [op.kind for op in operations(model.entries)] == ["conv", "conv"]


def test_without_a_plan_everything_saved_is_alive() -> None:
    """Σ of what was saved, and two gradients of the layer at the peak: 4201.75 MiB for VGG13 at 64."""
    subject = of_model("vgg13", 64)
    assert round(training_step(subject.tape).peak(LASTING).bytes / 2**20, 2) == 4201.75
    plan = of_checkpoints([0, 3, 12, 18])
    assert round(training_step(subject.tape, plan, "reentrant").peak(LASTING).bytes / 2**20, 2) == 3564.75
    assert round(training_step(subject.tape, plan).peak(LASTING).bytes / 2**20, 2) == 3172.75
