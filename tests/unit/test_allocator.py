"""Memory: exact live bytes by hand, what it says when there is too little, and that everything is given back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.binding import Binding
from sim.engine.run import run
from sim.errors import OutOfMemory
from sim.memory.buffers import BufferKind, Category
from sim.memory.counting import Counting
from sim.model import Layer
from sim.plan import Plan
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.trace import Trace
from sim.training import Training

LAYERS = [
    Layer("a", 1.0, 1.0, 1.0, output_bytes=10.0, saved_bytes=100.0, parameter_bytes=4000.0),
    Layer("b", 1.0, 1.0, 1.0, output_bytes=20.0, saved_bytes=200.0, parameter_bytes=8000.0),
    Layer("c", 1.0, 1.0, 1.0, output_bytes=30.0, saved_bytes=300.0, parameter_bytes=12000.0),
]


def peak(trace: Trace, device: int) -> tuple[int, dict[str, int]]:
    """The most bytes live at once on a device, and what they are."""
    live: Counter[str] = Counter()
    best: tuple[int, dict[str, int]] = (0, {})
    for row in trace.memory[trace.memory["device"] == device]:
        live[BufferKind(int(row["kind"])).category] += int(row["bytes"])
        if live.total() > best[0]:
            best = live.total(), {category: size for category, size in live.items() if size}
    return best


def test_gpipe_by_hand(simulate: Any) -> None:
    """At its first backward a stage holds what every micro-batch saved and received, a gradient in and one out."""
    trace = simulate(gpipe.plan(3, 4), layers=LAYERS, training=Training("momentum"))
    assert [peak(trace, device)[1] for device in range(3)] == [
        {"weights": 4000, "gradients": 4000, "optimizer": 4000, "activations": 400, "communication": 10},
        {"weights": 8000, "gradients": 8000, "optimizer": 8000, "activations": 800, "communication": 4 * 10 + 20 + 10},
        {"weights": 12000, "gradients": 12000, "optimizer": 12000, "activations": 1200, "communication": 4 * 20 + 20},
    ]


def test_one_f_one_b_by_hand(simulate: Any) -> None:
    """min(M, N - k) micro-batches in flight; in steady state the next input may already have arrived."""
    trace = simulate(one_f_one_b.plan(3, 8), layers=LAYERS, training=Training("sgd"))
    activations = [peak(trace, device)[1]["activations"] for device in range(3)]
    assert activations == [3 * 100, 2 * 200, 1 * 300]
    assert [peak(trace, device)[1]["weights"] for device in range(3)] == [4000, 8000, 12000]


def test_stashed_weights_by_hand(simulate: Any) -> None:
    """PipeDream keeps N - k versions: the current one as weights, the others as stash."""
    trace = simulate(pipedream.plan(3), layers=LAYERS, weights="stash", training=Training("sgd"))
    most = [max_of(trace, device, Category.STASH) for device in range(3)]
    assert most == [2 * 4000, 1 * 8000, 0]


def max_of(trace: Trace, device: int, category: Category) -> int:
    """The most bytes of one category live at once on a device."""
    kinds = [kind for kind in BufferKind if kind.category is category]
    rows = trace.memory[(trace.memory["device"] == device) & np.isin(trace.memory["kind"], kinds)]
    return int(np.cumsum(rows["bytes"]).max(initial=0))


@pytest.mark.parametrize("timeline", ["alternating", "concurrent"])
def test_one_predicted_copy_at_a_time(simulate: Any, timeline: Any) -> None:
    trace = simulate(
        dualpipe_2018.plan(3, timeline=timeline),
        layers=LAYERS,
        weights="predict",
        distances=((3, 1), (2, 1), (1, 1)),
    )
    assert [max_of(trace, device, Category.PREDICTION) for device in range(3)] == [4000, 8000, 12000]


@pytest.mark.parametrize(
    ("training", "sizes"),
    [
        (Training("sgd", "fp32"), (4, 4, 0)),
        (Training("momentum", "fp32"), (4, 4, 4)),
        (Training("adam", "fp32"), (4, 4, 8)),
        (Training("adamw", "bf16"), (2, 2, 12)),
        (Training("sgd", "bf16"), (2, 2, 4)),
    ],
)
def test_resident_bytes_per_parameter(compose: Any, training: Training, sizes: tuple[int, int, int]) -> None:
    _, binding = compose(gpipe.plan(1, 1), layers=LAYERS[:1], training=training)
    held = {each.kind: each.size_bytes for each in binding.resident}
    kinds = (BufferKind.WEIGHTS, BufferKind.GRADIENTS, BufferKind.OPTIMIZER)
    assert held == {kind: 1000 * size for kind, size in zip(kinds, sizes, strict=True) if size}


PLANS = {
    "gpipe": (gpipe.plan(3, 4, 2), "latest"),
    "one_f_one_b": (one_f_one_b.plan(3, 5), "latest"),
    "pipedream": (pipedream.plan(3, 2, 5), "stash"),
    "dualpipe_2018": (dualpipe_2018.plan(3, 1, 12), "latest"),
    "ring": (data_parallel.plan(3, 2), "latest"),
}


@pytest.mark.parametrize("name", PLANS)
def test_just_enough_passes_and_one_byte_less_fails(compose: Any, name: str) -> None:
    """For each device on its own; the error agrees with the events of the run that passed."""
    work, weights = PLANS[name]
    layers = LAYERS if name != "ring" else LAYERS[:1]
    plan, binding = compose(work, layers=layers, weights=weights)
    trace = run(plan, binding)
    for device, node in enumerate(binding.devices):
        most, held = peak(trace, device)
        assert run(plan, limited(binding, device, most)).end_s.tolist() == trace.end_s.tolist()
        with pytest.raises(OutOfMemory) as caught:
            run(plan, limited(binding, device, most - 1))
        error = caught.value
        assert (error.device, error.capacity_bytes, error.exit_code) == (node, most - 1, 1)
        assert error.live_bytes + error.requested_bytes == most
        for category in held.keys() - {"communication", "activations"}:
            assert f"{category} {held[category]:,} B" in str(error)


def limited(binding: Binding, device: int, capacity_bytes: int) -> Binding:
    """The binding with one device's memory limited."""
    capacity = tuple(capacity_bytes if index == device else None for index in range(len(binding.devices)))
    return replace(binding, capacity_bytes=capacity)


def test_out_of_memory_says_where_what_for_and_what_is_in_the_way(compose: Any) -> None:
    """gpu1 holds 16,000 B throughout and 220 B of the first micro-batch; its third forward is one too many."""
    plan, binding = compose(gpipe.plan(3, 4), layers=LAYERS)
    with pytest.raises(OutOfMemory) as caught:
        run(plan, limited(binding, 1, 16_500))
    assert str(caught.value) == (
        "gpu1 is out of memory: 200 B wanted for 1F2, 70 B free of 16,500 B; "
        "held: weights 8,000 B, gradients 8,000 B, communication 30 B, activations 400 B"
    )
    assert (caught.value.requested_bytes, caught.value.live_bytes) == (200, 16_430)


def test_weights_that_do_not_even_fit(compose: Any) -> None:
    plan, binding = compose(gpipe.plan(3, 4), layers=LAYERS)
    with pytest.raises(
        OutOfMemory, match="gpu2 is out of memory: 12,000 B wanted for the gradients of stage 2"
    ) as caught:
        run(plan, limited(binding, 2, 20_000))
    assert "8,000 B free of 20,000 B; held: weights 12,000 B" in str(caught.value)


def test_an_op_that_gets_only_its_first_buffer_counts_it_as_held(compose: Any) -> None:
    """1B0 wants its input gradient (10 B) and then a predicted copy (8,000 B): only the former fits."""
    plan, binding = compose(
        pipedream.plan(3),
        layers=LAYERS,
        weights="predict",
        distances=((0, 0), (0, 1), (0, 0)),
        training=Training("sgd"),
    )
    with pytest.raises(OutOfMemory) as caught:
        run(plan, limited(binding, 1, 20_000))
    held = str(caught.value).split("held: ")[1].replace(",", "").split()
    assert "8,000 B wanted for 1B0" in str(caught.value)
    assert sum(int(size) for size in held if size.isdigit()) == caught.value.live_bytes


@pytest.mark.parametrize("name", PLANS)
def test_memory_returns_to_its_start(simulate: Any, name: str) -> None:
    work, weights = PLANS[name]
    trace = simulate(work, layers=LAYERS if name != "ring" else LAYERS[:1], weights=weights)
    dynamic = trace.memory[trace.memory["op"] >= 0]
    balance: Counter[tuple[int, ...]] = Counter()
    for row in dynamic:
        buffer = tuple(int(row[name]) for name in ("device", "kind", "stage", "number"))
        balance[buffer] += int(row["bytes"])
        assert balance[buffer] >= 0  # nothing is released before it was allocated
    assert set(balance.values()) <= {0}
    assert (np.diff(trace.memory["time_s"]) >= 0).all()


def test_capacity_is_what_the_scenario_or_the_device_says(compose: Any) -> None:
    for capacity in (None, 10**9):
        _, binding = compose(gpipe.plan(2, 1), layers=LAYERS[:2], capacity_bytes=capacity)
        assert binding.capacity_bytes == (capacity, capacity)


def test_the_rules_of_counting() -> None:
    rules = Counting(100)
    assert rules.malloc(60)
    assert rules.malloc(40)
    assert not rules.malloc(1)
    assert rules.stats() == {"allocated_bytes": 100, "peak_allocated_bytes": 100}
    rules.free(60)
    assert rules.malloc(30)
    assert rules.stats() == {"allocated_bytes": 70, "peak_allocated_bytes": 100}
    assert Counting().malloc(10**30)


def test_events_of_a_plan_are_symbolic(compose: Any) -> None:
    """The same plan with other sizes has the same events."""
    small, _ = compose(gpipe.plan(3, 2), layers=LAYERS)
    large, _ = compose(gpipe.plan(3, 2), layers=[replace(layer, saved_bytes=7.0) for layer in LAYERS])
    assert isinstance(small, Plan)
    assert small.events is not None
    assert np.array_equal(small.events, large.events)
