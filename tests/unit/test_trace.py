"""Traces on disk: what is written is what is read, and files from strangers do no harm."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import BadTraceFile
from sim.planners import data_parallel, dualpipe_2018, gpipe, one_f_one_b, pipedream
from sim.program import Program
from sim.schedule import Schedule
from sim.trace import Trace

WORK: dict[str, tuple[Schedule | Program, dict[str, Any]]] = {
    "gpipe": (gpipe.plan(3, 4, 2), {}),
    "pipedream": (pipedream.plan(3, 2, 4), {"weights": "stash"}),
    "dualpipe_2018": (dualpipe_2018.plan(2, 1, 6), {"weights": "predict", "distances": ((3, 0), (2, 1))}),
    "ring": (data_parallel.plan(3, 2), {}),
    "parameter_server": (data_parallel.plan(3, 2, "parameter_server"), {"server": 3}),
}


@pytest.fixture(scope="session")
def trace(simulate: Any, mesh: Any) -> Any:
    """One run of each kind of work."""

    def trace(name: str) -> Trace:
        work, keywords = WORK[name]
        count = work.shape.stages * work.shape.replicas
        made: Trace = simulate(work, mesh(count, "in_order", 0.125, 8.0, host="server" in keywords), **keywords)
        return made

    return trace


@pytest.fixture(scope="module")
def file(trace: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good trace."""
    path: Path = tmp_path_factory.mktemp("traces") / "good.npz"
    trace("pipedream").save(path)
    return path


@pytest.mark.parametrize("name", WORK)
def test_what_is_written_is_what_is_read(trace: Any, name: str, tmp_path: Path) -> None:
    written, path = trace(name), tmp_path / "trace.npz"
    written.save(path)
    read = Trace.load(path)
    assert (read.header, read.shape, read.lanes) == (written.header, written.shape, written.lanes)
    for column in ("ops", "start_s", "end_s", "flows", "memory"):
        assert getattr(read, column).dtype == getattr(written, column).dtype
        assert getattr(read, column).tobytes() == getattr(written, column).tobytes()
    assert [row.tolist() for row in read.order] == [row.tolist() for row in written.order]
    read.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["gpipe", "pipedream", "dualpipe_2018", "ring"])
def test_the_order_that_was_run_is_the_order_of_the_plan(trace: Any, name: str) -> None:
    """Weights, distances and edges beyond the data (the admission rule of dualpipe) included."""
    work, keywords = WORK[name]
    assert isinstance(work, Schedule)
    again = trace(name).as_schedule()
    lanes = dict(zip(again.lanes, again.order, strict=True))
    for lane, order in zip(work.lanes, work.order, strict=True):
        assert [again.id(int(op)) for op in lanes[lane]] == [work.id(int(op)) for op in order]
    assert again.weights == keywords.get("weights", "latest")
    assert again.distances == keywords.get("distances", ())


def test_a_trace_says_where_it_comes_from(trace: Any) -> None:
    header = trace("gpipe").header
    assert {"backend", "seed", "versions", "hardware", "method", "model"} <= header.keys()
    json.dumps(header)
    assert header["devices"] == ["gpu0", "gpu1", "gpu2"]


def test_makespan_and_order(trace: Any) -> None:
    made = trace("gpipe")
    assert made.makespan_s == made.end_s.max()
    for row in made.order:
        assert (np.diff(made.start_s[row]) >= 0).all()


class Harmful:
    """Unpickling it would leave a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/twinrail-was-here"),))


def replaced(good: Path, **arrays: Any) -> bytes:
    """The file with some of its arrays replaced (``None``: left out)."""
    with np.load(good) as archive:
        columns = {name: archive[name] for name in archive.files}
    columns = {name: array for name, array in {**columns, **arrays}.items() if array is not None}
    return written_by(lambda buffer: np.savez(buffer, **columns))


def written_by(write: Callable[[io.BytesIO], None]) -> bytes:
    """The bytes that ``write`` writes."""
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def header(good: Path, **changes: Any) -> Any:
    """The header array with some keys changed (``None``: left out)."""
    with np.load(good) as archive:
        known = json.loads(archive["header"].tobytes())
    known = {key: value for key, value in {**known, **changes}.items() if value is not None}
    return np.frombuffer(json.dumps(known).encode(), np.uint8)


def column(good: Path, name: str, field: str | None, value: Any) -> Any:
    """A column with its first value changed."""
    with np.load(good) as archive:
        array = archive[name].copy()
    if field is None:
        array[0] = value
    else:
        array[field][0] = value
    return array


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "nothing": lambda good: b"",
    "text": lambda good: b"schedule: {name: gpipe}\n",
    "random bytes": lambda good: random.Random(0).randbytes(5000),
    "a pickle": lambda good: pickle.dumps(Harmful()),
    "a pickle in the archive": lambda good: replaced(good, ops=np.array([Harmful()], object)),
    "an array alone": lambda good: written_by(lambda buffer: np.save(buffer, np.arange(3))),
    "a zip of nothing": lambda good: written_by(lambda buffer: zipfile.ZipFile(buffer, "w").close()),
    "a zip of something else": lambda good: written_by(lambda buffer: np.savez(buffer, x=np.arange(3))),
    "no header": lambda good: replaced(good, header=None),
    "no ops": lambda good: replaced(good, ops=None),
    "a header that is no JSON": lambda good: replaced(good, header=np.frombuffer(b"{", np.uint8)),
    "a header that is a list": lambda good: replaced(good, header=np.frombuffer(b"[1]", np.uint8)),
    "a header of depth": lambda good: replaced(good, header=np.frombuffer(b"[" * 100_000, np.uint8)),
    "another format": lambda good: replaced(good, header=header(good, format=999)),
    "no devices": lambda good: replaced(good, header=header(good, devices=[])),
    "devices that are a number": lambda good: replaced(good, header=header(good, devices=3)),
    "no links": lambda good: replaced(good, header=header(good, links=[])),
    "links without bandwidth": lambda good: replaced(good, header=header(good, links=[{"name": "a"}] * 6)),
    "no weights": lambda good: replaced(good, header=header(good, weights=None)),
    "a shape of nothing": lambda good: replaced(good, header=header(good, shape=[0, 0, 0, 0, [], []])),
    "a shape of text": lambda good: replaced(good, header=header(good, shape="abcdef")),
    "lanes of text": lambda good: replaced(good, header=header(good, lanes=["compute"])),
    "lanes elsewhere": lambda good: replaced(good, header=header(good, lanes=[[77, "compute"]])),
    "times of text": lambda good: replaced(good, start_s=np.array(["a"])),
    "too few times": lambda good: replaced(good, start_s=np.zeros(1), end_s=np.zeros(1)),
    "times of two axes": lambda good: replaced(good, start_s=np.zeros((2, 2)), end_s=np.zeros((2, 2))),
    "no end": lambda good: replaced(good, end_s=column(good, "end_s", None, np.inf)),
    "nowhen": lambda good: replaced(good, start_s=column(good, "start_s", None, np.nan)),
    "before the beginning": lambda good: replaced(good, start_s=column(good, "start_s", None, -1.0)),
    "an end before its start": lambda good: replaced(good, start_s=column(good, "start_s", None, 1e9)),
    "an unknown kind": lambda good: replaced(good, ops=column(good, "ops", "kind", 99)),
    "an unknown device": lambda good: replaced(good, ops=column(good, "ops", "source", 99)),
    "an unknown stage": lambda good: replaced(good, ops=column(good, "ops", "stage", -5)),
    "ops of another type": lambda good: replaced(good, ops=np.zeros(3)),
    "lanes that start nowhere": lambda good: replaced(good, order_starts=np.empty(0, np.int64)),
    "lanes that go back": lambda good: replaced(good, order_starts=column(good, "order_starts", None, 10**6)),
    "an unknown op on a lane": lambda good: replaced(good, order_values=column(good, "order_values", None, -7)),
    "lanes between lanes": lambda good: replaced(good, order_values=np.load(good)["order_values"].astype(float)),
    "a flow of no op": lambda good: replaced(good, flows=column(good, "flows", "op", -2)),
    "a flow on no link": lambda good: replaced(good, flows=column(good, "flows", "link", 10**6)),
    "memory of no device": lambda good: replaced(good, memory=column(good, "memory", "device", 10**6)),
    "memory of no kind": lambda good: replaced(good, memory=column(good, "memory", "kind", 77)),
    "memory of no op": lambda good: replaced(good, memory=column(good, "memory", "op", 10**6)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_trace_is_refused_as_such(what: str, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(HOSTILE[what](file))
    with pytest.raises(BadTraceFile, match=r"bad\.npz"):
        Trace.load(path)
    assert not Path("/tmp/twinrail-was-here").exists()


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(BadTraceFile, match="no such file"):
        Trace.load(tmp_path / "missing.npz")
    with pytest.raises(BadTraceFile):
        Trace.load(tmp_path)


def test_a_file_cut_short_anywhere(file: Path, tmp_path: Path) -> None:
    data, path = file.read_bytes(), tmp_path / "short.npz"
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(BadTraceFile):
            Trace.load(path)


def test_a_file_with_flipped_bytes_is_refused_or_still_a_trace(file: Path, tmp_path: Path) -> None:
    data, path, dice = file.read_bytes(), tmp_path / "flipped.npz", random.Random(0)
    refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        for place in dice.choices(range(len(data)), k=dice.choice((1, 1, 2, 8))):
            damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            read = Trace.load(path)
        except BadTraceFile:
            refused += 1
        else:
            assert len(read.order) == len(read.lanes)
    assert refused > 300


def test_saving_twice_gives_the_same_bytes(trace: Any, tmp_path: Path) -> None:
    made = trace("gpipe")
    made.save(tmp_path / "one.npz")
    made.save(tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_one_f_one_b_trace_runs_again_as_a_schedule(simulate: Any, mesh: Any) -> None:
    cluster = mesh(4, "in_order", 0.125, 8.0)
    first = simulate(one_f_one_b.plan(4, 6, 2), cluster)
    again = simulate(first.as_schedule(), cluster)
    assert again.start_s.tobytes() == first.start_s.tobytes()
    assert again.end_s.tobytes() == first.end_s.tobytes()
