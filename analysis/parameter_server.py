"""What a run with parameter servers comes to: throughput in steady state, staleness, how busy links and servers are."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis import served_steps
from analysis.links import carried_bytes
from analysis.served_steps import Steps, Times
from sim.ops import OpKind
from sim.trace import Trace

WARM_UP = 0.1
"""Share of the time until a first worker has done all its steps that counts as warm-up."""
BATCHES = 20
STUDENT_95 = 2.093
"""Of batch means, and the quantile 0.975 of Student's t with one degree of freedom fewer."""
PHASES = ("download_s", "compute_s", "upload_s", "apply_s")

Counts = NDArray[np.integer[Any]]


class Window(NamedTuple):
    """The steady state: from the completion of a step after the warm-up to the last before a worker has no more to do.

    ``steps`` were completed in it, those of its first instant not counted.
    """

    start_s: float
    end_s: float
    steps: int

    @property
    def steps_per_s(self) -> float | None:
        """The throughput of all workers; ``None`` where no time passes."""
        return self.steps / (self.end_s - self.start_s) if self.end_s > self.start_s else None


def window(steps: Steps) -> Window:
    """The steady state of a run."""
    if not len(steps.done_s):
        return Window(0.0, 0.0, 0)
    last_s = np.full(len(steps.attempts), -np.inf)
    np.maximum.at(last_s, steps.worker, steps.done_s)
    until_s = float(last_s[np.isfinite(last_s)].min())
    inside = np.sort(steps.done_s[(steps.done_s >= WARM_UP * until_s) & (steps.done_s <= until_s)])
    return Window(float(inside[0]), float(inside[-1]), int((inside > inside[0]).sum()))


def compute(trace: Trace) -> dict[str, Any]:
    """The result of a run, JSON types only, over its steady state unless said; ``None`` where a number is unknown.

    ``steps_per_s``: of all workers, with the 95 % interval of its batch means. ``staleness``: of each gradient, one of
    every step and part. ``phases``: mean seconds of a step, which overlap under ``granularity: layer``. Of the whole
    run ``dropped_steps``: begun and never applied, and ``imbalance``: the most bytes that a server keeps over the mean.
    """
    about, steps = trace.header["parameter_servers"], served_steps.compute(trace)
    steady = window(steps)
    inside = (steps.done_s > steady.start_s) & (steps.done_s <= steady.end_s)
    held = about["shard_bytes"]
    dropped = int(steps.attempts.sum()) - len(steps.done_s)
    return {
        "consistency": _consistency(about),
        "workers": about["workers"],
        "servers": [_server(trace, number, steady) for number in range(len(about["servers"]))],
        "window_s": [steady.start_s, steady.end_s],
        "steps_per_s": steady.steps_per_s,
        "steps_per_s_interval": _interval(steps.done_s, steady),
        "dropped_steps": dropped,
        "phases": dict(zip(PHASES, _means(steps.phases_s[inside]), strict=True)),
        "staleness": {
            **summary(steps.staleness[inside]),
            "histogram": _histogram(steps.staleness[inside]),
            "workers": [_worker(trace, steps, worker, inside, steady) for worker in range(about["workers"])],
        },
        "links": _links(trace, steady),
        "imbalance": max(held) * len(held) / sum(held) if sum(held) else None,
        "faults": _faults(trace, steps, steady),
    }


def _consistency(about: dict[str, Any]) -> str:
    bound = about["bound"] if about["consistency"] in ("ssp", "backup") else ""
    return f"{about['consistency']} {bound}".strip()


def summary(values: Counts) -> dict[str, Any]:
    """Mean, median, 99th percentile and most of some staleness."""
    if not values.size:
        return {"mean": None, "p50": None, "p99": None, "max": None}
    p50, p99 = (float(each) for each in np.percentile(values, (50, 99)))
    return {"mean": float(values.mean()), "p50": p50, "p99": p99, "max": int(values.max())}


def _histogram(values: Counts) -> dict[str, int]:
    found, counts = np.unique(values, return_counts=True)
    return {str(value): count for value, count in zip(found.tolist(), counts.tolist(), strict=True)}


def _means(phases_s: Times) -> list[float | None]:
    return [None] * len(PHASES) if not len(phases_s) else [float(mean) for mean in phases_s.mean(axis=0)]


def _interval(done_s: Times, steady: Window) -> list[float] | None:
    """The 95 % confidence interval of the throughput by batch means (Law, Simulation Modeling and Analysis, 9.5.3)."""
    if steady.steps < 10 * BATCHES:
        return None
    counts, _ = np.histogram(done_s[done_s > steady.start_s], BATCHES, (steady.start_s, steady.end_s))
    rates = counts * BATCHES / (steady.end_s - steady.start_s)
    half = STUDENT_95 * float(rates.std(ddof=1)) / math.sqrt(BATCHES)
    return [float(rates.mean()) - half, float(rates.mean()) + half]


def _worker(trace: Trace, steps: Steps, worker: int, inside: NDArray[np.bool_], steady: Window) -> dict[str, Any]:
    mine = inside & (steps.worker == worker)
    length_s = steady.end_s - steady.start_s
    return {
        "name": trace.header["devices"][worker],
        "steps": int(mine.sum()),
        "steps_per_s": int(mine.sum()) / length_s if length_s else None,
        **summary(steps.staleness[mine]),
    }


def _server(trace: Trace, number: int, steady: Window) -> dict[str, Any]:
    about = trace.header["parameter_servers"]
    device, held = about["servers"][number], about["shard_bytes"]
    return {
        "name": trace.header["devices"][device],
        "bytes": held[number],
        "share": held[number] / sum(held) if sum(held) else None,
        "utilization": _core_utilization(trace, device, about["cores"][number], steady),
    }


def _core_utilization(trace: Trace, device: int, cores: int, steady: Window) -> float | None:
    """Busy cores over all, on average: of n ops on c cores min(n, c) are busy, in either discipline."""
    if steady.end_s <= steady.start_s:
        return None
    ops = trace.ops
    here = np.flatnonzero((ops["source"] == device) & np.isin(ops["kind"], (OpKind.UPDATE, OpKind.ACCUMULATE)))
    times = np.concatenate([trace.start_s[here], trace.end_s[here]]).clip(steady.start_s, steady.end_s)
    change, by_time = np.repeat([1, -1], len(here)), np.argsort(times, kind="stable")
    busy = np.minimum(np.cumsum(change[by_time]), cores)
    lasting = np.diff(np.append(times[by_time], steady.end_s))
    return float((busy * lasting).sum()) / (cores * (steady.end_s - steady.start_s))


def _links(trace: Trace, steady: Window) -> list[dict[str, Any]]:
    """How busy the links are that have a bandwidth and carried something."""
    found = []
    for link in np.unique(trace.flows["link"]).tolist():
        figures, flows = trace.header["links"][link], trace.flows[trace.flows["link"] == link]
        if math.isfinite(figures["bytes_per_s"]) and steady.end_s > steady.start_s:
            carried = carried_bytes(flows, steady.start_s, steady.end_s)
            share = carried / (figures["bytes_per_s"] * (steady.end_s - steady.start_s))
            found.append({"name": figures["name"], "utilization": share})
    return found


def _faults(trace: Trace, steps: Steps, steady: Window) -> list[dict[str, Any]]:
    """Throughput and mean staleness before, during and after each fault."""
    header = trace.header
    about, found = header["parameter_servers"], []
    for at_s, for_s, device in about["outages"]:
        name = f"{header['devices'][device]} down"
        found.append({"what": name, "at_s": at_s, "for_s": for_s, **_around(steps, steady, at_s, at_s + for_s)})
    for at_s, for_s, links, bytes_per_s in about["degradations"]:
        share = bytes_per_s / header["links"][links[0]]["bytes_per_s"]
        name = f"{header['links'][links[0]]['name']} at {100 * share:.3g} %"
        found.append({"what": name, "at_s": at_s, "for_s": for_s, **_around(steps, steady, at_s, at_s + for_s)})
    return found


def _around(steps: Steps, steady: Window, at_s: float, until_s: float) -> dict[str, Any]:
    times_s = {"before": (steady.start_s, at_s), "during": (at_s, until_s), "after": (until_s, steady.end_s)}
    rates: dict[str, float | None] = {}
    stale: dict[str, float | None] = {}
    for name, (low_s, high_s) in times_s.items():
        inside = (steps.done_s > low_s) & (steps.done_s <= min(high_s, steady.end_s))
        length_s = min(high_s, steady.end_s) - low_s
        rates[name] = int(inside.sum()) / length_s if length_s > 0 else None
        stale[name] = summary(steps.staleness[inside])["mean"]
    return {"steps_per_s": rates, "staleness": stale}
