"""Layers split among GPUs: formulas of Korthikanti et al. (arXiv 2205.05198), rings by hand, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from scenarios.command_line import app
from scenarios.huggingface import read_table
from sim.errors import ScenarioError
from sim.model import LayerTable

TINY = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 128, "vocab_size": 512}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "vocab_size": 512,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "vocab_size": 512,
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 32}
MEGATRON_22B = TINY | {"n_embd": 6144, "n_layer": 48, "n_head": 64, "n_positions": 2048, "vocab_size": 51200}
GPT3_175B = MEGATRON_22B | {"n_embd": 12288, "n_layer": 96, "n_head": 96}

SCENARIO = """\
name: split
model: {huggingface: config.json, sequence: 64, batch_size: 4}
cluster: {devices: 4, device: h100, link: {kind: in_order, latency: 5 us, bandwidth: 100 GB/s}}
training: {dtype: bf16, optimizer: adam}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 2}
"""
GROUPS = "--set=schedule.tensor_parallel="

Read = Callable[..., LayerTable]
Run = Callable[..., Result]


@pytest.fixture
def table(tmp_path: Path) -> Read:
    def read(config: dict[str, Any], count: int = 1, sequence: int = 64, attention: str = "eager") -> LayerTable:
        (tmp_path / "config.json").write_text(json.dumps(config, indent=1))
        return read_table(tmp_path / "config.json", sequence, attention, count)

    return read


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "config.json").write_text(json.dumps(TINY, indent=1))

    def invoke(*options: str, text: str = SCENARIO, command: str = "run") -> Result:
        (tmp_path / "split.yaml").write_text(text)
        return CliRunner().invoke(app, [command, str(tmp_path / "split.yaml"), "--json", *options])

    return invoke


def found(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    read: dict[str, Any] = json.loads(result.stdout)
    return read


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_gpu_keeps_what_korthikanti_lists(table: Read, count: int) -> None:
    """Equation 2: s b h (10 + 24/t + 5 a s / (h t)) bytes; dropout has 2 s h of masks, and 3 a s² of the scores."""
    s, h, a = 64, 64, 8
    attention, mlp = table(TINY, count).layers[1:3]
    dropout = 2 * s * h + 3 * a * s**2 / count
    assert 2 * (attention.saved + mlp.saved) + dropout == s * h * (10 + 24 / count + 5 * a * s / (h * count))


@pytest.mark.parametrize(
    ("config", "samples", "in_flight", "gib"), [(MEGATRON_22B, 4, 1, 59.25), (GPT3_175B, 1, 1 + 7 / 24, 66.84375)]
)
def test_published_memory(table: Read, config: dict[str, Any], samples: int, in_flight: float, gib: float) -> None:
    """Figure 1 of the paper as Calculon's validation reads it: activations on the first of 1 and of 8 stages.

    These run 8 GPUs to a group and 3 chunks a GPU. 18 bytes of state to a parameter, biases and norms left out, are
    45.5625 GiB a GPU in either.
    """
    s, h, a, layers = 2048, config["n_embd"], config["n_head"], config["n_layer"]
    blocks = table(config, 8, s).layers[1 : 1 + 2 * layers]
    dropout = layers * (2 * s * h + 3 * a * s**2 / 8)
    saved = samples * in_flight * (2 * sum(block.saved for block in blocks) + dropout)
    assert saved / 2**30 == pytest.approx(gib, rel=1e-12)
    weights = sum(block.parameter_elements for block in blocks) - layers * (6 * h + 7 * h // 8)
    assert 18 * weights / (1 if samples == 4 else 8) / 2**30 == 45.5625


CONFIGS = {"gpt2": TINY, "bert": BERT, "llama": LLAMA, "qwen3": QWEN3}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    count=st.sampled_from([2, 4]),
    attention=st.sampled_from(["eager", "flash"]),
    sequence=st.integers(1, 128),
)
def test_a_group_does_the_work_of_one(table: Read, name: str, count: int, attention: str, sequence: int) -> None:
    """All flops but those of BERT's dense map in its head, which every GPU does; all parameters but norms and sums."""
    config = CONFIGS[name]
    one, share = table(config, 1, sequence, attention), table(config, count, sequence, attention)
    half = table(config, count // 2, sequence, attention)
    for whole, each, less in zip(one.layers, share.layers, half.layers, strict=True):
        assert each.forward_flops == whole.forward_flops == sum(kernel.flops for kernel in whole.kernels or ())
        alike = 2 * sequence * 64 * 64 if (name, whole.name) == ("bert", "head") else 0
        done = sum(kernel.flops for kernel in each.kernels or ())
        assert count * (done - alike) + alike == whole.forward_flops
        assert each.saved <= less.saved
        assert each.parameter_elements <= less.parameter_elements
    replicated = {
        "gpt2": 128 * 64 + (2 * 3 + 1) * 2 * 64 + 2 * 3 * 64,
        "bert": (128 + 2) * 64 + (2 * 3 + 2) * 2 * 64 + 2 * 3 * 64 + 64 * 65,
        "llama": (2 * 3 + 1) * 64,
        "qwen3": (2 * 3 + 1) * 64 + 3 * 2 * 32,
    }[name]
    whole_count, own = (sum(layer.parameter_elements for layer in each.layers) for each in (one, share))
    assert count * own - (count - 1) * replicated == whole_count


def test_a_block_reduces_twice_in_each_pass(table: Read) -> None:
    """The embedding forward, the head backward, of every attention and MLP both: s h elements each."""
    tensor = 64 * 64
    reduced = [layer.reduced_elements for layer in table(TINY, 2).layers]
    assert reduced == [(tensor, 0), *[(tensor, tensor)] * 6, (0, 0), (0, tensor)]


def test_latency_by_hand(run: Run) -> None:
    """One micro-batch on two stages: each of 1 + 2 L all-reduces in either pass takes 2 (n − 1) latencies.

    Between the stages one message goes each way, over a link that is as slow.
    """
    options = [GROUPS + "2", "--set=schedule.micro_batches=1", "--set=cluster.link={kind: latency, latency: LATENCY}"]
    times = [
        found(run(*(each.replace("LATENCY", latency) for each in options)))["makespan_s"]
        for latency in ("0 us", "7 us")
    ]
    assert times[1] - times[0] == pytest.approx((2 * (1 + 2 * 3) * 2 * (2 - 1) + 2) * 7e-6, rel=1e-9)


def test_bandwidth_by_hand(run: Run) -> None:
    """One stage of four GPUs: 14 all-reduces of b s h elements, of which each link carries 2 (n − 1)/n."""
    options = ["--set=schedule={name: single}", GROUPS + "4"]
    link = "--set=cluster.link={kind: fair_share, bandwidth: RATE GB/s}"
    slow, fast = (found(run(*options, link.replace("RATE", rate)))["makespan_s"] for rate in ("10", "20"))
    size_bytes = 4 * 64 * 64 * 2
    assert slow - fast == pytest.approx(14 * 2 * 3 / 4 * size_bytes * (1 / 10e9 - 1 / 20e9), rel=1e-9)


def test_contention_inside_a_group_counts(run: Run) -> None:
    """Eight GPUs under two roots: two hops of the ring cross the sockets, one in each direction, alone on the link."""
    options = ["--set=schedule={name: single}", GROUPS + "8", "--set=training.dtype=fp32"]
    times = [
        found(run(*options, f"--set=cluster={{preset: pcie3-two-roots-8gpu, link: {{bandwidth: {rate} GB/s}}}}"))
        for rate in (10, 20)
    ]
    slow, fast = (each["makespan_s"] for each in times)
    assert slow - fast == pytest.approx(14 * 2 * 7 / 8 * 4 * 64 * 64 * 4 * (1 / 10e9 - 1 / 20e9), rel=1e-9)
    assert "groups of 8 GPUs" in times[0]["provenance"]["model"]["notes"][0]


def test_one_gpu_to_a_group_changes_nothing(run: Run) -> None:
    assert run(GROUPS + "1").stdout == run().stdout


@pytest.mark.parametrize("backend", ["simulated", "longest_path"])
def test_utilization_and_cost_are_those_of_all_gpus(run: Run, backend: str) -> None:
    read = found(run(GROUPS + "2", "--set=cluster.price=3.60 USD/hour", f"--set=backend={backend}"))
    s, h, words = 64, 64, 512
    flops = 3 * 4 * (3 * (24 * s * h**2 + 4 * s**2 * h) + 2 * s * h * words)
    assert read["mfu"] == pytest.approx(flops / (read["step_time_s"] * 4 * 989e12), rel=1e-12)
    assert read["cost_usd_per_1000_samples"] == pytest.approx(4 * 0.001 * 1000 / read["samples_per_s"], rel=1e-12)
    assert [device["name"] for device in read["devices"]] == ["gpu0", "gpu2"]


def test_replicas_of_groups_sum_the_gradients_of_a_share(run: Run, table: Read) -> None:
    read = found(run(GROUPS + "2", "--set=schedule={name: data_parallel, tensor_parallel: 2}"))
    own = sum(layer.parameter_elements for layer in table(TINY, 2).layers)
    assert [link["name"] for link in read["links"]] == ["gpu0>gpu2", "gpu2>gpu0"]
    assert read["links"][0]["bytes"] == 2 * own
    assert read["devices"][0]["memory_by_category"]["weights"] == 2 * own


def test_nvlink_has_room_for_the_messages_of_all(run: Run) -> None:
    assert found(run(GROUPS + "2", "--set=cluster=nvlink-8gpu", "--set=schedule.stages=4"))["mfu"]


TWO_SWITCHES = """\
cluster:
  nodes:
    - {name: gpu0, kind: gpu, device: h100}
    - {name: gpu1, kind: gpu, device: h100}
    - {name: gpu2, kind: gpu, device: h100}
    - {name: gpu3, kind: gpu, device: h100}
    - {name: left, kind: switch}
    - {name: right, kind: switch}
  links:
    - {between: [gpu0, left], kind: fair_share, bandwidth: 10 GB/s}
    - {between: [gpu1, RIGHT], kind: fair_share, bandwidth: 10 GB/s}
    - {between: [gpu2, left], kind: fair_share, bandwidth: 10 GB/s}
    - {between: [gpu3, right], kind: fair_share, bandwidth: LAST GB/s}
    - {between: [left, right], kind: KIND, bandwidth: 5 GB/s}
"""


@pytest.mark.parametrize(
    ("right", "last", "kind", "expected"),
    [
        ("right", 10, "fair_share", "group of 'gpu0' and the group of 'gpu2' share link 'left>right' for their all-"),
        (
            "left",
            10,
            "in_order",
            "the group of 'gpu2' takes 3.28e-06 s for an all-reduce, the group of 'gpu0' 1.64e-06",
        ),
        ("right", 7, "in_order", "GPU 1 of each group sends over other links than GPU 0, which stands for it"),
        ("right", 10, "in_order", ""),
    ],
)
def test_groups_must_be_alike_and_apart(run: Run, right: str, last: int, kind: str, expected: str) -> None:
    """Two groups, each over two switches, or one of them on one; and a last GPU whose link may be slower."""
    head, tail = SCENARIO.split("cluster")[0], SCENARIO[SCENARIO.index("training") :]
    nodes = TWO_SWITCHES.replace("RIGHT", right).replace("LAST", str(last)).replace("KIND", kind)
    result = run(GROUPS + "2", text=head + nodes + tail)
    assert result.exit_code == (2 if expected else 0), result.output
    assert expected in result.stderr


@pytest.mark.parametrize(("stages", "group"), [(4, 2), (2, 4)])
def test_messages_that_share_a_link_are_refused(run: Run, stages: int, group: int) -> None:
    options = [GROUPS + str(group), f"--set=schedule.stages={stages}", "--set=cluster=pcie3-two-roots-8gpu"]
    result = run(*options, "--set=training.dtype=fp32")
    assert result.exit_code == 2
    expected = "schedule.tensor_parallel: GPU 0 of each group and GPU 1 of each group share link 'switch0>host0'"
    assert expected in result.stderr


def test_what_does_not_split_is_refused_all_at_once(table: Read) -> None:
    config = LLAMA | {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 500}
    with pytest.raises(ScenarioError) as caught:
        table(config, 8)
    faults = [(fault.line, str(fault).split(": ", 1)[1]) for fault in caught.value.faults]
    of = "do not split among 8 GPUs (schedule.tensor_parallel)"
    assert faults == [
        (5, f"num_attention_heads: 12 {of}"),
        (6, f"num_key_value_heads: 4 {of}"),
        (9, f"vocab_size: 500 {of} (pad it to 504)"),
    ]


LAYERS = "model: {layers: [{name: a, forward: 1 ms, backward: 1 ms, output: 1 MB, parameters: 1 MB}], batch_size: 4}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("schedule.tensor_parallel=3", "tensor_parallel: 4 GPUs in groups of 3 (use 1 or 2 or 4)"),
        ("schedule.tensor_parallel=8", "tensor_parallel: 4 GPUs in groups of 8 (use 1 or 2 or 4)"),
        ("schedule.tensor_parallel=4", "stages: 2 stages on 1 devices (use 1 to 1 stages)"),
        ("schedule.tensor_parallel=0", "tensor_parallel: must be at least 1, got 0"),
        ("cluster.cores=4", "tensor_parallel: not with cluster.cores"),
        ("schedule={name: data_parallel, sync: parameter_server, tensor_parallel: 2}", "not with parameter servers"),
        (LAYERS.replace("model: ", "model="), "tensor_parallel: it is not known how this model's layers are split"),
        ("backend=torch", "schedule.tensor_parallel: is only simulated"),
    ],
)
def test_what_is_no_group_is_refused(run: Run, change: str, expected: str) -> None:
    result = run(GROUPS + "2", f"--set={change}")
    assert result.exit_code == 2
    assert expected in result.stderr


RATES = {"flops": 67e12 * 0.7, "bytes": 3350e9 * 0.8}


def written_out(
    count: int, samples: int, s: int = 64, h: int = 64, a: int = 8, words: int = 512
) -> list[dict[str, str]]:
    """The layers of `TINY` on one of ``count`` H100 in fp32 at a micro-batch, reckoned here, with their rings."""
    all_reduce_s = 2 * (count - 1) * 5e-6 + 2 * (count - 1) / count * (4 * samples * s * h) / 100e9
    heads, inner, words = h // count, 4 * h // count, words // count
    scores, product = a // count * s * s, 2 * s * s * heads
    norm, add = (0, 2 * s * h, 2 * h, 1, 1), (0, 3 * s * h, 0, 1, 1)
    core = (product, 2 * s * heads + scores, 0, 1, 2)

    def linear(rows: int, columns: int, bias: int = 1) -> tuple[int, int, int, int, int]:
        return 2 * s * rows * columns, s * (rows + columns), rows * columns + bias * columns, 1, 1

    attention = [norm, *[linear(h, heads)] * 3, core, (0, 2 * scores, 0, 1, 1), core, linear(heads, h), add]
    mlp = [norm, linear(h, inner), (0, 2 * s * inner, 0, 1, 1), linear(inner, h), add]
    looked_up = (0, s + 3 * s * h, words * h + 128 * h, 0, 0)
    block = [(attention, s * h, 2 * s * h + 4 * s * heads + scores, (1, 1)), (mlp, s * h, 2 * s * (h + inner), (1, 1))]
    table = [([looked_up], s * h, s * h, (1, 0)), *block * 3, ([norm], s * h, s * h, (0, 0))]
    layers = []
    for number, (kernels, output, saved, rings) in enumerate(
        [*table, ([linear(h, words, 0)], s * words, s * words, (0, 1))]
    ):
        passes = [rings[0] * all_reduce_s, rings[1] * all_reduce_s, 0.0]
        for flops, moved, parameters, reads, operands in kernels:
            each = [
                max(flops * samples / RATES["flops"], 4 * (moved * samples + parameters * times) / RATES["bytes"])
                for times in (reads, 1)
            ]
            passes = [passes[0] + each[0], passes[1] + each[0] * operands, passes[2] + each[1] * (parameters > 0)]
        held = sum(parameters for _, _, parameters, _, _ in kernels) if number < len(table) else 0
        names = zip(("forward", "backward_input", "backward_weight"), passes, strict=True)
        sizes = {"output": 4 * samples * output, "saved": 4 * samples * saved, "parameters": 4 * held}
        layers.append(
            {"name": f"l{number}", **{name: f"{seconds!r} s" for name, seconds in names}}
            | {name: f"{size} B" for name, size in sizes.items()}
        )
    return layers


SCHEDULES = {
    "{name: data_parallel, mini_batches: 2}": 4,
    "{name: one_f_one_b, stages: 4, micro_batches: 4, mini_batches: 2}": 4,
    "{name: interleaved_1f1b, stages: 4, chunks: 2, micro_batches: 4}": 4,
    "{name: chimera, stages: 4, micro_batches: 4}": 4,
    "{name: zb_h1, stages: 4, micro_batches: 4}": 4,
    "{name: pipedream, stages: 2, replicas: [3, 1], mini_batches: 12}": 16,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("checkpoint", ["{}", "{checkpoint: {objective: basic}}"])
def test_any_schedule_of_groups_is_one_of_such_layers(run: Run, schedule: str, checkpoint: str) -> None:
    """Times and memory are those of a quarter of the GPUs on which layers like a share of these run."""
    same = [f"--set=memory={checkpoint}", "--set=training.dtype=fp32", "--set=model.batch_size=16"]
    samples = SCHEDULES[schedule]
    layers = (
        f"{{layers: {json.dumps(written_out(4, samples))}, measured_batch: {samples}, input: {4 * samples * 64} B}}"
    )
    groups = [f"--set=schedule={schedule}", GROUPS + "4", "--set=cluster.devices=16"]
    split = found(run(*same, *groups))
    plain = found(run(f"--set=model={layers}", *same, f"--set=schedule={schedule}"))
    assert [split["step_time_s"], split["makespan_s"]] == pytest.approx([plain["step_time_s"], plain["makespan_s"]])
    peaks = [[device["peak_memory_bytes"] for device in each["devices"]] for each in (split, plain)]
    assert peaks[0] == pytest.approx(peaks[1], abs=64)


def test_a_plan_keeps_its_groups(run: Run) -> None:
    space = "plan: {schedules: [one_f_one_b, data_parallel], micro_batches: [1, 2], checkpoints: [none]}\n"
    read = found(run(GROUPS + "2", text=SCENARIO + space, command="plan"))
    tried = [read["best"], *read["runners_up"]]
    assert {each["overrides"]["schedule"]["tensor_parallel"] for each in tried} == {2}
    assert {each["overrides"]["schedule"].get("stages", 1) for each in tried} <= {1, 2}


def test_explain_does_not_take_all_reduces_for_arithmetic(run: Run, tmp_path: Path) -> None:
    """Faster devices would not make them faster, and they are part of what is played as computing."""
    here = f"--set=model.huggingface={tmp_path / 'config.json'}"
    assert run(GROUPS + "2", here, "--out", str(tmp_path / "out")).exit_code == 0
    (read,) = found(CliRunner().invoke(app, ["explain", str(tmp_path / "out"), "--json"]))["points"]
    assert "which count as computing: no sensitivities" in read["notes"][0]
    assert read["sensitivities"] == []
