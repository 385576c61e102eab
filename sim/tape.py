"""What autograd records of a forward pass in PyTorch: storages made, saved for backward, and let go of.

One `Step` for each function that autograd records, in the order of the forward pass; the rules are those of PyTorch
2.13 in fp32 with the modules of ``backends/torch/modules.py``. What kernels allocate for themselves is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from sim.architecture import Block, Entry, Operation
from sim.errors import UnsupportedPlan

Device = Literal["cpu", "cuda"]

ELEMENT = 4
"""Bytes of an fp32 value."""
INDEX = 8
"""Bytes of an int64."""
MASK: dict[Device, int] = {"cpu": 4, "cuda": 1}
"""Bytes of an element of a dropout mask: a scaled fp32 mask on the CPU, a bool in the fused kernel of CUDA."""


@dataclass(frozen=True, slots=True)
class Step:
    """One function: it reads tensors, writes one, and saves what its backward needs.

    Tensors are numbers; `Tape.sizes` has their bytes. ``shares``: the output lives in the storage of the first input,
    because it is a view or the function works in place. ``saves`` are tensors among those read and written, and
    ``extra_bytes`` are saved beside them: indices, masks, statistics. ``passes_on``: the gradients of the inputs are
    the gradient of the output itself, or views of it; else each is a new tensor. ``parameters`` are the bytes of each;
    ``backward_bytes`` are wanted during backward only. After the step no variable refers to ``drops`` any more.
    """

    name: str
    reads: tuple[int, ...]
    writes: int
    shares: bool = False
    saves: tuple[int, ...] = ()
    extra_bytes: int = 0
    passes_on: bool = False
    parameters: tuple[int, ...] = ()
    backward_bytes: int = 0
    drops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tape:
    """Steps by vertex, bytes of every tensor, and the tensor that leaves each vertex; the first is the input.

    The last vertex is the loss, of which there is no checkpoint.
    """

    vertices: tuple[tuple[Step, ...], ...]
    sizes: tuple[int, ...]
    boundaries: tuple[int, ...]
    target_bytes: int
    buffer_bytes: int
    device: Device = "cpu"

    @property
    def parameters(self) -> list[int]:
        """Bytes of every parameter, in the order of layers."""
        return [size for vertex in self.vertices for step in vertex for size in step.parameters]

    @property
    def trained(self) -> frozenset[int]:
        """Tensors that want a gradient: those that depend on a parameter."""
        found: set[int] = set()
        for step in chain.from_iterable(self.vertices):
            if step.parameters or found.intersection(step.reads):
                found.add(step.writes)
        return frozenset(found)


class _Recorder:
    """Writes down the steps of one vertex after the other, for a batch."""

    def __init__(self, batch: int, device: Device) -> None:
        self.batch, self.device = batch, device
        self.sizes: list[int] = []
        self.steps: list[Step] = []
        self.buffer_bytes = 0

    def tensor(self, elements: int, element_bytes: int = ELEMENT) -> int:
        """A new tensor of ``elements`` per sample."""
        self.sizes.append(elements * self.batch * element_bytes)
        return len(self.sizes) - 1

    def step(
        self, name: str, reads: tuple[int, ...], elements: int, saves: str = "", **facts: int | bool | tuple[int, ...]
    ) -> int:
        """The output of a step; ``saves``: what is saved of it, 'inputs', 'output' or both."""
        writes = self.tensor(elements)
        saved = (reads if "inputs" in saves else ()) + ((writes,) if "output" in saves else ())
        self.steps.append(Step(name, reads, writes, saves=saved, **facts))  # type: ignore[arg-type]  # by their names
        return writes

    def drop(self, *tensors: int) -> None:
        """No variable refers to these any more."""
        last = self.steps[-1]
        self.steps[-1] = replace(last, drops=last.drops + tensors)

    def entries(self, entries: Sequence[Entry], x: int) -> int:
        """Layers one after the other; who called holds on to ``x``."""
        y = x
        for entry in entries:
            before = y
            y = self._block(entry, y) if isinstance(entry, Block) else self._operation(entry, y)
            if before != x:
                self.drop(before)
        return y

    def _operation(self, op: Operation, x: int) -> int:
        if op.kind not in RULES:
            raise UnsupportedPlan(f"no rule for what PyTorch keeps of a layer '{op.kind}': use objective corrected")
        return RULES[op.kind](self, op, x)

    def _block(self, block: Block, x: int) -> int:
        ends = [self.entries(branch, x) for branch in block.branches]
        elements = math.prod(block.leaving)
        if block.join == "concat":
            y = self.step("concat", tuple(ends), elements, passes_on=True)
        else:
            y = ends[0]
            for end in ends[1:]:
                before = y
                y = self.step("add", (y, end), elements, passes_on=True, shares=block.join == "add_in_place")
                if before not in ends:
                    self.drop(before)
        self.drop(*(end for end in ends if end != x))
        return y


Rule = Callable[[_Recorder, Operation, int], int]


def _parameters(op: Operation) -> tuple[int, ...]:
    """Bytes of each parameter: scale and shift of a normalisation, else weights and bias."""
    if not op.parameter_elements:
        return ()
    norm = op.kind in ("batch_norm", "layer_norm")
    last = op.parameter_elements // 2 if norm else op.options["out"] if op.options.get("bias") else 0
    return tuple(elements * ELEMENT for elements in (op.parameter_elements - last, last) if elements)


def _layer(saves: str, extra_bytes: int = 0) -> Rule:
    """A function of one input; ``extra_bytes`` for each element of its output."""

    def rule(to: _Recorder, op: Operation, x: int) -> int:
        elements = math.prod(op.leaving)
        extra = extra_bytes * elements * to.batch
        return to.step(op.kind, (x,), elements, saves, parameters=_parameters(op), extra_bytes=extra)

    return rule


def _in_place_or_not(saves: str) -> Rule:
    """An activation function: in place it saves its output, out of place what is said."""

    def rule(to: _Recorder, op: Operation, x: int) -> int:
        elements = math.prod(op.leaving)
        return to.step(op.kind, (x,), elements, "output" if op.in_place else saves, shares=op.in_place)

    return rule


def _view(to: _Recorder, op: Operation, x: int) -> int:
    return to.step(op.kind, (x,), math.prod(op.leaving), shares=True, passes_on=True)


def _dropout(to: _Recorder, op: Operation, x: int) -> int:
    elements = math.prod(op.leaving)
    return to.step(op.kind, (x,), elements, extra_bytes=elements * to.batch * MASK[to.device])


def _adaptive_avg_pool(to: _Recorder, op: Operation, x: int) -> int:
    saves = "" if op.options["out"] == (1, 1) else "inputs"  # a mean saves nothing
    return to.step(op.kind, (x,), math.prod(op.leaving), saves)


def _batch_norm(to: _Recorder, op: Operation, x: int) -> int:
    """Saves the mean and the inverse deviation of each channel; running means and a counter are buffers."""
    channels = op.arriving[0]
    to.buffer_bytes += 2 * channels * ELEMENT + INDEX
    statistics, elements = 2 * channels * ELEMENT, math.prod(op.leaving)
    return to.step(op.kind, (x,), elements, "inputs", parameters=_parameters(op), extra_bytes=statistics)


def _layer_norm(to: _Recorder, op: Operation, x: int) -> int:
    """Saves the mean and the inverse deviation of each position."""
    statistics = 2 * math.prod(op.leaving[:-1]) * to.batch * ELEMENT
    elements = math.prod(op.leaving)
    return to.step(op.kind, (x,), elements, "inputs", parameters=_parameters(op), extra_bytes=statistics)


def _position_embedding(to: _Recorder, op: Operation, x: int) -> int:
    elements = math.prod(op.leaving)
    return to.step(op.kind, (x,), elements, shares=op.in_place, passes_on=True, parameters=_parameters(op))


def _self_attention(to: _Recorder, op: Operation, x: int) -> int:
    """Heads are split and put together by copies. Backward of the scores scales each gradient into a new tensor."""
    (positions, features), heads = op.arriving, op.options["heads"]
    tensor, probabilities = positions * features, heads * positions**2
    parameters, scaled = (features**2 * ELEMENT, features * ELEMENT), tensor * to.batch * ELEMENT

    def linear(name: str, arriving: int) -> int:
        return to.step(name, (arriving,), tensor, "inputs", parameters=parameters)

    def split(projected: int) -> int:
        y = to.step("split", (projected,), tensor, passes_on=True)
        to.drop(projected)
        return y

    query, key, value = (split(linear(name, x)) for name in ("query", "key", "value"))
    scores = to.step("scores", (query, key), probabilities, "inputs", backward_bytes=scaled)
    chances = to.step("softmax", (scores,), probabilities, "output")
    mixed = to.step("mix", (chances, value), tensor, "inputs")
    to.drop(chances)
    together = to.step("merge", (mixed,), tensor, passes_on=True)
    y = linear("out", together)
    to.drop(together, query, key, value, scores, mixed)
    return y


RULES: dict[str, Rule] = {
    "conv": _layer("inputs"),
    "linear": _layer("inputs"),
    "max_pool": _layer("inputs", INDEX),
    "avg_pool": _layer("inputs"),
    "adaptive_avg_pool": _adaptive_avg_pool,
    "global_avg_pool": _layer(""),
    "relu": _in_place_or_not("output"),
    "selu": _in_place_or_not("inputs"),
    "dropout": _dropout,
    "flatten": _view,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "embedding": _layer("inputs"),
    "position_embedding": _position_embedding,
    "self_attention": _self_attention,
}
"""What each kind of layer records."""


def record(vertices: Sequence[Sequence[Entry]], batch: int, device: Device = "cpu") -> Tape:
    """The tape of a training step up to the loss, a cross-entropy of the last output.

    Raises
    ------
    UnsupportedPlan : a kind of layer without a rule.
    """
    to = _Recorder(batch, device)
    first = vertices[0][0]
    words = isinstance(first, Operation) and first.kind == "embedding"
    boundaries = [to.tensor(math.prod(first.arriving), INDEX if words else ELEMENT)]
    recorded: list[tuple[Step, ...]] = []
    for vertex in vertices:
        y = to.entries(vertex, boundaries[-1])
        if boundaries[-1] != boundaries[0]:
            to.drop(boundaries[-1])
        boundaries.append(y)
        recorded.append(tuple(to.steps))
        to.steps = []
    recorded.append(_loss(to, boundaries[-1]))
    return Tape(tuple(recorded), tuple(to.sizes), tuple(boundaries), batch * INDEX, to.buffer_bytes, device)


def _loss(to: _Recorder, y: int) -> tuple[Step, ...]:
    """Cross-entropy: the logarithm of a softmax, of which the targets' terms are averaged."""
    probabilities = to.tensor(to.sizes[y] // to.batch // ELEMENT)
    to.sizes.append(ELEMENT)
    loss = len(to.sizes) - 1
    return (
        Step("log_softmax", (y,), probabilities, saves=(probabilities,)),
        Step("nll_loss", (probabilities,), loss, saves=(probabilities,), extra_bytes=ELEMENT, drops=(probabilities, y)),
    )
