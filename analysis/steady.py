"""Step time and throughput in steady state: warm-up and cool-down left out where mini-batches overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis import occupancy, parameter_server, served_steps, staleness
from analysis.intervals import Times
from analysis.occupancy import Occupancy
from analysis.staleness import Staleness
from sim.op_table import of_kinds
from sim.ops import BACKWARD_KINDS, FORWARD_KINDS, OpKind
from sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Steady:
    """Step time of a run.

    Parameters
    ----------
    step_time_s : from the completion of mini-batch ``first`` to that of ``last``, divided by their distance. Where
        fewer than two count, the makespan per mini-batch, and ``steady`` is false.
    start_s, end_s : the time the steps were taken over.
    samples_per_s, overall_samples_per_s : by the step time, and by the makespan; ``None`` where nothing takes time.
    """

    step_time_s: float
    steady: bool
    first: int
    last: int
    start_s: float
    end_s: float
    samples_per_s: float | None
    overall_samples_per_s: float | None


def compute(trace: Trace, measured: Staleness | None = None, occupied: Occupancy | None = None) -> Steady:
    """The steady state of a run. ``measured`` and ``occupied`` save computing these again.

    A mini-batch is complete when its last update has ended (its last backward where nothing updates). A synchronous
    method flushes after every mini-batch, so every one counts. An asynchronous one warms up and cools down for as many
    mini-batches as it keeps in flight at stage 0.
    """
    if served_steps.has_servers(trace):
        return _of_servers(trace)
    measured = measured or staleness.compute(trace)
    occupied = occupied or occupancy.compute(trace, measured)
    done_s, count = _completions(trace), trace.shape.mini_batches
    filling = 0
    if _overlaps(trace, measured, done_s):
        filling = -(-occupied.stage_in_flight[0] // trace.shape.micro_batches)
    period = math.lcm(*trace.shape.rounds)  # the last of its round completes a mini-batch of every stage
    first, last = -(-(filling + 1) // period) * period - 1, (count - filling) // period * period - 1
    steady = last > first and bool(np.isfinite(done_s).all())
    start_s, end_s = (float(done_s[first]), float(done_s[last])) if steady else (0.0, trace.makespan_s)
    step_s = (end_s - start_s) / (last - first if steady else count)
    samples = float(trace.header["samples"])
    return Steady(
        step_time_s=step_s,
        steady=steady,
        first=first if steady else 0,
        last=last if steady else count - 1,
        start_s=start_s,
        end_s=end_s,
        samples_per_s=samples / step_s if step_s else None,
        overall_samples_per_s=samples * count / trace.makespan_s if trace.makespan_s else None,
    )


def each_step_s(trace: Trace) -> Times:
    """Seconds of each step that the step time is the mean of; of a round of several mini-batches, their mean."""
    over = compute(trace)
    if not over.steady or served_steps.has_servers(trace):
        return np.array([over.step_time_s])
    period = math.lcm(*trace.shape.rounds)
    return np.diff(_completions(trace)[over.first : over.last + 1 : period]) / period


def _of_servers(trace: Trace) -> Steady:
    """With parameter servers the step time is that of a worker, and each step makes its own samples."""
    steps, count = served_steps.compute(trace), trace.shape.mini_batches
    found, samples = parameter_server.window(steps), float(trace.header["samples"])
    rate = found.steps_per_s
    overall = len(steps.done_s) / trace.makespan_s if trace.makespan_s else None
    rate_or_overall = overall if rate is None else rate
    return Steady(
        step_time_s=trace.header["parameter_servers"]["workers"] / rate_or_overall if rate_or_overall else 0.0,
        steady=rate is not None,
        first=0,
        last=count - 1,
        start_s=found.start_s if rate is not None else 0.0,
        end_s=found.end_s if rate is not None else trace.makespan_s,
        samples_per_s=samples * rate_or_overall if rate_or_overall else None,
        overall_samples_per_s=samples * overall if overall else None,
    )


def _completions(trace: Trace) -> Times:
    """When each mini-batch is complete; −∞: never."""
    kind = trace.ops["kind"]
    done_s = np.full(trace.shape.mini_batches, -np.inf)
    updates = np.flatnonzero(kind == OpKind.UPDATE)
    for stage in np.unique(trace.ops["stage"][updates]).tolist():
        rows = updates[trace.ops["stage"][updates] == stage]
        applied_s = np.full(trace.shape.mini_batches, -np.inf)
        np.maximum.at(applied_s, trace.ops["micro_batch"][rows], trace.end_s[rows])
        first = np.arange(trace.shape.mini_batches) * trace.shape.micro_batches
        done_s = np.maximum(done_s, applied_s[trace.shape.update_of(stage, first)])
    if not len(updates):
        rows = np.flatnonzero(of_kinds(trace.ops, (*BACKWARD_KINDS, OpKind.FORWARD_BACKWARD)))
        np.maximum.at(done_s, trace.ops["micro_batch"][rows] // trace.shape.micro_batches, trace.end_s[rows])
    return done_s


def _overlaps(trace: Trace, measured: Staleness, done_s: Times) -> bool:
    """Whether mini-batches overlap: by staleness, or by time where nothing updates."""
    if measured.forward.max is not None:
        return measured.forward.max > 0
    rows = np.flatnonzero(of_kinds(trace.ops, FORWARD_KINDS))
    begun_s = np.full(trace.shape.mini_batches, np.inf)
    np.minimum.at(begun_s, trace.ops["micro_batch"][rows] // trace.shape.micro_batches, trace.start_s[rows])
    return bool((begun_s[1:] < done_s[:-1]).any())
