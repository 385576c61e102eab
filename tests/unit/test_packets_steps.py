"""Steps found in captures of transfers made by hand: what a worker did, whatever else is on the wire."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.packets import synthesis
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import Reading, read
from analysis.packets.steps import _without_dents
from analysis.packets.synthesis import Transfer, synthesize
from sim.errors import ScenarioError

DOWNLOAD, COMPUTE, UPLOAD, APPLY = 0.2, 0.5, 0.3, 0.05
SIZE = 2_000_000
STEP = DOWNLOAD + COMPUTE + UPLOAD + APPLY


def move(begin: float, length: float, size: float, is_upload: bool, **more: Any) -> Transfer:
    worker, server = more.pop("worker", 0), more.pop("server", 0)
    return Transfer(worker, server, is_upload, [begin, begin + length], [0, size], **more)


def message(time: float, is_upload: bool, size: int = 17) -> Transfer:
    return move(time, 0, size, is_upload)


def steps(count: int = 6, start: float = 1.0, worker: int = 0) -> list[Transfer]:
    found = []
    for step in range(count):
        begin = start + step * STEP
        found.append(move(begin, DOWNLOAD, SIZE, False, asked_s=begin - 1e-5, worker=worker))
        done = begin + DOWNLOAD + COMPUTE + UPLOAD
        found.append(move(done - UPLOAD, UPLOAD, SIZE, True, answered_s=done + APPLY - 2e-5, worker=worker))
    return found


def as_capture(records: NDArray[np.void]) -> io.BytesIO:
    return io.BytesIO(synthesis.FILE_HEADER.tobytes() + records.tobytes())


def reading(transfers: Sequence[Transfer] | NDArray[np.void], servers: int = 1, **options: Any) -> Reading:
    records = transfers if isinstance(transfers, np.ndarray) else synthesize(transfers)
    return read(as_capture(records), parse_servers(synthesis.addresses(servers)), **options)


def worker(found: Reading) -> dict[str, Any]:
    (only,) = found.result["workers"]
    return dict(only)


def is_as_made(found: dict[str, Any], tolerance: float = 1e-3) -> bool:
    times = (found["download_s"], found["compute_s"], found["upload_s"], found["step_s"])
    return times == pytest.approx((DOWNLOAD, COMPUTE, UPLOAD, STEP), rel=tolerance)


def test_a_worker_by_itself() -> None:
    found = reading(steps())
    one = worker(found)
    assert is_as_made(one, 1e-4)
    assert (one["address"], one["steps"], one["warm_up_steps"], one["overlap_s"]) == ("10.1.0.1", 6, 0, 0)
    assert one["apply_s"] == pytest.approx(APPLY, abs=5e-5)
    assert (one["bytes_down"], one["bytes_up"]) == (6 * (SIZE + 64), 6 * (SIZE + 64))
    assert found.result["step_bytes"] == {"down": SIZE, "up": SIZE}
    assert found.result["think_time_s"]["mean"] == pytest.approx(COMPUTE, rel=1e-4)
    assert found.result["steps_per_s"] == pytest.approx(1 / STEP, rel=1e-6)
    assert found.result["notes"] == []
    demand = found.result["servers"][0]["demand_s"]
    assert demand["downlink"]["mean"] == pytest.approx(DOWNLOAD, rel=1e-4)
    assert demand["uplink"]["mean"] == pytest.approx(UPLOAD, rel=1e-4)
    assert demand["apply"]["mean"] == pytest.approx(APPLY, abs=5e-5)


@pytest.mark.parametrize("segment_bytes", [536, 9_000, 60_000])
def test_segments_of_any_size(segment_bytes: int) -> None:
    found = reading(synthesize(steps(), segment_bytes))
    assert is_as_made(worker(found))
    assert found.result["servers"][0]["demand_s"]["uplink"]["mean"] == pytest.approx(UPLOAD, rel=1e-3)


def test_small_messages_are_no_phase() -> None:
    """As HTTP/2 sends them: window updates during transfers, a ping just after one, keep-alives while it computes."""
    noise = []
    for step in range(6):
        begin = 1.0 + step * STEP
        noise += [message(begin + 0.01 * each, True) for each in range(1, 20)]
        noise += [message(begin + DOWNLOAD + 1e-4, True), message(begin + DOWNLOAD + 0.2, True)]
        noise += [message(begin + DOWNLOAD + COMPUTE + 0.01 * each, False) for each in range(1, 30)]
    found = worker(reading([*steps(), *noise]))
    assert found["steps"] == 6
    assert is_as_made(found)


def test_a_capture_may_start_and_end_anywhere() -> None:
    """A step counts if at least nine tenths of its download and of its upload are there."""
    records = synthesize(steps(5), 20_000)
    payload = np.cumsum(records["length"].astype(int) - 54)
    for cut in range(0, 3 * len(records) // 5, 61):
        moves, share = divmod(payload[cut] / (SIZE + 64), 1)
        if 0.08 < share < 0.12 or not 0.01 < share < 0.99:
            continue
        whole = 5 - int(moves + (share > 0.1) + 1) // 2
        for part in (records[cut:], records[: len(records) - cut]):
            found = worker(reading(part))
            assert found["steps"] == whole, cut
            assert is_as_made(found, 0.02), cut


def test_retransmissions_and_disorder_change_no_time() -> None:
    records = synthesize(steps(), 10_000)
    full = np.flatnonzero(records["length"] == 54 + 10_000)[50::97]
    twice = np.sort(np.append(np.arange(len(records)), full))
    again = reading(records[twice])
    assert worker(again)["retransmitted_bytes"] == again.result["retransmitted_bytes"] == 10_000 * len(full)
    swapped = np.arange(len(records))
    swapped[100:300] = swapped[100:300].reshape(-1, 2)[:, ::-1].ravel()
    lost = np.delete(np.arange(len(records)), full)
    for some, missing in ((again, 0), (reading(records[swapped]), 0), (reading(records[lost]), 10_000 * len(full))):
        assert worker(some)["steps"] == 6
        assert is_as_made(worker(some), 2e-3)
        assert some.result["missing_bytes"] == missing
    assert "never captured" in reading(records[lost]).result["notes"][0]


def test_phases_that_overlap_are_said_to() -> None:
    transfers = []
    for step in range(6):
        begin = 1.0 + step
        transfers += [move(begin, 0.4, SIZE, False), move(begin + 0.3, 0.4, SIZE, True, answered_s=begin + 0.71)]
    found = reading(transfers)
    one = worker(found)
    assert one["overlap_s"] == pytest.approx(0.1, rel=1e-2)
    assert (one["download_s"], one["compute_s"], one["upload_s"]) == pytest.approx((0.4, 0, 0.4), rel=1e-2, abs=1e-9)
    assert any("overlap" in note for note in found.result["notes"])


def test_gradients_pushed_while_computing() -> None:
    """Four pieces with pauses: what computing they do not hide is silence; the rest shows where its length is known."""
    transfers = []
    for step in range(8):
        begin = 1.0 + step
        transfers.append(move(begin, 0.1, SIZE, False))
        transfers += [move(begin + 0.2 + 0.15 * piece, 0.05, SIZE / 4, True) for piece in range(4)]
    found = worker(reading(transfers))
    assert found["steps"] == 8
    assert (found["download_s"], found["upload_s"], found["compute_s"]) == pytest.approx((0.1, 0.2, 0.4), rel=1e-2)
    assert found["overlap_s"] == 0
    known = worker(reading(transfers, compute_s=0.55))
    assert known["overlap_s"] == pytest.approx(0.1 + 0.55 + 0.2 - 0.7, rel=1e-2)


def test_a_step_joins_the_transfers_of_all_servers() -> None:
    transfers = []
    for step in range(6):
        begin = 1.0 + step
        for server, share in ((0, 0.8), (1, 0.2)):
            done = begin + 0.5 + 0.3 * share
            transfers.append(move(begin, 0.2 * share, SIZE * share, False, server=server, asked_s=begin - 1e-5))
            transfers.append(
                move(begin + 0.5, 0.3 * share, SIZE * share, True, server=server, answered_s=done + 0.01 * share)
            )
    found = reading(transfers, 2)
    one = worker(found)
    assert (one["steps"], one["download_s"], one["compute_s"], one["upload_s"]) == pytest.approx(
        (6, 0.16, 0.34, 0.24), rel=1e-3
    )
    demands = [
        [server["demand_s"][name]["mean"] for name in ("downlink", "uplink", "apply")]
        for server in found.result["servers"]
    ]
    assert demands == [pytest.approx([0.16, 0.24, 0.008], rel=2e-3), pytest.approx([0.04, 0.06, 0.002], rel=2e-3)]


def test_warm_up_is_left_out() -> None:
    slow = []
    for step in range(3):
        begin = 1.0 + 3 * step
        slow += [move(begin, 0.5, SIZE, False), move(begin + 2, 0.5, SIZE, True)]
    found = worker(reading([*slow, *steps(20, start=10.0)]))
    assert (found["steps"], found["warm_up_steps"]) == (23, 3)
    assert is_as_made(found)


def test_the_size_of_the_model_is_checked_and_helps() -> None:
    assert reading(steps(), model_bytes=SIZE).result["notes"] == []
    notes = reading(steps(), model_bytes=SIZE + SIZE // 10).result["notes"]
    assert [note for note in notes if "a step moves 2,000,000 bytes" in note] == notes
    assert len(notes) == 2


def test_what_is_no_training_has_no_steps() -> None:
    one_way = [move(1.0 + step, 0.2, SIZE, False) for step in range(5)]
    found = reading(one_way)
    assert (worker(found)["steps"], worker(found)["download_s"]) == (0, None)
    assert found.result["servers"][0]["demand_s"] == {"downlink": None, "uplink": None, "apply": None}
    assert "no complete step" in found.result["notes"][0]


def test_servers_that_are_not_there() -> None:
    records = synthesize(steps(2), 20_000)
    with pytest.raises(ScenarioError, match=r"nothing to or from a server .*most is sent by 10\.[12]\.0\.1:"):
        read(as_capture(records), parse_servers(["10.9.9.9:2222"]))
    with pytest.raises(ScenarioError, match=r"nothing to or from 10\.9\.9\.9 is"):
        read(as_capture(records), parse_servers(["10.2.0.1:2222", "10.9.9.9"]))
    with pytest.raises(ScenarioError, match="nothing could be read: it is empty"):
        read(as_capture(records[:0]), parse_servers(["10.2.0.1:2222"]))


def naive_dents(heights: list[float], limit: float) -> list[float]:
    """Heights of the runs left, the list made anew each time."""
    left = list(heights)
    while left:
        low = min(range(len(left)), key=lambda run: abs(left[run]))
        if abs(left[low]) >= limit:
            return left
        if 0 < low < len(left) - 1:
            left[low - 1 : low + 2] = [left[low - 1] + left[low] + left[low + 1]]
        else:
            del left[low]
    return left


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60, unique=True), st.integers(0, 10**6))
def test_dents_are_taken_out_lowest_first(sizes: list[int], limit: int) -> None:
    heights = [float(size * sign) for size, sign in zip(sizes, itertools.cycle((1, -1)), strict=False)]
    runs, stop, dents = _without_dents(heights, limit)
    expected = naive_dents(heights, limit)
    sums = [sum(heights[a:b]) for a, b in itertools.pairwise([*runs, stop])]
    assert [abs(each) for each in expected] == pytest.approx([abs(each) for each in sums])
    assert all(dent < limit for dent in dents)
