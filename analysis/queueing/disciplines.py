"""How steps share the server: one family of disciplines, from exact mean value analysis to the asymptotic bound.

A step takes T without others and asks the server for D of it. Cut every worker into g *grains* that think and queue by
themselves, and take exact MVA of all g·W grains; their demand and think time are such that a worker alone keeps the
server busy for D/T of its time. g = 1 is MVA itself: processor sharing, or first come first served (FCFS) with
exponential times. g → ∞ is the asymptotic bound: FCFS with constant times, started at their best. Between, the grains
of a worker vary in sum as do times of coefficient of variation 1/√g, and the result stays within 5 % of FCFS with such
times (gamma-distributed; `tests/unit/test_fit_disciplines.py` simulates it).

With one server and a delay MVA has a closed form. The server idles with the chance B(n, a) that Erlang's loss formula
gives n = g·W circuits and a load a of think time over demand, so X·D = 1 − B(g·W, a), and D/T = 1 − B(g, a) sets a.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np

from analysis.queueing.network import Floats

Discipline = Literal["mva", "fcfs", "bound"]

GRAINS: tuple[float, ...] = (*(2.0**octave for octave in range(10)), math.inf)
"""Octaves, since a coefficient of variation is a scale; from the last one to the bound X moves by 4 % at most."""

SHARES: Floats = (np.arange(800) + 0.5) / 800
"""Shares D/T of the server in a step that cut (0, 1) evenly, each in the middle of its piece."""

_NEWTON_STEPS = 7
_NOT_ALL = 1 - 1e-9


def variation(grains: float) -> float:
    """The coefficient of variation of FCFS times that g grains stand for."""
    return 1 / math.sqrt(grains)


def name(grains: float) -> Discipline:
    """What g grains are called."""
    return "mva" if grains == 1 else "bound" if math.isinf(grains) else "fcfs"


def curve(grains: float, workers: tuple[int, ...], shares: Floats) -> Floats:
    """X·T, the throughput in steps per step time, of W ``workers`` and ``shares`` D/T of the server in (0, 1].

    Shape [workers, shares].
    """
    if math.isinf(grains):
        bound: Floats = np.minimum.outer(np.array(workers, float), 1 / shares)
        return bound
    circuits = [int(grains) * count for count in workers]
    inverse = _inverse_erlang_b(circuits, _loads(int(grains), np.minimum(shares, _NOT_ALL)))
    return (1 - 1 / inverse) / shares


def _loads(grains: int, shares: Floats) -> Floats:
    """The a at which B(g, a) = 1 − D/T, by Newton's method on the logits of B and log a: straight lines, nearly."""
    loads = grains / shares - 1
    for _ in range(_NEWTON_STEPS):
        odds = _inverse_erlang_b([grains], loads)[0] - 1  # (1 − B)/B
        used = odds / (1 + odds)
        loads *= np.exp(np.log(odds * (1 - shares) / shares) * used / (grains - loads * used))
    return loads


def _inverse_erlang_b(circuits: list[int], loads: Floats) -> Floats:
    """1/B(n, a) = 1 + (n/a)/B(n−1, a), shape [circuits, loads]; infinite where no call is ever lost."""
    inverse, per_load, found, wanted = np.ones_like(loads), 1 / loads, {}, {*circuits}
    with np.errstate(over="ignore"):
        for count in range(1, max(circuits) + 1):
            inverse = 1 + inverse * (count * per_load)
            if count in wanted:
                found[count] = inverse
    return np.array([found[count] for count in circuits])


def family(workers: tuple[int, ...]) -> Floats:
    """`curve` of all `GRAINS` over `SHARES`, shape [grains, workers, shares]."""
    return _family_upto(1 << (max(workers) - 1).bit_length())[:, np.array(workers) - 1]


@lru_cache(maxsize=2)
def _family_upto(most: int) -> Floats:
    workers = tuple(range(1, most + 1))
    return np.array([curve(grains, workers, SHARES) for grains in GRAINS])
