"""Reading YAML: values against ruamel's own loader, lines against the text, refusals by their words."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from scenarios.document import Document, KeyPath, assign, dotted, split
from scenarios.load import MAX_BYTES, apply_sets, dump, load_document, parse_text, shipped
from scenarios.quantities import WrongValue
from sim.errors import Fault, ScenarioError

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TEXT = """\
name: example
model:
  uniform: {forward: 18.5 ms,
            backward: 30 ms}
  batch_size:
    32
cluster:
  nodes:
    - {name: a, kind: gpu}
    -
      name: b
schedule: &base {name: gpipe, stages: 2}
other: *base
"""


def faults(text: str) -> tuple[Fault, ...]:
    with pytest.raises(ScenarioError) as caught:
        parse_text(text, "x.yaml")
    return caught.value.faults


def faults_of(call: Callable[[], Document]) -> tuple[Fault, ...]:
    """What a scenario error says, nothing where there is none; any other error is the test's."""
    try:
        return call().faults
    except ScenarioError as error:
        return error.faults


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_read_as_by_ruamel(path: Path) -> None:
    document = load_document(path)
    assert document.data == YAML(typ="safe").load(path)
    assert document.faults == ()


def leaves(value: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(path, value), *(leaf for key, child in children for leaf in leaves(child, (*path, key)))]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_every_scalar_stands_in_its_line(path: Path) -> None:
    lines, document = path.read_text(encoding="utf-8").split("\n"), load_document(path)
    for key_path, value in leaves(document.data):
        line = document.place(key_path).line
        assert line is not None
        if isinstance(value, str) and " " not in value:
            assert value in lines[line - 1]
        elif key_path and isinstance(key_path[-1], str):
            assert f"{key_path[-1]}:" in "".join(lines[line - 2 : line])


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 1),
        ("name", 1),
        ("model", 2),
        ("model.uniform", 3),
        ("model.uniform.backward", 4),
        ("model.uniform.missing", 3),
        ("model.uniform.missing.below", 3),
        ("model.batch_size", 6),
        ("cluster.nodes", 8),
        ("cluster.nodes.0.kind", 9),
        ("cluster.nodes.1", 11),
        ("cluster.nodes.7", 8),
        ("schedule.stages", 12),
        ("other", 13),
        ("other.stages", 12),
    ],
)
def test_lines(path: str, line: int) -> None:
    fault = parse_text(TEXT, "x.yaml").fault(path, "wrong", "hint")
    assert fault == Fault("wrong", path, "x.yaml", line, "hint")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+3", 3),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("yes", "yes"),
        ("on", "on"),
        ("TRUE", True),
        ("~", None),
        ("", None),
        ("null", None),
        ("'5'", "5"),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("8 GB/s", "8 GB/s"),
        ("=", "="),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("'9" + "9" * 400 + "'", "9" * 401),
    ],
)
def test_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    assert parse_text(f"a: {text}", "x").data == {"a": value}


def test_numbers_of_absurd_length_are_harmless() -> None:
    assert parse_text("a: " + "9" * 5000, "x").data == {"a": float("inf")}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the document is empty"),
        ("# only a comment\n", 1, "the document is empty"),
        ("---\n", 1, "the document is empty"),
        ("- a\n", 1, "got a list: expected keys and values"),
        ("word\n", 1, "got 'word'"),
        ("a: 1\nb: [1, 2\n", 3, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: 1\nb: {c: d: e}\n", 2, "not YAML"),
        ('a: "\\UFFFFFFFF"\n', None, "not YAML"),
        ("a: 1\nb: \x00\n", 2, "a binary file"),
        ("a: 1\nb: \x1b[31m\n", 2, "stray U+001B"),
        ("a: 1\nb: *nowhere\n", 2, "alias '*nowhere' stands for nothing"),
        ("a: &a [*a]\n", 1, "alias '*a' stands for nothing"),
        ("a: " + "[" * 40 + "]" * 40, 1, "nested deeper than 32"),
        ("[" * 100_000, 1, "nested deeper than 32"),
    ],
)
def test_text_that_is_not_read(text: str, line: int | None, message: str) -> None:
    (fault,) = faults(text)
    assert (fault.file, fault.line) == ("x.yaml", line)
    assert message in fault.message


def test_bombs_of_aliases() -> None:
    wide = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    assert "more than 200000 values" in faults(f"a0: &a0 lol\n{wide}\n")[-1].message
    deep = "\n".join(f"a{n}: &a{n} [[[[[[*a{n - 1}]]]]]]" for n in range(1, 200))
    assert "nested deeper than 32" in faults(f"a0: &a0 lol\n{deep}\n")[-1].message


def test_faults_of_the_text_are_kept_for_later() -> None:
    text = "a: 1\na: 2\nb: !!python/object:os.system {}\nc:\n  <<: {d: 1}\n  [x]: 2\n  e: 1\n  e: 2\n---\nf: 1\n"
    document = parse_text(text, "x.yaml")
    assert [str(fault) for fault in document.faults] == [
        "x.yaml:2: a: key 'a' is there twice, first in line 1",
        "x.yaml:3: b: tags such as '!!python/object:os.system' are not read (leave it out)",
        "x.yaml:5: c: merge keys '<<' are not part of YAML 1.2 (write the keys out)",
        "x.yaml:6: c: a key must be plain text",
        "x.yaml:8: c.e: key 'e' is there twice, first in line 7",
        "x.yaml:9: a second document starts here: expected one",
    ]
    assert document.data == {"a": 1, "b": {}, "c": {"e": 1}}
    assert "1.2" in parse_text("%YAML 1.1\n---\na: 1\n", "x").faults[0].message


def test_files_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("a: 1\n")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    expected = {
        "": "this is a directory",
        "scenaro.yaml": "no such file (did you mean 'scenario.yaml'?)",
        "none/x.yaml": "no such file",
        "scenario.yaml/x": "cannot be read: Not a directory",
        "a\0b": "cannot be read: embedded null byte",
        "latin.yaml": "latin.yaml:2: not UTF-8",
        "large.yaml": "more than 1 MiB",
    }
    for name, message in expected.items():
        with pytest.raises(ScenarioError) as caught:
            load_document(tmp_path / name)
        assert message in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa9\r\n")
    assert load_document(tmp_path / "x.yaml").data == {"a": 1, "b": "é"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))
    document = load_document("-")
    assert (document.data, document.file, document.directory("a")) == ({"a": 1}, "<stdin>", Path())


def test_shipped_files_by_name() -> None:
    assert {"p40", "host"} <= shipped("devices").keys()
    assert {"vgg16"} <= shipped("models").keys()
    assert all(path.is_file() for kind in ("devices", "clusters", "models") for path in shipped(kind).values())


def test_file_names_are_relative_to_what_names_them(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model: {profile: graph.txt}\n")
    document = load_document(tmp_path / "x.yaml")
    assert document.directory("model.profile") == tmp_path
    assert apply_sets(document, ["model.profile=graph.txt"]).directory("model.profile") == Path()


def test_full_paths_mean_the_same_in_any_folder(tmp_path: Path) -> None:
    """Of files that are named at their place, in a point, on an axis or by --set; nothing else changes."""
    text = """
name: profile
model: {profile: a/graph.txt, batch_size: 4}
jitter: {compute: {empirical: times.txt}, apply: {empirical: [1.0, 2.0]}}
sweep:
  points: [{schedule: {csv: one.csv}}, {model.profile: ../b.txt, name: b.txt}]
  grid: {cluster.file: [rack.yaml, /etc/rack.yaml]}
"""
    (tmp_path / "scenario.yaml").write_text(text)
    document = load_document(str(tmp_path / "scenario.yaml"))
    full = apply_sets(document, ["model.measured=mine.yaml"]).with_full_paths().data
    assert full["name"] == "profile"
    assert full["model"]["measured"] == str(Path("mine.yaml").resolve())
    assert full["jitter"] == {"compute": {"empirical": f"{tmp_path}/times.txt"}, "apply": {"empirical": [1.0, 2.0]}}
    first, second = full["sweep"]["points"]
    assert first == {"schedule": {"csv": f"{tmp_path}/one.csv"}}
    assert second == {"model.profile": f"{tmp_path.parent}/b.txt", "name": "b.txt"}
    assert full["sweep"]["grid"]["cluster.file"] == [f"{tmp_path}/rack.yaml", "/etc/rack.yaml"]
    assert document.with_full_paths().data["model"]["profile"] == f"{tmp_path}/a/graph.txt"


@pytest.mark.parametrize("name", ["loop", "a\0b", "x" * 5000])
def test_what_is_the_name_of_no_file_gets_a_full_path_too(tmp_path: Path, name: str) -> None:
    """It may stand in a condition of a sweep, which reads no file."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "s.yaml").write_text(f"sweep: {{skip: [{{model.file: {json.dumps(name)}}}]}}")
    full = load_document(tmp_path / "s.yaml").with_full_paths().data
    assert full["sweep"]["skip"] == [{"model.file": f"{tmp_path}/{name}"}]


BASE = parse_text(
    """\
name: example
model: {name: vgg16, batch_size: 32}
cluster: pcie
schedule: {name: gpipe, stages: 4}
partition: balanced
sweep: {points: [{name: a, schedule: {name: gpipe}}, {name: b}]}
""",
    "x.yaml",
)


@pytest.mark.parametrize(
    ("sets", "path", "value"),
    [
        (["schedule.stages=8"], "schedule", {"name": "gpipe", "stages": 8}),
        (["schedule.stages = 8"], "schedule", {"name": "gpipe", "stages": 8}),
        (["schedule.stages=null"], "schedule", {"name": "gpipe"}),
        (["memory.capacity=24 GiB"], "memory", {"capacity": "24 GiB"}),
        (["name='=a: b'"], "name", "=a: b"),
        (["name=a=b"], "name", "a=b"),
        (["partition.cuts=[1, 2]"], "partition", {"cuts": [1, 2]}),
        (["cluster=other"], "cluster", "other"),
        (["cluster.link.bandwidth=8 GB/s"], "cluster", {"preset": "pcie", "link": {"bandwidth": "8 GB/s"}}),
        (["cluster.devices=2"], "cluster", {"devices": 2}),
        (["model.profile=x.txt"], "model", {"batch_size": 32, "profile": "x.txt"}),
        (["model.batch_size=1"], "model", {"name": "vgg16", "batch_size": 1}),
        (["model.uniform.backward=2 s"], "model", {"batch_size": 32, "uniform": {"backward": "2 s"}}),
        (
            ["model.uniform={forward: 1 s, backward: 2 s}", "model.uniform.backward_input=1 s"],
            "model.uniform",
            {"forward": "1 s", "backward_input": "1 s"},
        ),
        (["sweep.points.0.schedule.stages=2"], "sweep.points.0.schedule", {"name": "gpipe", "stages": 2}),
        (["sweep.points.1=null"], "sweep.points", [{"name": "a", "schedule": {"name": "gpipe"}}]),
        (["sweep.grid.cluster.link.bandwidth=[8, 9]"], "sweep", {"grid": {"cluster.link.bandwidth": [8, 9]}}),
        (["a.b.c=1", "a.b.d=2"], "a", {"b": {"c": 1, "d": 2}}),
    ],
)
def test_sets(sets: list[str], path: str, value: object) -> None:
    found: Any = apply_sets(BASE, sets).data
    for key in split(path):
        found = found[key]
    assert found == value
    assert BASE.data["schedule"] == {"name": "gpipe", "stages": 4}


def test_a_set_value_is_its_own_place() -> None:
    document = apply_sets(BASE, ["cluster.lnk.bandwidth=8 GB/s", "schedule={name: x}"])
    assert str(document.fault("cluster.lnk", "wrong")) == "--set cluster.lnk: wrong"
    assert str(document.fault("cluster.lnk.bandwidth", "wrong")) == "--set cluster.lnk.bandwidth: wrong"
    assert str(document.fault("cluster.preset", "wrong")) == "x.yaml:3: cluster: wrong"
    assert str(document.fault("schedule.stages", "wrong")) == "--set schedule.stages: wrong"
    assert document.placed(document.fault("schedule.stages", "wrong")).line is None
    assert document.placed(Fault("wrong", "name")) == Fault("wrong", "name", "x.yaml", 1)


def test_every_wrong_set_is_reported() -> None:
    wrong = {
        "schedule": "expected PATH=VALUE",
        "=3": "expected PATH=VALUE",
        "a..b=3": "expected PATH=VALUE",
        "name.x=3": "'name' is 'example': it has no keys of its own",
        "schedule.stages=": "no value (write null to remove the key)",
        "schedule.name=[": "not YAML",
        "model.name=!x y": "tags such as '!x'",
        "model.batch=null": "there is no 'batch' in model",
        "sweep.points.2.name=x": "there is no '2' in points",
        "sweep.points.x=1": "there is no 'x' in points",
        ".".join("a" * 40) + "=1": "a path of more than 32 keys",
    }
    with pytest.raises(ScenarioError) as caught:
        apply_sets(BASE, list(wrong))
    assert len(caught.value.faults) == len(wrong)
    for fault, (text, message) in zip(caught.value.faults, wrong.items(), strict=True):
        assert str(fault).startswith(f"--set {text.split('=')[0]}")
        assert message in str(fault)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=12)
tricky = st.sampled_from(["null", "8 GB/s", "1e3", "010", "yes", "a\nb", "0o17", "1_000", "<<", "2020-01-01", "1:30"])
scalars = st.one_of(words, tricky, st.integers(), st.booleans(), st.floats(allow_nan=False))
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(words, trees, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    document = parse_text(dump(data), "x")
    assert document.faults == ()
    assert document.data == data
    assert list(document.data) == list(data)


@given(st.one_of(st.text(), st.text(alphabet="{}[]:-,&*!|>'\"%@`#? \n\tab1.<~")))
@settings(max_examples=500, deadline=None)
def test_no_text_raises_anything_but_a_scenario_error(text: str) -> None:
    assert all(fault.file == "x" for fault in faults_of(lambda: parse_text(text, "x")))


@given(st.lists(st.text(alphabet="abc.=[]{}:0 ", max_size=12), max_size=3))
def test_no_set_raises_anything_but_a_scenario_error(sets: list[str]) -> None:
    assert all(fault.path.startswith("--set") for fault in faults_of(lambda: apply_sets(BASE, sets)))


def test_assign_does_not_reach_through_scalars() -> None:
    with pytest.raises(WrongValue, match="no keys of its own"):
        assign(BASE.root, split("name.a"), BASE.root)
    assert dotted(split("a.0.b")) == "a.0.b"
    assert split("") == ()
