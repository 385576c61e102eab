"""ZeRO: the table and the volumes of Rajbhandari et al. (arXiv 1910.02054), and runs in closed form."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from scenarios.command_line import app
from scenarios.compose import Composed, compose
from scenarios.load import parse_text
from scenarios.schema import parse
from sim.binding import Cost
from sim.memory.buffers import BufferKind
from sim.ops import OpKind
from sim.planners import PLANNERS
from sim.zero import held

LATENCY_S, BYTES_PER_S = 5e-6, 1e9
SIZES = (3_000_000, 0, 2_000_000, 4_000_000)
SCENARIO = """\
name: shared
model:
  layers:
    - {name: a, forward: 2 ms, backward: 4 ms, output: 1 MB, parameters: 3 MB}
    - {name: b, forward: 1 ms, backward: 2 ms, output: 1 MB, parameters: 0 MB}
    - {name: c, forward: 2 ms, backward: 4 ms, output: 1 MB, parameters: 2 MB}
    - {name: d, forward: 3 ms, backward: 6 ms, output: 1 MB, parameters: 4 MB}
  measured_batch: 1
  input: 1 MB
  batch_size: 4
cluster: {devices: 4, link: {kind: fair_share, latency: 5 us, bandwidth: 1 GB/s}}
training: {optimizer: adam, zero: ZERO}
schedule: {name: data_parallel}
"""


def run(zero: int, *sets: str, text: str = SCENARIO, command: str = "run") -> Result:
    options = [option for value in sets for option in ("--set", value)]
    return CliRunner().invoke(app, [command, "-", "--json", *options], input=text.replace("ZERO", str(zero)))


def found(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    read: dict[str, Any] = json.loads(result.stdout)
    return read


def composed(text: str) -> Composed:
    document = parse_text(text, "shared.yaml")
    return compose(parse(document, PLANNERS), document)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_the_paper_s_table(stage: int, gigabytes: float) -> None:
    """Figure 1: 7.5 B parameters on 64 GPUs, Adam in mixed precision, 2 + 2 + 12 bytes to a parameter."""
    each = {BufferKind.WEIGHTS: 2, BufferKind.GRADIENTS: 2, BufferKind.OPTIMIZER: 12}
    state = sum(held(kind, stage, 64, 7.5e9 * size) for kind, size in each.items())
    assert state / 1e9 == pytest.approx(gigabytes, abs=0.05 if stage < 3 else 0.005)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_by_hand(zero: int) -> None:
    """9 MB of fp32 weights, as much of gradients, twice of Adam; of a quarter the layer of 4 MB at work is whole."""
    memory = found(run(zero))["devices"][0]["memory_by_category"]
    share, at_work = 9_000_000 / 4, 4_000_000 * 3 / 4
    assert memory["optimizer"] == (2 * share if zero else 18_000_000)
    assert memory["gradients"] == (share + at_work if zero > 1 else 9_000_000)
    assert memory["weights"] == (share + at_work if zero > 2 else 9_000_000)


def test_a_bucket_of_gradients_is_whole() -> None:
    """Two buckets: the first three layers, and the last."""
    memory = found(run(2, "schedule.buckets=2"))["devices"][0]["memory_by_category"]
    assert memory["gradients"] == 9_000_000 / 4 + 5_000_000 * 3 / 4


@pytest.mark.parametrize(
    ("backend", "kind"), [("simulated", "in_order"), ("simulated", "fair_share"), ("longest_path", "in_order")]
)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_time_by_hand(backend: str, kind: str, zero: int) -> None:
    """Two rounds of the ring, at stage 3 three, each 3/4 of 9 MB on every link: 1.5 times the volume.

    At stage 3 each of the three layers that have parameters waits for rounds of its own.
    """
    rounds, waits = (3, 1 + 2 * 3) if zero == 3 else (2, 2)
    ring_s = waits * 3 * LATENCY_S + rounds * 3 / 4 * sum(SIZES) / BYTES_PER_S
    read = found(run(zero, f"cluster.link.kind={kind}", f"backend={backend}"))
    assert read["step_time_s"] == pytest.approx(24e-3 + ring_s, rel=1e-12)
    assert read["links"][0]["bytes"] == (2 if not zero else 1) * 3 / 4 * sum(SIZES)


def test_each_replica_updates_its_share() -> None:
    """The traffic of Adam in fp32: 28 bytes of each of 2.25 M parameters, a quarter of it where it is shared."""
    times = [found(run(zero, "cluster.device=p40"))["step_time_s"] for zero in (0, 1)]
    assert times[0] - times[1] == pytest.approx(3 / 4 * 28 * 2.25e6 / (347e9 * 0.8), rel=1e-9)


def test_gradients_in_buckets_overlap_and_the_gathering_does_not() -> None:
    """The ring of either bucket is done before the update: the rest is one round for all parameters."""
    times = [found(run(zero, "schedule.buckets=2", "cluster.link.kind=in_order"))["step_time_s"] for zero in (0, 2)]
    bucket_s = [3 * LATENCY_S + 3 / 4 * size / BYTES_PER_S for size in (4_000_000, 5_000_000)]
    whole_s = 3 * LATENCY_S + 3 / 4 * sum(SIZES) / BYTES_PER_S
    passes = [(8e-3, 6e-3), (0.0, 10e-3)]
    for time, rounds, after_s in zip(times, (2, 1), (0.0, whole_s), strict=True):
        ready_s = passes[0][0] + passes[0][1]
        summed_s = ready_s + rounds * bucket_s[0]
        last_s = max(summed_s, ready_s + passes[1][1]) + rounds * bucket_s[1]
        assert time == pytest.approx(last_s + after_s, rel=1e-12)


def test_recomputing_gathers_again() -> None:
    """What is released behind each pass has to come for the recomputation, too, of every layer that runs again."""
    text = SCENARIO + "memory: {checkpoint: {objective: corrected, method: sqrt_n}}\n"
    plain, shared = (composed(text.replace("ZERO", str(zero))) for zero in (0, 3))
    gather_s = [3 * LATENCY_S + 3 / 4 * size / BYTES_PER_S if size else 0.0 for size in SIZES]
    again = [pair for pair in pairwise(plain.plan.checkpoints[0]) if pair[1] - pair[0] > 1]
    expected = {OpKind.FORWARD: sum(gather_s), OpKind.BACKWARD: sum(gather_s)}
    expected[OpKind.RECOMPUTE] = sum(sum(gather_s[start:end]) for start, end in again)
    assert expected[OpKind.RECOMPUTE] > 0
    for kind, waiting_s in expected.items():
        more_s = shared.binding.seconds[Cost(kind, 0)] - plain.binding.seconds[Cost(kind, 0)]
        assert more_s == pytest.approx(waiting_s, rel=1e-9)


LAYERS = st.lists(st.integers(0, 10**7), min_size=1, max_size=6).filter(any)


@settings(deadline=None, max_examples=40)
@given(sizes=LAYERS, replicas=st.integers(2, 9), buckets=st.integers(1, 6), dtype=st.sampled_from(["fp32", "bf16"]))
def test_memory_never_grows_with_the_stage(sizes: list[int], replicas: int, buckets: int, dtype: str) -> None:
    layers = "".join(
        f"    - {{name: l{number}, forward: 1 ms, backward: 2 ms, output: 1 B, parameters: {size} B}}\n"
        for number, size in enumerate(sizes)
    )
    head, tail = SCENARIO.split("    - {name: a")[0], SCENARIO[SCENARIO.index("  measured_batch") :]
    text = (head + layers + tail).replace("devices: 4", f"devices: {replicas}").replace("adam", f"adam, dtype: {dtype}")
    text = text.replace("data_parallel}", f"data_parallel, buckets: {min(buckets, len(sizes))}}}")
    text = text.replace("fair_share", "in_order")
    bindings = [composed(text.replace(", zero: ZERO", f", zero: {zero}")).binding for zero in (0, 1, 2, 3)]
    totals = [sum(each.size_bytes for each in binding.resident) for binding in bindings]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[1]
    without = composed(text.replace(", zero: ZERO", "")).binding
    assert (without.seconds, without.resident, without.ring_rounds) == (
        bindings[0].seconds,
        bindings[0].resident,
        bindings[0].ring_rounds,
    )


def test_zero_and_nothing_are_the_same() -> None:
    assert run(0).stdout == run(0, text=SCENARIO.replace(", zero: ZERO", "")).stdout


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("training.zero=4", "training.zero: must be at most 3, got 4"),
        ("training.zero=true", "expected a whole number, got true"),
        ("schedule={name: single}", "training.zero: only the replicas of schedule data_parallel with sync: ring share"),
        ("schedule={name: gpipe, stages: 2, micro_batches: 4}", "training.zero: only the replicas of schedule"),
        ("schedule={name: data_parallel, sync: parameter_server}", "training.zero: only the replicas of schedule"),
        ("cluster.devices=1", "training.zero: has no influence: there is one replica"),
        ("schedule.buckets=2", "training.zero: 3 gathers parameters while buckets are summed"),
        ("cluster.cores=2", "training.zero: not with cluster.cores, which replicas would not need while they gather"),
        ("backend=torch", "training.zero: is only simulated: every replica here holds all of its state"),
    ],
)
def test_what_does_not_share_is_refused(change: str, expected: str) -> None:
    result = run(3, change)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_sharing_makes_room_for_a_plan() -> None:
    """Replicas of 36 MB of state do not fit 25 MB, nor do two stages; those that share what they can do."""
    text = (
        SCENARIO + "plan: {schedules: [data_parallel, gpipe], stages: [2], micro_batches: [2], checkpoints: [none]}\n"
    )
    whole, shared = (run(zero, "memory.capacity=25 MB", text=text, command="plan") for zero in (0, 2))
    assert "no plan fits" in whole.stderr
    best = found(shared)["best"]
    assert best["overrides"]["schedule"]["name"] == "data_parallel"
    assert best["peak_memory_bytes"] < 25e6
