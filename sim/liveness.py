"""What is alive when in a training step: the tape of a model played forward and backward, under a checkpoint plan.

Follows PyTorch: a storage lives as long as a variable, a recorded function or a gradient under way refers to it.
Backward takes the functions in reverse; each makes gradients, then lets go of what it saved and of the gradient it
received. A run that is checkpointed saves nothing but its input and is run again when backward reaches it: under
``non_reentrant`` until all that it saved is there again, under ``reentrant`` completely, with its output and the
gradient of its output alive until all of its backward is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sim.checkpointing.plan import Plan, Run, vertices
from sim.memory import history as category
from sim.memory.history import History
from sim.tape import ELEMENT, Step, Tape
from sim.training import MOMENTS, Optimizer

Mode = Literal["reentrant", "non_reentrant"]


def training_step(
    tape: Tape,
    plan: Plan | None = None,
    mode: Mode = "non_reentrant",
    optimizer: Optimizer = "sgd",
    names: Sequence[str] = (),
) -> History:
    """The life of every storage in a step of forward, loss, backward and update.

    ``plan`` covers every vertex but the loss; ``None``: nothing is checkpointed. Weights and optimizer state exist
    before, gradients do not. ``names`` of the vertices are used for operations and tags.
    """
    loss = len(tape.vertices)
    whole = (*(range(1, loss) if plan is None else plan), loss)
    heap = _Heap()
    for size in lasting_bytes(tape, optimizer):
        heap.born(*size)
    values = {tape.boundaries[0]: heap.born(tape.sizes[tape.boundaries[0]], category.INPUT)}
    player = _Player(tape, mode, heap, whole, names or [f"vertex {k}" for k in range(1, loss)])
    records, value = player.forward(whole, values, saving=True), len(tape.sizes) - 1
    one = heap.hold(player.receive(value))
    player.backward(records)
    heap.drop([values[value], one])
    _update(heap, tape, optimizer)
    return heap.history


def lasting_bytes(tape: Tape, optimizer: Optimizer) -> list[tuple[int, str]]:
    """What lives throughout a step, with its category: weights and buffers, optimizer state, targets.

    On a CPU each parameter's count of Adam's steps is a tensor too.
    """
    found = [(size, category.WEIGHTS) for size in (*tape.parameters, tape.buffer_bytes)]
    for size in tape.parameters:
        found += [(size, category.OPTIMIZER)] * MOMENTS[optimizer]
        if optimizer in ("adam", "adamw") and tape.device == "cpu":
            found.append((ELEMENT, category.OPTIMIZER))
    return [*found, (tape.target_bytes, category.INPUT)]


@dataclass(slots=True)
class _Recorded:
    """A function that autograd recorded, of a vertex, and the storages that it holds on to."""

    step: Step
    vertex: int
    storages: list[int]


@dataclass(slots=True)
class _Waiting:
    """A run to be run again, and the storage of its input; ``None``: that is in the memory of the host."""

    run: Run
    storage: int | None


class _Heap:
    """Storages with counted references."""

    def __init__(self) -> None:
        self.history = History()
        self._references: list[int] = []

    def born(self, size_bytes: int, kind: str, layer: str = "") -> int:
        """A new storage with one reference to it."""
        self._references.append(1)
        return self.history.born(size_bytes, kind, layer)

    def hold(self, storage: int) -> int:
        """One more reference."""
        self._references[storage] += 1
        return storage

    def drop(self, storages: Iterable[int]) -> None:
        """One reference less to each."""
        for storage in storages:
            self._references[storage] -= 1
            if not self._references[storage]:
                self.history.dies(storage)

    def is_shared(self, storage: int) -> bool:
        """Whether there is more than one reference."""
        return self._references[storage] > 1


class _Player:
    """Plays the steps of a tape; ``_gradients`` are those on their way to the function that takes them."""

    def __init__(self, tape: Tape, mode: Mode, heap: _Heap, plan: Plan, names: Sequence[str]) -> None:
        self._tape, self._mode, self._heap, self._names = tape, mode, heap, (*names, "loss")
        self._trained = tape.trained
        self._kept = {tape.boundaries[start] for start in _starts(plan)}
        self._gradients: dict[int, int] = {}

    def forward(
        self, items: Sequence[int | Run], values: dict[int, int], saving: bool, stop: bool = False
    ) -> list[_Recorded | _Waiting]:
        """Run vertices on ``values``, which are storages by tensor; what was recorded, if ``saving``.

        ``stop``: nothing is run behind the last thing that is saved.
        """
        records: list[_Recorded | _Waiting] = []
        end = _last_that_saves(self._tape, items) if stop else (len(items), 0)
        for index, item in enumerate(items):
            if isinstance(item, Run):
                records += self._run(item, values, saving, (index, 0) != end)
                continue
            for position, step in enumerate(self._tape.vertices[item - 1]):
                late = _saves_late(step) and (index, position) == end
                storages = self._step(step, item, values, run=(index, position) < end or late)
                if saving and step.writes in self._trained:
                    records.append(_Recorded(step, item, storages))
                else:
                    self._heap.drop(storages)
        return records

    def _run(self, item: Run, values: dict[int, int], saving: bool, run: bool) -> list[_Recorded | _Waiting]:
        """A run that is checkpointed: its input is kept, nothing else."""
        start = self._heap.hold(values[self._tape.boundaries[_first(item) - 1]])
        if run:
            self.forward(item.items, values, saving=False)
        if saving and not item.offload:
            return [_Waiting(item, start)]
        self._heap.drop([start])
        return [_Waiting(item, None)] if saving else []

    def _step(self, step: Step, vertex: int, values: dict[int, int], run: bool) -> list[int]:
        """Run one function, or come to it and stop; the storages that it saves, held."""
        if not run:
            return self._hold(values[tensor] for tensor in step.saves if tensor in values)
        heap, tape, name = self._heap, self._tape, self._names[vertex - 1]
        heap.history.operations.append(f"forward {name}: {step.name}")
        kind = category.CHECKPOINTS if step.writes in self._kept else category.ACTIVATIONS
        if step.shares:
            values[step.writes] = heap.hold(values[step.reads[0]])
        else:
            values[step.writes] = heap.born(tape.sizes[step.writes], kind, name)
        extra = [heap.born(step.extra_bytes, category.ACTIVATIONS, name)] if step.extra_bytes else []
        saved = extra + self._hold(values[tensor] for tensor in step.saves)
        heap.drop(values.pop(tensor) for tensor in step.drops)
        return saved

    def _hold(self, storages: Iterable[int]) -> list[int]:
        return [self._heap.hold(storage) for storage in dict.fromkeys(storages)]

    def receive(self, tensor: int) -> int:
        """The gradient of ``tensor`` is there; of the loss it is a one."""
        self._gradients[tensor] = self._heap.born(self._tape.sizes[tensor], category.OUTPUT_GRADIENTS)
        return self._gradients[tensor]

    def backward(self, records: Sequence[_Recorded | _Waiting]) -> None:
        """Take back what was recorded, the last first."""
        for record in reversed(records):
            if isinstance(record, _Recorded):
                self._step_back(record.step, self._names[record.vertex - 1], record.storages)
            else:
                self._run_again(record)

    def _run_again(self, waiting: _Waiting) -> None:
        """Recompute a run and take it back; the layers below see nothing but the gradient of its input."""
        heap, tape, items = self._heap, self._tape, waiting.run.items
        first, last = tape.boundaries[_first(waiting.run) - 1], tape.boundaries[max(vertices(items))]
        start = waiting.storage
        if start is None:
            start = heap.born(tape.sizes[first], category.CHECKPOINTS, "offloaded")
        values = {first: heap.hold(start)}
        held = [start]
        records = self.forward(items, values, saving=True, stop=self._mode == "non_reentrant")
        if self._mode == "reentrant":
            held += [values.pop(last), heap.hold(self._gradients[last])]
        heap.drop(values.values())
        self.backward(records)
        heap.drop(held)

    def _step_back(self, step: Step, name: str, saved: list[int]) -> None:
        heap, sizes = self._heap, self._tape.sizes
        heap.history.operations.append(f"backward {name}: {step.name}")
        received = self._gradients.pop(step.writes)
        wanted = [tensor for tensor in step.reads if tensor in self._trained]
        workspace = [heap.born(step.backward_bytes, category.WORKSPACE, name)] if step.backward_bytes else []
        passed_on = [
            heap.hold(received) if step.passes_on else heap.born(sizes[tensor], category.OUTPUT_GRADIENTS, name)
            for tensor in wanted
        ]
        for size in step.parameters:
            heap.born(size, category.GRADIENTS, name)
        heap.drop([*workspace, *saved, received])
        for tensor, gradient in zip(wanted, passed_on, strict=True):
            self._pass_on(tensor, gradient, name)

    def _pass_on(self, tensor: int, gradient: int, name: str) -> None:
        """A gradient arrives where others may have: added in place unless what is there is used elsewhere."""
        there = self._gradients.get(tensor)
        if there is None:
            self._gradients[tensor] = gradient
        elif self._heap.is_shared(there):
            self._gradients[tensor] = self._heap.born(self._tape.sizes[tensor], category.OUTPUT_GRADIENTS, name)
            self._heap.drop([there, gradient])
        else:
            self._heap.drop([gradient])


def _starts(plan: Iterable[int | Run]) -> list[int]:
    """The vertices before all runs, inner ones too."""
    runs = [item for item in plan if isinstance(item, Run)]
    return [start for run in runs for start in (_first(run) - 1, *_starts(run.items))]


def _first(run: Run) -> int:
    return next(vertices(run.items))


def _last_that_saves(tape: Tape, items: Sequence[int | Run]) -> tuple[int, int]:
    """Where the last thing is saved: the item, and in a vertex the step. The input of a run is saved before it runs."""
    for index in reversed(range(len(items))):
        item = items[index]
        if isinstance(item, Run):
            return index, 0
        for position, step in reversed([*enumerate(tape.vertices[item - 1])]):
            if step.saves or step.extra_bytes:
                return index, position
    return 0, 0


def _saves_late(step: Step) -> bool:
    """Whether it saves what it makes, not its inputs only, which are saved before it runs."""
    return bool(step.extra_bytes) or step.writes in step.saves


def _update(heap: _Heap, tape: Tape, optimizer: Optimizer) -> None:
    """Adam's denominators: of all parameters at once on a GPU, of one after the other on a CPU, each made in two steps.

    There the one before is let go of when the next is ready. Other optimizers work in place.
    """
    heap.history.operations.append("update")
    if optimizer not in ("adam", "adamw"):
        return
    if tape.device == "cuda":
        heap.drop([heap.born(size, category.WORKSPACE) for size in tape.parameters])
        return
    before: list[int] = []
    for size in tape.parameters:
        root, denominator = (heap.born(size, category.WORKSPACE) for _ in range(2))
        heap.drop([root, *before])
        before = [denominator]
    heap.drop(before)


def update_bytes(tape: Tape, optimizer: Optimizer) -> int:
    """The most that is alive in the update beside weights, state and input: gradients and what the optimizer needs."""
    heap = _Heap()
    for size in tape.parameters:
        heap.born(size, category.GRADIENTS)
    _update(heap, tape, optimizer)
    return heap.history.peak().bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """What one vertex holds, in bytes beyond its input.

    ``kept`` is what it saves beside its input and its output, either of which it ``saves`` or not. Most alive at once:
    ``through`` while it runs and saves nothing, ``forward`` while it runs, ``stopped`` while it runs only to the last
    thing that it saves, ``backward`` from when the gradient of its output is there, ``holding`` the same if the output
    and its gradient live on. ``gradients`` of its parameters stay; they are in ``backward``.
    """

    output: float
    kept: float = 0
    saves_input: bool = True
    saves_output: bool = False
    through: float = 0
    forward: float = 0
    stopped: float = 0
    backward: float = 0
    holding: float = 0
    gradients: float = 0


def facts(tape: Tape) -> list[Facts]:
    """What each vertex holds, the loss among them, found by playing it alone."""
    return [_alone(tape, vertex) for vertex in range(1, len(tape.vertices) + 1)]


def _alone(tape: Tape, vertex: int) -> Facts:
    last = tape.vertices[vertex - 1][-1].writes
    through, stopped = (_play_alone(tape, vertex, saving, saving)[0].history.peak().bytes for saving in (False, True))
    heap, _, values, _, start = _play_alone(tape, vertex, saving=True, stop=False)
    saves_output, forward = heap.is_shared(values[last]), heap.history.peak().bytes
    heap.drop(values.values())
    return Facts(
        output=tape.sizes[last],
        kept=heap.history.live_bytes - tape.sizes[last] * saves_output,
        saves_input=heap.is_shared(start),
        saves_output=saves_output,
        through=through,
        forward=forward,
        stopped=stopped,
        backward=_backward_alone(tape, vertex, holding=False),
        holding=_backward_alone(tape, vertex, holding=True),
        gradients=sum(size for step in tape.vertices[vertex - 1] for size in step.parameters),
    )


def _backward_alone(tape: Tape, vertex: int, holding: bool) -> int:
    heap, player, values, records, _ = _play_alone(tape, vertex, saving=True, stop=False)
    output = values.pop(last := tape.vertices[vertex - 1][-1].writes)
    heap.drop([*values.values(), *([] if holding else [output])])
    since = len(heap.history.changes)
    received = player.receive(last)
    if holding:
        heap.hold(received)
    player.backward(records)
    return heap.history.peak(since=since).bytes


def _play_alone(
    tape: Tape, vertex: int, saving: bool, stop: bool
) -> tuple[_Heap, _Player, dict[int, int], list[_Recorded | _Waiting], int]:
    """A vertex run forward on an input of no bytes, to which one reference is kept."""
    heap = _Heap()
    start = heap.born(0, category.INPUT)
    player = _Player(tape, "non_reentrant", heap, (), [""] * len(tape.vertices))
    values = {tape.boundaries[vertex - 1]: heap.hold(start)}
    records = player.forward([vertex], values, saving, stop)
    return heap, player, values, records, start
