"""What a method costs, stage by stage: the numbers by which pipelines are compared, each measured from a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis import occupancy, staleness, steady, usage
from analysis.intervals import most_at_once
from analysis.steady import Steady
from analysis.table import NONE
from sim.op_table import Halves
from sim.ops import FORWARD_KINDS, OpKind
from sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Costs:
    """One method.

    Parameters
    ----------
    bubble : share of all accelerators' time in which they do not compute, over the steps of the steady state.
    weight_copies : of each stage, its replicas together, the current version included.
    predicted_copies : of each GPU, apart from these.
    in_flight : of each GPU, micro-batches of all that it holds whose forward has started and whose (input) gradient has
        not ended, in chunks of the model over the chunks a GPU holds.
    waiting : of each GPU, as many more that are kept at once for their weight gradient.
    forward, backward : staleness of each stage in steady state, ``None`` where nothing is updated.
    """

    bubble: float
    weight_copies: tuple[int, ...]
    predicted_copies: tuple[int, ...]
    in_flight: tuple[float, ...]
    waiting: tuple[float, ...]
    forward: tuple[int | None, ...]
    backward: tuple[int | None, ...]


def compute(trace: Trace) -> Costs:
    """The costs of a run; it should be long enough for a steady state in its middle."""
    measured = staleness.compute(trace)
    occupied = occupancy.compute(trace, measured)
    in_flight, kept = _most_in_flight(trace), occupied.in_flight
    chunks = max(trace.shape.stages / len(kept), 1)
    return Costs(
        bubble=_bubble(trace, steady.compute(trace, measured, occupied)),
        weight_copies=occupied.stage_weight_copies,
        predicted_copies=occupied.predicted_copies,
        in_flight=tuple(count / chunks for count in in_flight),
        waiting=tuple((most - count) / chunks for most, count in zip(kept, in_flight, strict=True)),
        forward=measured.forward.by_stage,
        backward=measured.backward.by_stage,
    )


def _bubble(trace: Trace, over: Steady) -> float:
    """Of the steps from one completion to another; where no mini-batches fill and drain the pipeline, all are alike."""
    used = usage.compute(trace)
    spans, count = [used.computing[device] for device in used.accelerators], trace.shape.mini_batches
    if over.first:
        busy_s = sum(each.within(over.start_s, over.end_s).length_s for each in spans) / (over.last - over.first)
    else:
        busy_s = sum(each.length_s for each in spans) / count
    return max(1 - busy_s / (len(spans) * over.step_time_s), 0.0)


def _most_in_flight(trace: Trace) -> tuple[int, ...]:
    """The most micro-batches at once on each GPU whose forward has started and whose input gradient has not ended."""
    ops, halves = trace.ops, Halves(trace.ops)
    forward = np.flatnonzero(np.isin(ops["kind"], FORWARD_KINDS))
    op = ops[forward]
    name = op["stage"], op["micro_batch"], op["replica"]
    until = np.maximum(*(halves.find(kind, *name) for kind in (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)))
    devices = ops["source"][forward].astype(np.int64)
    most = most_at_once(devices, trace.start_s[forward], trace.end_s[until], len(trace.header["devices"]))
    return tuple(int(count) for count in most)


COLUMNS = ("method", "bubble of total", "weight copies", "in flight", "staleness F", "staleness B")


def text(methods: Mapping[str, Costs]) -> str:
    """The methods as a table in Markdown; where stages or GPUs differ, a number for each."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(title, costs) for title, costs in methods.items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(title: str, costs: Costs) -> tuple[str, ...]:
    return (
        title,
        f"{costs.bubble:.3f}".rstrip("0").rstrip("."),
        _each(costs.weight_copies, costs.predicted_copies),
        _each(costs.in_flight, costs.waiting),
        _each(costs.forward),
        _each(costs.backward),
    )


def _each(values: Sequence[float | None], more: Sequence[float] = ()) -> str:
    """One value where all agree, else all; ``more`` of a second kind behind a plus sign."""
    shown = [NONE if value is None else f"{value:g}" for value in values]
    together = " ".join(shown) if len(set(shown)) > 1 else shown[0]
    return f"{together} (+ {_each(more)})" if any(more) else together
