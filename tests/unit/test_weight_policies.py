"""Weight policies against a second reading of the run: what each op should have read, kept and predicted, op by op."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis import occupancy, staleness
from scenarios.command_line import app
from sim.errors import UnsupportedPlan
from sim.model import Layer
from sim.ops import OpId, OpKind
from sim.passes import weight_versions
from sim.passes.weight_versions import distances_at, prediction_distances
from sim.planners import dualpipe_2018, gpipe, pipedream, pipedream_2bw
from sim.schedule import Schedule
from sim.trace import Trace

LAYER = Layer("layer", 1.0, 0.9, 0.83, 0.0, 0.0, 4.0)  # no two ends meet
POLICIES = [
    ("latest", ""),
    ("stash", ""),
    ("vertical_sync", ""),
    ("double_buffer", ""),
    ("predict", "spectrain"),
    ("predict", "pipeoptim"),
    ("predict", "xpipe"),
    ("predict", "pipemare"),
]


class Reading:
    """A run as a list of named spans, and which updates had ended when."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.ids = trace, [trace.id(op) for op in range(len(trace.ops))]
        self.at = {name: op for op, name in enumerate(self.ids)}
        self.per_update = trace.shape.micro_batches

    def span(self, name: OpId) -> tuple[float, float]:
        op = self.at[name]
        return float(self.trace.start_s[op]), float(self.trace.end_s[op])

    def updates(self, stage: int) -> list[float]:
        """When the updates of a stage end."""
        return [self.span(name)[1] for name in self.ids if name.kind is OpKind.UPDATE and name.stage == stage]

    def latest(self, name: OpId) -> int:
        """The updates that had ended when an op started."""
        start, _ = self.span(name)
        return sum(end <= start for end in self.updates(name.stage))

    def passes(self) -> list[OpId]:
        return [name for name in self.ids if name.kind in (OpKind.FORWARD, OpKind.BACKWARD)]

    def decides(self, name: OpId, weights: str, predict: str) -> OpId | None:
        """The op whose reading decides the version of another; ``None`` under double buffering."""
        if weights == "double_buffer":
            return None
        if weights == "vertical_sync":
            return OpId(OpKind.FORWARD, 0, name.micro_batch)
        if weights == "stash" or predict == "pipeoptim":
            return name._replace(kind=OpKind.FORWARD)
        if predict == "xpipe":
            return name._replace(micro_batch=name.micro_batch // self.per_update * self.per_update)
        return name

    def version(self, name: OpId, weights: str, predict: str) -> int:
        decides = self.decides(name, weights, predict)
        return max(name.micro_batch // self.per_update - 1, 0) if decides is None else self.latest(decides)


def run(simulate: Any, schedule: Schedule, weights: str, predict: str, **figures: Any) -> Trace:
    """A run with an update that takes time, and the distances that the schedule asks for."""
    distances = prediction_distances(schedule, predict) if weights == "predict" else ()  # type: ignore[arg-type]
    keywords = {"predict": predict} if predict else {}
    trace: Trace = simulate(
        schedule, layers=[LAYER], weights=weights, distances=distances, update_s=0.01, **keywords, **figures
    )
    return trace


def at_most(spans: list[tuple[float, float]]) -> int:
    """The most of some spans that are open at once."""
    return max((sum(low <= start < high for low, high in spans) for start, _ in spans), default=0)


def plans(weights: str, stages: int, per_update: int) -> Schedule:
    return pipedream.plan(stages, max(per_update, stages) if weights == "double_buffer" else per_update)


@pytest.mark.parametrize(("weights", "predict"), POLICIES)
@pytest.mark.parametrize("per_update", [1, 3])
@pytest.mark.parametrize("stages", [2, 4])
def test_every_op_reads_the_version_of_its_policy(
    simulate: Any, weights: str, predict: str, per_update: int, stages: int
) -> None:
    trace = run(simulate, plans(weights, stages, per_update), weights, predict)
    reading, measured = Reading(trace), staleness.compute(trace)
    for name in reading.passes():
        op = reading.at[name]
        expected = reading.version(name, weights, predict)
        assert trace.ops["reads"][op] == measured.version[op] == expected, str(name)
        assert measured.applied[op] == name.micro_batch // reading.per_update
        assert measured.staleness[op] == name.micro_batch // reading.per_update - expected


@pytest.mark.parametrize(("weights", "predict"), POLICIES)
@pytest.mark.parametrize("per_update", [1, 3])
@pytest.mark.parametrize("stages", [2, 4])
def test_what_is_kept_of_weights(simulate: Any, weights: str, predict: str, per_update: int, stages: int) -> None:
    """A version is kept while an op that computes with it, and not with a prediction, has not ended."""
    trace = run(simulate, plans(weights, stages, per_update), weights, predict)
    reading, occupied = Reading(trace), occupancy.compute(trace)
    distances = trace.header["distances"] or [(0, 0)] * stages
    for stage in range(stages):
        mine = [name for name in reading.passes() if name.stage == stage]
        made = [0.0, *reading.updates(stage)]
        until = [*made[1:], trace.makespan_s]
        predictions: dict[OpId, list[tuple[float, float]]] = {}
        for name in mine:
            decides = reading.decides(name, weights, predict)
            ahead = weights == "predict" and distances[stage][name.kind is OpKind.BACKWARD] != 0
            if ahead:
                predictions.setdefault(decides or name, []).append(reading.span(name))
            else:
                version = reading.version(name, weights, predict)
                until[version] = max(until[version], reading.span(name)[1])
        assert occupied.weight_copies[stage] == at_most(list(zip(made, until, strict=True)))
        copies = at_most(
            [(min(low for low, _ in each), max(high for _, high in each)) for each in predictions.values()]
        )
        average = predict == "pipemare" and distances[stage][1] != 0
        assert occupied.predicted_copies[stage] == copies + average


def by_definition(trace: Trace, predict: str) -> list[tuple[list[int], list[int]]]:
    """For each stage the distance of every forward and backward in the middle third, by loops."""
    reading, shape = Reading(trace), trace.shape
    third = shape.mini_batches // 3
    found = []
    for stage in range(shape.stages):
        updates = reading.updates(stage)
        sides: tuple[list[int], list[int]] = [], []
        for mini_batch in range(third, shape.mini_batches - third):
            batch = range(mini_batch * shape.micro_batches, (mini_batch + 1) * shape.micro_batches)
            for micro_batch in batch[:1] if predict == "xpipe" else batch:
                forward, backward = (
                    reading.span(OpId(kind, stage, micro_batch))[0] for kind in (OpKind.FORWARD, OpKind.BACKWARD)
                )
                done = reading.span(OpId(OpKind.BACKWARD, 0, batch[-1]))[1]
                own = updates[mini_batch]
                until = done if predict in ("spectrain", "xpipe") else own
                others = [end for end in updates if end != own]
                pair = tuple(sum(start < end <= until for end in others) for start in (forward, backward))
                if predict == "pipeoptim":
                    pair = pair[0], pair[0]
                elif predict == "pipemare":
                    pair = 0, pair[1] - pair[0]
                for side, distance in zip(sides, pair, strict=True):
                    side.append(distance)
        found.append(sides)
    return found


@pytest.mark.parametrize("predict", ["spectrain", "pipeoptim", "xpipe", "pipemare"])
@given(
    stages=st.integers(1, 5),
    per_update=st.integers(1, 3),
    forward_s=st.sampled_from([1.0, 2.0, 0.7]),
    backward_s=st.sampled_from([1.0, 2.0, 1.3]),
)
@settings(max_examples=15)
def test_distances_by_their_definition(
    simulate: Any, predict: str, stages: int, per_update: int, forward_s: float, backward_s: float
) -> None:
    """The most frequent of the middle third, of equals the largest."""
    layer = Layer("layer", forward_s, backward_s, 0.0, 0.0, 0.0, 0.0)
    trace = simulate(pipedream.plan(stages, per_update, 12), layers=[layer])
    for pair, sides in zip(
        distances_at(trace.shape, trace.ops, trace.start_s, trace.end_s, predict),
        by_definition(trace, predict),
        strict=True,
    ):
        assert pair == tuple(max(sorted(set(side), reverse=True), key=side.count) for side in sides)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_distances_of_one_micro_batch_an_update(stages: int) -> None:
    """PipeOptim N − k − 1 for both; PipeMare back by as much; XPipe as SpecTrain where a mini-batch is not cut."""
    schedule, left = pipedream.plan(stages), [stages - 1 - k for k in range(stages)]
    assert prediction_distances(schedule, "pipeoptim") == tuple((n, n) for n in left)
    assert prediction_distances(schedule, "pipemare") == tuple((0, -n) for n in left)
    assert prediction_distances(schedule, "xpipe") == prediction_distances(schedule, "spectrain")
    concurrent = dualpipe_2018.plan(stages)
    assert prediction_distances(concurrent, "pipeoptim") == tuple((2 * n + 1, 2 * n + 1) for n in left)


def test_a_prediction_that_a_mini_batch_shares(simulate: Any) -> None:
    """Of three micro-batches the first forward predicts, and the copy lives until the third has used it."""
    trace = run(simulate, pipedream.plan(3, 3), "predict", "xpipe")
    reading = Reading(trace)
    reads = [trace.ops["reads"][reading.at[OpId(OpKind.FORWARD, 0, j)]] for j in range(30, 36)]
    assert reads[:3] == [reads[0]] * 3
    assert reads[3:] == [reads[3]] * 3
    assert trace.header["predict"] == "xpipe"
    assert trace.as_schedule().predict == "xpipe"


def test_split_backwards_have_distances(simulate: Any, written: Any) -> None:
    """The input gradient predicts; mini-batch j is done when the weight gradient of stage 0 is."""
    lanes = {"0.compute": "", "1.compute": ""}
    for j in range(9):
        lanes["0.compute"] += f" 0F{j} " + (f"0I{j - 1} 0W{j - 1} 0U{j - 1}" if j else "")
        lanes["1.compute"] += f" 1F{j} 1I{j} 1W{j} 1U{j}"
    lanes["0.compute"] += " 0I8 0W8 0U8"
    split = written(pipedream.plan(2, 1, 9).shape, lanes)
    whole = simulate(pipedream.plan(2, 1, 9), layers=[Layer("layer", 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)])
    expected = distances_at(whole.shape, whole.ops, whole.start_s, whole.end_s)
    assert prediction_distances(split) == expected == ((1, 0), (0, 0))
    assert prediction_distances(split, "pipemare") == ((0, -1), (0, 0))
    assert weight_versions.apply(split, "stash").ops["reads"].max() == 8


@pytest.mark.parametrize(
    ("plan", "weights", "message"),
    [
        (lambda: pipedream.plan(4), "double_buffer", "only 0 of 1 updates are there when 0F2 runs"),
        (lambda: dualpipe_2018.plan(3), "double_buffer", "updates are there when 0F"),
        (lambda: pipedream.plan(2), "predict", "needs a prediction distance"),
    ],
)
def test_orders_that_do_not_allow_a_policy(plan: Any, weights: Any, message: str) -> None:
    with pytest.raises(UnsupportedPlan, match=message):
        weight_versions.apply(plan(), weights)


@pytest.mark.parametrize("weights", ["stash", "vertical_sync", "double_buffer"])
def test_policies_of_an_order_without_staleness_change_nothing(weights: Any) -> None:
    """But double buffering, which makes weights stale."""
    schedule = gpipe.plan(3, 4, 3)
    reads = weight_versions.apply(schedule, weights).ops["reads"]
    assert (reads.tolist() == schedule.ops["reads"].tolist()) == (weights != "double_buffer")


def test_2bw_is_a_policy_on_the_order_of_pipedream() -> None:
    ours, theirs = pipedream_2bw.plan(3, 4), pipedream.plan(3, 4)
    assert ours.ops.tobytes() == theirs.ops.tobytes()


SCENARIO = """
name: policies
model:
  uniform: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 4 MB}
  batch_size: 64
cluster: {devices: 4, link: {kind: in_order, latency: 1 us, bandwidth: 12 GB/s}}
training: {optimizer: momentum}
schedule: {name: pipedream, stages: 4, weights: predict}
"""


def invoke(tmp_path: Path, *sets: str) -> Any:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return CliRunner().invoke(app, ["run", str(file), *(word for text in sets for word in ("--set", text)), "--json"])


@pytest.mark.parametrize(
    ("predict", "optimizer", "distances", "predicted"),
    [
        ("spectrain", "momentum", [[3, 0], [2, 0], [2, 1], [1, 1]], [1, 1, 1, 1]),
        ("pipeoptim", "adamw", [[3, 3], [2, 2], [1, 1], [0, 0]], [4, 3, 2, 0]),
        ("xpipe", "adam", [[3, 0], [2, 0], [2, 1], [1, 1]], [1, 1, 1, 1]),
        ("pipemare", "sgd", [[0, -3], [0, -2], [0, -1], [0, 0]], [2, 2, 2, 0]),
    ],
)
def test_predictions_from_the_command_line(
    tmp_path: Path, predict: str, optimizer: str, distances: list[list[int]], predicted: list[int]
) -> None:
    run = invoke(tmp_path, f"schedule.predict={predict}", f"training.optimizer={optimizer}")
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    found = found[0] if isinstance(found, list) else found
    assert found["prediction"]["method"] == predict
    assert found["prediction"]["distances"] == distances
    assert [device["predicted_copies"] for device in found["devices"]] == predicted
    assert [device["weight_copies"] for device in found["devices"]] == [1] * 4
    held = [device["memory_by_category"].get("prediction", 0) for device in found["devices"]]
    assert [size > 0 for size in held] == [count > 0 for count in predicted]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["schedule.predict=xpipe"], "momentum keeps nothing that xpipe predicts from (use adam or adamw, or"),
        (["training.optimizer=adam"], "adam keeps nothing that spectrain predicts from (use momentum, or"),
        (["training.optimizer=sgd", "schedule.predict=pipeoptim"], "sgd keeps nothing that pipeoptim predicts from"),
        (["schedule.weights=stash", "schedule.predict=xpipe"], "says nothing without weights: predict"),
        (["schedule={name: pipedream, stages: 4, predict: xpipe}"], "says nothing without weights: predict"),
        (["schedule={name: gpipe, stages: 4, micro_batches: 4, weights: vertical_sync}"], "has no influence"),
        (["schedule={name: gpipe, stages: 4, micro_batches: 4, weights: predict}"], "has no influence"),
        (["schedule.weights=double_buffer"], "use at least as many micro_batches as stages"),
        (["schedule.weights=vertical"], "expected one of latest, stash, vertical_sync, double_buffer, predict"),
        (["schedule.predict=spectrum"], "did you mean 'spectrain'?"),
        (["schedule.micro_batches=8", "schedule.predict=pipeoptim"], "most micro-batches of every stage"),
    ],
)
def test_refusals(tmp_path: Path, sets: list[str], message: str) -> None:
    run = invoke(tmp_path, *sets)
    assert run.exit_code == 2
    assert message in " ".join(run.output.split())


def test_the_histogram_counts_every_pass(simulate: Any) -> None:
    trace = run(simulate, pipedream.plan(3, 2), "stash", "")
    measured = staleness.compute(trace)
    for side, kind in ((measured.forward, OpKind.FORWARD), (measured.backward, OpKind.BACKWARD)):
        mine = measured.staleness[trace.ops["kind"] == kind]
        assert side.histogram == {int(age): int((mine == age).sum()) for age in np.unique(mine)}
        assert side.mean == pytest.approx(sum(age * count for age, count in side.histogram.items()) / len(mine))


METHODS = [pipedream.plan, pipedream_2bw.plan, dualpipe_2018.plan, partial(dualpipe_2018.plan, timeline="alternating")]


@pytest.mark.parametrize("plan", METHODS)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 3), (3, 4), (4, 1), (4, 4), (8, 8)])
def test_a_run_that_is_just_long_enough_tells_the_distances_of_a_long_one(
    plan: Any, stages: int, micro_batches: int
) -> None:
    if plan is pipedream_2bw.plan and micro_batches < stages:
        pytest.skip("2BW needs as many micro-batches as stages")
    long = plan(stages, micro_batches, 16 * stages)
    short = plan(stages, micro_batches, weight_versions.mini_batches_to_measure(long.shape))
    for method in ("spectrain", "xpipe", "pipeoptim", "pipemare"):
        assert prediction_distances(short, method) == prediction_distances(long, method)
