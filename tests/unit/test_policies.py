"""Consistency policies, stepped by hand and by machine; each survives being pickled in the middle."""

from __future__ import annotations

import pickle
import random

from hypothesis import given
from hypothesis import strategies as st

from sim.policies import Asynchronous, BulkSynchronous, StaleSynchronous
from sim.program import Ask, Released


def begin(worker: int, clock: int) -> Ask:
    return Ask("begin", f"worker{worker}", clock)


def test_asynchronous_holds_nobody() -> None:
    assert Asynchronous().on(begin(3, 7)) == [Released(begin(3, 7), 7)]


def test_stale_synchronous_step_by_step() -> None:
    policy = StaleSynchronous(workers=2, bound=1)
    assert policy.on(begin(0, 0)) == [Released(begin(0, 0), 0)]
    assert policy.on(begin(0, 1)) == [Released(begin(0, 1), 1)]  # the other has not begun, and so done no step
    assert policy.on(begin(0, 2)) == []
    policy = pickle.loads(pickle.dumps(policy))
    assert policy.on(begin(1, 0)) == [Released(begin(1, 0), 0)]
    assert policy.on(begin(1, 1)) == [Released(begin(0, 2), 2), Released(begin(1, 1), 1)]


@given(st.integers(1, 6), st.integers(0, 4), st.randoms())
def test_nobody_is_ever_more_than_the_bound_ahead(workers: int, bound: int, order: random.Random) -> None:
    """Workers move in any order; a step may run only while the slowest is at most ``bound`` behind."""
    policy, clock, waiting = StaleSynchronous(workers, bound), [0] * workers, set[int]()
    running = set[int]()

    def ask(worker: int) -> None:
        waiting.add(worker)
        for request, answer in policy.on(begin(worker, clock[worker])):
            released = int(request.actor.removeprefix("worker"))
            assert answer == clock[released]
            waiting.remove(released)
            running.add(released)
            assert clock[released] - min(clock) <= bound

    for worker in order.sample(range(workers), workers):
        ask(worker)
    for _ in range(60):
        assert running  # somebody can always go on
        assert all(clock[worker] - min(clock) > bound for worker in waiting)  # nobody waits for nothing
        worker = order.choice(sorted(running))
        running.remove(worker)
        clock[worker] += 1
        ask(worker)


def applied(worker: int, step: int, part: int = 0) -> Ask:
    return Ask("applied", f"worker{worker}", step, part)


def server(event: str, step: int, part: int = 0) -> Ask:
    return Ask(event, f"server{part}", step, part)


def test_every_part_has_a_barrier_of_its_own() -> None:
    policy = BulkSynchronous(2)
    for part in (0, 1):
        assert policy.on(server("gathered", 0, part)) == []
    assert policy.on(applied(0, 0, 0)) == []
    assert policy.on(applied(1, 0, 1)) == []
    assert policy.on(applied(1, 0, 0)) == [Released(server("gathered", 0, 0))]
    assert policy.on(server("updated", 0, 0)) == [
        Released(applied(0, 0, 0)),
        Released(applied(1, 0, 0)),
        Released(server("updated", 0, 0)),
    ]
    assert policy.on(begin(0, 0)) == [Released(begin(0, 0), 0)]  # part 1 has not come so far
    assert policy.on(applied(0, 0, 1)) == [Released(server("gathered", 0, 1))]


def test_a_worker_that_died_applies_again_or_finds_the_step_done() -> None:
    policy = BulkSynchronous(2)
    policy.on(server("gathered", 0))
    assert policy.on(applied(0, 0)) == []
    assert policy.on(applied(0, 0)) == []  # again: still one of two
    assert policy.on(applied(1, 0)) == [Released(server("gathered", 0))]
    assert len(policy.on(server("updated", 0))) == 3
    assert policy.on(begin(0, 0)) == [Released(begin(0, 0), 1)]
    assert policy.on(applied(0, 0)) == [Released(applied(0, 0))]


def test_a_gradient_that_is_pushed_again_takes_the_place_of_the_first() -> None:
    policy = BulkSynchronous(2)
    policy.on(server("gathered", 0))
    assert policy.on(pushed(0, 0)) == [Released(pushed(0, 0), 1)]
    policy.on(applied(0, 0))
    assert policy.on(pushed(0, 0)) == [Released(pushed(0, 0), 1)]  # it died since: its first one counts no more
    assert policy.on(applied(1, 0)) == []
    assert policy.on(applied(0, 0)) == [Released(server("gathered", 0))]
    assert policy.on(pushed(0, 0)) == []  # it died again, and comes too late
    assert Released(pushed(0, 0), 0) in policy.on(server("updated", 0))


def pushed(worker: int, step: int) -> Ask:
    return Ask("pushed", f"worker{worker}", step, 0)


def test_the_slowest_is_dropped() -> None:
    policy = BulkSynchronous(workers=3, spare=1)
    policy.on(server("gathered", 0))
    assert policy.on(pushed(2, 0)) == [Released(pushed(2, 0), 1)]
    assert policy.on(pushed(0, 0)) == [Released(pushed(0, 0), 1)]
    assert policy.on(pushed(0, 0)) == [Released(pushed(0, 0), 1)]  # it died and is back: its place is kept
    assert policy.on(pushed(1, 0)) == []  # too late, and the update is not done yet
    assert policy.on(applied(2, 0)) == []
    assert policy.on(applied(0, 0)) == [Released(server("gathered", 0))]
    policy = pickle.loads(pickle.dumps(policy))
    released = policy.on(server("updated", 0))
    assert released == [
        Released(applied(2, 0)),
        Released(applied(0, 0)),
        Released(pushed(1, 0), 0),
        Released(server("updated", 0)),
    ]
    assert policy.on(begin(1, 1)) == [Released(begin(1, 1), 1)]
    policy.on(server("gathered", 1))
    for worker in (0, 2):
        policy.on(pushed(worker, 1))
        policy.on(applied(worker, 1))
    policy.on(server("updated", 1))
    assert policy.on(pushed(1, 1)) == [Released(pushed(1, 1), 0)]  # later still
    assert policy.on(begin(1, 2)) == [Released(begin(1, 2), 2)]
