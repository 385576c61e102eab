"""How busy each server's link was: seconds of full speed, whatever it was that limited each transfer.

Time during which a link carries something is its busy time only if the link is what limits: a worker that loads from
several servers at once, or over a slower link of its own, leaves part of it idle. Whether it does is seen when others
come and go: within one transfer, does its own rate follow? So rates are regressed on the state (workers active at the
server, servers active at the worker) with an effect of every transfer's own, as some are slower than others for reasons
of their own, and slow ones are alone more often. n workers of rate exp(g) make a speed of n·exp(g). Where that is
near its highest is full speed; time in other states counts for less.
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
"""A state in which less than this share of all bytes moved does not set the highest speed."""
SAME_SPEED = 0.8
"""Of the highest speed: of four servers, three at work have 0.75."""


class Link(NamedTuple):
    """Seconds of full speed and the bytes moved, in each window; whether something else may have been the limit."""

    busy_s: Floats
    moved: Floats
    limited: bool


class _Pieces(NamedTuple):
    """Parts of transfers during which nothing started or ended: which transfer, workers at the server, servers at the
    worker, window, seconds, bytes; and from the first to the last time within at which the bytes are known exactly,
    seconds and bytes."""

    flow: Ints
    workers: Ints
    servers: Ints
    window: Ints
    length_s: Floats
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
            _pieces(found, time_s, active[worker, server], at_server[server], at_worker[worker], window)
            for (worker, each), found in spans.items()
            if each == server
        ]
        pieces = _joined(parts)
        if pieces.moved.sum() > 0:
            links[server] = _link(pieces)
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


def _pieces(
    spans: Spans, time_s: Floats, active: NDArray[np.bool_], at_server: Ints, at_worker: Ints, window: Ints
) -> _Pieces:
    interval = np.flatnonzero(active)
    flow = np.searchsorted(spans.begin_s, time_s[interval], "right") - 1
    first = np.searchsorted(spans.time_s, time_s[interval])
    last = np.maximum(np.searchsorted(spans.time_s, time_s[interval + 1], "right") - 1, first)
    first, last = (np.minimum(each, len(spans.time_s) - 1) for each in (first, last))
    return _Pieces(
        flow,
        at_server[interval],
        at_worker[interval],
        window[interval],
        np.diff(time_s)[interval],
        np.diff(np.interp(time_s, spans.time_s, spans.sent))[interval],
        spans.time_s[last] - spans.time_s[first],
        spans.sent[last] - spans.sent[first],
    )


def _joined(parts: Sequence[_Pieces]) -> _Pieces:
    """The pieces of all workers at a server, transfers numbered through."""
    counts = [int(part.flow.max(initial=-1)) + 1 for part in parts]
    first = np.repeat(np.cumsum(counts) - counts, [len(part.flow) for part in parts])
    columns = _Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return columns._replace(flow=columns.flow + first)


def _link(pieces: _Pieces) -> Link:
    states, state = np.unique(np.stack([pieces.workers, pieces.servers]), axis=1, return_inverse=True)
    speed = _speeds(pieces, state, states[0])
    busy_s = pieces.length_s * speed[state] / pieces.workers
    full, shared_out = speed == 1, states[0] < states[1]
    growing = not full.all() and states[0][full].min() == states[0].max()
    limited = bool(shared_out[full].all() or growing)
    return Link(*(np.bincount(pieces.window, each, WINDOWS) for each in (busy_s, pieces.moved)), limited)


def _speeds(pieces: _Pieces, state: Ints, workers: Ints) -> Floats:
    """The speed of a link in each state, as a share of full speed.

    Least squares of log rates with fixed effects, weighted by bytes. States that no transfer connects cannot be
    compared: each group has a full speed of its own.
    """
    known = (pieces.exact > 0) & (pieces.exact_s > 0)
    flow, state, moved = pieces.flow[known], state[known], pieces.exact[known]
    log_rate = np.log(moved / pieces.exact_s[known])
    shape = int(pieces.flow.max()) + 1, len(workers)
    weight, sums = np.zeros(shape), np.zeros(shape)
    np.add.at(weight, (flow, state), moved)
    np.add.at(sums, (flow, state), moved * log_rate)
    of_flow = np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    normal = np.diag(weight.sum(axis=0)) - weight.T @ (weight / of_flow)
    right = (sums - weight * sums.sum(axis=1, keepdims=True) / of_flow).sum(axis=0)
    effect = np.linalg.lstsq(normal, right, rcond=None)[0]
    group = connected_components(weight.T @ weight > 0, directed=False)[1]
    speed, moved_in = workers * np.exp(effect), weight.sum(axis=0)
    for each in np.unique(group):
        mine = np.flatnonzero(group == each)
        common = mine[moved_in[mine] >= LEAST_SHARE * moved_in.sum()]
        full = mine[speed[mine] >= SAME_SPEED * speed[common if len(common) else mine].max()]
        speed[mine] /= np.average(speed[full], weights=moved_in[full] + 1e-300)
        speed[full] = 1
    return np.minimum(speed, 1)
