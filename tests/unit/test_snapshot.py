"""Snapshot files: written for PyTorch's viewer, read without trust, and replayed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis import memory_plot, memory_timeline
from scenarios import memory_command
from scenarios.command_line import app
from sim.errors import BadTraceFile, ScenarioError, TwinrailError, UnsupportedPlan
from sim.memory import plain_pickle, snapshot
from sim.memory.caching import Caching
from sim.memory.driver import SimulatedDriver
from sim.memory.replay import replay
from sim.memory.rules import Tag
from sim.memory.settings import parse_settings
from sim.memory.what_if import what_if

MIB = 2**20


def simulated(settings: str = "", total: int | None = 200 * MIB) -> Caching:
    """A history with everything in it: segments, streams, a retry, a failure, an emptied cache."""
    caching = Caching(parse_settings(settings), SimulatedDriver(total), record=True)
    live: list[int] = []
    for step, size in enumerate((512, 3 * MIB, 12 * MIB, 700_000, 25 * MIB, 2 * MIB, 40 * MIB, 8 * MIB)):
        caching.now_us = 10 * step
        grant = caching.malloc(size, step % 2, Tag("activations" if step % 3 else "weights", f"stage {step % 2}"))
        assert grant is not None
        live.append(grant.address)
    for address in live[1::2]:
        caching.free(address)
    caching.record_stream(live[0], 5)
    caching.free(live[0])
    assert caching.malloc(150 * MIB) is None
    caching.empty_cache()
    assert caching.malloc(60 * MIB, 0, Tag("workspace")) is not None
    caching.record_stream(live[2], 5)
    caching.free(live[2])
    return caching


SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:[1:4,>:8]"]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_is_written_replays_to_the_end(settings: str, tmp_path: Path) -> None:
    caching = simulated(settings)
    snapshot.write(tmp_path / "run.pickle", [caching])
    shot = snapshot.read(tmp_path / "run.pickle")
    found = replay(shot, total_bytes=200 * MIB)
    stats = caching.stats()
    assert found.agrees, found.mismatches
    assert found.new_segments.checked
    assert found.releases.checked
    assert found.allocated_bytes == stats["allocated_bytes.all.current"]
    assert found.reserved_bytes == stats["reserved_bytes.all.current"]
    assert found.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    assert found.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
    assert shot.settings == caching.settings


def test_the_trace_may_begin_anywhere() -> None:
    """PyTorch keeps only the last events: from each of them on, the rest replays."""
    whole = snapshot.as_pytorch([simulated()])
    for first in range(len(whole["device_traces"][0])):
        part = {**whole, "device_traces": [whole["device_traces"][0][first:]]}
        found = replay(snapshot.parse(part))
        assert found.agrees, (first, found.mismatches)


def test_the_unsplit_tail_of_an_old_block_is_inferred() -> None:
    """19.5 MiB of a segment of 20 keep the last half; the trace knows only what was requested."""
    caching = Caching(record=True)
    first, second = caching.malloc(19 * MIB + MIB // 2), caching.malloc(15 * MIB + MIB // 2)
    assert first is not None
    assert second is not None
    assert caching.history is not None
    caching.history.clear()
    caching.free(first.address)
    caching.free(second.address)
    found = replay(snapshot.parse(snapshot.as_pytorch([caching])))
    assert found.agrees
    assert (found.inferred_blocks, found.peak_allocated_bytes) == (2, (20 + 16) * MIB)


def test_a_wrong_address_is_counted_and_the_rest_still_compared() -> None:
    wrong = snapshot.as_pytorch([simulated()])
    entries = wrong["device_traces"][0]
    index = max(index for index, entry in enumerate(entries) if entry["action"] == "alloc" and entry["size"] == 8 * MIB)
    moved = copy.deepcopy(wrong)
    for entry in moved["device_traces"][0]:
        if entry.get("addr") == entries[index]["addr"] and entry["size"] == 8 * MIB:
            entry["addr"] += 2 * MIB
    found = replay(snapshot.parse(moved))
    assert not found.agrees
    assert found.cached_allocations.matched == found.cached_allocations.checked - 1
    assert f"{8 * MIB:,} B" in found.mismatches[0]


@pytest.mark.parametrize("settings", SETTINGS)
def test_pytorchs_own_viewer_reads_it(settings: str) -> None:
    viz: Any = pytest.importorskip("torch.cuda._memory_viz")
    caching = simulated(settings)
    data = pickle.loads(pickle.dumps(snapshot.as_pytorch([caching]), 4))
    assert f"total_allocated: {viz.Bytes(sum_requested(data))}" in viz.segsum(data)
    text = viz.trace(data)
    assert f"{len(caching.history or ())} entries" in text
    assert "raise OutOfMemoryError" in text
    for draw in (viz.segments, viz.memory):
        assert "stage 0:0:weights" in draw(data, format_flamegraph=lambda lines: lines)
    assert viz.compare(data["segments"], data["segments"], format_flamegraph=lambda lines: lines) == ""
    assert "MemoryViz.js" in viz.trace_plot(data)
    assert "MemoryViz.js" in viz.segment_plot(data)
    assert len(viz.filter_alloc_free_pairs(data)["device_traces"][0]) < len(caching.history or ())


def sum_requested(data: dict[str, Any]) -> int:
    """Bytes that blocks in use were asked for."""
    blocks = (block for segment in data["segments"] for block in segment["blocks"])
    return sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")


def test_segments_tile_and_do_not_overlap() -> None:
    shot = snapshot.parse(snapshot.as_pytorch([simulated()]))
    for segment in shot.segments:
        assert sum(block.size for block in segment.blocks) == segment.size
        assert all(left.address + left.size == right.address for left, right in pairwise(segment.blocks))


class Evil:
    """Pickles into a call."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("pwned",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no pickle"),
        (b"hello", "no pickle"),
        (pickle.dumps({"segments": [], "x": Evil()}, 4), "asks for STACK_GLOBAL"),
        (pickle.dumps(Evil(), 2), "asks for GLOBAL"),
        (pickle.dumps({"a": b"bytes"}, 4), "asks for SHORT_BINBYTES"),
        (pickle.dumps({"segments": [1, 2, 3]}, 4)[:-9], "damaged"),
        (pickle.dumps({1: 2}, 4), "a key that is no string"),
        (pickle.dumps([2**200], 4), "a number of 26 bytes"),
        (b"\x80\x04r\xff\xff\xff\xff.", "damaged"),  # a memo of 32 GiB, in the C reader
        (b"\x80\x04" + b"(" * 5000, "nests or holds more"),
        (b"\x80\x04" + b"]" * 200_000, "nests or holds more"),
        (b"\x80\x04X\xff\xff\xff\x7fabc.", "damaged"),
    ],
)
def test_hostile_pickles_are_refused_before_anything_happens(data: bytes, reason: str, capsys: Any) -> None:
    with pytest.raises(BadTraceFile, match=reason):
        snapshot.parse(plain_pickle.loads(data, "x.pickle"))
    assert capsys.readouterr().out == ""


def test_plain_pickles_read_as_python_reads_them() -> None:
    value = {"a": [1, -1, 2.5, None, True, False, (), (1,), (1, 2), (1, 2, 3, 4)], "b": {}, "ä": 2**63, "c": "x" * 300}
    value["d"] = [value["a"], value["a"]]
    for protocol in (2, 3, 4, 5):
        assert plain_pickle.loads(pickle.dumps(value, protocol), "x") == value


def break_sizes(data: dict[str, Any]) -> None:
    data["segments"][0]["blocks"][0]["size"] += 512


def break_states(data: dict[str, Any]) -> None:
    data["segments"][0]["blocks"][0]["state"] = "asleep"


def break_actions(data: dict[str, Any]) -> None:
    data["device_traces"][0][0]["size"] = "large"


def break_overlap(data: dict[str, Any]) -> None:
    data["segments"].append(copy.deepcopy(data["segments"][0]))


def break_history(data: dict[str, Any]) -> None:
    data["device_traces"][0].append(dict(data["device_traces"][0][1]))


def break_type(data: dict[str, Any]) -> None:
    data["segments"][0]["segment_type"] = None


def break_keys(data: dict[str, Any]) -> None:
    del data["device_traces"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (break_sizes, r"segments\[0\]"),
        (break_states, r"segments\[0\].blocks\[0\].state: expected one of active_allocated, .*, got 'asleep'"),
        (break_actions, r"device_traces\[0\]\[0\].size: expected a whole number, at least 1, got str"),
        (break_overlap, "overlap"),
        (break_history, "contradicts its end"),
        (break_type, r"segments\[0\].segment_type: expected one of small, large, got NoneType"),
        (break_keys, "no 'device_traces'"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(damage: Callable[[Any], None], reason: str) -> None:
    data = snapshot.as_pytorch([simulated()])
    damage(data)
    with pytest.raises(BadTraceFile, match=reason):
        replay(snapshot.parse(data))


def test_what_is_not_modelled_is_refused() -> None:
    data = snapshot.as_pytorch([simulated()])
    data["segments"][0]["segment_pool_id"] = (0, 1)
    with pytest.raises(UnsupportedPlan, match="private pool of a CUDA graph"):
        snapshot.parse(data)
    data = snapshot.as_pytorch([simulated()])
    data["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    with pytest.raises(UnsupportedPlan, match="settings that are not modelled"):
        snapshot.parse(data)
    collecting = simulated("garbage_collection_threshold:0.9,per_process_memory_fraction:1.0")
    with pytest.raises(UnsupportedPlan, match="depends on the GPU's memory"):
        replay(snapshot.parse(snapshot.as_pytorch([collecting])))


def test_several_devices_must_be_told_apart() -> None:
    first, second = simulated(), simulated()
    second.device = 1
    shot = snapshot.parse(snapshot.as_pytorch([first, second]))
    with pytest.raises(BadTraceFile, match="holds devices 0, 1: say which one"):
        replay(shot)
    assert replay(shot, 1).agrees
    with pytest.raises(BadTraceFile, match="no device 2; it holds 0, 1"):
        replay(shot, 2)
    with pytest.raises(BadTraceFile, match="empty"):
        replay(snapshot.parse({"segments": [], "device_traces": []}))


def test_what_if_names_the_request_that_fails() -> None:
    shot = snapshot.parse(snapshot.as_pytorch([simulated()]))
    found = what_if(shot, capacity_bytes=100 * MIB)
    assert not found.fits
    assert found.failed_at is not None
    assert shot.traces[0][found.failed_at].size == 40 * MIB
    assert "Tried to allocate 40.00 MiB" in found.message
    assert what_if(shot, parse_settings("expandable_segments:True"), 400 * MIB).fits


def test_the_command_answers_in_json_and_words(tmp_path: Path) -> None:
    file = tmp_path / "run.pickle"
    snapshot.write(file, [simulated()])
    result = memory_command.replay_file(file, {"capacity": "100 MiB"}, ["expandable_segments=true"], None, True)
    assert set(result) == {
        *memory_command.KINDS,
        *memory_command.TOTALS,
        "mismatches",
        "what_if",
        "needed_bytes",
    }
    assert memory_command.agrees(result)
    assert result["what_if"]["settings"] == "expandable_segments:True"
    assert "it does not fit" in memory_command.summary(result)
    with pytest.raises(ScenarioError) as caught:
        memory_command.replay_file(file, {"capacity": "16"}, ["max_split_size=1"], None, False)
    assert [fault.path for fault in caught.value.faults] == ["--capacity", "--set.max_split_size"]


def test_the_exit_code_says_whether_everything_matches(tmp_path: Path) -> None:
    file = tmp_path / "run.pickle"
    snapshot.write(file, [simulated()])
    runner = CliRunner()
    answer = runner.invoke(app, ["memory", "replay", str(file), "--json"])
    assert (answer.exit_code, json.loads(answer.stdout)["releases"]["checked"] > 0) == (0, True)
    data = snapshot.as_pytorch([simulated()])
    data["allocator_settings"]["roundup_power2_divisions"]["16"] = 2  # not what it ran under
    file.write_bytes(pickle.dumps(data, 4))
    assert runner.invoke(app, ["memory", "replay", str(file)]).exit_code == 1
    file.write_bytes(b"nothing")
    assert runner.invoke(app, ["memory", "replay", str(file)]).exit_code == 2


def test_pictures_of_a_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "run.pickle"
    snapshot.write(file, [simulated()])
    timeline = memory_timeline.of_snapshot(snapshot.read(file))
    assert set(timeline.by_category) == {"weights", "activations", "workspace"}
    figure = memory_plot.draw(timeline, "run")
    assert len(figure.axes) == 2
    memory_command.plot_file(file, tmp_path / "memory.png", None)
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ScenarioError, match=r"ends in \.png"):
        memory_command.plot_file(file, tmp_path / "memory.gif", None)


def test_damage_of_any_kind_gives_a_message_and_never_a_traceback() -> None:
    """Random changes to the values of a snapshot."""
    chance = np.random.default_rng(0)
    whole = pickle.dumps(snapshot.as_pytorch([simulated()]), 4)
    values: tuple[Any, ...] = (None, -1, 0, 1, 512, 2**40, 2**62, "x", [], {}, 1.5, True)
    for _ in range(400):
        data = pickle.loads(whole)
        for _ in range(int(chance.integers(1, 4))):
            holder: Any = data
            while isinstance(holder, dict | list) and holder:
                keys: Any = [*holder] if isinstance(holder, dict) else range(len(holder))
                key = keys[int(chance.integers(len(keys)))]
                if not isinstance(holder[key], dict | list) or not holder[key] or chance.random() < 0.1:
                    holder[key] = values[int(chance.integers(len(values)))]
                    break
                holder = holder[key]
        with suppress(TwinrailError):
            replay(snapshot.parse(data), 0)
