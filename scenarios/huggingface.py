"""The ``config.json`` of a Hugging Face model as a layer table: decoders like Llama and GPT-2, encoders like BERT.

Each block is two layers of the table, attention and MLP, with their norms and sums. With a sequence of s, width h, a
heads of d features, k of them for keys and values, and an inner width f, a sample takes forward

    2 s h d (2 a + 2 k) + 4 s² a d   (attention)      2 s h f × 2, or × 3 where it is gated   (MLP)

flops: all pairs of positions count, also those that a causal mask hides, as in PaLM (arXiv 2204.02311, appendix B).
Kept for backward is what Korthikanti et al. (arXiv 2205.05198) list, without dropout: with k = a, h = a d and f = 4 h
these are 16 s h elements and, if attention is eager, the a s² of its probabilities. Flash attention neither keeps them
nor moves them to memory; that its backward computes the scores once more is not counted. Of keys and values that
several heads share one copy counts.

Of n GPUs that split a layer (`sim.tensor_parallel`) each has a/n heads, k/n of keys and values, f/n of the inner width
and 1/n of the words; norms, sums, positions and what is pooled are whole on each. In the above setting a GPU keeps
(4 + 12/n) s h elements and a s²/n. What a head's loss sums, a few elements for each position, is not counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scenarios.quantities import printable, shown
from scenarios.text_file import read_text
from sim.errors import Fault, ScenarioError, nearest
from sim.model import Kernel, LayerTable, LayerWork

_MOST_BYTES = 1 << 20
_LARGEST = 10**8
_MOST_LAYERS = 10**4
_BETWEEN = re.compile(r"[\s,:]*")


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of a ``model_type`` have in common, and what its configuration calls things.

    ``learned_positions``: besides words (and, ``types``, kinds of text) positions have vectors. ``norm_variables``:
    tensors of a norm. ``biases``: of queries, keys and values; of the other products.
    """

    width: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    positions: str = "max_position_embeddings"
    gated: bool = True
    learned_positions: bool = False
    types: bool = False
    norm_variables: int = 1
    biases: tuple[bool, bool] = (False, False)
    head_norms: bool = False
    tied: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(biases=(True, False)),
    "qwen3": Family(head_norms=True),
    "gpt2": Family("n_embd", "n_layer", "n_head", "n_positions", False, True, False, 2, (True, True), False, True),
    "bert": Family(gated=False, learned_positions=True, types=True, norm_variables=2, biases=(True, True), tied=True),
}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a model, by the letters of the module's text; ``words`` of the vocabulary."""

    layers: int
    s: int
    h: int
    a: int
    k: int
    d: int
    f: int
    words: int
    positions: int
    types: int
    tied: bool
    head: str


@dataclass
class _Reader:
    """Reads a configuration, collecting faults."""

    text: str
    file: str
    content: Mapping[str, Any]
    faults: list[Fault] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, line in _keys(self.text):
            if key in self.lines:
                message = f"is there twice, first in line {self.lines[key]}"
                self.faults.append(Fault(message, printable(key), self.file, line))
            else:
                self.lines[key] = line

    def fault(self, key: str, message: str, hint: str | None = None) -> None:
        self.faults.append(Fault(message, printable(key), self.file, self.lines.get(key), hint))

    def sound(self, *keys: str) -> bool:
        """Whether nothing is wrong with these values: what they would be at odds with is no fault of its own."""
        return not any(fault.path in keys for fault in self.faults)

    def count(self, key: str, default: int | None = None, most: int = _LARGEST) -> int:
        value = self.content.get(key)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= most:
            self.fault(key, f"expected a whole number from 1 to {most}, got {shown(value)}")
            return 1
        return value

    def truth(self, key: str, default: bool) -> bool:
        if (value := self.content.get(key)) is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, f"expected true or false, got {shown(value)}")
        return value is True

    def refuse(self, key: str, *understood: Any) -> None:
        """A setting that changes the layers in a way that is not counted."""
        if (value := self.content.get(key)) is not None and value not in understood:
            only = f": only {', '.join(map(shown, understood))}" if understood else ""
            self.fault(key, f"{shown(value)} is not counted here{only}")


def read_table(path: Path, sequence: int, attention: str, tensor_parallel: int = 1) -> LayerTable:
    """The layer table of a ``config.json`` at ``sequence`` positions; ``attention`` is ``eager`` or ``flash``.

    It is that of one of ``tensor_parallel`` GPUs that split each layer.

    Raises
    ------
    ScenarioError : no such configuration, or a model that is not counted, each fault with file and line.
    """
    text, file = read_text(path, "the config.json of a Hugging Face model", _MOST_BYTES), printable(str(path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise ScenarioError.of([Fault("not JSON: expected a config.json", file=file, line=line)]) from None
    if not isinstance(content, dict):
        raise ScenarioError.of([Fault("not a mapping: expected a config.json", file=file)])
    reader = _Reader(text, file, content)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        hint = nearest(str(kind), FAMILIES) or f"known: {', '.join(FAMILIES)}"
        reader.fault("model_type", f"{shown(kind)} is not counted here", hint)
        raise ScenarioError.of(reader.faults)
    family = FAMILIES[kind]
    sizes = _sizes(reader, kind, family, sequence)
    share = _share(reader, kind, family, sizes, tensor_parallel)
    if reader.faults:
        raise ScenarioError.of(reader.faults)
    whole, own = (_layers(family, each, attention == "flash") for each in (sizes, share))
    layers = tuple(replace(each, forward_flops=full.forward_flops) for full, each in zip(whole, own, strict=True))
    source = f"{file}: {kind}, {sequence} positions, {attention} attention, without dropout"
    return LayerTable(kind, sequence, layers, source)


def _keys(text: str) -> Iterator[tuple[str, int]]:
    """The keys of a mapping in JSON, and the line of each."""
    decode, line, seen = json.JSONDecoder().raw_decode, 1, 0
    at = _after(text, text.index("{") + 1)
    while text[at] != "}":
        line, seen = line + text.count("\n", seen, at), at
        key, end = decode(text, at)
        yield key, line
        _, end = decode(text, _after(text, end))
        at = _after(text, end)


def _after(text: str, at: int) -> int:
    """Where the next key or value begins."""
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _sizes(reader: _Reader, kind: str, family: Family, sequence: int) -> _Sizes:
    h, a = reader.count(family.width), reader.count(family.heads)
    # Where it says nothing, Transformers takes the figures of the kind's first model: only Llama's follow from others.
    k = a if kind in ("gpt2", "bert") else reader.count("num_key_value_heads", a if kind == "llama" else None)
    given = kind == "qwen3" or (reader.content.get("head_dim") is not None and kind not in ("gpt2", "bert"))
    if a % k and reader.sound(family.heads, "num_key_value_heads"):
        reader.fault("num_key_value_heads", f"{a} heads do not share {k} of keys and values evenly")
    if h % a and not given and reader.sound(family.width, family.heads):
        reader.fault(family.heads, f"{h} features do not split into {a} heads")
    inner = reader.count("n_inner", 4 * h) if kind == "gpt2" else reader.count("intermediate_size")
    positions = reader.count(family.positions)
    if family.learned_positions and sequence > positions and reader.sound(family.positions):
        reader.fault(family.positions, f"{positions} positions have vectors, the sequence has {sequence}")
    windowed = reader.truth("use_sliding_window", not kind.startswith("qwen"))
    window = reader.count("sliding_window", _LARGEST) if windowed else _LARGEST
    if sequence > window and reader.sound("sliding_window"):
        reader.fault("sliding_window", f"a window of {window} in a sequence of {sequence} is not counted here")
    for key, understood in _UNDERSTOOD.items():
        reader.refuse(key, *understood)
    return _Sizes(
        layers=reader.count(family.layers, most=_MOST_LAYERS),
        s=sequence,
        h=h,
        a=a,
        k=k,
        d=reader.count("head_dim") if given else h // a,
        f=inner,
        words=reader.count("vocab_size"),
        positions=positions if family.learned_positions else 0,
        types=reader.count("type_vocab_size") if family.types else 0,
        tied=reader.truth("tie_word_embeddings", family.tied),
        head=_head(reader, kind),
    )


def _share(reader: _Reader, kind: str, family: Family, z: _Sizes, count: int) -> _Sizes:
    """What each of ``count`` GPUs has of what they split."""
    split = {family.heads: z.a, "num_key_value_heads": z.k, "vocab_size": z.words}
    split["n_inner" if kind == "gpt2" else "intermediate_size"] = z.f
    for key, size in split.items():
        if size % count and reader.sound(key) and (key != "num_key_value_heads" or z.k != z.a):
            hint = f"pad it to {size + -size % count}" if key == "vocab_size" else None
            reader.fault(key, f"{size} do not split among {count} GPUs (schedule.tensor_parallel)", hint)
    return replace(z, a=z.a // count, k=z.k // count, f=z.f // count, words=z.words // count)


_UNDERSTOOD: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "add_cross_attention": (False,),
    "num_local_experts": (1,),
    "num_experts": (1,),
    "position_embedding_type": ("absolute",),
    "quantization_config": (),
}
_HEADS = {
    "bert": {"BertModel": "pooler", "BertForMaskedLM": "masked words"},
    "gpt2": {"GPT2LMHeadModel": "words", "GPT2Model": ""},
}


def _head(reader: _Reader, kind: str) -> str:
    """What stands behind the last block, by the first of ``architectures``."""
    prefix = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}.get(kind, "")
    known = _HEADS.get(kind, {f"{prefix}ForCausalLM": "words", f"{prefix}Model": ""})
    given = reader.content.get("architectures")
    if given is None or given == []:
        return next(iter(known.values()))
    name = given[0] if isinstance(given, list) else given
    if not isinstance(name, str) or name not in known:
        reader.fault("architectures", f"{shown(name)} is not counted here: only {', '.join(known)}")
        return ""
    return known[name]


def _layers(family: Family, z: _Sizes, flash: bool) -> Iterator[LayerWork]:
    vectors = tuple(rows * z.h for rows in (z.words, z.positions, z.types) if rows)
    looked_up = _kernel(0, z.s + (len(vectors) + 1) * z.s * z.h, vectors, reads=0)
    post_norm = family.types  # BERT: each norm stands behind its sum, and one behind the embedding
    embedding = (looked_up, _norm(family, z)) if post_norm else (looked_up,)
    yield _layer("embedding", z.s * z.h, embedding, len(embedding) * z.s * z.h, (z.s * z.h, 0))
    for number in range(z.layers):
        yield _attention(family, z, flash, number)
        yield _mlp(family, z, number)
    if not post_norm:
        yield _layer("norm", z.s * z.h, (_norm(family, z),), z.s * z.h)
    if z.head == "pooler":
        yield _layer("pooler", z.h, (_product(1, z.h, z.h, True), Kernel(0, 2 * z.h)), 2 * z.h)
    elif z.head:
        yield _words(family, z)


def _attention(family: Family, z: _Sizes, flash: bool, number: int) -> LayerWork:
    queries, keys, scores = z.s * z.a * z.d, z.s * z.k * z.d, z.a * z.s**2
    bias, out_bias = family.biases
    projected = [_product(z.s, z.h, heads * z.d, bias) for heads in (z.a, z.k, z.k)]
    normed = [_kernel(0, 2 * size, (z.d,)) for size in (queries, keys)] if family.head_norms else []
    product = 2 * z.s**2 * z.a * z.d
    if flash:
        core = [Kernel(2 * product, 2 * queries + 2 * keys, operands=2)]
    else:
        core = [Kernel(product, queries + keys + scores, operands=2), Kernel(0, 2 * scores)]
        core += [Kernel(product, queries + keys + scores, operands=2)]
    out, total = _product(z.s, z.a * z.d, z.h, out_bias), Kernel(0, 3 * z.s * z.h)
    kept = 2 * z.s * z.h + 2 * queries + 2 * keys + (0 if flash else scores)
    kept += queries + keys if family.head_norms else 0
    kernels = (_norm(family, z), *projected, *normed, *core, out, total)
    return _layer(f"attention{number}", z.s * z.h, kernels, kept, (z.s * z.h, z.s * z.h))


def _mlp(family: Family, z: _Sizes, number: int) -> LayerWork:
    inner, bias = z.s * z.f, family.biases[1]
    up = [_product(z.s, z.h, z.f, bias) for _ in range(2 if family.gated else 1)]
    between = [Kernel(0, 2 * inner)] + ([Kernel(0, 3 * inner)] if family.gated else [])
    kernels = (_norm(family, z), *up, *between, _product(z.s, z.f, z.h, bias), Kernel(0, 3 * z.s * z.h))
    kept = 2 * z.s * z.h + (4 if family.gated else 2) * inner
    return _layer(f"mlp{number}", z.s * z.h, kernels, kept, (z.s * z.h, z.s * z.h))


def _words(family: Family, z: _Sizes) -> LayerWork:
    """The head over all words. Tied, its weights are those of the embedding, and only counted there."""
    tensor, product = z.s * z.h, _product(z.s, z.h, z.words, False)
    product = replace(product, variables=(0,)) if z.tied else product
    if z.head != "masked words":
        return _layer("head", z.s * z.words, (product,), z.s * z.words, (0, tensor))
    added = _kernel(0, 2 * z.s * z.words, (z.words,))
    kernels = (_product(z.s, z.h, z.h, True), Kernel(0, 2 * tensor), _norm(family, z), product, added)
    return _layer("head", z.s * z.words, kernels, 3 * tensor + z.s * z.words, (0, tensor))


def _norm(family: Family, z: _Sizes) -> Kernel:
    return _kernel(0, 2 * z.s * z.h, (z.h,) * family.norm_variables)


def _product(rows: int, features: int, out: int, bias: bool) -> Kernel:
    """A linear map of each position; a bias counts as parameters, not as flops."""
    variables = (features * out, out) if bias else (features * out,)
    return _kernel(2 * rows * features * out, rows * (features + out), variables)


def _kernel(flops: int, moved: int, variables: tuple[int, ...], reads: int = 1) -> Kernel:
    return Kernel(flops, moved, sum(variables), reads, variables=variables)


def _layer(
    name: str, output: int, kernels: tuple[Kernel, ...], saved: int, reduced: tuple[int, int] = (0, 0)
) -> LayerWork:
    flops, parameters = sum(each.flops for each in kernels), sum(sum(each.variables) for each in kernels)
    return LayerWork(name, flops, output, parameters, saved_elements=saved, kernels=kernels, reduced_elements=reduced)
