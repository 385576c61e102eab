"""A trace of PyTorch's profiler as a profile: medians over its training steps, or all that it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from scenarios.kineto import BACKWARD, STEP, Recording
from scenarios.kineto_step import Layer, Step, Work, class_of, operands, read_steps
from scenarios.quantities import shown
from sim.errors import Fault, ScenarioError, nearest

FLAGS = "profile(record_shapes=True, with_stack=True, profile_memory=True)"
_DTYPES = {"float": "fp32", "c10::BFloat16": "bf16"}


@dataclass(frozen=True)
class Profiled:
    """Medians over ``steps`` training steps, of which the first did not count where there were several.

    Sizes and names are those of the last step. ``nccl``: kernels that were left out.
    """

    layers: tuple[Layer, ...]
    input_bytes: int
    update_us: float
    optimizer: str
    dtype: str
    steps: int
    nccl: int


def profile(recording: Recording, opened: Collection[str] = ()) -> Profiled:
    """What a trace says of the layers of a model; modules of the classes ``opened`` count by their children.

    Raises
    ------
    ScenarioError : everything that the trace lacks, and how to record it.
    """
    _refuse(recording, _lacking(recording, opened))
    work = Work(recording)
    steps = list(read_steps(recording, work, {"Sequential", *opened}))
    counted = steps[1:] or steps
    _refuse(recording, _unclear(counted))
    *_, last = counted
    calls = zip(*(step.layers for step in counted), strict=True)
    updates_us = [work.within(step.thread, step.start_us, step.end_us) for step in recording.steps]
    assert last.input_bytes is not None
    return Profiled(
        layers=tuple(_median(each) for each in calls),
        input_bytes=last.input_bytes,
        update_us=median(updates_us[1:] or updates_us),
        optimizer=recording.steps[0].name.removeprefix(STEP).removesuffix(".step"),
        dtype=_DTYPES[next(iter(last.types))],
        steps=len(counted),
        nccl=work.nccl,
    )


def _median(steps: Sequence[Layer]) -> Layer:
    """One layer over its steps."""
    forward_us, backward_us = median(each.forward_us for each in steps), median(each.backward_us for each in steps)
    return replace(steps[-1], forward_us=forward_us, backward_us=backward_us)


def _refuse(recording: Recording, faults: Iterable[Fault]) -> None:
    if found := [fault if fault.path else replace(fault, file=recording.file) for fault in faults]:
        raise ScenarioError.of(found)


def _lacking(recording: Recording, opened: Collection[str]) -> Iterator[Fault]:
    """What was not recorded, and how to record it."""
    if not recording.modules:
        yield Fault("no calls of nn.Module in it", suggestion=f"with_stack=True: {FLAGS}")
    if not any(operands(op) for op in recording.ops):
        yield Fault("no operators with sizes of operands in it", suggestion=f"record_shapes=True: {FLAGS}")
    if not any(op.name.startswith(BACKWARD) for op in recording.ops):
        yield Fault("no backward pass in it", suggestion="profile whole training steps")
    if any(op.name == f"{BACKWARD}CheckpointFunctionBackward" for op in recording.ops):
        yield Fault("a checkpoint runs a backward pass of its own", suggestion="write use_reentrant=False")
    optimizers = sorted({step.name.removeprefix(STEP) for step in recording.steps})
    if len(optimizers) != 1:
        message = f"several optimizers in it: {', '.join(optimizers)}" if optimizers else "no optimizer.step() in it"
        yield Fault(message, suggestion=None if optimizers else "profile whole training steps")
    known = {class_of(module) for module in recording.modules}
    for name in (each for each in opened if each not in known):
        hint = nearest(name, known) or f"there are {', '.join(sorted(known)[:20])}"
        yield Fault(f"no module {shown(name)} in the trace", "--open", suggestion=hint)


def _unclear(steps: Sequence[Step]) -> Iterator[Fault]:
    """What the steps do not agree on, or do not tell."""
    if not steps:
        yield Fault("no backward pass follows a call of the model", suggestion="profile whole training steps")
        return
    last = steps[-1]
    if not all(step.apart for step in steps):
        yield Fault("a backward pass begins within a call of the model: it cannot be told from that of the step")
    if (updates := max(step.updates for step in steps)) > 1:
        yield Fault(
            f"{updates} calls of optimizer.step() follow one of the model: the time of an update cannot be told"
        )
    if any([layer.name for layer in step.layers] != [layer.name for layer in last.layers] for step in steps):
        yield Fault("the layers of one step are not those of another: it has no profile")
    if len(last.types) != 1 or not last.types <= _DTYPES.keys():
        yield Fault(
            f"parameters are {', '.join(sorted(last.types)) or 'none'}: expected all float or all c10::BFloat16"
        )
    if last.input_bytes is None:
        yield Fault("what the model is given cannot be told")
    for name in (layer.name for layer in last.layers if layer.output_bytes is None):
        yield Fault(f"what {name} passes on cannot be told: no gradient comes to it")
