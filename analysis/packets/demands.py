"""Service demands from steps: seconds per step on each server's downlink, uplink and cores, and think time.

How long a transfer takes is residence: it is stretched by whatever else was on the link. The demand is U/X (utilization
law): what all workers together keep a link busy, over their steps (`links` says what busy is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from analysis.intervals import union
from analysis.packets import links
from analysis.packets.steps import Floats, Steps
from analysis.packets.streams import DOWN, UP

ALIKE = 0.01


class Estimate(NamedTuple):
    """A mean with its 95 % interval; no interval where there are too few values."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ServerDemand:
    """Seconds per step on the station of one server; ``None`` where nothing was seen.

    ``limited`` names the directions in which the server's link was never what limited the transfers, as far as can be
    told: there the demand is an upper bound.
    """

    downlink: Estimate | None
    uplink: Estimate | None
    apply: Estimate | None
    limited: tuple[str, ...]


def mean(values: Floats) -> Estimate:
    """The mean of independent values (Student's t)."""
    return _estimate(float(values.mean()), values)


def _estimate(center: float, values: Floats) -> Estimate:
    if len(values) < 2:
        return Estimate(center, None, None)
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(center, center - half, center + half)


def ratio(above: Floats, below: Floats, factor: float = 1.0) -> Estimate:
    """``factor`` × Σ above / Σ below of a row of windows, its interval from the residuals (Cochran 1977, 6.4)."""
    kept = below > 0
    above, below = above[kept], below[kept]
    center = float(above.sum() / below.sum())
    return _estimate(factor * center, factor * ((above - center * below) / float(below.mean()) + center))


def warm_up(steps: Steps) -> int:
    """How many steps to leave out at the start: the truncation of least standard error (MSER, White 1997).

    At most half, and none unless that halves the error, or where all steps are alike.
    """
    lasted_s = np.diff(steps.begin_s)
    count = len(lasted_s)
    if count < 4 or np.ptp(lasted_s) < ALIKE * lasted_s.mean():
        return 0
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum((lasted_s - lasted_s[-1])[::-1] ** power)[::-1] for power in (1, 2))
    error = np.maximum(squares - sums**2 / left, 0)[: count // 2 + 1] / left[: count // 2 + 1] ** 2
    best = int(np.argmin(error))
    return best if error[best] < error[0] / 4 else 0


def of_servers(workers: Sequence[Steps], dropped: Sequence[int], servers: Sequence[int]) -> dict[int, ServerDemand]:
    """The demands of each server, from all workers' steps without the first ``dropped`` of each."""
    pairs = list(zip(workers, dropped, strict=True))
    down, up = _of_direction(pairs, DOWN), _of_direction(pairs, UP)
    found = {}
    for server in servers:
        limited = tuple(name for name, way in (("downlink", down), ("uplink", up)) if server in way and way[server][1])
        downlink, uplink = (way[server][0] if server in way else None for way in (down, up))
        found[server] = ServerDemand(downlink, uplink, _apply(pairs, server), limited)
    return found


def _of_direction(pairs: Sequence[tuple[Steps, int]], way: int) -> dict[int, tuple[Estimate, bool]]:
    """Of every server the demand on its link in one direction, and whether that is an upper bound."""
    spans = {
        (number, server): each
        for number, (steps, _) in enumerate(pairs)
        for (server, of_way), each in steps.spans.items()
        if of_way == way
    }
    found = links.of_direction(spans, max(float(steps.begin_s[skip]) for steps, skip in pairs))
    return {
        server: (ratio(link.busy_s, link.moved, _step_bytes(pairs, server, way)), link.limited)
        for server, link in found.items()
    }


def _step_bytes(pairs: Sequence[tuple[Steps, int]], server: int, way: int) -> float:
    """Mean bytes of a step on one link."""
    moved = sum(
        float(spans.size[spans.step >= skip].sum())
        for steps, skip in pairs
        if (spans := steps.spans.get((server, way))) is not None
    )
    return moved / sum(len(steps) - skip for steps, skip in pairs)


def _apply(pairs: Sequence[tuple[Steps, int]], server: int) -> Estimate | None:
    """Time with at least one update waiting or being applied, per update: the demand of one server core."""
    until, answer = list[Floats](), list[Floats]()
    for steps, skip in pairs:
        if server in steps.applied:
            begin_s, end_s = (column[skip:] for column in steps.applied[server])
            seen = np.isfinite(end_s)
            until.append(begin_s[seen])
            answer.append(end_s[seen])
    if not until or not sum(map(len, until)):
        return None
    begin_s, end_s = np.concatenate(until), np.concatenate(answer)
    busy = union(begin_s, end_s)  # each busy period is a sample of its own
    served = np.bincount(np.searchsorted(busy.end_s, end_s), minlength=len(busy.end_s))
    return ratio(busy.end_s - busy.start_s, served.astype(np.float64)) if len(busy.end_s) else mean(end_s - begin_s)
