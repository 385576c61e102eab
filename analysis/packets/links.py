"""How busy each server's link was: seconds of full speed, whatever it was that limited each transfer.

Time during which a link carries something is its busy time only if the link is what limits: a worker that loads from
several servers at once, or over a slower link of its own, leaves part of it idle. Whether it does is seen when others
come and go: within one transfer, does its own rate follow? So rates are regressed on the state (workers active at the
server, servers active at the worker) with an effect of every transfer's own, as some are slower than others for reasons
of their own, and slow ones are alone more often. At any time the rates of all that is under way make a speed; near its
highest is full speed, and time at less counts for less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from analysis.packets.capture import Ints
from analysis.packets.steps import Floats, Spans

WINDOWS = 20
"""Parts of the time line whose scatter gives intervals."""
LEAST_SHARE = 0.02
"""A speed reached for less than this share of the time is taken for chance."""
SAME_SPEED = 0.8
"""Of the highest: of four servers, three at work have 0.75."""


class Link(NamedTuple):
    """Seconds of full speed and the bytes moved, in each window; whether something else may have been the limit."""

    busy_s: Floats
    moved: Floats
    limited: bool


class _Pieces(NamedTuple):
    """Parts of transfers during which nothing started or ended: which transfer, interval of the time line, workers at
    the server, servers at the worker, bytes; and from the first to the last time within at which the bytes are known
    exactly, seconds and bytes."""

    flow: Ints
    interval: Ints
    workers: Ints
    servers: Ints
    moved: Floats
    exact_s: Floats
    exact: Floats


def of_direction(spans: Mapping[tuple[int, int], Spans], from_s: float) -> dict[int, Link]:
    """Every server's link in one direction after ``from_s``, from the transfers of each (worker, server).

    Servers are left out whose transfers lasted no time: one segment each.
    """
    spans = {key: found for key, found in spans.items() if found.end_s.max(initial=from_s) > from_s}
    if not spans:
        return {}
    edges = [edge for found in spans.values() for edge in (found.begin_s, found.end_s)]
    until_s = max(float(found.end_s.max()) for found in spans.values())
    windows_s = np.linspace(from_s, until_s, WINDOWS + 1)
    time_s = np.unique(np.concatenate([*edges, windows_s]))
    time_s = time_s[(time_s >= from_s) & (time_s <= until_s)]
    active = {key: _active(found, time_s) for key, found in spans.items()}
    at_worker, at_server = _active_at(active, 0), _active_at(active, 1)
    window = np.searchsorted(windows_s, time_s[:-1], "right") - 1
    links = {}
    for server in sorted(at_server):
        parts = [
            _pieces(found, time_s, active[worker, server], at_server[server], at_worker[worker])
            for (worker, each), found in spans.items()
            if each == server
        ]
        pieces = _joined(parts)
        if pieces.moved.sum() > 0:
            links[server] = _link(pieces, time_s, window)
    return links


def _active(spans: Spans, time_s: Floats) -> NDArray[np.bool_]:
    """Whether a stream is under way between each time and the next."""
    opened, closed = (np.searchsorted(edge, time_s[:-1], "right") for edge in (spans.begin_s, spans.end_s))
    return opened > closed


def _active_at(active: Mapping[tuple[int, int], NDArray[np.bool_]], end: int) -> dict[int, Ints]:
    """How many streams of each worker (``end`` 0) or server (1) are under way."""
    found: dict[int, Ints] = {}
    for key, on in active.items():
        found[key[end]] = found.get(key[end], 0) + on.astype(np.int64)
    return found


def _pieces(spans: Spans, time_s: Floats, active: NDArray[np.bool_], at_server: Ints, at_worker: Ints) -> _Pieces:
    interval = np.flatnonzero(active)
    flow = np.searchsorted(spans.begin_s, time_s[interval], "right") - 1
    first = np.searchsorted(spans.time_s, time_s[interval])
    last = np.maximum(np.searchsorted(spans.time_s, time_s[interval + 1], "right") - 1, first)
    first, last = (np.minimum(each, len(spans.time_s) - 1) for each in (first, last))
    return _Pieces(
        flow,
        interval,
        at_server[interval],
        at_worker[interval],
        np.diff(np.interp(time_s, spans.time_s, spans.sent))[interval],
        spans.time_s[last] - spans.time_s[first],
        spans.sent[last] - spans.sent[first],
    )


def _joined(parts: Sequence[_Pieces]) -> _Pieces:
    """The pieces of all workers at a server, transfers numbered through."""
    counts = [int(part.flow.max(initial=-1)) + 1 for part in parts]
    first = np.repeat(np.cumsum([0, *counts[:-1]]), [len(part.flow) for part in parts])
    return _Pieces(
        np.concatenate([part.flow for part in parts]) + first,
        np.concatenate([part.interval for part in parts]),
        np.concatenate([part.workers for part in parts]),
        np.concatenate([part.servers for part in parts]),
        np.concatenate([part.moved for part in parts]),
        np.concatenate([part.exact_s for part in parts]),
        np.concatenate([part.exact for part in parts]),
    )


def _link(pieces: _Pieces, time_s: Floats, window: Ints) -> Link:
    states, state = np.unique(np.stack([pieces.workers, pieces.servers]), axis=1, return_inverse=True)
    rate = _rates(pieces, state, states[0])[state]
    interval, first, place = np.unique(pieces.interval, return_index=True, return_inverse=True)
    length_s, workers = np.diff(time_s)[interval], pieces.workers[first]
    speed: Floats = np.bincount(place, rate).astype(np.float64)
    full = speed >= SAME_SPEED * _highest(speed, length_s)
    speed = np.where(full, 1, speed / np.average(speed[full], weights=length_s[full]))
    least = np.full(len(interval), np.iinfo(np.int64).max)
    np.minimum.at(least, place, pieces.servers)
    elsewhere = bool((least > workers)[full].all())  # every transfer may have been limited at its worker
    growing = not full.all() and workers[full].min() == workers.max()
    busy_s = np.bincount(window[interval], length_s * np.minimum(speed, 1), WINDOWS).astype(np.float64)
    moved = np.bincount(window[pieces.interval], pieces.moved, WINDOWS).astype(np.float64)
    return Link(busy_s, moved, elsewhere or bool(growing))


def _highest(speed: Floats, length_s: Floats) -> float:
    """What is exceeded in no more than `LEAST_SHARE` of the time."""
    order = np.argsort(speed)[::-1]
    above = np.cumsum(length_s[order])
    return float(speed[order[np.searchsorted(above, LEAST_SHARE * above[-1])]])


def _rates(pieces: _Pieces, state: Ints, workers: Ints) -> Floats:
    """What a transfer moves in each state, relative to itself in others, so that the link's mean speed is about 1.

    Least squares of log rates with fixed effects, weighted by bytes. States that no transfer connects cannot be
    compared: each group of them is taken to have the same mean.
    """
    known = (pieces.exact > 0) & (pieces.exact_s > 0)
    flow, state, moved = pieces.flow[known], state[known], pieces.exact[known]
    log_rate = np.log(moved / pieces.exact_s[known])
    shape = int(pieces.flow.max()) + 1, len(workers)
    weight, sums = np.zeros(shape), np.zeros(shape)
    np.add.at(weight, (flow, state), moved)
    np.add.at(sums, (flow, state), moved * log_rate)
    of_flow, of_state = np.maximum(weight.sum(axis=1), 1e-300), weight.sum(axis=0)
    normal = np.diag(of_state) - weight.T @ (weight / of_flow[:, None])
    effect = np.linalg.lstsq(normal, sums.sum(axis=0) - weight.T @ (sums.sum(axis=1) / of_flow), rcond=None)[0]
    rate: Floats = np.exp(effect)
    group = connected_components(weight.T @ weight > 0, directed=False)[1]
    for each in np.unique(group):
        mine = group == each
        rate[mine] /= np.average((workers * rate)[mine], weights=of_state[mine] + 1e-300)
    return rate
