"""The training steps of a worker: a download from all servers, silence while it computes, an upload to all.

Downloaded minus uploaded payload rises by a step's bytes and falls again, step after step. Small messages (requests,
responses, window updates) and layers that overlap only dent that zigzag: dents lower than half a step are taken out,
the lowest first (as persistence in topology orders them), and what is left are the steps. So no idle time needs to be
chosen to find them; one is, from the silences themselves, to tell pauses from the spacing of segments.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.packets.capture import Ints
from analysis.packets.streams import DOWN, UP, Bursts, joined

Floats = NDArray[np.float64]
Flows = Mapping[tuple[int, int], Bursts]
"""The bursts of a worker by server and direction."""

CONTROL = 0.003
"""Messages apart from a transfer of at most this share of its bytes are no part of it."""
INCOMPLETE = 0.9
"""A first or last step with less than this share of a step's bytes began before the capture, or ended after."""


class Spans(NamedTuple):
    """Transfers of a stream without pauses: the step of each, from when to when, bytes.

    ``seen_s``: when the first segment of each was captured. ``time_s`` and ``sent`` are points of the cumulated bytes
    over time.
    """

    step: Ints
    seen_s: Floats
    begin_s: Floats
    end_s: Floats
    size: Ints
    time_s: Floats
    sent: Floats


@dataclass(frozen=True, eq=False)
class Steps:
    """Complete steps of a worker, as columns; times in seconds from the start of the capture.

    Parameters
    ----------
    begin_s, end_s : from the first byte of the download to the last of the upload.
    download_s, upload_s : while bytes of it moved, from or to any server. ``compute_s``: while none did.
    between_s : from the last response to an upload to the next request, where both were seen.
    down_bytes, up_bytes : payload without messages around it.
    spans : of every server and direction. ``applied``: of every server, from the end of an upload to the response (NaN
        where none was seen), a row a step.
    """

    begin_s: Floats
    end_s: Floats
    download_s: Floats
    compute_s: Floats
    upload_s: Floats
    between_s: Floats
    down_bytes: Ints
    up_bytes: Ints
    spans: Mapping[tuple[int, int], Spans]
    applied: Mapping[int, tuple[Floats, Floats]]
    early_answers: int

    def overlap_s(self, computed_s: float | None = None) -> Floats:
        """Download + compute + upload − step: while bytes moved both ways.

        With ``computed_s``, what the worker is known to compute, also the part of it that transfers hide.
        """
        compute_s, lasted_s = self.compute_s if computed_s is None else computed_s, self.end_s - self.begin_s
        found = self.download_s + compute_s + self.upload_s - lasted_s
        return np.where(found > 1e-9 * lasted_s, found, 0)

    @property
    def think_s(self) -> Floats:
        """When nothing of the worker was at a server: it computed, or had not asked for the next step."""
        return self.compute_s + self.between_s

    @property
    def apply_s(self) -> Floats:
        """From the end of the whole upload to the last response; NaN where none was seen."""
        last = [answer_s for _, answer_s in self.applied.values()]
        return np.max(last, axis=0) - self.end_s if last else np.full(len(self), np.nan)

    def __len__(self) -> int:
        return len(self.begin_s)


def find(flows: Flows, idle_ns: int, origin_ns: int, model_bytes: int | None) -> Steps | None:
    """The complete steps of one worker, or ``None``."""
    bounds = _bounds(flows, model_bytes)
    if len(bounds) < 2:
        return None
    count = len(bounds) - 1
    spans: dict[tuple[int, int], Spans] = {}
    for (server, way), bursts in flows.items():
        opposite = flows.get((server, 1 - way))
        found = _transfer(bursts, bounds, idle_ns, opposite.begin_ns if opposite is not None else bounds[:0])
        if len(found.size):
            spans[server, way] = _spans(found, bounds, idle_ns, origin_ns)
    size = [np.zeros(count, np.int64), np.zeros(count, np.int64)]
    for (_, way), span in spans.items():
        size[way] += np.bincount(span.step, span.size, count).astype(np.int64)
    first, last = _complete(size, model_bytes)
    if last <= first:
        return None
    return _columns(
        flows, {key: _cut(span, first, last) for key, span in spans.items()}, size, (first, last), origin_ns
    )


def _bounds(flows: Flows, model_bytes: int | None) -> Ints:
    """When the steps begin, and when the last one is over."""
    ways = [[bursts for (_, way), bursts in flows.items() if way == wanted] for wanted in (DOWN, UP)]
    totals = [sum(int(bursts.size.sum()) for bursts in some) for some in ways]
    if not all(totals):
        return np.empty(0, np.int64)
    begin_ns = np.concatenate([bursts.begin_ns for some in ways for bursts in some])
    share = np.concatenate(
        [
            bursts.size * (sign / total)
            for some, sign, total in zip(ways, (1, -1), totals, strict=True)
            for bursts in some
        ]
    )
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, share = begin_ns[order], share[order]
    starts = np.flatnonzero(np.diff(np.sign(share), prepend=0.0))
    heights = np.add.reduceat(share, starts).tolist()
    dents = _without_dents(heights, math.inf).dents
    limit = model_bytes / totals[DOWN] if model_bytes else _typical(dents)
    phases = _without_dents(heights, limit / 2)
    downs = [run for run in phases.runs if heights[run] > 0]
    stop = phases.stop
    if phases.runs and downs and phases.runs[-1] == downs[-1]:  # a download without its upload
        stop = downs.pop()
    end_ns = begin_ns[starts[stop]] if stop < len(starts) else begin_ns[-1] + 1
    return np.append(begin_ns[starts[downs]], end_ns) if downs else np.empty(0, np.int64)


class _Phases(NamedTuple):
    """The runs left, by the number of their first; where the last of them ends; the heights of those taken out."""

    runs: list[int]
    stop: int
    dents: list[float]


def _without_dents(heights: list[float], limit: float) -> _Phases:
    """Take out runs of a zigzag that are lower than ``limit``, the lowest first: its neighbours become one run.

    ``heights`` alternate in sign. A low run at either end is cut off.
    """
    height, count = list(heights), len(heights)
    before, after = list(range(-1, count - 1)), [*range(1, count), -1]
    alive, stop, dents = [True] * count, count, list[float]()
    heap = [(abs(value), run) for run, value in enumerate(height)]
    heapq.heapify(heap)
    while heap:
        low, run = heapq.heappop(heap)
        if not alive[run] or abs(height[run]) != low:
            continue
        if low >= limit:
            break
        dents.append(low)
        alive[run] = False
        left, right = before[run], after[run]
        if left >= 0 and right >= 0:
            height[left] += height[run] + height[right]
            alive[right] = False
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            heapq.heappush(heap, (abs(height[left]), left))
        elif left >= 0:
            after[left], stop = -1, run
        elif right >= 0:
            before[right] = -1
    return _Phases([run for run in range(count) if alive[run]], stop, dents)


def _typical(dents: list[float]) -> float:
    """The height in whose dents, and higher ones, half of all bytes moved: a step's."""
    height = np.sort(dents)
    return float(height[np.searchsorted(np.cumsum(height), height.sum() / 2)])


def _transfer(bursts: Bursts, bounds: Ints, idle_ns: int, opposite_ns: Ints) -> Bursts:
    """The bursts of complete steps without the messages before and after each transfer.

    A message is apart from it by a pause, or smaller than segments are and something came the other way between.
    """
    step = np.searchsorted(bounds, bursts.begin_ns, "right") - 1
    bursts = bursts.some((step >= 0) & (step < len(bounds) - 1))
    step = np.searchsorted(bounds, bursts.begin_ns, "right") - 1
    if not len(step):
        return bursts
    answered = np.diff(np.searchsorted(opposite_ns, [bursts.end_ns[:-1], bursts.begin_ns[1:]]), axis=0)[0] > 0
    small = bursts.size < 0.5 * np.average(bursts.first, weights=bursts.first)
    answered &= small[1:] | small[:-1]
    apart = np.append(True, (np.diff(step) > 0) | (bursts.begin_ns[1:] - bursts.end_ns[:-1] > idle_ns) | answered)
    starts = np.flatnonzero(apart)
    group = np.cumsum(apart) - 1
    total = np.bincount(step, bursts.size)
    reach, before = np.cumsum(bursts.size), np.append(0, np.cumsum(total))
    until = np.append(reach[starts[1:] - 1], reach[-1]) - before[step[starts]]
    since = until - np.add.reduceat(bursts.size, starts)
    least = CONTROL * total[step[starts]]
    return bursts.some(((until > least) & (since < total[step[starts]] - least))[group])


def _spans(bursts: Bursts, bounds: Ints, idle_ns: int, origin_ns: int) -> Spans:
    """Transfers without pauses. Each begins before its first segment was seen, by the time which that took to send."""
    step = np.searchsorted(bounds, bursts.begin_ns, "right") - 1
    begin_s, end_s = ((time - origin_ns) / 1e9 for time in (bursts.begin_ns, bursts.end_ns))
    end_s = np.maximum.accumulate(end_s)
    apart = np.append(True, (np.diff(step) > 0) | (bursts.begin_ns[1:] - bursts.end_ns[:-1] > idle_ns))
    starts = np.flatnonzero(apart)
    stops = np.append(starts[1:], len(step)) - 1
    size, first = np.add.reduceat(bursts.size, starts), bursts.first[starts]
    seen_s = end_s[stops] - begin_s[starts]
    later = size - first
    overall = seen_s.sum() / max(later.sum(), 1)
    per_byte = np.where((later > 0) & (seen_s > 0), seen_s / np.maximum(later, 1), overall)
    from_s = np.maximum(begin_s[starts] - first * per_byte, np.append(-np.inf, end_s[stops[:-1]]))
    sent = np.cumsum(bursts.size).astype(np.float64)
    before = sent - bursts.size
    time_s = np.concatenate([from_s, begin_s, end_s])
    points = np.concatenate([before[starts], before + bursts.first, sent])
    order = np.lexsort([points, time_s])
    return Spans(
        step[starts], begin_s[starts], from_s, end_s[stops], size, time_s[order], np.maximum.accumulate(points[order])
    )


def _complete(size: list[Ints], model_bytes: int | None) -> tuple[int, int]:
    """The range of steps without a first and a last that were not captured whole."""
    whole = np.ones(len(size[DOWN]), np.bool_)
    for some in size:
        whole &= some > INCOMPLETE * (model_bytes or float(np.median(some)))
    first, last = 0, len(whole)
    if last and not whole[0]:
        first += 1
    if last > first and not whole[-1]:
        last -= 1
    return first, last


def _cut(spans: Spans, first: int, last: int) -> Spans:
    kept = (spans.step >= first) & (spans.step < last)
    return Spans(
        spans.step[kept] - first,
        spans.seen_s[kept],
        spans.begin_s[kept],
        spans.end_s[kept],
        spans.size[kept],
        spans.time_s,
        spans.sent,
    )


def _columns(
    flows: Flows, spans: Mapping[tuple[int, int], Spans], size: list[Ints], kept: tuple[int, int], origin_ns: int
) -> Steps:
    count = kept[1] - kept[0]
    ways = [[span for (_, way), span in spans.items() if way == wanted] for wanted in (DOWN, UP)]
    begin_s, end_s = _first(ways[DOWN], count), _last(ways[UP], count)
    download_s, upload_s, moving_s = (_covered(some, count) for some in (*ways, ways[DOWN] + ways[UP]))
    applied, early_answers = dict[int, tuple[Floats, Floats]](), 0
    request_s, response_s = np.full(count, np.inf), np.full(count, -np.inf)
    for server in sorted({server for server, _ in spans}):
        if (server, UP) not in spans or (server, DOWN) not in flows:
            continue
        until_s = _last([spans[server, UP]], count)
        answer_s, ask_s = _answers(until_s, flows[server, DOWN], flows[server, UP], origin_ns)
        following_s = np.full(count + 1, np.inf)
        if (server, DOWN) in spans:
            np.minimum.at(following_s, spans[server, DOWN].step, spans[server, DOWN].seen_s)
        answer_s = np.where((answer_s <= ask_s) & (answer_s < following_s[1:]), answer_s, np.nan)
        applied[server] = until_s, answer_s
        early_answers += _within(spans[server, UP], flows[server, DOWN], origin_ns)
        request_s, response_s = np.minimum(request_s, ask_s), np.maximum(response_s, answer_s)
    between_s = np.where(np.isfinite(request_s) & np.isfinite(response_s), request_s - response_s, 0)
    down_bytes, up_bytes = (some[kept[0] : kept[1]] for some in size)
    compute_s = np.maximum(end_s - begin_s - moving_s, 0)
    return Steps(
        begin_s,
        end_s,
        download_s,
        compute_s,
        upload_s,
        np.maximum(between_s, 0),
        down_bytes,
        up_bytes,
        spans,
        applied,
        early_answers,
    )


def _first(spans: list[Spans], count: int) -> Floats:
    found = np.full(count, np.inf)
    for span in spans:
        np.minimum.at(found, span.step, span.begin_s)
    return found


def _last(spans: list[Spans], count: int) -> Floats:
    found = np.full(count, -np.inf)
    for span in spans:
        np.maximum.at(found, span.step, span.end_s)
    return found


def _covered(spans: list[Spans], count: int) -> Floats:
    """Per step, how long at least one transfer was under way."""
    step = np.concatenate([span.step for span in spans])
    begin_s = np.concatenate([span.begin_s for span in spans])
    end_s = np.concatenate([span.end_s for span in spans])
    order = np.lexsort([begin_s, step])
    step, begin_s, end_s = step[order], begin_s[order], end_s[order]
    before = np.append(-np.inf, np.maximum.accumulate(end_s)[:-1])
    return np.bincount(step, np.maximum(end_s - np.maximum(begin_s, before), 0), count).astype(np.float64)


def _answers(until_s: Floats, down: Bursts, up: Bursts, origin_ns: int) -> tuple[Floats, Floats]:
    """What came after the end of each upload: the first thing from the server, and the next from the worker."""
    answer_s, ask_s = (np.append((bursts.begin_ns - origin_ns) / 1e9, np.inf) for bursts in (down, up))
    return (
        answer_s[np.searchsorted(answer_s[:-1], until_s, "left")],
        ask_s[np.searchsorted(ask_s[:-1], until_s, "right")],
    )


def _within(uploads: Spans, down: Bursts, origin_ns: int) -> int:
    """How many small things came from the server during uploads to it."""
    time_s = (down.begin_ns[down.size < CONTROL * uploads.size.max()] - origin_ns) / 1e9
    return int((np.searchsorted(time_s, uploads.end_s) - np.searchsorted(time_s, uploads.seen_s)).sum())


def of_worker(flows: Flows) -> list[Bursts]:
    """What a worker downloaded and uploaded, each over all servers."""
    ways = [[bursts for (_, way), bursts in flows.items() if way == wanted] for wanted in (DOWN, UP)]
    return [joined(some) for some in ways if some]
