"""Costs of a whole schedule at once: ops that are alike are looked up once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sim.binding import Binding
from sim.ops import OpId
from sim.schedule import Schedule

T = TypeVar("T")


def per_op(schedule: Schedule, look_up: Callable[[OpId, int, int, list[int]], T]) -> list[T]:
    """``look_up(id, source, target, member devices)`` for every op, called once for ops that are alike."""
    each, member = schedule.alike
    found = [look_up(*op) for op in each]
    return [found[group] for group in member]


def seconds_column(schedule: Schedule, binding: Binding) -> list[float]:
    """Duration of every op where nothing contends with it."""
    return per_op(schedule, binding.op_seconds)
