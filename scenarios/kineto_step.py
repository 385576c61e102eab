"""Training steps in a trace of PyTorch's profiler: layers with what they took, passed on, kept and hold.

A layer is a module that the model calls, in the order of the calls; of an ``nn.Sequential``, and of what is opened, its
children are. What runs between two layers belongs to the one before, the loss to the last. On a CPU a pass takes what
its outermost operators take, without the Python between them; on a GPU, what the kernels take that they launch, without
NCCL's. A backward node belongs to the forward operator of its sequence number. A node's input is the gradient of what
its operator made, so it tells the size; what ``AccumulateGrad`` is given tells the size of a parameter.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, prod
from typing import NamedTuple

from scenarios.kineto import BACKWARD, MODULE, Recording, Span, Thread

_ELEMENT_BYTES = {
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}
_WEIGHT_FIRST = ("aten::embedding", "aten::embedding_bag")
"""Operators whose first operand is no activation."""
_LARGEST_BYTES = 1 << 50
_MOST_LEVELS = 64


class Operand(NamedTuple):
    """A tensor that an operator was given."""

    shape: tuple[int, ...]
    type: str

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * _ELEMENT_BYTES[self.type]


@dataclass
class Layer:
    """One layer in one step; times in microseconds."""

    name: str
    forward_us: float = 0.0
    backward_us: float = 0.0
    output_bytes: int | None = None
    saved_bytes: int | None = None
    parameters: list[Operand] = field(default_factory=list)

    @property
    def parameter_bytes(self) -> int:
        """Size of what got a gradient."""
        return sum(parameter.size_bytes for parameter in self.parameters)


@dataclass(frozen=True)
class Step:
    """The layers of one training step, and the size of what the model was given.

    ``apart``: the backward pass begins when the call of the model has ended. ``updates``: calls of ``Optimizer.step``
    before the model is called again.
    """

    layers: tuple[Layer, ...]
    input_bytes: int | None
    apart: bool
    updates: int

    @property
    def types(self) -> set[str]:
        """Types of the parameters."""
        return {parameter.type for layer in self.layers for parameter in layer.parameters}


def class_of(module: Span) -> str:
    """The class of a module, which its name ends with a number."""
    return module.name.removeprefix(MODULE).rpartition("_")[0]


class Work:
    """Microseconds of work begun within a time: of outermost operators, or of kernels by the time of their launch."""

    def __init__(self, recording: Recording) -> None:
        self.outermost = _outermost(recording.ops)
        self.on_gpu = bool(recording.kernels)
        kernels = [kernel for kernel in recording.kernels if not kernel.name.startswith("nccl")]
        self.nccl = len(recording.kernels) - len(kernels)
        self._done = {
            thread: ([span.start_us for span in each], [0.0, *accumulate(span.end_us - span.start_us for span in each)])
            for thread, each in (_by_thread(kernels) if self.on_gpu else self.outermost).items()
        }

    def within(self, thread: Thread, start_us: float, end_us: float) -> float:
        """What a thread began from ``start_us`` to before ``end_us``."""
        starts, done_us = self._done.get(thread, ([], [0.0]))
        return done_us[bisect_left(starts, end_us)] - done_us[bisect_left(starts, start_us)]


def _by_thread(spans: Iterable[Span]) -> dict[Thread, list[Span]]:
    found: dict[Thread, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.thread].append(span)
    return found


def _outermost(spans: Iterable[Span]) -> dict[Thread, list[Span]]:
    """By thread, what no other of ``spans``, which are in order, surrounds."""
    found: dict[Thread, list[Span]] = defaultdict(list)
    for span in spans:
        known = found[span.thread]
        if not known or span.start_us >= known[-1].end_us:
            known.append(span)
    return found


def _among(spans: Sequence[Span], start_us: float, end_us: float) -> Sequence[Span]:
    """Those of ``spans``, which are in order, that start from ``start_us`` to before ``end_us``."""
    first, last = (bisect_left(spans, at_us, key=lambda span: span.start_us) for at_us in (start_us, end_us))
    return spans[first:last]


def operands(op: Span) -> list[Operand]:
    """The tensors among what an operator was given, of at least one dimension."""
    shapes, types = op.arguments.get("Input Dims"), op.arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    return [
        Operand(tuple(shape), kind)
        for shape, kind in zip(shapes, types, strict=False)
        if isinstance(shape, list) and shape and isinstance(kind, str) and kind in _ELEMENT_BYTES
        if len(shape) <= _MOST_LEVELS
        and all(type(size) is int and 0 <= size <= _LARGEST_BYTES for size in shape)
        and prod(shape) * _ELEMENT_BYTES[kind] <= _LARGEST_BYTES
    ]


def read_steps(recording: Recording, work: Work, opened: Collection[str]) -> Iterator[Step]:
    """Each call of the model that a backward pass follows, until the next call."""
    calls = _calls(recording.modules)
    ops, modules = _by_thread(recording.ops), _by_thread(recording.modules)
    nodes = sorted(
        (op for each in work.outermost.values() for op in each if op.name.startswith(BACKWARD)),
        key=lambda node: node.start_us,
    )
    for call, end_us in zip(calls, [*(call.start_us for call in calls[1:]), inf], strict=True):
        if own := _among(nodes, call.start_us, end_us):
            spans = _layers_of(call, modules[call.thread], opened)
            updates = len(_among(recording.steps, call.start_us, end_us))
            yield _StepReader(recording, work, ops, call, spans, own).step(updates)


def _calls(modules: Sequence[Span]) -> list[Span]:
    """The calls of the model: of the outermost modules, the one that calls most others, or takes longest."""
    threads = _by_thread(modules)
    outermost = [call for each in _outermost(modules).values() for call in each]

    def weight(call: Span) -> tuple[int, float]:
        return len(_among(threads[call.thread], call.start_us, call.end_us)), call.end_us - call.start_us

    model = max(outermost, key=weight).name
    return sorted((call for call in outermost if call.name == model), key=lambda call: call.start_us)


def _layers_of(call: Span, modules: Sequence[Span], opened: Collection[str]) -> list[Span]:
    """The modules that count as layers; a model that only wraps another is opened too."""

    def called(module: Span) -> list[Span]:
        inside = _among(modules, module.start_us, module.end_us)
        return _outermost(each for each in inside if each is not module)[module.thread]

    def parts(module: Span, alone: bool) -> list[Span]:
        return (called(module) if alone or class_of(module) in opened else []) or [module]

    found = [call]
    for _ in range(_MOST_LEVELS):
        found = [part for module in found for part in parts(module, len(found) == 1)]
    return found


class _StepReader:
    """One training step: the call of the model, the spans of its layers, and the nodes of its backward pass."""

    def __init__(
        self,
        recording: Recording,
        work: Work,
        ops: dict[Thread, list[Span]],
        call: Span,
        spans: Sequence[Span],
        nodes: Sequence[Span],
    ) -> None:
        self.recording, self.work, self.ops, self.call, self.nodes = recording, work, ops, call, nodes
        self.starts_us = [call.start_us, *(span.start_us for span in spans[1:])]
        self.ends_us = [*self.starts_us[1:], call.end_us]
        self.layers = [Layer(name) for name in _names(spans)]

    def step(self, updates: int) -> Step:
        self.forward()
        self.backward()
        self.saved()
        inputs = [self.input_of(position) for position in range(len(self.layers))]
        for position, layer in enumerate(self.layers):
            if layer.output_bytes is None:  # no gradient comes to it: what the next layer reads
                layer.output_bytes = next((each for each in inputs[position + 1 :] if each is not None), None)
        given = next((each for each in inputs if each is not None), None)
        return Step(tuple(self.layers), given, self.nodes[0].start_us >= self.call.end_us, updates)

    def forward(self) -> None:
        ends_us = [*self.ends_us[:-1], self.nodes[0].start_us]  # the loss counts to the last layer
        for layer, start_us, end_us in zip(self.layers, self.starts_us, ends_us, strict=True):
            layer.forward_us = self.work.within(self.call.thread, start_us, end_us)

    def backward(self) -> None:
        """Nodes by sequence number; what has none adds to a gradient, and follows the node that made it."""
        made_us = self.made_us()
        owners, last_us = dict[Thread, Layer | None](), dict[str, float]()
        for node in self.nodes:
            number = _number_of(node)
            at_us = made_us.get(number) if number is not None else None
            if number is not None:
                owners[node.thread] = None if at_us is None else self.layers[self.position(at_us)]
            layer = owners.get(node.thread)
            if layer is None:  # of something that ran before the model
                continue
            layer.backward_us += self.work.within(node.thread, node.start_us, node.end_us)
            inside = _among(self.ops[node.thread], node.start_us, node.end_us)
            given = next((operands(op) for op in inside if op.name == node.name.removeprefix(BACKWARD)), [])
            if at_us is None:
                layer.parameters += given
            elif given and self.during(at_us) and at_us >= last_us.get(layer.name, -inf):
                last_us[layer.name], layer.output_bytes = at_us, sum(operand.size_bytes for operand in given)

    def made_us(self) -> dict[int, float]:
        """When the operator that made a node began: the last one that was given its sequence number."""
        forward = _among(self.ops[self.call.thread], self.call.start_us, self.nodes[0].start_us)
        return {number: op.start_us for op in forward if (number := _number_of(op)) is not None}

    def during(self, at_us: float) -> bool:
        return self.call.start_us <= at_us < self.call.end_us

    def position(self, at_us: float) -> int:
        """The layer that runs at a time."""
        return bisect_right(self.starts_us, at_us) - 1

    def saved(self) -> None:
        """What was allocated in the forward pass and stays. A layer that frees what came to it takes it from there."""
        if not self.recording.memory:
            return
        kept = [0] * len(self.layers)
        for each in self.recording.memory:
            if (each.thread, each.on_gpu) == (self.call.thread, self.work.on_gpu) and self.during(each.at_us):
                kept[self.position(each.at_us)] += each.size_bytes
        for position in range(len(kept) - 1, 0, -1):
            kept[position - 1] += min(kept[position], 0)
        for layer, size in zip(self.layers, kept, strict=True):
            layer.saved_bytes = max(size, 0)

    def input_of(self, position: int) -> int | None:
        """The first tensor that a layer reads and that is no parameter of it."""
        for op in _among(self.ops[self.call.thread], self.starts_us[position], self.ends_us[position]):
            own = Counter((parameter.shape, parameter.type) for parameter in self.layers[position].parameters)
            for operand in operands(op)[op.name in _WEIGHT_FIRST :]:
                if own[operand] <= 0:
                    return operand.size_bytes
                own[operand] -= 1
        return None


def _number_of(op: Span) -> int | None:
    number = op.arguments.get("Sequence number")
    return number if isinstance(number, int) and number >= 0 else None


def _names(spans: Iterable[Span]) -> Iterator[str]:
    """PyTorch's name of each module, and which call of it where there are several."""
    seen: Counter[str] = Counter()
    for span in spans:
        name = re.sub(r"[^\w.]", "_", span.name.removeprefix(MODULE))[:80] or "module"
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"
