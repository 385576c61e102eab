"""How the compute lanes of one GPU share it, against hand-worked times and exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.run import run

STREAMS = ("forward", "backward", "compute")
Lanes = dict[str, list[float]]


@pytest.fixture(scope="session")
def play(jobs: Any, job: Any, mesh: Any) -> Any:
    """Times of the ops of each lane of one GPU: [(start, end), …]."""

    def play(lanes: Lanes, gain: float | None) -> dict[str, list[tuple[float, float]]]:
        todo = [job((f"0.{stream}",), seconds) for stream, ops in lanes.items() for seconds in ops]
        trace = run(*jobs(todo, mesh(1, gain=gain)))
        times = iter(zip(trace.start_s.tolist(), trace.end_s.tolist(), strict=True))
        return {stream: [next(times) for _ in ops] for stream, ops in lanes.items()}

    return play


def test_one_and_a_half_for_two(play: Any) -> None:
    """Each runs at 3/4 until the short one is done; then the long one has the device alone."""
    assert play({"forward": [3.0], "backward": [1.5]}, 1.5) == {"forward": [(0, 3.5)], "backward": [(0, 2)]}


def test_a_gain_of_one_is_time_slicing(play: Any) -> None:
    assert play({"forward": [1.0, 1.0], "backward": [3.0]}, 1.0) == {
        "forward": [(0, 2), (2, 4)],
        "backward": [(0, 5)],
    }


def test_a_gain_of_two_is_two_devices(play: Any) -> None:
    lanes = {"forward": [0.1, 0.2, 0.3], "backward": [0.7]}
    assert play(lanes, 2.0) == {
        "forward": [(0, 0.1), (0.1, 0.1 + 0.2), (0.1 + 0.2, 0.1 + 0.2 + 0.3)],
        "backward": [(0, 0.7)],
    }


def test_three_lanes_share_the_same_gain(play: Any) -> None:
    """Each has a third of 1.5 until the short one is done, then a half: the gain is the device's, not a lane's."""
    lanes = {"forward": [1.0], "backward": [2.0], "compute": [2.0]}
    assert play(lanes, 1.5) == {"forward": [(0, 2)], "backward": [(0, 2 + 4 / 3)], "compute": [(0, 2 + 4 / 3)]}


def test_an_idle_device_forgets(play: Any, jobs: Any, job: Any, mesh: Any) -> None:
    """A gap in which nothing runs: virtual time starts anew, and so do rounding errors."""
    todo = [
        job(("0.forward",), 1.0),
        job(("1.compute",), 10.0),
        job(("0.forward",), 2.0, [1]),
        job(("0.backward",), 2.0, [1]),
    ]
    trace = run(*jobs(todo, mesh(2, gain=1.0)))
    assert trace.end_s.tolist() == [1.0, 10.0, 14.0, 14.0]


def test_exclusive_runs_one_at_a_time_in_the_order_of_asking(play: Any) -> None:
    """At 0 both ask, the lower name first; from then on whoever asked earlier."""
    assert play({"forward": [2.0, 2.0, 2.0], "backward": [3.0, 3.0]}, None) == {
        "forward": [(0, 2), (5, 7), (10, 12)],
        "backward": [(2, 5), (7, 10)],
    }


def shared(lanes: Lanes, gain: Fraction) -> dict[str, list[tuple[Fraction, Fraction]]]:
    """Processor sharing in exact fractions, event by event."""
    now = Fraction(0)
    left = {stream: [Fraction(seconds) for seconds in ops] for stream, ops in lanes.items()}
    begun = dict.fromkeys(lanes, now)
    times: dict[str, list[tuple[Fraction, Fraction]]] = {stream: [] for stream in lanes}
    while busy := [stream for stream, ops in left.items() if ops]:
        speed = Fraction(1) if len(busy) == 1 else min(gain / len(busy), Fraction(1))
        step = min(left[stream][0] for stream in busy)
        now += step / speed
        for stream in busy:
            left[stream][0] -= step
            if not left[stream][0]:
                left[stream].pop(0)
                times[stream].append((begun[stream], now))
                begun[stream] = now
    return times


def exclusive(lanes: Lanes) -> dict[str, list[tuple[float, float]]]:
    """One after another, in the order of asking."""
    now, queue = 0.0, [stream for stream, ops in lanes.items() if ops]
    times: dict[str, list[tuple[float, float]]] = {stream: [] for stream in lanes}
    while queue:
        stream = queue.pop(0)
        start, now = now, now + lanes[stream][len(times[stream])]
        times[stream].append((start, now))
        if len(times[stream]) < len(lanes[stream]):
            queue.append(stream)
    return times


SECONDS = st.integers(1, 40).map(lambda eighths: eighths / 8)
LANES = (
    st.lists(st.lists(SECONDS, max_size=6), min_size=1, max_size=3)
    .filter(any)
    .map(lambda ops: dict(zip(STREAMS, ops, strict=False)))
)


@given(lanes=LANES, gain=st.sampled_from([1.0, 1.25, 1.5, 1.9, 2.0]))
def test_processor_sharing_in_fractions(play: Any, lanes: Lanes, gain: float) -> None:
    lanes = {stream: ops for stream, ops in lanes.items() if ops}
    for stream, expected in shared(lanes, Fraction(gain)).items():
        for got, wanted in zip(play(lanes, gain)[stream], expected, strict=True):
            assert got == pytest.approx([float(time) for time in wanted], rel=1e-12, abs=1e-12)


@given(lanes=LANES)
def test_exclusive_by_definition(play: Any, lanes: Lanes) -> None:
    assert play(lanes, None) == exclusive(lanes)
