"""Hugging Face configurations as layer tables: published parameter counts, the flops of PaLM, memory of Korthikanti."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scenarios.command_line import app
from scenarios.huggingface import read_table
from sim.errors import ScenarioError
from sim.model import DeviceSpec, LayerTable, roofline

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
BERT = {
    "model_type": "bert",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
LLAMA_2_7B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
}
LLAMA_3_8B = LLAMA_2_7B | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
MISTRAL_7B = LLAMA_2_7B | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
QWEN_2_HALF_B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 131072,
    "vocab_size": 151936,
}
QWEN_3_HALF_B = QWEN_2_HALF_B | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
}

PUBLISHED = {
    "gpt2": (GPT2, 124_439_808),
    "gpt2-xl": (GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    "bert-base": (BERT | {"architectures": ["BertModel"]}, 109_482_240),
    "bert-base with its head": (BERT | {"architectures": ["BertForMaskedLM"]}, 109_514_298),
    "llama-2-7b": (LLAMA_2_7B, 6_738_415_616),
    "llama-3-8b": (LLAMA_3_8B, 8_030_261_248),
    "mistral-7b": (MISTRAL_7B, 7_241_732_096),
    "qwen2-0.5b": (QWEN_2_HALF_B, 494_032_768),
    "qwen3-0.6b": (QWEN_3_HALF_B, 596_049_920),
}


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., LayerTable]:
    def read(config: dict[str, Any], sequence: int = 512, attention: str = "eager") -> LayerTable:
        (tmp_path / "config.json").write_text(json.dumps(config, indent=1))
        return read_table(tmp_path / "config.json", sequence, attention)

    return read


def parameters(table: LayerTable) -> float:
    return sum(layer.parameter_elements for layer in table.layers)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(table: Callable[..., LayerTable], name: str) -> None:
    config, count = PUBLISHED[name]
    found = table(config)
    assert parameters(found) == count
    assert sum(sum(layer.variables) for layer in found.layers) == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_that_transformers_makes(table: Callable[..., LayerTable], name: str) -> None:
    """Layer by layer on the meta device, where nothing is allocated."""
    reason = "transformers is not installed: it is in the extra 'hta'"
    transformers, torch = pytest.importorskip("transformers", reason=reason), pytest.importorskip("torch")
    config = PUBLISHED[name][0]
    kinds = {"gpt2": "GPT2LMHeadModel", "bert": "BertModel"}
    given = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    known = transformers.AutoConfig.for_model(config["model_type"], **given)
    with torch.device("meta"):
        model = getattr(transformers, config.get("architectures", [kinds.get(config["model_type"])])[0])(known)
    found, blocks = table(config), {}
    for key, tensor in model.named_parameters():
        place = key.split(".layers.")[-1] if ".layers." in key else key.split(".layer.")[-1].split(".h.")[-1]
        number = place.split(".")[0]
        if place != key and number.isdigit():
            blocks[int(number)] = blocks.get(int(number), 0) + tensor.numel()
    assert parameters(found) == sum(tensor.numel() for tensor in model.parameters())
    each = {layer.name: layer.parameter_elements for layer in found.layers}
    assert {number: each[f"attention{number}"] + each[f"mlp{number}"] for number in blocks} == blocks


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b", "mistral-7b", "qwen3-0.6b"])
@pytest.mark.parametrize("sequence", [128, 1024])
def test_flops_are_6_n_and_attention(table: Callable[..., LayerTable], name: str, sequence: int) -> None:
    """PaLM's 6 N + 12 L H Q T for a token, N without vectors that are only looked up (Kaplan: non-embedding).

    What is left are norms and biases, which do no products: below 0.1 % of N.
    """
    config, count = PUBLISHED[name]
    found = table(config, sequence)
    words, width = config["vocab_size"], config.get("hidden_size", config.get("n_embd"))
    tied = config["model_type"] == "gpt2" or config.get("tie_word_embeddings", False)
    looked_up = config["n_positions"] * width if config["model_type"] == "gpt2" else 0 if tied else words * width
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    across = heads * config.get("head_dim", width // heads)
    palm = 6 * (count - looked_up) + 12 * layers * across * sequence
    per_token = 3 * sum(layer.forward_flops for layer in found.layers) / sequence
    assert 0.999 * palm <= per_token <= palm


def test_attention_is_quadratic_and_the_rest_is_not(table: Callable[..., LayerTable]) -> None:
    """Over s, 2s and 4s the second difference is that of the 4 s² a d flops and the a s² elements alone."""
    for key, square in (("forward_flops", 4 * 768), ("saved", 12)):
        one, two, three = (getattr(table(GPT2, s).layers[1], key) for s in (128, 256, 384))
        assert three - 2 * two + one == square * 2 * 128**2
        one, two, three = (getattr(table(GPT2, s).layers[2], key) for s in (128, 256, 384))
        assert three - 2 * two + one == 0


def test_a_block_keeps_what_korthikanti_lists(table: Callable[..., LayerTable]) -> None:
    """s b h (34 + 5 a s / h) bytes in half precision with dropout; without: 32 s h, and 2 a s² of probabilities."""
    s, h, a = 512, 768, 12
    attention, mlp = table(GPT2, s).layers[1:3]
    assert 2 * (attention.saved + mlp.saved) == 32 * s * h + 2 * a * s**2
    attention, mlp = table(GPT2, s, "flash").layers[1:3]
    assert 2 * (attention.saved + mlp.saved) == 32 * s * h


def test_flash_attention_moves_less_and_computes_the_same(table: Callable[..., LayerTable]) -> None:
    eager, flash = table(LLAMA_3_8B, 2048), table(LLAMA_3_8B, 2048, "flash")
    assert [layer.forward_flops for layer in eager.layers] == [layer.forward_flops for layer in flash.layers]
    moved = [sum(kernel.moved_elements for kernel in each.layers[1].kernels or ()) for each in (eager, flash)]
    assert moved[0] - moved[1] == 4 * 32 * 2048**2


def test_a_scenario_trains_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    (tmp_path / "llama.yaml").write_text(
        "name: llama\nmodel: {huggingface: config.json, sequence: 2048, attention: flash, batch_size: 8}\n"
        "cluster: nvlink-8gpu\ntraining: {dtype: bf16}\nschedule: {name: one_f_one_b, stages: 8, micro_batches: 8}\n"
    )
    run = CliRunner().invoke(app, ["run", str(tmp_path / "llama.yaml"), "--json"])
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    assert 0.2 < found["mfu"] < 0.6  # h100: 60 % of the peak where nothing waits
    assert "2048 positions, flash attention" in found["provenance"]["model"]["source"]


NO_NAMES: list[Any] = [[[]], {"a": 1}, [{}], [3], 0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "gpt3"}, "config.json:2: model_type: 'gpt3' is not counted here (did you mean 'gpt2'?)"),
        ({"model_type": "mixtral"}, "model_type: 'mixtral' is not counted here"),
        ({"hidden_size": 0}, "config.json:6: hidden_size: expected a whole number from 1 to"),
        ({"hidden_size": "4096"}, "hidden_size: expected a whole number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 32 heads do not share 5 of keys and values evenly"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "is not counted here: only LlamaForCausalLM, LlamaModel",
        ),
        ({"mlp_bias": True}, "mlp_bias: true is not counted here"),
        (MISTRAL_7B | {"sliding_window": 256}, "sliding_window: a window of 256 in a sequence of 512"),
        (GPT2 | {"n_positions": 256}, "n_positions: 256 positions have vectors, the sequence has 512"),
        *(({"architectures": name}, "is not counted here: only Llama") for name in NO_NAMES),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: expected a whole number from 1 to 10000"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false, got 'yes'"),
        (MISTRAL_7B | {"sliding_window": "256"}, "sliding_window: expected a whole number"),
        (QWEN_2_HALF_B | {"use_sliding_window": 1}, "use_sliding_window: expected true or false, got 1"),
        (BERT | {"position_embedding_type": "relative_key"}, "'relative_key' is not counted here: only 'absolute'"),
        (QWEN_3_HALF_B | {"head_dim": None}, "head_dim: expected a whole number from 1 to 100000000, got nothing"),
        (MISTRAL_7B | {"num_key_value_heads": None}, "num_key_value_heads: expected a whole number"),
    ],
)
def test_what_is_not_counted_is_refused(
    table: Callable[..., LayerTable], change: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        table({**(LLAMA_2_7B if "vocab_size" not in change else {}), **change})
    assert expected in str(caught.value)


def test_lines_are_those_of_the_keys_that_count(tmp_path: Path) -> None:
    """Not of a name inside another value or in a text; a key that is there twice is refused, as in YAML."""
    inner = '{"vocab_size": 3,\n "note": "\\"n_head\\": 3"}'
    text = f'{{"vision": {inner},\n"n_head" :\n 0, "n_embd": 8,\n"n_embd": 16, "n_layer": 1,\n"vocab_size": 0,'
    text += '"model_type": "gpt2"}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_table(tmp_path / "config.json", 128, "eager")
    found = [(fault.line, fault.path) for fault in caught.value.faults]
    assert found == [(5, "n_embd"), (3, "n_head"), (None, "n_positions"), (6, "vocab_size")]
    assert caught.value.faults[0].message == "is there twice, first in line 4"


def test_a_window_that_is_not_used_is_none(table: Callable[..., LayerTable]) -> None:
    """Qwen's are not unless they are asked for."""
    config = {key: value for key, value in QWEN_2_HALF_B.items() if key != "use_sliding_window"}
    assert table(config | {"sliding_window": 256}) == table(QWEN_2_HALF_B)


@pytest.mark.parametrize("samples", [1, 8])
def test_a_tied_head_reads_its_weights_once(table: Callable[..., LayerTable], samples: int) -> None:
    """Whatever the batch: on a device of 1 byte/s a pass takes what it moves. They are not updated there."""
    device = DeviceSpec("slow", 1, 1.0, {"fp32": 1e30}, {"fp32": 1.0}, 1.0, "made up")
    head = roofline(table(GPT2, 128), device, "fp32", samples).layers[-1]
    moved = 4 * (samples * 128 * (768 + 50257) + 768 * 50257)
    assert (head.forward_s, head.backward_input_s, head.backward_weight_s) == (moved, moved, moved)
    assert (head.parameter_bytes, head.variable_bytes) == (0, ())


def test_all_faults_come_at_once(table: Callable[..., LayerTable]) -> None:
    with pytest.raises(ScenarioError) as caught:
        table({"model_type": "bert"})
    assert len(caught.value.faults) == 7


@pytest.mark.parametrize("text", ["", "[1]", '{"model_type": ["gpt2"]}', "[" * 100_000, '{"model_type": "gpt2"'])
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ScenarioError):
        read_table(tmp_path / "config.json", 128, "eager")
