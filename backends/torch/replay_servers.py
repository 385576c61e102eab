"""Real arithmetic in the order of a trace of parameter servers: which versions a worker read, and who updated when."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from backends.torch.data import Batches, initial
from backends.torch.job import Arithmetic, Done, Watch
from backends.torch.server_state import PartState, flat, places, shaped
from backends.torch.threads import one_thread
from sim.errors import BrokenInvariant, UnsupportedPlan
from sim.ops import OpKind
from sim.plan import Plan
from sim.program import Program
from sim.trace import Trace


def replay_servers(
    plan: Plan,
    trace: Trace,
    samples: int,
    seed: int = 0,
    arithmetic: Arithmetic = "float32",
    watch: Watch | None = None,
) -> Done:
    """Do the arithmetic of a program in the order of a trace of it; ``samples`` of a worker's step.

    ``Done.losses`` are those of each step by number and worker, ``Done.weights`` what the servers have at the end.

    Raises
    ------
    UnsupportedPlan : only times are known of the model, or its optimizer is none that a server has.
    """
    if plan.architecture is None:
        raise UnsupportedPlan(f"of model '{plan.model}' only times are known, no layers to run: use a shipped model")
    with one_thread():
        replay = _Replay(plan, trace, samples, seed, torch.float32 if arithmetic == "float32" else torch.float64)
        for op in _writes(trace):
            replay.do(op)
            if watch is not None and trace.ops["kind"][op] == OpKind.UPDATE:
                watch(float(trace.end_s[op]), replay.done)
        return replay.done()


def _writes(trace: Trace) -> list[int]:
    """Every op of the first job that changes what a server keeps, in the order of their ends."""
    ops = trace.ops
    chosen = np.flatnonzero((ops["stage"] == 0) & np.isin(ops["kind"], (OpKind.UPDATE, OpKind.ACCUMULATE)))
    order: list[int] = chosen[np.lexsort([ops["writes"][chosen], trace.end_s[chosen]])].tolist()
    return order


class _Replay:
    def __init__(self, plan: Plan, trace: Trace, samples: int, seed: int, dtype: torch.dtype) -> None:
        program, architecture = plan.work, plan.architecture
        assert isinstance(program, Program)
        assert program.layout is not None
        assert architecture is not None
        self._ops, self._layout = trace.ops, program.layout
        self._model = initial(architecture, seed, dtype)
        self._names = [name for name, _ in self._model.named_parameters()]
        self._batches = Batches(architecture, plan.training.task, seed, samples, dtype)
        start = flat(list(self._model.parameters()))
        self._places = places(self._model, program.layout.parts)
        self._parts = [PartState(start[place], plan.training) for place in self._places]
        self._reads, self._readers = _pulls(trace)
        self._kept = {(part, 0): state.values.clone() for part, state in enumerate(self._parts)}
        self._gradients: dict[tuple[int, int], Tensor] = {}
        self._left: Counter[tuple[int, int]] = Counter()
        self._losses: dict[tuple[int, int], float] = {}

    def do(self, op: int) -> None:
        """An addition or an update of one part."""
        row = self._ops[op]
        kind, part, worker, number = (int(row[name]) for name in ("kind", "part", "replica", "micro_batch"))
        state = self._parts[part]
        if kind == OpKind.UPDATE and self._layout.consistency in ("bsp", "backup"):
            state.apply_mean()
        elif kind == OpKind.ACCUMULATE:
            state.add(self._gradient(worker, number, part))
            return
        else:
            state.apply(self._gradient(worker, number, part))
        if state.version != row["writes"]:
            raise BrokenInvariant(f"version {row['writes']} of part {part} should come now, not {state.version}")
        if self._readers[part, state.version]:
            self._kept[part, state.version] = state.values.clone()

    def _gradient(self, worker: int, number: int, part: int) -> Tensor:
        step = worker, number
        if step not in self._gradients:
            self._gradients[step] = self._step(worker, number)
            self._left[step] = len(self._parts)
        gradient = self._gradients[step][self._places[part]]
        self._left[step] -= 1
        if not self._left[step]:
            del self._gradients[step], self._left[step]
        return gradient

    def _step(self, worker: int, number: int) -> Tensor:
        """The gradient of one worker's step, on the versions that it read."""
        values = torch.empty(sum(len(place) for place in self._places), dtype=self._parts[0].values.dtype)
        for part, place in enumerate(self._places):
            read = part, self._reads[worker, number, part]
            values[place] = self._kept[read]
            self._readers[read] -= 1
            if not self._readers[read]:
                del self._kept[read]
        weights = [weight.requires_grad_() for weight in shaped(values, self._model)]
        batch = number * self._layout.workers + worker
        named = dict(zip(self._names, weights, strict=True))
        loss = cross_entropy(
            functional_call(self._model, named, (self._batches.inputs(batch),)), self._batches.targets(batch)
        )
        self._losses[number, worker] = loss.item()
        return flat(torch.autograd.grad(loss, weights))

    def done(self) -> Done:
        """What the servers have at the end."""
        values = torch.empty(sum(len(place) for place in self._places), dtype=self._parts[0].values.dtype)
        for state, place in zip(self._parts, self._places, strict=True):
            values[place] = state.values
        weights = tuple(weight.numpy() for weight in shaped(values, self._model))
        return Done({}, {(0, 0): weights}, {}, self._losses, {})


def _pulls(trace: Trace) -> tuple[dict[tuple[int, int, int], int], Counter[tuple[int, int]]]:
    """The version of each part that each step read, and how many steps that are applied read each version."""
    ops = trace.ops
    first = ops["stage"] == 0
    applied = {
        (int(row["replica"]), int(row["micro_batch"]))
        for row in ops[first & np.isin(ops["kind"], (OpKind.UPDATE, OpKind.ACCUMULATE))]
    }
    reads: dict[tuple[int, int, int], int] = {}
    readers: Counter[tuple[int, int]] = Counter()
    for row in ops[first & (ops["kind"] == OpKind.PULL)]:
        worker, number, part, version = (int(row[name]) for name in ("replica", "micro_batch", "part", "reads"))
        if (worker, number) in applied:
            reads[worker, number, part] = version
            readers[part, version] += 1
    return reads, readers
