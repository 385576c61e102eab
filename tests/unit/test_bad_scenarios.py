"""Bad scenarios: each kind is refused with file, line, path and a suggestion, all at once, and never otherwise."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.load import dump, load_document, parse_text
from scenarios.points import parse_points
from scenarios.schema import parse
from sim.errors import Fault, ScenarioError

GOOD = """\
name: example
model:
  uniform:
    forward: 2 ms
    backward: 4 ms
    activation: 8 MB
    parameters: 100 MB
  batch_size: 32
cluster:
  nodes:
    - {name: gpu0, kind: gpu, device: p40}
    - {name: gpu1, kind: gpu, concurrency: {shared: 1.2}}
    - {name: host, kind: host}
  links:
    - {between: [gpu0, host], kind: fifo, bandwidth: 12 GB/s}
    - {between: [gpu1, host], kind: fifo, bandwidth: 12 GB/s, latency: 5 us}
training:
  optimizer: adam
  learning_rate: 0.01
  momentum: 0.9
schedule:
  name: gpipe
  stages: 2
  micro_batches: 8
  mini_batches: 3
  weights: latest
partition: {cuts: [3]}
memory: {capacity: 24 GiB, allocator: counting}
backend: simulated
seed: 7
"""

LAYERS = """\
  layers:
    - {name: a, forward: 1 ms, backward: 1 ms, output: 1 MB, parameters: 0 B}
"""
UNIFORM = GOOD[GOOD.index("  uniform") : GOOD.index("  batch_size")]
CLUSTER = GOOD[GOOD.index("cluster") : GOOD.index("training")]
BOMB = "a: &a [1,1]\nb: &b [" + "*a," * 500 + "]\nc: [" + "*b," * 500 + "]"
HERE = Path(__file__).parent

# what to replace, by what; then line, path, part of the message, suggestion
Bad = tuple[str, str, int, str, str, str | None]
BAD: dict[str, Bad] = {
    "unknown key": ("seed: 7", "sead: 7", 30, "sead", "unknown key 'sead'", "'seed'"),
    "unknown nested key": ("optimizer: ", "optimiser: ", 18, "training.optimiser", "unknown", "'optimizer'"),
    "unlike any key": ("seed: 7", "q: 7", 30, "q", "unknown key 'q'", "known: name, model, cluster, training"),
    "missing key": ("    parameters: 100 MB\n", "", 3, "model.uniform.parameters", "missing", None),
    "missing section": ("schedule:\n", "faults:\n", 1, "schedule", "missing", None),
    "no unit": ("2 ms", "2", 4, "model.uniform.forward", "a time needs a unit (ns, us, ms, s", "like 18.5 ms"),
    "unknown unit": ("2 ms", "2 sec", 4, "model.uniform.forward", "'sec' is no unit of a time", "'s'"),
    "unit of something else": ("8 MB", "8 GB/s", 6, "model.uniform.activation", "no unit of a size", "'GB'"),
    "bits or bytes": ("12 GB/s}", "12 Gb/s}", 15, "cluster.links.0.bandwidth", "no unit", "Gbit/s for bits or GB/s"),
    "negative time": ("2 ms", "-2 ms", 4, "model.uniform.forward", "must not be negative", None),
    "zero bandwidth": ("12 GB/s}", "0 GB/s}", 15, "cluster.links.0.bandwidth", "must be above 0", None),
    "NaN": ("0.01", ".nan", 19, "training.learning_rate", "expected a finite number, got nan", None),
    "NaN with a unit": ("2 ms", "nan ms", 4, "model.uniform.forward", "must be finite", None),
    "infinity": ("0.9", ".inf", 20, "training.momentum", "expected a finite number", None),
    "out of range": ("0.9", "1.5", 20, "training.momentum", "must be below 1", None),
    "duplicate key": ("seed: 7", "name: b", 30, "name", "key 'name' is there twice, first in line 1", None),
    "text for a number": ("stages: 2", "stages: two", 23, "schedule.stages", "a whole number, got 'two'", None),
    "fraction for a count": ("stages: 2", "stages: 2.5", 23, "schedule.stages", "a whole number, got 2.5", None),
    "truth for a count": ("stages: 2", "stages: true", 23, "schedule.stages", "a whole number, got true", None),
    "number for text": ("name: gpipe", "name: 2018", 22, "schedule.name", "expected text", "put it in quotes"),
    "no value": ("seed: 7", "seed:", 30, "seed", "has no value", None),
    "list for a mapping": ("{cuts: [3]}", "[3]", 27, "partition", "expected keys and values, got a list", None),
    "wrong word": ("adam", "adm", 18, "training.optimizer", "expected one of sgd, momentum, adam, adamw", "'adam'"),
    "10^9 micro-batches": (
        "ro_batches: 8",
        "ro_batches: 1000000000",
        24,
        "schedule.micro_batches",
        "at most 1000000",
        None,
    ),
    "too much work": ("mini_batches: 3", "mini_batches: 3000000", 25, "schedule.mini_batches", "at most 1000000", None),
    "zero micro-batches": ("ro_batches: 8", "ro_batches: 0", 24, "schedule.micro_batches", "at least 1, got 0", None),
    "too many stages": ("stages: 2", "stages: 3", 23, "schedule.stages", "3 stages on 2 devices", "use 1 to 2 stages"),
    "unknown model": ("  uniform:", "  name: mlpp\n  q:", 3, "model.name", "unknown model 'mlpp'", "'mlp'"),
    "two models": (
        "  uniform:",
        "  name: vgg16\n  uniform:",
        2,
        "model",
        "exactly one of name, profile, file, layers",
        None,
    ),
    "half a backward": ("backward:", "backward_input:", 3, "model.uniform.backward_weight", "goes with", None),
    "stray companion": ("  batch_size", "  input: 1 MB\n  batch_size", 8, "model.input", "belongs with layers", None),
    "cuts for other stages": ("[3]", "[3, 5]", 27, "partition.cuts", "2 cuts make 3 stages, schedule.stages is", None),
    "cuts out of order": ("{cuts: [3]}", "{cuts: [5, 3]}", 27, "partition.cuts", "must increase", None),
    "unknown partition": (
        "{cuts: [3]}",
        "balancd",
        27,
        "partition",
        "expected one of balanced, pipedream, got",
        "'balanced'",
    ),
    "unknown device": ("device: p40", "device: p41", 11, "cluster.nodes.0.device", "unknown device", "'p40'"),
    "unknown node": ("[gpu0, host]", "[gpu9, host]", 15, "cluster.links.0.between.0", "unknown node 'gpu9'", "'gpu1'"),
    "doubled node": ("name: gpu1", "name: gpu0", 12, "cluster.nodes.1.name", "node 'gpu0' is there twice", None),
    "no route": ("between: [gpu1, host]", "from: gpu1, to: host", 14, "cluster.links", "from 'gpu0' to 'gpu1'", None),
    "link with itself": ("[gpu0, host]", "[gpu0, gpu0]", 15, "cluster.links.0", "joins a node with itself", None),
    "doubled link": (
        "[gpu1, host]",
        "[gpu0, host]",
        16,
        "cluster.links.1",
        "a link from 'gpu0' to 'host' already",
        None,
    ),
    "link without ends": ("between: [gpu0, host], ", "", 15, "cluster.links.0", "one of between, from with to", None),
    "link with one end": ("[gpu0, host]", "[gpu0]", 15, "cluster.links.0.between", "needs 2 items, got 1", None),
    "no bandwidth": (
        "bandwidth: 12 GB/s}",
        "latency: 1 s}",
        15,
        "cluster.links.0.bandwidth",
        "of kind fifo needs",
        None,
    ),
    "unknown link": (
        "fifo, bandwidth: 12 GB/s}",
        "fair, latency: 0 s}",
        15,
        "cluster.links.0.kind",
        "one of latency",
        None,
    ),
    "gain out of range": ("shared: 1.2", "shared: 3", 12, "cluster.nodes.1.concurrency", "a gain from 1 to 2", None),
    "switch that computes": (
        "kind: gpu, d",
        "kind: switch, d",
        11,
        "cluster.nodes.0.device",
        "a switch has none",
        None,
    ),
    "section of another schedule": (
        "seed: 7",
        "background: {workers: 1, parameters: 1 MB, compute: 1 s}",
        30,
        "background",
        "says nothing without schedule.name: parameter_server",
        None,
    ),
    "too many replicas": ("weights: latest", "replicas: [3, 1]", 26, "schedule.replicas", "4 GPUs on 2 devices", None),
    "unknown allocator": (
        "allocator: counting",
        "allocator: cached",
        28,
        "memory.allocator",
        "expected one of counting, caching, best_fit, arena",
        "'caching'",
    ),
    "settings of another allocator": (
        "allocator: counting",
        "allocator: counting, settings: 'expandable_segments:True'",
        28,
        "memory.settings",
        "no influence on allocator: 'counting'",
        "use allocator: caching",
    ),
    "unknown backend": ("simulated", "simulate", 29, "backend", "expected one of simulated", "'simulated'"),
    "name with a slash": ("name: example", "name: ../x", 1, "name", "without slashes", None),
    "negative seed": ("seed: 7", "seed: -7", 30, "seed", "must be at least 0", None),
    "empty sweep": ("seed: 7", "sweep: {points: []}", 30, "sweep.points", "is empty", None),
    "tag": (
        "seed: 7",
        "seed: !!python/name:os.system 7",
        30,
        "seed",
        "tags such as '!!python/name:os.sys",
        "leave it out",
    ),
    "merge key": ("seed: 7", "<<: {seed: 7}", 30, "", "merge keys", "write the keys out"),
    "second document": ("seed: 7", "---\nseed: 7", 30, "", "a second document starts here", None),
    "broken YAML": ("{cuts: [3]}", "{cuts: [3}", 27, "", "not YAML", None),
    "tab": ("  optimizer", "\toptimizer", 18, "", "not YAML", None),
    "bomb": ("seed: 7", BOMB, 32, "", "more than 200000 values", None),
    "too deep": ("seed: 7", "seed: " + "[" * 99 + "]" * 99, 30, "", "nested deeper than 32", None),
    "control character": ("seed: 7", "seed: \x00", 30, "", "a binary file", None),
    "no such profile": (
        "  uniform:",
        f"  profile: {HERE}x\n  q:",
        3,
        "model.profile",
        "there is no file",
        f"'{HERE.name}'",
    ),
    "a directory as a profile": (
        "  uniform:",
        f"  profile: {HERE}\n  q:",
        3,
        "model.profile",
        "is a directory",
        "graph.txt",
    ),
    "zero devices": (CLUSTER, "cluster: {devices: 0}\n", 9, "cluster.devices", "at least 1, got 0", None),
    "unknown preset": (CLUSTER, "cluster: nvlink-8gp\n", 9, "cluster", "unknown cluster", "'nvlink-8gpu'"),
    "devices without link": (CLUSTER, "cluster: {devices: 2}\n", 9, "cluster.link", "missing: what joins", None),
    "more stages than layers": (UNIFORM, LAYERS, 20, "schedule.stages", "2 stages of 1 layers", "use 1 to 1 stages"),
    "cut behind the last layer": (UNIFORM, LAYERS, 24, "partition.cuts", "no cut at 3: the model has 1 layers", None),
    "no layers": (UNIFORM, "  layers: []\n", 3, "model.layers", "is empty", None),
    "empty file": (GOOD, "", 1, "", "the document is empty", None),
    "a list": (GOOD, "- 1\n", 1, "", "expected keys and values", None),
}


def faults(call: Callable[[], object]) -> tuple[Fault, ...]:
    with pytest.raises(ScenarioError) as caught:
        call()
    assert str(caught.value) == "\n".join(str(fault) for fault in caught.value.faults)
    return caught.value.faults


def test_the_good_scenario_is_good() -> None:
    assert parse(parse_text(GOOD, "bad.yaml")).name == "example"


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_bad_scenario(kind: str) -> None:
    old, new, line, path, message, suggestion = BAD[kind]
    assert old in GOOD
    found = faults(lambda: parse(parse_text(GOOD.replace(old, new, 1), "bad.yaml")))
    (fault,) = [fault for fault in found if (fault.line, fault.path) == (line, path) and message in fault.message]
    assert fault.file == "bad.yaml"
    assert (suggestion or "") in (fault.suggestion or "")
    for each in found:
        assert not re.search("Input should|pydantic|https?:|Extra inputs|Field required|validation error", str(each))
        assert str(each).isprintable()


@pytest.mark.parametrize(
    "kind", ["unknown key", "no unit", "negative time", "wrong word", "no route", "10^9 micro-batches"]
)
def test_one_mistake_is_one_fault(kind: str) -> None:
    old, new, *_ = BAD[kind]
    assert len(faults(lambda: parse(parse_text(GOOD.replace(old, new, 1), "bad.yaml")))) == 1


def test_sizes_beyond_the_limits() -> None:
    text = GOOD.replace("micro_batches: 8", "micro_batches: 9000").replace("mini_batches: 3", "mini_batches: 8000")
    (fault,) = faults(lambda: parse(parse_text(text, "bad.yaml")))
    product = "stages x micro_batches x mini_batches = 144000000 forward passes: the limit is 20000000"
    assert str(fault) == f"bad.yaml:24: schedule.micro_batches: {product}"
    text = (
        GOOD.replace(CLUSTER, "cluster: pcie3-switch-4gpu\n")
        .replace("stages: 2", "stages: 5")
        .replace("[3]", "[1, 2, 3, 4]")
    )
    (fault,) = faults(lambda: parse(parse_text(text, "bad.yaml")))
    assert str(fault) == "bad.yaml:16: schedule.stages: 5 stages on 4 devices (use 1 to 4 stages)"


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "b.yaml").write_bytes(b"\x7fELF\x02\x01\x01\x00")
    for name, message in {"a.yaml": "not UTF-8", "b.yaml": "a binary file", "": "a directory", "c": "no such"}.items():
        (fault,) = faults(lambda name=name: load_document(tmp_path / name))  # type: ignore[misc]
        assert fault.file == str(tmp_path / name)
        assert message in fault.message


def test_five_faults_are_five_faults() -> None:
    changes = [
        BAD[kind]
        for kind in ("no unit", "unknown nested key", "unknown backend", "zero micro-batches", "duplicate key")
    ]
    changes[2] = (
        "backend: simulated",
        "backend: simulate",
        29,
        "backend",
        "expected one of",
        "did you mean 'simulated'?",
    )
    text = GOOD
    for old, new, *_ in changes:
        text = text.replace(old, new, 1)
    found = faults(lambda: parse(parse_text(text, "bad.yaml")))
    expected = sorted((line, path) for _, _, line, path, *_ in changes)
    assert [(fault.line, fault.path) for fault in found] == expected


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["8 GB/s", "5 ms", "-1 s", "gpu", "gpu0", "latency", [], {}, [[]], [None], {"a": None}, ["gpu0", "gpu0"]]
    ),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a tree."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [spot for key in keys for spot in [(value, key), *spots(value[key])]]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_mutation_raises_anything_but_a_scenario_error(data: st.DataObject) -> None:
    tree = copy.deepcopy(parse_text(GOOD + "sweep: {grid: {seed: [1, 2], cluster.nodes: [[]]}}\n", "x").data)
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(spots(tree)))
        action = data.draw(st.sampled_from(["replace", "remove", "rename"]))
        value = container.pop(key)
        if isinstance(container, dict) and action == "rename":
            container[data.draw(st.text(max_size=6))] = value
        elif action == "replace" or isinstance(container, list):
            new = copy.deepcopy(data.draw(VALUES))  # drawn values may be shared, and this one may be mutated next
            container.insert(key, new) if isinstance(container, list) else container.update({key: new})
        if not spots(tree):
            break
    text = dump(tree)
    for read in (parse, parse_points):
        try:
            read(parse_text(text, "x"))
        except ScenarioError as error:
            found = error.faults
            assert found, "an error without a fault"
            assert not re.search("Input should|https?:", str(error))  # noqa: PT017


@given(st.integers(0, len(GOOD)), st.integers(0, 20), st.text(max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_slip_of_the_hand_raises_anything_but_a_scenario_error(start: int, length: int, typed: str) -> None:
    text = GOOD[:start] + typed + GOOD[start + length :]
    try:
        parse_points(parse_text(text, "x"))
    except ScenarioError as error:
        assert all(fault.file == "x" for fault in error.faults)  # noqa: PT017
